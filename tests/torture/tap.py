"""Drains the queues into the history, and notes what else is seen of the store at the same moment.

A batch is taken by one script that may be asked again, so that a lost reply loses no message. The number of
the newest batch lives in the store: after data were lost it says exactly which messages count as not taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import redis

from celery_singlebeat.store.keys import Keys
from tests.torture.history import History

MOST = 400
_SCRIPT = (Path(__file__).parent / "tap.lua").read_text("utf-8")
_BATCH, _TAKEN = "tap:batch", "tap:taken"


class Tap:
    """One consumer of all queues."""

    def __init__(self, client: redis.Redis, history: History, prefix: str, queues: Sequence[str]) -> None:
        self.client = client
        self._history = history
        self._queues = list(queues)
        self.keys = Keys(prefix)
        self._script = client.register_script(_SCRIPT)
        self._wanted = 1
        self._lease: str | None = None
        self._digest = ""
        self._entries: dict[str, str] = {}
        self.leader_pid = 0

    def use(self, client: redis.Redis) -> None:
        """Go on at another server."""
        self.client = client
        self._script = client.register_script(_SCRIPT)

    def turn(self, seconds: float) -> int:
        """Take what is there; how many messages. Raises redis.RedisError."""
        keys = self.keys
        answer: Any = self._script(
            keys=[_BATCH, _TAKEN, keys.lease, keys.leader, keys.entries, *self._queues],
            args=[self._wanted, MOST, self._digest],
        )
        wall = time.time_ns() // 1_000_000
        now, number, at, lease, pid, left, digest, entries, taken = answer
        if number not in {self._wanted, self._wanted - 1}:
            raise RuntimeError(f"the store is at batch {number}, not at {self._wanted}: it has lost data")
        if digest != self._digest:
            self._digest = digest
            self._see_entries(seconds, now, left, dict(zip(entries[::2], entries[1::2], strict=True)))
        if number == self._wanted:
            for text in taken:
                self._see_message(seconds, at, wall, text)
            self._wanted += 1
        if lease != self._lease and not left:
            # Not before the queues are empty: every message after this record was enqueued under this lease.
            self._lease = lease
            self.leader_pid = int(pid or 0) if lease else 0
            epoch = int(lease.partition(":")[0]) if lease else 0
            self._history.write("lead", seconds, r=now, token=lease, epoch=epoch, pid=self.leader_pid)
        return len(taken)

    def after_loss(self, seconds: float, how: str) -> int:
        """Start again where the store is now, and say so; returns the newest batch that it knows."""
        number = int(self.client.hget(_BATCH, "number") or 0)
        self._history.write("loss", seconds, how=how, restored=number, known=self._wanted - 1)
        self._wanted = number + 1
        self._lease = None
        return number

    def _see_entries(self, seconds: float, now: int, left: int, found: dict[str, str]) -> None:
        changes = {}
        for name, value in found.items():
            if self._entries.get(name) != value:
                anchor, _, rule = value.partition(" ")
                changes[name] = [int(anchor), rule]
        gone = [name for name in self._entries if name not in found]
        self._entries = found
        self._history.write("enrolled", seconds, r=now, left=left, entries=changes, gone=gone)

    def _see_message(self, seconds: float, at: int, wall: int, text: str) -> None:
        queue, headers = int(text[0]), json.loads(text[1:])["headers"]
        slot = headers["singlebeat_slot"]
        self._history.write(
            "m",
            seconds,
            e=headers["singlebeat_entry"],
            s=_millis(slot),
            p=headers["singlebeat_epoch"],
            i=headers["id"],
            b=self._wanted,
            q=queue,
            r=at,
            w=wall,
        )


def _millis(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
