"""From a failed message to its letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import Celery
from celery.exceptions import MaxRetriesExceededError
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_singlebeat.errors import LockConflict, PoisonedCall
from celery_singlebeat.moments import iso
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.store.letter_ports import Burial, Parcel, Receipt
from celery_singlebeat.task.origins import queue_of, undelayed
from celery_singlebeat.task.retries import EXHAUSTED
from celery_singlebeat.task.rules import TaskRules


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call ends: the exception, and its traceback as text. `lost`: so many deliveries were lost."""

    error: BaseException
    traceback: str
    lost: int = 0

    @property
    def name(self) -> str:
        """The exception's class, also of one that could not travel."""
        if isinstance(self.error, UnpickleableExceptionWrapper):
            return str(self.error.exc_cls_name)
        return type(self.error).__name__

    @property
    def message(self) -> str:
        """What the exception says."""
        try:
            return str(self.error)
        except Exception:  # an exception whose text fails must not keep its call from burial
            return ""


def reason_of(failure: Failure, rules: TaskRules, *, retries: int, max_retries: int | None) -> str:
    """Why this call failed for good."""
    error = failure.error
    if isinstance(error, MaxRetriesExceededError) or getattr(error, EXHAUSTED, False):
        return dead_letters.MAX_RETRIES
    if isinstance(error, UnpickleableExceptionWrapper):
        # Its class did not travel. Where every exception is tried again, this one was.
        retryable = Exception in rules.autoretry_for
    else:
        retryable = rules.is_retryable(error)
    return dead_letters.reason_of(
        waited_for_lock=isinstance(error, LockConflict) and rules.on_conflict == "retry",
        lost=isinstance(error, PoisonedCall),
        retryable=retryable,
        retries=retries,
        max_retries=max_retries,
    )


def burial_of(request: Any, rules: TaskRules, failure: Failure, now: datetime) -> Burial:
    """The letter for a worker's request, with what the broker needs to acknowledge its message."""
    message, task, headers = request.message, request.task, letter_headers(request)
    retries = int(request.request_dict.get("retries") or 0)
    replays = dead_letters.read_replays(headers.get(dead_letters.REPLAYS))
    reason = reason_of(failure, rules, retries=retries, max_retries=task.max_retries)
    letter = letter_of(
        request.app,
        headers,
        failure,
        reason=reason,
        history=_history(request, failure, iso(now)),
        now=now,
        info=request.delivery_info,
        replays=replays,
    )
    return Burial(
        parcel=parcel_of(message, dead_letters.buried(headers, letter)),
        task=task.name,
        task_id=str(request.id),
        reason=reason,
        attempt=retries,
        replays=replays,
        receipt=receipt_of(message),
    )


def letter_headers(request: Any) -> Mapping[str, Any]:
    """The headers that a call has in its worker: those of its message, or of the letter that it was."""
    found: Mapping[str, Any] = request.taken_up or request.message.headers or {}
    return found


def letter_of(
    app: Celery,
    headers: Mapping[str, Any],
    failure: Failure,
    *,
    reason: str,
    history: Sequence[dead_letters.Record],
    now: datetime,
    info: Mapping[str, Any] | None,
    replays: int = 0,
) -> dead_letters.Record:
    """The header of a letter for a message that came with this delivery info."""
    info = undelayed(app, info or {})
    exchange, routing_key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
    return dead_letters.letter(
        reason=reason,
        exception=failure.name,
        message=failure.message,
        traceback=failure.traceback,
        history=history,
        died_at=iso(now),
        queue=queue_of(app, exchange, routing_key),
        exchange=exchange,
        routing_key=routing_key,
        priority=info.get("priority"),
        entry=_text(headers.get("singlebeat_entry")),
        slot=_text(headers.get("singlebeat_slot")),
        replays=replays,
    )


def _history(request: Any, failure: Failure, now: str) -> list[dead_letters.Record]:
    headers = letter_headers(request)
    history = dead_letters.read_history(headers.get(dead_letters.ATTEMPTS))
    for _ in range(max(1, failure.lost)):
        history = dead_letters.add(
            history,
            dead_letters.record(
                attempt=int(request.request_dict.get("retries") or 0) + 1,
                failed_at=now,
                exception="WorkerLostError" if failure.lost else failure.name,
                message="the delivery ended without an outcome" if failure.lost else failure.message,
                host=str(request.hostname or ""),
                pid=request.worker_pid,
                traceback=failure.traceback,
                replays=dead_letters.read_replays(headers.get(dead_letters.REPLAYS)),
            ),
        )
    return history


def parcel_of(message: Any, headers: Mapping[str, Any]) -> Parcel:
    """A message as its broker had it, with these headers.

    The virtual transports keep the text that travelled; of an AMQP message kombu keeps the bytes, already
    unpacked if they were compressed.
    """
    raw = getattr(message, "_raw", None)
    if isinstance(raw, Mapping) and "body" in raw:
        return Parcel(
            body=raw["body"],
            content_type=raw.get("content-type"),
            content_encoding=raw.get("content-encoding"),
            headers=dict(headers),
            properties=dict(raw.get("properties") or {}),
        )
    return Parcel(
        body=message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(headers) if message.errors else _uncompressed(headers),
        properties=dict(message.properties or {}),
    )


def _uncompressed(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name != "compression"}


def receipt_of(message: Any) -> Receipt | None:
    """Where a Redis broker keeps this message until it is acknowledged."""
    channel = message.channel
    unacked, index = getattr(channel, "unacked_key", None), getattr(channel, "unacked_index_key", None)
    if not (isinstance(unacked, str) and isinstance(index, str)):
        return None
    return Receipt(str(message.delivery_tag), unacked, index)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
