"""What a call does whose lock is taken, or whose outcome is known already."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any, NoReturn

from celery.app.task import Context
from celery.exceptions import Ignore, Retry

from celery_singlebeat.errors import LockConflict, StoreUnavailable
from celery_singlebeat.events import CallReplaced, LockConflicted, RetryScheduled
from celery_singlebeat.moments import iso
from celery_singlebeat.policy.dead_letters import WAITING
from celery_singlebeat.store.lock_ports import Caller, Holder, Taken
from celery_singlebeat.task.overlap import tell_end
from celery_singlebeat.task.rules import TaskRules
from celery_singlebeat.task.sending import send_again
from celery_singlebeat.task.workplace import Workplace

_KINDS = ("conflict", "duplicate")
#: A copy never comes back sooner than this, in seconds.
_SHORTEST_STANDBY = 0.5

Skipped = dict[str, Any]


def was_skipped(result: object) -> bool:
    """Whether this result says that its call did not run, because of its lock."""
    return isinstance(result, dict) and result.get("skipped") in _KINDS and "key" in result


def skipped(kind: str, key: str, holder: Holder | None = None) -> Skipped:
    """The result of a call that did not run."""
    return {"skipped": kind, "key": key, "holder": shown(holder) if holder else {}}


def shown(holder: Holder) -> dict[str, object]:
    """Who holds a lock, for results, errors and events."""
    return {
        "task_id": holder.task_id,
        "host": holder.host,
        "pid": holder.pid,
        "since": iso(holder.since),
    }


def give_way(
    task: Any,
    request: Context,
    rules: TaskRules,
    place: Workplace,
    *,
    caller: Caller,
    key: str,
    taken: Taken,
) -> Skipped:
    """Do what the task says when another call holds its lock; returns a result or raises."""
    holder = shown(taken.holder)
    policy = "duplicate" if taken.same_call else rules.on_conflict
    place.tell(
        LockConflicted(task=caller.task, task_id=caller.task_id, key=key, holder=holder, policy=policy)
    )
    if taken.same_call and not place.eager:
        stand_back(task, request, rules, place, taken)
    if policy in ("skip", "duplicate"):
        return skipped("conflict", key, taken.holder)
    if policy == "fail" or place.eager:
        # An eager call that waits for a lock which its own caller holds would wait for ever.
        raise LockConflict(key, holder)
    options: dict[str, Any] = {}
    since = _waiting_since(request)
    if policy == "retry":
        if rules.conflict_timeout is not None and time.time() - since >= rules.conflict_timeout:
            raise LockConflict(key, holder)
    elif not taken.follows:
        return skipped("conflict", key, taken.holder)
    else:
        # It may stand for others that were skipped, so it does not expire any more.
        options["expires"] = None
        if policy == "replace" and taken.holder.pid:
            _terminate(task, taken.holder)
    send_again(task, request, rules, place, wait=rules.conflict_wait, headers={WAITING: since}, **options)
    raise _later(LockConflict(key, holder), rules.conflict_wait)


def _terminate(task: Any, holder: Holder) -> None:
    """Ask the workers to end a call. Whom this does not reach learns it from its lock."""
    with contextlib.suppress(Exception):  # the broker is away, or its transport has no broadcast
        task.app.control.revoke(holder.task_id, terminate=True)


def replaced(task: Any, request: Context, place: Workplace, *, caller: Caller, key: str) -> Ignore:
    """End a call in whose place another one runs: as revoked, whatever its body said."""
    place.tell(CallReplaced(task=caller.task, task_id=caller.task_id, key=key))
    tell_end(task.app, request.headers or {}, caller.task_id)
    task.backend.mark_as_revoked(
        caller.task_id, "replaced", request=request, store_result=not request.ignore_result
    )
    return Ignore("replaced")


def stand_back(task: Any, request: Context, rules: TaskRules, place: Workplace, taken: Taken) -> NoReturn:
    """Let a copy of a running call come back when its holder would have expired, were it dead.

    The state of the call is the other copy's to write, so this one is ignored, not retried; and it
    has started in time already, so it does not expire any more.
    """
    wait = max(_SHORTEST_STANDBY, taken.remaining) + 0.1
    send_again(task, request, rules, place, wait=wait, expires=None)
    raise Ignore


def without_answer(
    task: Any,
    request: Context,
    rules: TaskRules,
    place: Workplace,
    *,
    caller: Caller,
    error: StoreUnavailable,
) -> None:
    """Do what the task says when the store cannot be asked; returns if the body shall run all the same."""
    if rules.on_lock_error == "run":
        return
    if rules.on_lock_error == "fail":
        raise error
    wait = rules.conflict_countdown
    # The store of waiting calls may be the very Redis that is away.
    send_again(task, request, replace(rules, retry_store="eta"), place, wait=wait)
    place.tell(
        RetryScheduled(
            task=caller.task,
            task_id=caller.task_id,
            attempt=caller.attempt + 1,
            wait=wait,
            exception=str(error),
        )
    )
    raise _later(error, wait)


def _later(error: Exception, wait: float) -> Retry:
    when: Any = wait  # the type stubs take a float for no number
    return Retry(exc=error, when=when)


def _waiting_since(request: Context) -> float:
    value = (request.headers or {}).get(WAITING)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else time.time()
