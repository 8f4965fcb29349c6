"""Dead letters on a Redis broker: a list in kombu's own format, so that any kombu consumer can read it."""

from __future__ import annotations

import base64
import json
import uuid
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.letter_ports import Burial, Parcel
from celery_singlebeat.store.lock_ports import CALL_MEMORY, LockStore
from celery_singlebeat.store.scripts import Argument, Scripts, answers

_PAGE = 200


class RedisLetterStore:
    """`LetterStore` over the list `queue` of a Redis broker.

    `broker_prefix` is kombu's `global_keyprefix`; `steps` and `separator` say which list has which
    priority, as in kombu. `elsewhere` is the store of locks if it is not the broker's own database: it is
    told of each burial as well.
    """

    def __init__(
        self,
        connect: Callable[[], redis.Redis],
        keys: Keys,
        *,
        queue: str,
        limit: int,
        broker_prefix: str = "",
        steps: Sequence[int] = (0, 3, 6, 9),
        separator: str = "\x06\x16",
        elsewhere: LockStore | None = None,
    ) -> None:
        self._client = connect()
        self._scripts = Scripts(self._client)
        self._keys = keys
        self._queue = queue
        self._limit = limit
        self._prefix = broker_prefix
        self._steps = sorted(steps)
        self._separator = separator
        self._elsewhere = elsewhere

    def bury(self, burial: Burial) -> bool:
        keys, receipt = self._keys, burial.receipt
        unacked, index = (receipt.unacked, receipt.index) if receipt else ("unacked", "unacked_index")
        arguments: list[Argument] = [_payload(burial.parcel, self._queue), burial.replays, burial.attempt]
        arguments += [receipt.tag if receipt else "", self._limit, round(CALL_MEMORY * 1000)]
        arguments += [f"dead_letters:{burial.reason}:{burial.task}"]
        answer = self._scripts.run(
            "letter_bury",
            [
                self._prefix + self._queue,
                keys.call(burial.task_id),
                keys.counters,
                self._prefix + unacked,
                self._prefix + index,
            ],
            arguments,
        )
        if answer and self._elsewhere is not None:
            self._elsewhere.buried(burial.task_id, replays=burial.replays)
            self._elsewhere.count(f"dead_letters:{burial.reason}:{burial.task}")
        return bool(answer)

    def letters(self) -> Iterator[Parcel]:
        """Pages from the old end; a letter that is added or taken meanwhile may be missed or seen."""
        end = -1
        while True:
            with answers("letters"):
                page: list[Any] = self._client.lrange(self._prefix + self._queue, end - _PAGE + 1, end)
            for raw in reversed(page):
                yield _parcel(raw)
            if len(page) < _PAGE:
                return
            end -= _PAGE

    def number(self) -> int:
        with answers("number"):
            return int(self._client.llen(self._prefix + self._queue))

    def replay(self, letter: Parcel, message: Parcel, queue: str) -> bool:
        priority = message.properties.get("priority")
        target = self._prefix + queue
        if isinstance(priority, int):
            step = self._steps[max(0, bisect(self._steps, max(0, min(priority, 9))) - 1)]
            target += f"{self._separator}{step}" if step else ""
        answer = self._scripts.run(
            "letter_replay",
            [self._prefix + self._queue, target],
            [letter.place, _payload(message, queue)],
        )
        return bool(answer)

    def remove(self, letters: Sequence[Parcel]) -> int:
        with answers("remove"):
            pipe = self._client.pipeline(transaction=False)
            for letter in letters:
                pipe.lrem(self._prefix + self._queue, 1, letter.place)
            return sum(int(gone) for gone in pipe.execute())

    def close(self) -> None:
        with answers("close"):
            self._client.close()


def _payload(parcel: Parcel, queue: str) -> str:
    """The message as kombu's virtual transports write it: its own tag, and sent to `queue` by name."""
    body, properties = parcel.body, dict(parcel.properties)
    if isinstance(body, bytes):
        body, properties["body_encoding"] = base64.b64encode(body).decode(), "base64"
    info = dict(properties.get("delivery_info") or {})
    properties["delivery_info"] = {
        key: value for key, value in info.items() if key not in ("redelivered", "consumer_tag")
    } | {"exchange": "", "routing_key": queue}
    properties["delivery_tag"] = str(uuid.uuid4())
    return json.dumps(
        {
            "body": body,
            "content-encoding": parcel.content_encoding,
            "content-type": parcel.content_type,
            "headers": dict(parcel.headers),
            "properties": properties,
        }
    )


def _parcel(raw: bytes) -> Parcel:
    """A letter as it stands in the list; anything else that somebody put there is a letter without words."""
    try:
        message: Any = json.loads(raw)
        return Parcel(
            body=message.get("body"),
            content_type=message.get("content-type"),
            content_encoding=message.get("content-encoding"),
            headers=dict(message.get("headers") or {}),
            properties=dict(message.get("properties") or {}),
            place=raw,
        )
    except (ValueError, TypeError, AttributeError):
        return Parcel(
            body=raw, content_type=None, content_encoding=None, headers={}, properties={}, place=raw
        )
