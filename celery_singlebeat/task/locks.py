"""`Locks`: who holds what, and an operator's way to take it away."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_singlebeat.moments import iso
from celery_singlebeat.store.lock_ports import LockRecord
from celery_singlebeat.wiring import wire


class Locks:
    """The task locks of an app. Every method raises `StoreUnavailable` when Redis does not answer."""

    def __init__(self, app: Celery) -> None:
        self._store = wire(app).lock_store()

    def list(self) -> list[dict[str, Any]]:
        """Every lock that is held now: key, task, holder, since, ttl (seconds) and fence.

        A lock that is kept for the next attempt of a call is listed with that call as its holder.
        """
        return [_shown(record) for record in self._store.locks()]

    def release(self, key: str) -> dict[str, Any] | None:
        """Take a lock away from whoever holds it, and return it; None if nobody does.

        The holder is not stopped: it learns of the loss at its next renewal, by `self.lock.held`.
        """
        record = self._store.break_lock(key)
        return None if record is None else _shown(record)


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
