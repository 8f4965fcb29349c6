"""Waiting calls in one sorted set of a Redis: of the broker's, if that is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import redis

from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.ports import Keep, Publish, Push, Write
from celery_singlebeat.store.scripts import Scripts, answers
from celery_singlebeat.store.waiting_ports import (
    BEAT_COUNTS,
    CLAIM,
    MOST,
    PUT_OFF,
    Moved,
    Rank,
)


class RedisWaitingStore:
    """`WaitingStore` over one Redis."""

    def __init__(self, connect: Callable[[], redis.Redis], keys: Keys) -> None:
        self._client = connect()
        self._scripts = Scripts(self._client)
        self._keys = keys

    def park(self, records: Sequence[Write], wait: float) -> None:
        self._scripts.run("waiting_park", [self._keys.waiting], [_ms(wait), *map(_text, records)])

    def move(self, rank: Rank) -> Moved:
        number, refused, rest, taken = self._scripts.run(
            "waiting_move",
            [self._keys.waiting, self._keys.mover],
            [rank.value, MOST, _ms(BEAT_COUNTS), _ms(CLAIM), _ms(PUT_OFF)],
        )
        due_in = None if rest < 0 else rest / 1000
        if number < 0:
            return Moved(due_in=due_in, rests=True)
        return Moved(number, [Keep(text[2:]) for text in taken], due_in, refused)

    def done(self, record: Keep) -> None:
        with answers("waiting_done"):
            self._client.zrem(self._keys.waiting, _text(record))

    def put_off(self, record: Keep, wait: float) -> None:
        with answers("waiting_put_off"):
            # What was taken became due again after CLAIM seconds.
            self._client.zincrby(self._keys.waiting, _ms(wait) - _ms(CLAIM), _text(record))

    def number(self) -> int:
        with answers("waiting"):
            return int(self._client.zcard(self._keys.waiting))

    def close(self) -> None:
        with answers("close"):
            self._client.close()


def _text(record: Write) -> str:
    if isinstance(record, Push):
        return f"L{record.queue}\0{record.payload}"
    if isinstance(record, Publish):
        return f"C{record.channel}\0{record.payload}"
    return f"R\0{record.payload}"


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
