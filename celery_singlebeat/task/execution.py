"""One execution: the lock is taken, the body runs, the outcome is noted, the lock is given back."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry

from celery_singlebeat.errors import LockLost, PoisonedCall, StoreUnavailable
from celery_singlebeat.events import LockAcquired
from celery_singlebeat.policy.dead_letters import REPLAYS, read_replays
from celery_singlebeat.store.lock_ports import (
    Answer,
    Caller,
    Finished,
    LockStore,
    Outcome,
    Poison,
    Released,
    Replaced,
    Stale,
    Taken,
    Turn,
)
from celery_singlebeat.task import conflicts
from celery_singlebeat.task.heartbeat import heartbeat, report_loss
from celery_singlebeat.task.holding import TaskLock
from celery_singlebeat.task.rules import TaskRules
from celery_singlebeat.task.workplace import Workplace, host

#: A lock of an eager call has no other process that could wait for it.
_EAGER_TTL = 1e9
_EAGER_POISON_LIMIT = 2**31
#: A success is kept for so many times `dedupe_ttl`: Redis's clock may be set forward by as much once.
CLOCK_STEPS = 2

Body = Callable[..., Any]
T = TypeVar("T")


@dataclass(slots=True)
class Execution:
    """What is known of a call while it runs. It lives on the request (T5)."""

    rules: TaskRules
    place: Workplace
    caller: Caller
    lock: TaskLock | None = None
    #: Seconds until the next attempt, once one was sent.
    retried_in: float | None = None
    #: Whether the next attempt wants the same lock.
    keeps_key: bool = True
    #: What `self.retry(max_retries=...)` said in this execution.
    max_retries: int | None = field(default=-1)
    #: Whether callbacks, a chain or a chord follow this call.
    leads_on: bool = False
    outcome: Outcome = Outcome.NONE
    #: Whether its body has ended. Another run of the body in the same delivery asks for the lock anew.
    has_ended: bool = False

    @property
    def locks(self) -> LockStore:
        """The store of this task's locks."""
        return self.place.locks_of(self.rules.lock_backend)


