"""Messages that Celery would drop: undecodable ones, half-written ones, those of unregistered tasks.

They are buried with the reason `undecodable`, body byte for byte, before Celery hears of them; without an
answer they stay unacknowledged, and burying is tried again. Buried or not, such a call has ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, bootsteps
from celery.exceptions import InvalidTaskError, NotRegistered
from kombu.asynchronous import get_event_loop

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.events import TaskBuried
from celery_singlebeat.logs import logger
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.store.letter_ports import Burial
from celery_singlebeat.task.burial import Failure, letter_of, parcel_of, receipt_of
from celery_singlebeat.task.overlap import tell_end
from celery_singlebeat.wiring import grave, wire

#: Seconds between two tries to bury.
_TRY_AGAIN = 5.0


class Rejects(bootsteps.Step):
    """Stands in front of the consumer's methods for what it cannot run."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        settings = wire(consumer.app).settings
        queue = settings.dead_letter_queue if settings.bury_undecodable else None
        undertaker = _Undertaker(consumer.app, queue)
        consumer.on_unknown_message = undertaker.before(consumer.on_unknown_message, _unknown_message)
        consumer.on_unknown_task = undertaker.before(consumer.on_unknown_task, _unknown_task)
        consumer.on_invalid_task = undertaker.before(consumer.on_invalid_task, _invalid_task)
        consumer.on_decode_error = undertaker.before(consumer.on_decode_error, _decode_error)
        if queue is not None:
            consumer.create_task_handler = _checking(consumer, consumer.create_task_handler)


def _unknown_message(_body: Any, message: Any) -> tuple[Any, Exception]:
    return message, InvalidTaskError("the message names no task")


def _unknown_task(_body: Any, message: Any, _exc: Any) -> tuple[Any, Exception]:
    return message, NotRegistered((message.headers or {}).get("task"))


def _invalid_task(_body: Any, message: Any, exc: Exception) -> tuple[Any, Exception]:
    return message, exc


def _decode_error(message: Any, exc: Exception) -> tuple[Any, Exception]:
    return message, exc


def _checking(consumer: Any, make: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the shape of a message first: one with another would end the worker, and come back."""

    def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        on_task_received = make(*args, **kwargs)

        def on_message(message: Any) -> Any:
            problem = _malformed(message)
            if problem:
                return consumer.on_invalid_task(None, message, InvalidTaskError(problem))
            return on_task_received(message)

        return on_message

    return create_task_handler


def _malformed(message: Any) -> str:
    headers = message.headers
    if not isinstance(headers, Mapping) or "task" not in headers:
        return ""
    try:
        payload = message.payload
    except Exception:  # Celery finds that out as well, and says so
        return ""
    if isinstance(payload, Mapping) and "args" in payload:
        return ""
    if not (isinstance(payload, (list, tuple)) and len(payload) == 3):  # noqa: PLR2004 - args, kwargs, embed
        return "the body is no list of arguments, keyword arguments and options"
    args, kwargs, _ = payload
    if not (isinstance(args, (list, tuple)) and isinstance(kwargs, Mapping)):
        return "the body has no list of arguments or no dict of keyword arguments"
    return "" if headers.get("id") else "the message has no id"


class _Undertaker:
    """Buries a message before the consumer drops it, if there is a queue for that."""

    def __init__(self, app: Celery, queue: str | None) -> None:
        self._app = app
        self._queue = queue

    def before(
        self, drop: Callable[..., Any], read: Callable[..., tuple[Any, Exception]]
    ) -> Callable[..., Any]:
        """What buries the message that `read` finds in the arguments, and then lets `drop` tell of it."""

        def handle(*args: Any) -> None:
            message, error = read(*args)
            headers, queue = _headers(message), self._queue

            def bury() -> None:
                try:
                    if queue is not None:
                        self._bury(queue, message, error)
                except StoreUnavailable as problem:
                    logger.error("a message that cannot be run cannot be buried yet: %s", problem)
                    loop = get_event_loop()
                    if loop is not None:
                        loop.call_later(_TRY_AGAIN, bury)
                    return
                if queue is not None:
                    message.ack_log_error(logger, ())
                    # A rejection would be an error now, or make a second dead letter elsewhere.
                    message.ack = message.reject = message.ack_log_error = message.reject_log_error = _nothing
                tell_end(self._app, headers, str(headers.get("id")))
                drop(*args)

            bury()

        return handle

    def _bury(self, place: str, message: Any, error: Exception) -> None:
        wiring = wire(self._app)
        headers = _headers(message)
        failure = Failure(error, "")
        now = wiring.clock.now()
        old = headers.get(dead_letters.LETTER)
        info = {**(message.delivery_info or {}), "priority": (message.properties or {}).get("priority")}
        made = letter_of(
            self._app,
            headers,
            failure,
            reason=dead_letters.UNDECODABLE,
            history=dead_letters.read_history(headers.get(dead_letters.ATTEMPTS)),
            now=now,
            info=info,
            replays=dead_letters.read_replays(headers.get(dead_letters.REPLAYS)),
        )
        # A letter that nobody here can run stays the letter that it is.
        letter = dict(old) if isinstance(old, Mapping) else made
        letter.setdefault("id", str(headers.get("id") or uuid.uuid4()))
        rerun = {dead_letters.RERUN: True} if isinstance(old, Mapping) else {}
        queue = grave(place, {**headers, **rerun})
        burial = Burial(
            parcel=parcel_of(message, dead_letters.buried(headers, letter)),
            task=str(headers.get("task") or "?"),
            task_id=letter["id"],
            reason=str(letter.get("reason")),
            attempt=_whole(headers.get("retries")),
            replays=dead_letters.read_replays(letter.get("replays")),
            receipt=receipt_of(message),
            moves=isinstance(old, Mapping),
        )
        if wiring.letter_store(queue).bury(burial):
            wiring.tell(
                TaskBuried(task=burial.task, task_id=burial.task_id, reason=burial.reason, queue=queue)
            )


def _headers(message: Any) -> Mapping[str, Any]:
    return message.headers if isinstance(message.headers, Mapping) else {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of acknowledging a second time."""
