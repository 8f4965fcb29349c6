"""Two kinds of moment, and why they never mix.

Wall time, an aware `datetime` in UTC, says *which* slot is due; every node must agree on it.
`Monotonic` says *how long* a promise still holds; only this process can read it. Adding one to
the other is always a mistake, so they are different types and mypy says so.

A slot is a whole millisecond of wall time: that is what the store keeps, and what names a task id.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import NewType

#: Seconds on this process's monotonic clock.
Monotonic = NewType("Monotonic", float)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: How finely slots are told apart.
MILLISECOND = timedelta(milliseconds=1)
_FIRST_YEAR, _LAST_YEAR = 1900, 9998


def later(moment: Monotonic, seconds: float) -> Monotonic:
    """The monotonic moment `seconds` after another."""
    return Monotonic(moment + seconds)


def millis(moment: datetime) -> int:
    """Whole milliseconds since 1970 of an aware datetime, rounded down."""
    return (moment - _EPOCH) // MILLISECOND


def from_millis(value: int) -> datetime:
    """The aware UTC datetime of so many milliseconds since 1970.

    Raises `OverflowError` for values outside the years 1 to 9999.
    """
    return _EPOCH + timedelta(milliseconds=value)


def whole(moment: datetime) -> datetime:
    """The moment in UTC, rounded down to a whole millisecond."""
    return from_millis(millis(moment))


def next_whole(moment: datetime) -> datetime:
    """The moment in UTC, rounded up to a whole millisecond."""
    found = whole(moment)
    return found if found >= moment else found + MILLISECOND


def reachable(moment: datetime) -> datetime:
    """The moment itself; raises `ValueError` for one so far off that it has no wall time in some zone."""
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"{moment.isoformat()} is not within the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return moment


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC with offset, as headers, logs and JSON show it."""
    return moment.astimezone(timezone.utc).isoformat()
