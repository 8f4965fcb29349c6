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
from celery_singlebeat.store.letter_ports import TAKEN, Burial, Decision, Parcel, Send, Swept, Verdict
from celery_singlebeat.store.lock_ports import CALL_MEMORY, LockStore
from celery_singlebeat.store.scripts import Argument, Scripts, answers

_PAGE = 200
#: Letters that one script compares at most, so that it takes milliseconds, and how many more may have come
#: back to the old end of the list than were there.
_LONGEST_SEARCH, _SLACK = 100_000, 100


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
        arguments += [f"dead_letters:{burial.reason}:{burial.task}", int(burial.moves)]
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
        if answer and self._elsewhere is not None and not burial.moves:
            self._elsewhere.buried(burial.task_id, replays=burial.replays)
            self._elsewhere.count(f"dead_letters:{burial.reason}:{burial.task}")
        return bool(answer)

    def letters(self) -> Iterator[Parcel]:
        walk = _Walk(self._client, self._prefix + self._queue)
        while page := walk.page():
            for raw in page:
                walk.keep(raw)
                yield _parcel(raw)

    def number(self) -> int:
        with answers("number"):
            return int(self._client.llen(self._prefix + self._queue))

    def sweep(self, decide: Decision, *, step: int = 100) -> Iterator[Swept]:
        walk = _Walk(self._client, self._prefix + self._queue)
        while page := walk.page():
            chosen: list[tuple[Parcel, Send | Verdict]] = []
            for raw in page:
                letter = _parcel(raw)
                decision = decide(letter)
                if decision is Verdict.STOP:
                    yield from self._move(chosen, walk.kept)
                    return
                if decision is Verdict.KEEP:
                    walk.keep(raw)
                    continue
                chosen.append((letter, decision))
                if len(chosen) >= min(step, _LONGEST_SEARCH // (walk.kept + 1)):
                    yield from self._move(chosen, walk.kept)
                    chosen = []
            yield from self._move(chosen, walk.kept)

    def _move(self, chosen: list[tuple[Parcel, Send | Verdict]], kept: int) -> list[Swept]:
        """Send or drop letters in one script. Before each lie at most the kept ones and others of them."""
        if not chosen:
            return []
        keys = [self._prefix + self._queue]
        arguments: list[Argument] = [kept + len(chosen) + _SLACK]
        for letter, decision in chosen:
            if isinstance(decision, Send):
                arguments += [letter.place, _payload(decision.message, decision.queue)]
                keys.append(self._target(decision))
            else:
                arguments += [letter.place, ""]
                keys.append(keys[0])
        found = self._scripts.run("letter_move", keys, arguments)
        return [
            Swept(letter, "" if moved else TAKEN) for (letter, _), moved in zip(chosen, found, strict=True)
        ]

    def _target(self, send: Send) -> str:
        priority = send.message.properties.get("priority")
        target = self._prefix + send.queue
        if isinstance(priority, int):
            step = self._steps[max(0, bisect(self._steps, max(0, min(priority, 9))) - 1)]
            target += f"{self._separator}{step}" if step else ""
        return target

    def close(self) -> None:
        with answers("close"):
            self._client.close()


class _Walk:
    """Reads a list from its old end, page by page, while others take letters out and add new ones.

    `kept` letters were read and stay: the next page begins behind the newest of them. If it is not where it
    was, others took some before it.
    """

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = key
        self._newest: bytes | None = None
        self._seen: set[int] = set()
        self.kept = 0

    def keep(self, raw: bytes) -> None:
        """Leave this letter of the page where it is."""
        self.kept += 1
        self._newest = raw
        self._seen.add(hash(raw))

    def page(self) -> list[bytes]:
        """The next letters, oldest first; none at the end."""
        with answers("letters"):
            page: Any = self._client.lrange(self._key, -self.kept - _PAGE, -max(1, self.kept))
            if self._newest is None:
                return list(reversed(page))
            if page and page[-1] == self._newest:
                return list(reversed(page[:-1]))
            with self._client.pipeline(transaction=True) as pipe:
                pipe.llen(self._key)
                pipe.lpos(self._key, self._newest, rank=-1, maxlen=self.kept)  # type: ignore[arg-type]
                length, place = pipe.execute()
        if place is not None:
            self.kept = length - place
            return self.page()
        return self._begin_again()

    def _begin_again(self) -> list[bytes]:
        """The newest that was kept is gone too: look for the first that was not met yet."""
        self.kept, self._newest = 0, None
        while page := self.page():
            for number, raw in enumerate(page):
                if hash(raw) not in self._seen:
                    return page[number:]
                self.keep(raw)
        return []


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
