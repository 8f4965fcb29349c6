"""Dead letters on any broker that kombu knows, by plain messages.

There is no transaction between a queue and the record of a call, so the order gives the guarantee:
publish with confirms, then note, then acknowledge. A crash in between leaves one letter too many,
never one too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kombu import Connection, Queue
from kombu.exceptions import KombuError
from kombu.message import Message

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.letter_ports import Burial, Parcel
from celery_singlebeat.store.lock_ports import LockStore

_PATIENCE = 5
#: What the broker or the transport sets itself, and what has an argument of its own.
_NOT_SENT_ON = frozenset(
    {"delivery_tag", "delivery_info", "delivery_mode", "body_encoding", "application_headers"}
    | {"content_type", "content_encoding", "priority"}
)
_NOT_FOUND = "404"


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
        if not self._locks.may_bury(burial.task_id, attempt=burial.attempt, replays=burial.replays):
            return False
        with self._connection("bury") as connection:
            number = self._number(connection)
            _publish(connection.channel(), burial.parcel, self._queue)
            trimmed = self._trim(connection, number + 1 - self._limit)
        self._locks.buried(burial.task_id, replays=burial.replays)
        self._locks.count(f"dead_letters:{burial.reason}:{burial.task}")
        if trimmed:
            self._locks.count("dead_letters_trimmed", trimmed)
        return True

    def letters(self) -> Iterator[Parcel]:
        with self._connection("letters") as connection, self._all(connection) as messages:
            found = [_parcel(message) for message in messages]
        yield from found

    def number(self) -> int:
        with self._connection("number") as connection:
            return self._number(connection)

    def replay(self, letter: Parcel, message: Parcel, queue: str) -> bool:
        with self._connection("replay") as connection, self._all(connection) as messages:
            for found in messages:
                if found.headers == letter.headers:
                    _publish(connection.channel(), message, queue)
                    found.ack()
                    return True
        return False

    def remove(self, letters: Sequence[Parcel]) -> int:
        wanted = [letter.headers for letter in letters]
        gone = 0
        with self._connection("remove") as connection, self._all(connection) as messages:
            for message in messages:
                if message.headers in wanted:
                    wanted.remove(message.headers)
                    message.ack()
                    gone += 1
        return gone

    def close(self) -> None:
        """There is nothing to close."""

    # -- inside ---------------------------------------------------------------------------------

    def _number(self, connection: Connection) -> int:
        """How many letters wait in the queue, which is made if it is missing.

        A queue that is there is taken as it is: declaring it again with other arguments is an error. For the
        same reason a new one gets no `x-max-length`: whoever consumes from it would have to know that.
        """
        probe: Any = connection.channel()
        try:
            return int(probe.queue_declare(queue=self._queue, passive=True).message_count)
        except connection.channel_errors as error:
            code = getattr(error, "reply_code", None) or getattr(error, "code", None)
            if str(code) != _NOT_FOUND:
                raise
        channel: Any = connection.channel()
        channel.queue_declare(
            queue=self._queue,
            durable=True,
            auto_delete=False,
        )
        return 0

    def _trim(self, connection: Connection, excess: int) -> int:
        """Drop the oldest letters beyond the limit; how many went."""
        queue = Queue(self._queue, channel=connection.channel())
        for number in range(excess):
            if queue.get(no_ack=True) is None:
                return number
        return max(0, excess)

    @contextmanager
    def _all(self, connection: Connection) -> Iterator[list[Message]]:
        """Every letter, in hand; those that are not acknowledged go back, in their order."""
        self._number(connection)
        queue = Queue(self._queue, channel=connection.channel())
        messages = list(iter(lambda: queue.get(no_ack=False), None))
        try:
            yield messages
        finally:
            for message in messages:
                if not message.acknowledged:
                    message.requeue()

    @contextmanager
    def _connection(self, operation: str) -> Iterator[Connection]:
        connection = self._connect()
        troubles: tuple[type[BaseException], ...] = (
            KombuError,
            OSError,
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
        headers=dict(parcel.headers),
        properties={**properties, "delivery_mode": 2},
    )
    channel.basic_publish(message, exchange="", routing_key=queue)


def _parcel(message: Message) -> Parcel:
    return Parcel(
        body=message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(message.headers or {}),
        properties=dict(message.properties or {}),
    )
