"""Writes down what happens, so that the demo can count it afterwards. An app of yours needs none of this.

Each row is a JSON object in one Redis list. Every row has `kind`, `moment` (Unix time, seconds) and `pid`:

* `run`: a task's body began. `message`: a worker received a call. `outcome`: how an execution ended.
* `dispatch`: a beat put a slot into the queue. `lead`, `stand_by`: a beat's role changed.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

import redis
from celery import signals as celery_signals

from celery_singlebeat import SingleBeatTask, signals, was_skipped
from example_project.app import app

#: The list, and how many rows it keeps.
KEY, LONGEST = "example:ledger", 20_000


def note(kind: str, *, client: redis.Redis | None = None, **facts: Any) -> None:
    """Add one row."""
    row = json.dumps({"kind": kind, "moment": time.time(), "pid": os.getpid(), **facts})
    client = client or _client()
    client.rpush(KEY, row)
    client.ltrim(KEY, -LONGEST, -1)


def note_run(task: SingleBeatTask) -> None:
    """A body began: which call it is, which slot it is for, and who runs it."""
    slot = task.slot.isoformat() if task.slot else None
    request = task.request
    note(
        "run",
        id=request.id,
        task=task.name,
        entry=task.entry,
        slot=slot,
        worker=request.hostname,
        retries=request.retries,
    )


def connect() -> redis.Redis:
    """A new client of the app's Redis."""
    return redis.Redis.from_url(app.conf.broker_url, socket_timeout=5.0, socket_connect_timeout=5.0)


@functools.lru_cache(maxsize=1)
def _client_of(_pid: int) -> redis.Redis:
    return connect()


def _client() -> redis.Redis:
    """One client for each process: a worker forks."""
    return _client_of(os.getpid())


# -- in workers -------------------------------------------------------------------------------------------


@celery_signals.task_received.connect
def _on_message(request: Any = None, **_: Any) -> None:
    headers = request.message.headers
    note(
        "message",
        id=request.id,
        task=request.name,
        entry=headers.get("singlebeat_entry"),
        slot=headers.get("singlebeat_slot"),
        retries=headers.get("retries") or 0,
        redelivered=bool(request.delivery_info.get("redelivered")),
    )


@celery_signals.task_postrun.connect
def _on_outcome(
    task_id: str = "", task: Any = None, state: str | None = None, retval: Any = None, **_: Any
) -> None:
    if task.app.main != app.main:
        return  # Celery tells of the tasks of every app in the process
    outcome = retval["skipped"] if was_skipped(retval) else str(state or "none").lower()
    # The wait before the next attempt is in the exception that Celery reports for it.
    wait = getattr(retval, "when", None) if outcome == "retry" else None
    note(
        "outcome",
        id=task_id,
        task=task.name,
        worker=task.request.hostname,
        retries=task.request.retries,
        outcome=outcome,
        wait=wait if isinstance(wait, (int, float)) else None,
    )


# -- in beats ---------------------------------------------------------------------------------------------


@signals.slot_dispatched.connect(sender=app)
def _on_dispatch(entry: str = "", slot: Any = None, epoch: int = 0, lateness: float = 0.0, **_: Any) -> None:
    note("dispatch", entry=entry, slot=slot.isoformat(), epoch=epoch, lateness=lateness)


@signals.leadership_acquired.connect(sender=app)
def _on_lead(epoch: int = 0, reason: str = "", **_: Any) -> None:
    _note_role("lead", epoch, reason)


@signals.leadership_lost.connect(sender=app)
def _on_stand_by(epoch: int = 0, reason: str = "", **_: Any) -> None:
    _note_role("stand_by", epoch, reason)


def _note_role(kind: str, epoch: int, reason: str) -> None:
    # Over a connection of its own: when beat is terminated, this runs in its signal handler, which may
    # have interrupted the very client that is shared otherwise.
    with connect() as client:
        note(kind, client=client, epoch=epoch, reason=reason)
