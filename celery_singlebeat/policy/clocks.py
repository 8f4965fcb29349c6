"""What this process may say about the store's clock.

C1  An answer that carries the store's time proves an interval, not a point: the store read its
    clock somewhere between question and answer.
C2  `earliest` never runs ahead of the store's clock while that clock runs evenly, so a slot that is
    due by it is not refused as early.
C3  A slot is due only when both clocks say so: the smaller of the two decides. A step of either
    clock therefore makes slots late, never early.

Intersecting the intervals of several answers is Marzullo's idea (1984), for one server.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_singlebeat.moments import Monotonic

#: How much two healthy clocks may drift apart, as a fraction of the time that passes.
DRIFT = 0.0002


@dataclass(frozen=True, slots=True)
class Offset:
    """The store's clock at monotonic `taken_at` lay between `low` and `high`."""

    taken_at: Monotonic
    low: datetime
    high: datetime

    def earliest(self, moment: Monotonic) -> datetime:
        """The earliest that the store's clock can show at `moment` (C2)."""
        return self.low + timedelta(seconds=(moment - self.taken_at) * (1 - DRIFT))

    def latest(self, moment: Monotonic) -> datetime:
        """The latest that the store's clock can show at `moment`."""
        return self.high + timedelta(seconds=(moment - self.taken_at) * (1 + DRIFT))


def sample(*, asked_at: Monotonic, answered_at: Monotonic, store_time: datetime) -> Offset:
    """What one answer proves about the store's clock at the moment of the answer (C1)."""
    return Offset(answered_at, store_time, store_time + timedelta(seconds=answered_at - asked_at))


def combine(known: Offset | None, new: Offset) -> Offset:
    """Narrow what is known by a new answer; where they contradict each other, the clock stepped."""
    if known is None:
        return new
    low = max(known.earliest(new.taken_at), new.low)
    high = min(known.latest(new.taken_at), new.high)
    return Offset(new.taken_at, low, high) if low <= high else new


def due_clock(own: datetime, offset: Offset | None, moment: Monotonic) -> datetime:
    """The time by which slots are due: the smaller of both clocks (C3).

    Before the store was ever heard nothing is dispatched anyway, so the own clock stands alone.
    """
    return own if offset is None else min(own, offset.earliest(moment))


def disagreement(own: datetime, offset: Offset | None, moment: Monotonic) -> float:
    """Seconds by which the own clock is ahead of the store's; 0 within what is provable."""
    if offset is None:
        return 0.0
    low, high = offset.earliest(moment), offset.latest(moment)
    if own < low:
        return (own - low).total_seconds()
    return max(0.0, (own - high).total_seconds())
