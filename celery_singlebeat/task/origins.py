"""Which queue a message came from, as far as the app's own queues tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from celery import Celery
from kombu.transport.virtual.exchange import TopicExchange

#: How the exchange is called, and the delay in bits: `kombu.transport.native_delayed_delivery`, from 5.5 on.
#: Before 5.7 a message that waits again gets one more in front.
_DELAYED = "celery_delayed_delivery"
_DELAY = re.compile(r"^(?:(?:[01]\.){28})+")


def queue_of(app: Celery, exchange: str, routing_key: str) -> str:
    """The queue that a message came through, as far as the app's own queues tell."""
    return (exchange and bound_queue(app, routing_key, exchange)) or routing_key


def bound_queue(app: Celery, key: str, exchange: str | None = None) -> str:
    """The queue that gets what is sent under this key, through this exchange or any; "" if none is known.

    One with the very key goes before one with a pattern, and one that this worker consumes from before the
    others.
    """
    queues: dict[str, Any] = {**app.amqp.queues.consume_from, **app.amqp.queues}
    bindings: list[tuple[str, Any]] = [
        (str(name), binding)
        for name, queue in queues.items()
        for binding in queue.bindings or [queue]
        if exchange is None or binding.exchange.name == exchange
    ]
    for name, binding in bindings:
        if binding.routing_key == key:
            return name
    topics: Any = TopicExchange(None)
    for name, binding in bindings:
        kind = binding.exchange.type
        if kind == "fanout" and exchange is not None:
            return name
        if kind == "topic" and re.match(topics.key_to_pattern(binding.routing_key), key):
            return name
    return ""


def undelayed(app: Celery, info: Mapping[str, Any]) -> dict[str, Any]:
    """Delivery info as if the message had not waited in RabbitMQ's native delayed delivery.

    A message comes out of there through an exchange that all queues share, with its delay in front of its
    routing key. Sent on like this, it would get longer with each wait.
    """
    if not str(info.get("exchange") or "").endswith(_DELAYED):
        return dict(info)
    key = _DELAY.sub("", str(info.get("routing_key") or ""))
    queue = bound_queue(app, key)
    return {**info, "exchange": "", "routing_key": queue} if queue else {**info, "routing_key": key}
