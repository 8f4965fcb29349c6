"""What a worker does beside running tasks: check the settings at its start, and note what went on; move
calls whose wait is over, and bury what Celery would drop.
"""

from __future__ import annotations

import weakref
from typing import Any

from celery import Celery, signals

from celery_singlebeat.errors import SettingsError, StoreUnavailable
from celery_singlebeat.logs import logger
from celery_singlebeat.mover import Mover
from celery_singlebeat.store.lock_ports import Outcome
from celery_singlebeat.store.waiting_ports import Rank
from celery_singlebeat.task.doubts import doubts_of
from celery_singlebeat.task.heartbeat import heartbeat
from celery_singlebeat.task.rejects import Rejects
from celery_singlebeat.wiring import wire

_FIRST_TRY_AGAIN = 1.0
_LAST_TRY = 60.0

#: Apps with at least one task of ours.
_apps: weakref.WeakSet[Celery] = weakref.WeakSet()
#: What moves for the worker of an app in this process.
_movers: dict[Celery | None, Mover] = {}


def expect(app: Celery) -> None:
    """Remember that this app has a task of ours, so that its workers do what this module says."""
    _apps.add(app)
    app.steps["consumer"].add(Rejects)


def check_settings(app: Celery) -> None:
    """Read the app's settings; a problem ends the process with its one line."""
    try:
        wiring = wire(app)
        if not wiring.in_memory:
            _ = wiring.address
        for task in app.tasks.values():
            if isinstance(backend := getattr(task, "lock_backend", None), str):
                wiring.lock_store(backend, f"task {task.name}: lock_backend={backend!r}")
        wiring.lock_store(wiring.settings.lock_backend)
    except SettingsError as error:
        raise SystemExit(f"Error: {error}") from None


@signals.worker_init.connect(weak=False, dispatch_uid="singlebeat-settings")
def _on_worker_init(sender: Any = None, **_: Any) -> None:
    app = getattr(sender, "app", None)
    if app is None:
        return
    app.finalize()
    if app in _apps:
        check_settings(app)


@signals.worker_ready.connect(weak=False, dispatch_uid="singlebeat-mover")
def _on_worker_ready(sender: Any = None, **_: Any) -> None:
    app: Any = getattr(sender, "app", None)
    if app not in _apps:
        return
    for doubt in doubts_of(app):
        logger.warning("%s", doubt)
    mover = _movers[app] = Mover(wire(app), Rank.WORKER)
    mover.start()


@signals.worker_shutdown.connect(weak=False, dispatch_uid="singlebeat-mover")
def _on_worker_shutdown(sender: Any = None, **_: Any) -> None:
    mover = _movers.pop(getattr(sender, "app", None), None)
    if mover is not None:
        mover.stop()


@signals.task_postrun.connect(weak=False, dispatch_uid="singlebeat-continued")
def _on_task_postrun(task: Any = None, state: Any = None, **_: Any) -> None:
    """Callbacks, chain and chord of a successful call are sent on by now: no copy has to do it again."""
    request = getattr(task, "request", None)
    execution = getattr(request, "singlebeat", None)
    if execution is None or not execution.leads_on or execution.place.eager:
        return
    if execution.outcome is not Outcome.SUCCESS or state != "SUCCESS" or not execution.rules.dedupe_ttl:
        return
    locks, task_id = execution.place.locks, execution.caller.task_id
    try:
        locks.continued(task_id)
    except StoreUnavailable:
        heartbeat().owe(lambda: locks.continued(task_id), every=_FIRST_TRY_AGAIN, within=_LAST_TRY)
