"""`Locks`: who holds what, and an operator's way to take it away."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_singlebeat.events import LockBroken
from celery_singlebeat.moments import iso
from celery_singlebeat.store.lock_ports import LockRecord
from celery_singlebeat.wiring import wire


class Locks:
    """The task locks of an app. Every method raises `StoreUnavailable` when Redis does not answer."""

    def __init__(self, app: Celery) -> None:
        self._wiring = wire(app)

    def list(self) -> list[dict[str, Any]]:
        """Every lock that is held now: key, task, holder, since, ttl (seconds) and fence.

        A lock that is kept for the next attempt of a call is listed with that call as its holder. Of a lock
        that only its backend knows, since the store lost the record, holder and key are known in part.
        """
        stores = self._wiring.lock_stores()
        found = {
            record.key: record
            for name, store in stores.items()
            for record in store.locks()
            if record.backend == name or record.backend not in stores
        }
        return [_shown(found[key]) for key in sorted(found)]

    def release(self, key: str) -> dict[str, Any] | None:
        """Take a lock away from whoever holds it, and return it; None if nobody does.

        The holder is not stopped: it learns of the loss at its next renewal, by `self.lock.held`.
        """
        found = None
        for store in self._wiring.lock_stores().values():
            record = store.break_lock(key)
            found = found or record
        if found is None:
            return None
        holder = found.holder
        self._wiring.tell(LockBroken(task=holder.task, task_id=holder.task_id, key=key, fence=found.fence))
        return _shown(found)


def _shown(record: LockRecord) -> dict[str, Any]:
    holder = record.holder
    return {
        "key": record.key,
        "task": holder.task,
        "holder": {"task_id": holder.task_id, "host": holder.host, "pid": holder.pid},
        "since": iso(holder.since),
        "ttl": record.ttl,
        "fence": record.fence,
    }
