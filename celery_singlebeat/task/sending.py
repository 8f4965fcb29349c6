"""Putting a call into its queue again, at once or later: at the broker, or in the store of waiting calls."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery.app.task import Context
from celery.exceptions import Reject

from celery_singlebeat.messages import parked
from celery_singlebeat.moments import iso
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.task.rules import TaskRules
from celery_singlebeat.task.workplace import Workplace
from celery_singlebeat.wiring import wire


def send_later(
    signature: Any, rules: TaskRules, place: Workplace, *, wait: float, eta: datetime | None = None
) -> None:
    """Send a call so that it runs after `wait` seconds, or not before `eta`. Raises whatever goes wrong."""
    if rules.retry_store != "redis":
        when: dict[str, Any] = {"countdown": wait} if eta is None else {"eta": eta}
        if 0 < wait < 1:
            # Native delayed delivery of RabbitMQ counts whole seconds, and refuses none.
            moment = iso(place.clock.now() + timedelta(seconds=wait))
            when = {"headers": {**(signature.options.get("headers") or {}), "eta": moment}}
        signature.apply_async(add_to_parent=False, **when)
        return
    wiring = wire(place.app)
    records = parked(
        place.app,
        lambda producer: signature.apply_async(add_to_parent=False, producer=producer),
        on_redis=wiring.broker is not None,
    )
    wiring.waiting_store().park(records, wait)


def send_again(
    task: Any,
    request: Context,
    rules: TaskRules,
    place: Workplace,
    *,
    wait: float,
    headers: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Put the same call into its queue once more after `wait` seconds, not as another attempt.

    Raises `Reject` with requeue when nobody takes it: then this message stays.
    """
    try:
        signature = task.signature_from_request(
            request,
            retries=request.retries,
            headers={**own_headers(request), **(headers or {})},
            **options,
        )
        send_later(signature, rules, place, wait=wait)
    except Exception as error:
        raise Reject(error, requeue=True) from error


def own_headers(request: Context) -> dict[str, Any]:
    """The headers that a call takes along."""
    return dead_letters.unnoted(request.headers or {})
