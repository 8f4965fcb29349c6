"""A clock that moves only when told."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from celery_singlebeat.moments import Monotonic, later

_START = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)


class FakeClock:
    """Both clocks of one process, starting at `now` (aware) and standing still."""

    def __init__(self, now: datetime = _START) -> None:
        self._now = now
        self._monotonic = Monotonic(1000.0)

    def now(self) -> datetime:
        """Wall time."""
        return self._now

    def monotonic(self) -> Monotonic:
        """Seconds that never step."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._now += timedelta(seconds=seconds)
        self._monotonic = later(self._monotonic, seconds)

    def step_wall(self, seconds: float) -> None:
        """What a clock correction does: the wall clock jumps, and nothing has really passed."""
        self._now += timedelta(seconds=seconds)
