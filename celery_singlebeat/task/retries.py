"""From a failure to the next attempt, or to the end."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import traceback
from datetime import datetime, timezone
from typing import Any, NoReturn

from celery.app.task import Context
from celery.exceptions import Reject, Retry
from celery.utils.serialization import raise_with_context
from dateutil.parser import isoparse
from kombu.exceptions import EncodeError

from celery_singlebeat.errors import LockKeyError
from celery_singlebeat.events import RetryScheduled
from celery_singlebeat.moments import iso
from celery_singlebeat.policy import backoff, dead_letters
from celery_singlebeat.task.execution import Execution
from celery_singlebeat.task.sending import own_headers, send_later

#: Set on an exception that used up all attempts, for the parent of the worker.
EXHAUSTED = "singlebeat_exhausted"


def send_retry(
    task: Any,
    request: Context,
    execution: Execution,
    *,
    args: Any,
    kwargs: Any,
    exc: BaseException | type[BaseException] | None,
    throw: bool,
    eta: datetime | None,
    countdown: float | None,
    max_retries: int | None,
    options: dict[str, Any],
) -> Retry:
    """Send the next attempt, or raise what ends the call.

    What Celery's own `Task.retry` does, but with

    * the same backoff for a retry by hand as for an automatic one;
    * nothing written to the task object;
    * the message kept, if the broker does not take its successor.
    """
    rules = execution.rules
    if execution.lock is not None and (rules.aborts or execution.lock.replaced):
        execution.lock.check()
    limit = task.max_retries if max_retries is None else max_retries
    if max_retries is not None:
        execution.max_retries = max_retries
    error = exc if exc is not None else sys.exc_info()[1]
    now = execution.place.clock.now()
    replays = execution.caller.replays
    history = dead_letters.read_history((request.headers or {}).get(dead_letters.ATTEMPTS))
    life = dead_letters.since_replay(history, replays)
    if eta is None and countdown is None:
        countdown = _countdown(
            task, request, execution, last=dead_letters.last_wait(life), error=error, now=now
        )
    wait = countdown if countdown is not None else max(0.0, (_aware(eta) - now).total_seconds())
    may = backoff.may_retry(
        request.retries, limit, spent=_spent(life, now), wait=wait, budget=execution.rules.retry_for
    )
    if not may:
        _give_up(task, request, exc, args, kwargs)
    history = dead_letters.add(
        history,
        dead_letters.record(
            attempt=request.retries + 1,
            failed_at=iso(now),
            exception=_name(error),
            message=_text(error),
            host=str(request.hostname or ""),
            pid=os.getpid(),
            traceback=_traceback(error),
            replays=replays,
            wait=wait,
        ),
    )
    headers = {**own_headers(request), **(options.pop("headers", None) or {})}
    headers[dead_letters.ATTEMPTS] = history
    signature = task.signature_from_request(
        request,
        args,
        kwargs,
        retries=request.retries + 1,
        headers=headers,
        **options,
    )
    when: Any = eta or countdown  # the type stubs take a float for no number
    retry = Retry(
        exc=error if isinstance(error, Exception) else None,
        when=when,
        is_eager=request.is_eager,
        sig=signature,
    )
    if not request.is_eager:
        try:
            send_later(signature, execution.rules, execution.place, wait=wait, eta=eta)
        except EncodeError:
            # Arguments that cannot travel are the body's mistake: it fails, as with any other.
            raise
        except Exception as problem:
            raise Reject(problem, requeue=True) from problem
    execution.retried_in = wait
    execution.keeps_key = _keeps_key(request, execution, args, kwargs)
    execution.place.tell(
        RetryScheduled(
            task=execution.caller.task,
            task_id=execution.caller.task_id,
            attempt=request.retries + 1,
            wait=wait,
            exception=_name(error),
        )
    )
    if throw:
        raise retry
    return retry


def _give_up(task: Any, request: Context, exc: Any, args: Any, kwargs: Any) -> NoReturn:
    if exc is not None:
        # An exception with slots does not take it: then the count of its retries speaks for it.
        with contextlib.suppress(AttributeError, TypeError):
            setattr(exc, EXHAUSTED, True)
        raise_with_context(exc)
    raise task.MaxRetriesExceededError(
        f"Can't retry {task.name}[{request.id}]",
        task_args=request.args if args is None else args,
        task_kwargs=request.kwargs if kwargs is None else kwargs,
    )


def _countdown(
    task: Any,
    request: Context,
    execution: Execution,
    *,
    last: float | None,
    error: BaseException | type[BaseException] | None,
    now: datetime,
) -> float:
    asked = backoff.asked_by(error, now)
    if execution.rules.backoff is None:
        return float(task.default_retry_delay) + (asked or 0.0)
    return backoff.wait(
        request.retries + 1, backoff=execution.rules.backoff, luck=random.random(), last=last, asked=asked
    )


def _spent(life: list[dead_letters.Record], now: datetime) -> float:
    """Seconds since the first failure."""
    try:
        return max(0.0, (now - isoparse(str(life[0]["failed_at"]))).total_seconds())
    except (IndexError, KeyError, ValueError, TypeError):
        return 0.0


def _keeps_key(request: Context, execution: Execution, args: Any, kwargs: Any) -> bool:
    """Whether the next attempt wants the same lock: with other arguments it may not."""
    if args is None and kwargs is None:
        return True
    if not execution.rules.exclusive:
        return True
    try:
        key = execution.rules.key.key(
            (request.args if args is None else args) or (),
            (request.kwargs if kwargs is None else kwargs) or {},
        )
    except LockKeyError:
        return False
    return execution.lock is not None and key == execution.lock.key


def _name(error: BaseException | type[BaseException] | None) -> str:
    if error is None:
        return "Retry"
    return error.__name__ if isinstance(error, type) else type(error).__name__


def _text(error: BaseException | type[BaseException] | None) -> str:
    if error is None or isinstance(error, type):
        return ""
    try:
        return str(error)
    except Exception:  # an exception whose text fails must not keep its call from another attempt
        return ""


def _traceback(error: BaseException | type[BaseException] | None) -> str:
    if error is None or isinstance(error, type):
        return ""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # see above
        return ""


def _aware(moment: datetime | None) -> datetime:
    if moment is None:
        return datetime.now(timezone.utc)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
