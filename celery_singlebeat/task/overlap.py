"""Telling the scheduler that a run has ended, for entries that must not overlap themselves.

The child that ran the body tells of every end that it sees; the worker's parent tells of the others: a
failure for good, a revocation, an expiry, a death.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore, Reject

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.lock_ports import Outcome
from celery_singlebeat.store.ports import RUN_FORGOTTEN
from celery_singlebeat.task.heartbeat import heartbeat
from celery_singlebeat.wiring import wire

#: Header of a call whose entry must not overlap itself.
OVERLAP = "singlebeat_overlap"


@contextmanager
def run_of(request: Context, app: Celery) -> Iterator[None]:
    """Tell of the end if the execution inside was the call's last."""
    try:
        yield
    except (Ignore, Reject) as verdict:
        execution = getattr(request, "singlebeat", None)
        is_own = execution is not None and execution.outcome is Outcome.OTHER  # not that of a copy
        if is_own and not getattr(verdict, "requeue", False):
            tell_end(app, request.headers or {}, str(request.id))
        raise
    tell_end(app, request.headers or {}, str(request.id))


def tell_end(app: Celery, headers: Mapping[str, Any], task_id: str) -> None:
    """The call has ended for good; without an answer of the store it is told again, later."""
    entry = headers.get("singlebeat_entry")
    if not headers.get(OVERLAP) or not isinstance(entry, str):
        return
    schedule = wire(app).schedule_store()

    def finish() -> bool:
        return schedule.finish(entry, task_id)

    try:
        finish()
    except StoreUnavailable:
        heartbeat().owe(finish, every=1.0, within=RUN_FORGOTTEN)
