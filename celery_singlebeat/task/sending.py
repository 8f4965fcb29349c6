"""Putting a call into its queue again, at once or later: at the broker, or in the store of waiting calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.exceptions import Reject

from celery_singlebeat.messages import parked
from celery_singlebeat.moments import iso
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.task.origins import bound_queue
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
        signature.apply_async(add_to_parent=False, **when, **_own_queue(place.app, signature.options))
        return
    wiring = wire(place.app)
    records = parked(
        place.app,
        lambda producer: signature.apply_async(add_to_parent=False, producer=producer),
        on_redis=wiring.broker is not None,
    )
    wiring.waiting_store().park(records, wait)


def _own_queue(app: Celery, options: Mapping[str, Any]) -> dict[str, str]:
    """Names the queue that a call came from, if an exchange of its own brought it.

    Celery knows the exchange then, and takes the default queue for the one that native delayed delivery
    leads to.
    """
    exchange = options.get("exchange")
    if not exchange or options.get("queue"):
        return {}
    name = bound_queue(app, str(options.get("routing_key") or ""), str(exchange))
    if not name:
        return {}
    queue = app.amqp.queues[name]
    # The delay is written in front of a routing key, so there has to be one.
    return {"queue": name} if queue.routing_key or queue.exchange.type == "direct" else {}


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
