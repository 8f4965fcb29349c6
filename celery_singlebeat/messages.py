"""How a message of `apply_async` becomes something that a store can write.

Everything of Celery's own way stays: routing, serialisers, headers, priorities, signals. Only the last
step changes, and only while a tray is out: the message is put on the tray instead of on the wire.

*Atomic*, when the broker is the store's Redis: a kombu channel computes the list key and the payload, as
it would for LPUSH, and a script pushes them.

*Outbox*, for any other broker: a producer keeps the prepared message as JSON; the emit script keeps it
in the outbox; the publisher sends it and waits for the broker's confirmation.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

from celery import Celery
from kombu import Connection, Producer
from kombu.utils.json import dumps, loads

from celery_singlebeat.store.ports import Keep, Publish, Push, Write

#: Seconds that one call of the broker may take.
BROKER_PATIENCE = 5


class Tray:
    """The messages that one `apply_async` makes."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.packed: list[str] = []
        self.error: Exception | None = None

    def sealed(self) -> tuple[Write, ...]:
        """What the store has to write; packed messages make one outbox record."""
        return (*self.writes, *([Keep(dumps(self.packed))] if self.packed else ()))


_tray: ContextVar[Tray | None] = ContextVar("tray", default=None)


class collected:  # noqa: N801 - used as `with collected() as tray`
    """Put what is published inside on a tray instead of on the wire."""

    __slots__ = ("_token", "_tray")

    def __enter__(self) -> Tray:
        self._tray = Tray()
        self._token = _tray.set(self._tray)
        return self._tray

    def __exit__(self, *_: object) -> None:
        _tray.reset(self._token)


def current_tray() -> Tray | None:
    """The tray that is out, if any."""
    return _tray.get()


class CollectingChannel:
    """Mixed into kombu's Redis channel class, whichever the broker URL selects."""

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        tray = _tray.get()
        channel: Any = self
        if tray is None:
            super()._put(queue, message, **kwargs)  # type: ignore[misc]
            return
        prefix = channel.global_keyprefix
        priority = channel._get_message_priority(message, reverse=False)
        expires = (getattr(channel, "_expires", None) or {}).get(queue)
        also = ()
        if expires is not None:
            also = tuple(prefix + channel._q_for_pri(queue, step) for step in channel.priority_steps)
        tray.writes.append(Push(prefix + channel._q_for_pri(queue, priority), dumps(message), expires, also))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        tray = _tray.get()
        channel: Any = self
        if tray is None:
            super()._put_fanout(exchange, message, routing_key, **kwargs)  # type: ignore[misc]
            return
        if hasattr(channel, "_get_publish_topics"):
            topics = channel._get_publish_topics(exchange, routing_key)
        else:  # kombu before 5.7
            topics = [channel._get_publish_topic(exchange, routing_key)]
        for topic in topics:
            tray.writes.append(Publish(channel.global_keyprefix + topic, dumps(message)))


def collecting_connection(app: Celery) -> Connection:
    """The app's broker connection over a channel that fills trays. For Redis brokers."""
    connection = app.connection_for_write()
    transport: Any = connection.get_transport_cls()
    channel = type("CollectingChannel", (CollectingChannel, transport.Channel), {})
    collecting: Any = type("CollectingTransport", (transport,), {"Channel": channel})
    connection.transport_cls = collecting  # a class is as good as a name to kombu
    return connection


class DeclaringOnce(Producer):
    """A producer that knows at once what it has declared: kombu copies queue and exchange to find out,
    for each message.
    """

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> Any:
        """Declare `entity` unless this connection has done so."""
        if entity and entity.can_cache_declaration:
            connection: Any = self.connection
            if hash(entity) in connection.declared_entities:
                return False
        return super().maybe_declare(entity, retry, **retry_policy)


class CollectingProducer(Producer):
    """A producer that keeps prepared messages; it never connects."""

    def _publish(self, *prepared: Any, **_: Any) -> None:
        tray = _tray.get()
        if tray is None:
            raise RuntimeError("a collecting producer publishes onto trays only")
        tray.packed.append(pack(*prepared[:11]))


