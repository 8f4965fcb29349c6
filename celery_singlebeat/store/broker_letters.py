"""Dead letters on any broker that kombu knows, by plain messages.

There is no transaction between a queue and the record of a call, so the order gives the guarantee:
publish with confirms, then note, then acknowledge. A crash in between leaves one letter too many,
never one too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import MessageNacked
from kombu import Connection, Queue
from kombu.exceptions import KombuError
from kombu.message import Message

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.store.letter_ports import Burial, Decision, Parcel, Send, Swept, Verdict
from celery_singlebeat.store.lock_ports import LockStore

_PATIENCE = 5
#: What the broker or the transport sets itself, and what has an argument of its own. A call may expire;
#: neither its letter does, nor what an operator replays. RabbitMQ refuses the name of another user.
_NOT_SENT_ON = frozenset(
    {"delivery_tag", "delivery_info", "delivery_mode", "body_encoding", "application_headers"}
    | {"content_type", "content_encoding", "priority", "expiration", "user_id"}
)
_NOT_FOUND = "404"
#: So often a letter may go back into a quorum queue. RabbitMQ 4 drops what came back more than twenty times.
_MOST_RETURNS = 5


class BrokerLetterStore:
    """`LetterStore` over a queue of any broker. Each use has a connection of its own.

    `connect` makes a connection whose transport confirms what it publishes, where it can.
    """

    def __init__(
        self, connect: Callable[[], Connection], locks: LockStore, *, queue: str, limit: int
    ) -> None:
        self._connect = connect
        self._locks = locks
        self._queue = queue
        self._limit = limit

    def bury(self, burial: Burial) -> bool:
        about = {"attempt": burial.attempt, "replays": burial.replays}
        if not burial.moves and not self._locks.may_bury(burial.task_id, **about):
            return False
        with self._connection("bury") as connection:
            number = self._declare(connection)
            _publish(connection.channel(), burial.parcel, self._queue)
            trimmed = self._trim(connection, number + 1 - self._limit)
        if not burial.moves:
            self._locks.buried(burial.task_id, replays=burial.replays)
            self._locks.count(f"dead_letters:{burial.reason}:{burial.task}")
        if trimmed:
            self._locks.count("dead_letters_trimmed", trimmed)
        return True

    def letters(self) -> Iterator[Parcel]:
        """While a letter is read, it and those before it are in hand: another reader does not see them."""
        with self._reading("letters") as reading:
            for message in reading:
                reading.keep(message)
                yield _parcel(message)

    def number(self) -> int:
        with self._connection("number") as connection:
            return _length(connection, self._queue) or 0

    def sweep(self, decide: Decision, *, step: int = 1) -> Iterator[Swept]:  # noqa: ARG002
        """One letter after the other; publishing comes first, so that a crash in between leaves both."""
        missing: dict[str, bool] = {}
        with self._reading("sweep") as reading:
            for message in reading:
                letter = _parcel(message)
                decision = decide(letter)
                if isinstance(decision, Send):
                    queue = decision.queue
                    if queue not in missing:
                        missing[queue] = _is_missing(reading.connection, queue)
                    if missing[queue]:
                        reading.keep(message)
                        yield Swept(letter, f"the broker has no queue {queue}")
                        continue
                    _publish(reading.channel, decision.message, queue)
                elif decision is not Verdict.DROP:
                    reading.keep(message)
                    if decision is Verdict.STOP:
                        return
                    continue
                message.ack()
                yield Swept(letter)

    def close(self) -> None:
        """There is nothing to close."""

    # -- inside ---------------------------------------------------------------------------------

    def _declare(self, connection: Connection) -> int:
        """Make the queue if it is missing; how many letters wait in it.

        A queue that is there is taken as it is: declaring it again with other arguments is an error. For the
        same reason a new one gets no `x-max-length`: whoever consumes from it would have to know that.
        """
        number = _length(connection, self._queue)
        if number is None:
            channel: Any = connection.channel()
            channel.queue_declare(queue=self._queue, durable=True, auto_delete=False)
        return number or 0

    def _trim(self, connection: Connection, excess: int) -> int:
        """Drop the oldest letters beyond the limit; how many went."""
        queue = Queue(self._queue, channel=connection.channel())
        for number in range(excess):
            if queue.get(no_ack=True) is None:
                return number
        return max(0, excess)

    @contextmanager
    def _reading(self, operation: str) -> Iterator[_Reading]:
        """The letters that are there now; in the end those that were kept go back."""
        worn = 0
        try:
            with self._connection(operation) as connection:
                reading = _Reading(connection, self._queue)
                try:
                    yield reading
                finally:
                    worn = reading.worn
                    reading.put_back()
        finally:
            if worn:
                self._renew(worn)

    def _renew(self, number: int) -> None:
        """Put so many letters anew into a quorum queue, which would drop them after some more readings."""
        with self._connection("renew") as connection:
            for message in _Reading(connection, self._queue):
                if _is_worn(message):
                    _publish(connection.default_channel, _parcel(message), self._queue)
                    message.ack()
                    number -= 1
                    if not number:
                        return

    @contextmanager
    def _connection(self, operation: str) -> Iterator[Connection]:
        connection = self._connect()
        troubles: tuple[type[BaseException], ...] = (
            KombuError,
            OSError,
            MessageNacked,  # a full queue refuses; the driver's errors do not have it
            *connection.connection_errors,
            *connection.channel_errors,
        )
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=_PATIENCE)
            try:
                yield connection
            finally:
                connection.close()
        except troubles as error:
            raise StoreUnavailable(operation, f"{type(error).__name__}: {error}") from error


class _Reading:
    """The letters of a queue, one after the other until it is empty.

    RabbitMQ counts ahead of what is on its way back into a queue, and gives out behind it: a count would end
    the search too soon.
    """

    def __init__(self, connection: Connection, queue: str) -> None:
        self.connection = connection
        self.channel: Any = connection.channel()
        #: How many of those kept a quorum queue may drop before long.
        self.worn = 0
        self._queue = queue
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[Message]:
        if _length(self.connection, self._queue) is None:
            return
        queue = Queue(self._queue, channel=self.channel)
        while (message := queue.get(no_ack=False)) is not None:
            yield message

    def keep(self, message: Message) -> None:
        """Let this letter go back in the end."""
        self.worn += _is_worn(message)
        if not _is_amqp(self.connection):
            self._kept.append(message.delivery_tag)

    def put_back(self) -> None:
        """Put back what was kept. What a connection over AMQP has in hand goes back when it closes: all at
        once, where RabbitMQ would seek the old place of each letter that is rejected among all the others.
        """
        for tag in self._kept:
            self.channel.basic_reject(tag, requeue=True)


def _is_worn(message: Message) -> bool:
    returns: Any = (message.headers or {}).get("x-delivery-count")
    return isinstance(returns, int) and returns >= _MOST_RETURNS


def _length(connection: Connection, queue: str) -> int | None:
    """How many messages wait in a queue; None if the broker has no such queue."""
    probe: Any = connection.channel()
    try:
        return int(probe.queue_declare(queue=queue, passive=True).message_count)
    except connection.channel_errors as error:
        code = getattr(error, "reply_code", None) or getattr(error, "code", None)
        if str(code) != _NOT_FOUND:
            raise
    return None


def _is_missing(connection: Connection, queue: str) -> bool:
    """Whether the broker would lose what is sent to this queue. Transports without declarations keep it."""
    return _is_amqp(connection) and _length(connection, queue) is None


def _is_amqp(connection: Connection) -> bool:
    return bool(connection.transport.driver_type == "amqp")


def _publish(channel: Any, parcel: Parcel, queue: str) -> None:
    properties = {
        name: value
        for name, value in parcel.properties.items()
        if name not in _NOT_SENT_ON and value is not None
    }
    message = channel.prepare_message(
        parcel.body,
        priority=parcel.properties.get("priority"),
        content_type=parcel.content_type,
        content_encoding=parcel.content_encoding,
        headers=dead_letters.unnoted(parcel.headers),
        properties={**properties, "delivery_mode": 2},
    )
    channel.basic_publish(message, exchange="", routing_key=queue)


def _parcel(message: Message) -> Parcel:
    properties = dict(message.properties or {})
    properties.pop("application_headers", None)  # the headers once more, with RabbitMQ's notes
    return Parcel(
        body=message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dead_letters.unnoted(message.headers or {}),
        properties=properties,
    )
