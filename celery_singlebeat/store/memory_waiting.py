"""The reference store of waiting calls, for brokers in memory: whatever waits is the mover's to publish."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from celery_singlebeat.clock import Clock
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.store.ports import Keep, Write
from celery_singlebeat.store.waiting_ports import BEAT_COUNTS, CLAIM, MOST, Moved, Rank


class MemoryWaitingStore:
    """`WaitingStore` in memory. Its clock is the one that it is given, so that a test can move it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._due: dict[Keep, Monotonic] = {}
        self._beat_counts_until = Monotonic(0.0)

    def park(self, records: Sequence[Write], wait: float) -> None:
        due = later(self._clock.monotonic(), wait)
        with self._guard:
            for record in records:
                if not isinstance(record, Keep):
                    raise TypeError(f"a broker in memory has no list for a {type(record).__name__}")
                self._due.setdefault(record, due)

    def move(self, rank: Rank) -> Moved:
        now = self._clock.monotonic()
        with self._guard:
            if rank is Rank.BEAT:
                self._beat_counts_until = later(now, BEAT_COUNTS)
            elif self._beat_counts_until > now:
                return Moved(due_in=self._beat_counts_until - now, rests=True)
            order = sorted(self._due, key=lambda record: self._due[record])
            taken = [record for record in order if self._due[record] <= now][:MOST]
            for record in taken:
                self._due[record] = later(now, CLAIM)
            due_in = max(0.0, min(self._due.values()) - now) if self._due else None
            return Moved(taken=taken, due_in=due_in)

    def done(self, record: Keep) -> None:
        with self._guard:
            self._due.pop(record, None)

    def put_off(self, record: Keep, wait: float) -> None:
        with self._guard:
            if record in self._due:
                self._due[record] = later(self._clock.monotonic(), wait)

    def number(self) -> int:
        with self._guard:
            return len(self._due)

    def close(self) -> None:
        """There is nothing to close."""