def pack(  # noqa: PLR0917 - the order is that of kombu's `_publish`
    body: str | bytes,
    priority: int,
    content_type: str,
    content_encoding: str,
    headers: dict[str, Any],
    properties: dict[str, Any],
    routing_key: str,
    mandatory: bool,
    immediate: bool,  # noqa: ARG001
    exchange: str,
    declare: list[Any],
) -> str:
    """A prepared message as JSON, body byte for byte."""
    binary = isinstance(body, bytes)
    packed: str = dumps(
        {
            "body": base64.b64encode(body).decode() if isinstance(body, bytes) else body,
            "binary": binary,
            "headers": headers,
            "properties": {name: value for name, value in properties.items() if value is not None},
            "priority": priority,
            "content_type": content_type,
            "content_encoding": content_encoding,
            "routing_key": routing_key,
            "exchange": exchange,
            "mandatory": mandatory,
            "declare": [entity.name for entity in declare or () if hasattr(entity, "routing_key")],
        }
    )
    return packed


def send_record(app: Celery, producer: Producer, record: str) -> None:
    """Publish the messages of an outbox record; returns once the broker has them, raises otherwise."""
    for packed in loads(record):
        _send(app, producer, loads(packed))


def _send(app: Celery, producer: Producer, kept: dict[str, Any]) -> None:
    body = base64.b64decode(kept["body"]) if kept["binary"] else kept["body"]
    queues, properties = app.amqp.queues, dict(kept["properties"])
    if "expiration" in properties:  # it is in milliseconds by now, and kombu takes seconds
        properties["expiration"] = Fraction(properties["expiration"]) / 1000
    producer.publish(
        body,
        routing_key=kept["routing_key"],
        exchange=kept["exchange"],
        mandatory=kept["mandatory"],
        priority=kept["priority"],
        content_type=kept["content_type"],
        content_encoding=kept["content_encoding"],
        headers=kept["headers"],
        declare=[queues[name] for name in kept["declare"] if name in queues],
        retry=False,
        **properties,
    )


def parked(app: Celery, send: Callable[[Producer], object], *, on_redis: bool) -> tuple[Write, ...]:
    """What the store has to write so that later the messages go out which `send` publishes."""
    producer = _producers.of(app, on_redis=on_redis)
    try:
        with collected() as tray:
            send(producer)
    except Exception:
        _producers.drop(app)
        raise
    return tray.sealed()


class _Producers(threading.local):
    """The collecting producers of a thread: a broker connection is not for two threads, nor for a child."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Producer] = {}

    def of(self, app: Celery, *, on_redis: bool) -> Producer:
        place = (os.getpid(), id(app))
        if place not in self._made:
            if on_redis:
                self._made[place] = DeclaringOnce(collecting_connection(app), auto_declare=False)
            else:
                self._made[place] = CollectingProducer(app.connection_for_write(), auto_declare=False)
        return self._made[place]

    def drop(self, app: Celery) -> None:
        self._made.pop((os.getpid(), id(app)), None)


_producers = _Producers()


def confirming_connection(app: Celery) -> Connection:
    """A broker connection whose `publish` returns after the broker's confirmation."""
    connection = app.connection_for_write()
    options: dict[str, Any] = dict(connection.transport_options or {})
    if str(connection.transport_cls).startswith(("amqp", "pyamqp")):
        options |= {"confirm_publish": True}
        options.setdefault("read_timeout", BROKER_PATIENCE)
        options.setdefault("write_timeout", BROKER_PATIENCE)
    connection.transport_options = options
    connection.connect_timeout = min(connection.connect_timeout or BROKER_PATIENCE, BROKER_PATIENCE)
    return connection


def throw_away(connection: Connection | None) -> None:
    """Close a broker connection that does not work, whatever it says to that."""
    if connection is not None:
        with suppress(Exception):
            connection.release()