def perform(
    task: Any,
    request: Context,
    *,
    rules: TaskRules,
    place: Workplace,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the body of one delivery under its lock; returns its result, or the result of a skipped call."""
    caller = Caller(
        task=task.name,
        task_id=str(request.id),
        host=host(),
        pid=os.getpid(),
        attempt=request.retries or 0,
        replays=read_replays((request.headers or {}).get(REPLAYS)),
    )
    execution = Execution(rules, place, caller, leads_on=_leads_on(request))
    key = rules.key.key(args, kwargs) if rules.exclusive else rules.key.call_key(caller.task_id)
    token = secrets.token_hex(16)
    ttl = _EAGER_TTL if place.eager else rules.lock_ttl
    asked_at = place.clock.monotonic()
    try:
        answer = _twice(lambda: _acquire(execution, key, token, ttl))
    except StoreUnavailable as error:
        if rules.on_lock_error != "run":
            _undo(execution, key, token, ttl)
        conflicts.without_answer(task, request, rules, place, caller=caller, error=error)
        with _under_way(request, execution):
            return _run(task, execution, body, args, kwargs)
    if isinstance(answer, Taken):
        return conflicts.give_way(task, request, rules, place, caller=caller, key=key, taken=answer)
    if isinstance(answer, Finished):
        if answer.continued:
            _disarm(request)
        return conflicts.skipped("duplicate", key)
    if isinstance(answer, Stale):
        # A later attempt, or the dead letter, speaks for this call: its state is theirs.
        raise Ignore
    if isinstance(answer, Replaced):
        raise conflicts.replaced(task, request, place, caller=caller, key=key)
    if isinstance(answer, Poison):
        raise PoisonedCall(caller.task_id, answer.deliveries)
    execution.lock = TaskLock(
        key,
        token,
        answer.fence,
        caller=caller,
        store=execution.locks,
        clock=place.clock,
        ttl=ttl,
        asked_at=asked_at,
    )
    with _under_way(request, execution):
        return _run_locked(task, request, execution, execution.lock, body=body, args=args, kwargs=kwargs)


def _acquire(execution: Execution, key: str, token: str, ttl: float) -> Answer:
    place = execution.place
    around = heartbeat().lock_on(key) if place.eager else None
    if around is not None:
        # An eager call's own locks are in memory, and know nothing of one that its worker holds.
        return Taken(around.holder, around.ttl, same_call=False)
    limit = _EAGER_POISON_LIMIT if place.eager else execution.rules.poison_limit
    turn = Turn.NONE if place.eager else execution.rules.turn
    return execution.locks.acquire(
        key,
        token,
        ttl=ttl,
        caller=execution.caller,
        poison_limit=limit,
        turn=turn,
        hold=execution.rules.conflict_wait + ttl,
    )


def _undo(execution: Execution, key: str, token: str, ttl: float) -> None:
    """Give back, once the store can be asked, what it may have granted without our hearing of it."""
    locks, caller = execution.locks, execution.caller
    heartbeat().owe(
        lambda: locks.release(key, token, caller=caller, outcome=Outcome.UNDONE),
        every=min(1.0, ttl / 4),
        within=ttl,
    )


def _run_locked(
    task: Any,
    request: Context,
    execution: Execution,
    lock: TaskLock,
    *,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    place, caller = execution.place, execution.caller
    try:
        if not place.eager:
            heartbeat().watch(lock, place.tell)
        place.tell(LockAcquired(task=caller.task, task_id=caller.task_id, key=lock.key, fence=lock.fence))
        result = _run(task, execution, body, args, kwargs)
        if execution.rules.aborts and lock.lapsed:
            execution.outcome = Outcome.FAILURE
            raise LockLost(lock.key, lock.fence)
    except BaseException as error:
        # The lock is given back whatever this is: failure, Retry, Ignore, Reject, SystemExit.
        released = _give_back(execution, lock)
        if released.replaced and execution.outcome is Outcome.FAILURE:
            raise conflicts.replaced(task, request, place, caller=caller, key=lock.key) from error
        if execution.rules.aborts and released.same_call and execution.outcome is Outcome.FAILURE:
            # Another copy of this call runs: the result is that copy's to write.
            raise Ignore from error
        raise
    _give_back(execution, lock)
    return result


def _run(task: Any, execution: Execution, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body, and send the next attempt if it fails and may be tried again."""
    try:
        result = body(*args, **kwargs)
    except (Ignore, Reject, Retry):
        execution.outcome = Outcome.RETRY if execution.retried_in is not None else Outcome.OTHER
        raise
    except Exception as error:
        execution.outcome = Outcome.RETRY if execution.retried_in is not None else Outcome.FAILURE
        if execution.retried_in is None and _is_retryable(execution, error):
            _retry(task, execution, error)
        raise
    execution.outcome = Outcome.RETRY if execution.retried_in is not None else Outcome.SUCCESS
    return result


def _is_retryable(execution: Execution, error: Exception) -> bool:
    if isinstance(error, LockLost) and execution.rules.aborts:
        return False
    if execution.lock is not None and execution.lock.replaced:
        return False
    return execution.rules.is_retryable(error)


def _retry(task: Any, execution: Execution, error: Exception) -> None:
    options = dict(task.retry_kwargs or {})
    if execution.max_retries != -1:
        options["max_retries"] = execution.max_retries
    try:
        task.retry(exc=error, **options)
    except (Retry, Reject, Ignore) as verdict:
        execution.outcome = Outcome.RETRY if isinstance(verdict, Retry) else Outcome.OTHER
        raise


def _give_back(execution: Execution, lock: TaskLock) -> Released:
    """Stop renewing, note the outcome, and free the lock or keep it for the next attempt.

    Without an answer the execution ends all the same: the heartbeat goes on asking while it matters.
    """
    place, rules = execution.place, execution.rules
    if not place.eager:
        heartbeat().forget(lock)
    hold = 0.0
    if execution.outcome is Outcome.RETRY and rules.hold_during_retry and not place.eager:
        hold = (execution.retried_in or 0.0) + lock.ttl if execution.keeps_key else 0.0

    def release() -> Released:
        return execution.locks.release(
            lock.key,
            lock.token,
            caller=execution.caller,
            outcome=execution.outcome,
            hold=hold,
            dedupe_ttl=0.0 if place.eager else CLOCK_STEPS * rules.dedupe_ttl,
            settle=0.0 if place.eager else lock.ttl,
        )

    try:
        released = _twice(release)
    except StoreUnavailable:
        heartbeat().owe(release, every=min(1.0, lock.ttl / 4), within=lock.ttl)
        return Released(held=lock.held, replaced=lock.replaced)
    if not released.held:
        report_loss(lock, place.tell)
    return released


def is_under_way(request: Context) -> bool:
    """Whether the body of this delivery runs now."""
    execution: Execution | None = getattr(request, "singlebeat", None)
    return execution is not None and not execution.has_ended


@contextmanager
def _under_way(request: Context, execution: Execution) -> Iterator[None]:
    """Keep the execution on its request, where the body and the hooks find it."""
    request.__dict__["singlebeat"] = execution
    try:
        yield
    finally:
        execution.has_ended = True
        if execution.lock is not None:
            # A time limit may strike before the lock is given back: then it ends by its ttl.
            heartbeat().forget(execution.lock)


def _twice(ask: Callable[[], T]) -> T:
    """Ask again at once: the first failure may be that of a connection which broke while it was idle."""
    try:
        return ask()
    except StoreUnavailable:
        return ask()


def _leads_on(request: Context) -> bool:
    return bool(request.callbacks or request.chain or request.chord)


def _disarm(request: Context) -> None:
    """What follows this call was sent on by the copy that ran: not once more."""
    request.callbacks = None
    request.chain = None
    request.chord = None
