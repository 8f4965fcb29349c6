"""A call as the parent of a worker sees it: the message as it came, and how its execution ended.

P1  A letter is written before its message is acknowledged. Without an answer the message stays
    unacknowledged, and writing is tried again, later and later.
P2  A child that died frees its lock here, at once; its delivery counts as lost.
P3  The deliveries that poison allows are counted in the store; when the last one is lost, the call is
    buried here, without another try.
P4  A letter that a worker receives is a replay of its call: it starts anew, and its retries go to the call's
    own queue. If it came from the dead-letter queue itself and fails again, its letter goes to a queue
    beside that one, so that nothing goes round in circles.
P5  A call whose body is ended because its worker goes away comes back: nobody acknowledges it. Where nothing
    can end a body from outside, in threads and under solo, the worker waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request
from kombu.asynchronous import get_event_loop
from kombu.utils.compat import detect_environment

from celery_singlebeat.errors import PoisonedCall, StoreUnavailable
from celery_singlebeat.events import TaskBuried
from celery_singlebeat.logs import logger
from celery_singlebeat.policy import backoff, dead_letters
from celery_singlebeat.task.burial import Failure, burial_of, letter_headers
from celery_singlebeat.task.origins import undelayed
from celery_singlebeat.task.overlap import tell_end
from celery_singlebeat.task.rules import TaskRules
from celery_singlebeat.task.workplace import Workplace, at_work, host
from celery_singlebeat.wiring import grave, wire

_TRY_AGAIN = backoff.Backoff(base=1.0, cap=60.0, jitter=backoff.Jitter.NONE)
_EXITS = (SystemExit, KeyboardInterrupt)


class SingleBeatRequest(Request):
    """Celery's request, which buries what failed for good and frees what the dead held."""

    #: Set once this call's letter is written, or need not be.
    _is_settled = False
    #: Set while the event loop is to try again.
    _is_trying = False
    #: Set once the child of this call was killed for its hard time limit.
    _is_stopped = False
    #: Set once the greenlet of this call is ended because its worker goes away.
    _is_cancelled = False
    _already_cancelled: bool
    _already_revoked: bool
    #: The headers of the call, if its message is a dead letter.
    taken_up: Mapping[str, Any] | None = None

    _delivery_info: dict[str, Any]

    def __init__(self, message: Any, **options: Any) -> None:
        found = message.headers if options.get("headers") is None else options["headers"]
        letter = found.get(dead_letters.LETTER)
        if isinstance(letter, Mapping):
            options["headers"] = self.taken_up = self._take_up(message, found, letter)
        super().__init__(message, **options)
        app: Any = self.app
        self._delivery_info.update(undelayed(app, self._delivery_info))
        if isinstance(letter, Mapping):
            self._delivery_info.update(
                {name: letter.get(name) for name in ("exchange", "routing_key", "priority")}
            )

    @staticmethod
    def _take_up(message: Any, headers: Mapping[str, Any], letter: Mapping[str, Any]) -> dict[str, Any]:
        call = dead_letters.restored(headers, dead_letters.read_replays(letter.get("replays")))
        came_from = (message.delivery_info or {}).get("routing_key")
        if came_from not in (letter.get("queue"), letter.get("routing_key")):
            call[dead_letters.RERUN] = True
        return call

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Bury a failure that is final; leave every other outcome to Celery."""
        error = _error_of(exc_info)
        if isinstance(error, _EXITS) and not (self._already_cancelled or self._already_revoked):
            exc_info = _info(WorkerLostError(f"Worker exited prematurely: {type(error).__name__}."))
            error, return_ok = _error_of(exc_info), False
        if isinstance(error, (Terminated, WorkerLostError, *_EXITS)):
            deliveries = self._free_lock()
            if isinstance(error, WorkerLostError) and not self._comes_back():
                return self._end(exc_info, send_failed_event, return_ok, lost=0)
            if isinstance(error, WorkerLostError) and self._is_poison(deliveries):
                poison = _info(PoisonedCall(str(self.id), deliveries))
                return self._end(poison, send_failed_event, return_ok, lost=deliveries)
        elif not isinstance(error, (Ignore, Reject, Retry)):
            if isinstance(error, TimeLimitExceeded):
                self._stop_child()
            lost = error.deliveries if isinstance(error, PoisonedCall) else 0
            return self._end(exc_info, send_failed_event, return_ok, lost=lost)
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Bury a call that met its hard time limit; its process is killed before its lock is freed."""
        if soft or state.should_terminate:
            super().on_timeout(soft, timeout)
            return
        self._stop_child()

        def end() -> None:
            self._tell_end()
            super(SingleBeatRequest, self).on_timeout(soft, timeout)

        failure = _failure(_info(TimeLimitExceeded(timeout)))
        if self._is_settled or self._bury(failure):
            end()
        else:
            self._try_again(1, end, failure)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Kill the body, where the pool can. Else one that is to be replaced learns it from its lock."""
        try:
            super().terminate(pool, signal)
        except NotImplementedError:
            logger.warning("%s[%s] cannot be terminated in a pool of this kind", self.name, self.id)

    def cancel(self, pool: Any, signal: Any = None, **options: Any) -> None:  # type: ignore[override]
        """End the body because its worker goes away, where the pool can; else the worker waits for it.

        Otherwise `NotImplementedError` would be raised in a signal handler: under the solo pool that is in
        the body, and would count as its failure.
        """
        self._is_cancelled = _is_green()
        try:
            super().cancel(pool, signal, **options)
        except NotImplementedError:
            self._is_cancelled = False
            logger.warning("%s[%s] cannot be ended in a pool of this kind: waiting", self.name, self.id)

    def acknowledge(self) -> None:
        """Acknowledge the message, unless the body was ended before its outcome (P5).

        Celery's pools of greenlets report a body that they have killed as one that succeeded.
        """
        if not self._is_cancelled:
            super().acknowledge()

    def _announce_revoked(self, reason: Any, terminated: Any, signum: Any, expired: Any) -> Any:
        self._tell_end()
        base: Any = super()
        return base._announce_revoked(reason, terminated, signum, expired)  # noqa: SLF001 - Celery's own hook

    # -- the end of a call ----------------------------------------------------------------------

    def _end(self, exc_info: Any, send_failed_event: bool, return_ok: bool, *, lost: int) -> Any:
        """Write the letter, then let Celery record the failure and acknowledge."""
        failure = _failure(exc_info, lost)
        if isinstance(failure.error, MemoryError):
            # Celery raises this one in the parent, which would end the worker with all its other calls.
            exc_info = _info(RuntimeError(f"MemoryError: {failure.error}"))

        def end() -> Any:
            self._tell_end()
            return super(SingleBeatRequest, self).on_failure(
                exc_info, send_failed_event=send_failed_event, return_ok=return_ok
            )

        if not self._is_settled and not self._bury(failure):
            self._try_again(1, end, failure)
            return None
        return end()

    def _bury(self, failure: Failure) -> bool:
        """Write the letter; False if nobody knows whether it is written."""
        try:
            place = self._place()
            rules = self._rules(place)
            if rules.dead_letter_queue is not None:
                queue = grave(rules.dead_letter_queue, letter_headers(self))
                self._write_letter(place, rules, queue, failure)
        except StoreUnavailable as error:
            logger.error("%s[%s] cannot be buried yet: %s", self.name, self.id, error)
            return False
        self._is_settled = True
        return True

    def _write_letter(self, place: Workplace, rules: TaskRules, queue: str, failure: Failure) -> None:
        burial = burial_of(self, rules, failure, place.clock.now())
        if wire(place.app).letter_store(queue).bury(burial):
            place.tell(
                TaskBuried(task=burial.task, task_id=burial.task_id, reason=burial.reason, queue=queue)
            )

    def _try_again(self, attempt: int, end: Callable[[], Any], failure: Failure) -> None:
        """Try to bury once more after a while. Until then the message stays unacknowledged.

        Without an event loop nobody calls again: the message is left to the broker, which delivers it
        once more when this consumer is gone or its visibility timeout is over.
        """
        loop = get_event_loop()
        if loop is None or (attempt == 1 and self._is_trying):
            return
        self._is_trying = True

        def again() -> None:
            if self._bury(failure):
                end()
            else:
                self._try_again(attempt + 1, end, failure)

        loop.call_later(backoff.wait(attempt, backoff=_TRY_AGAIN, luck=0.0), again)

    def _tell_end(self) -> None:
        app: Any = self.app
        tell_end(app, self.request_dict, str(self.id))

    # -- the dead -------------------------------------------------------------------------------

    def _stop_child(self) -> None:
        """Kill the child that overran, once, and free its lock.

        The pool kills it as well, but later: until then its body would go on beside the next holder's.
        """
        pid: Any = self.worker_pid
        if self._is_stopped or not pid or _is_green():
            return
        self._is_stopped = True
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._free_lock()

    def _free_lock(self) -> int:
        """Free what the dead child held; how many deliveries of this call were lost, as far as is known."""
        if not self.worker_pid or _is_green():
            return 0
        try:
            place = self._place()
            locks = place.locks_of(self._rules(place).lock_backend)
            orphan = locks.release_orphan(str(self.id), host=host(), pid=int(self.worker_pid))
        except StoreUnavailable as error:
            logger.warning("%s[%s]: its lock frees itself: %s", self.name, self.id, error)
            return 0
        return orphan.deliveries

    def _comes_back(self) -> bool:
        """Whether Celery puts the message of a lost worker back into its queue."""
        return bool(self.task.acks_late and self.task.reject_on_worker_lost)

    def _is_poison(self, deliveries: int) -> bool:
        return dead_letters.is_poison(deliveries, self._rules(self._place()).poison_limit)

    def _place(self) -> Workplace:
        app: Any = self.app
        return at_work(app)

    def _rules(self, place: Workplace) -> TaskRules:
        task: Any = self.task
        rules: TaskRules = task._rules(place)  # noqa: SLF001 - our own base class
        return rules


def _is_green() -> bool:
    """Whether bodies run in greenlets: their end frees their locks, and what Celery calls a pid is none."""
    return bool(detect_environment() != "default")


def _error_of(exc_info: Any) -> BaseException:
    error = exc_info.exception
    found: BaseException = error.exc if isinstance(error, ExceptionWithTraceback) else error
    return found


def _failure(exc_info: Any, lost: int = 0) -> Failure:
    return Failure(_error_of(exc_info), str(exc_info.traceback or ""), lost)


def _info(error: BaseException) -> ExceptionInfo:
    try:
        raise error from None
    except type(error):
        found: Any = sys.exc_info()
        return ExceptionInfo(found)
