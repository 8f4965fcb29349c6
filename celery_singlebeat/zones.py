"""Wall times and instants, and the changes of the clock between them.

Z1  A zone is only ever asked what its clocks show at an instant. So any kind of `tzinfo` will do: those of
    zoneinfo, pytz, dateutil and `datetime`; None is the zone of this machine.
Z2  A wall time that comes twice is the first of the two instants; one that does not exist is the instant at
    which clocks jump over it.
Z3  A zone has the same name in every process, or none.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta, timezone, tzinfo

from celery_singlebeat.moments import from_millis, millis

_DAY = timedelta(days=1)
#: No zone changes its clocks forth and back in so short a time; in October 2000, parts of Brazil did within
#: an hour less than a week.
_STEADY = timedelta(days=6)


def offset_at(moment: datetime, zone: tzinfo | None) -> timedelta:
    """How far the zone's wall clock is ahead of UTC at an instant."""
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def wall_time(moment: datetime, zone: tzinfo | None) -> datetime:
    """What the zone's wall clock shows at an instant: a naive datetime."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def first_instant(local: datetime, zone: tzinfo | None) -> datetime:
    """The instant of a wall time: the first of two, or the change that jumped over it (Z2)."""
    guess = local.replace(tzinfo=timezone.utc)
    old, new = offset_at(guess - _DAY, zone), offset_at(guess + _DAY, zone)
    for offset in (old, new):
        if wall_time(guess - offset, zone) == local:
            return guess - offset
    return change_between(guess - max(old, new), guess - min(old, new), zone)


def change_between(low: datetime, high: datetime, zone: tzinfo | None) -> datetime:
    """The first second in (low, high] whose offset differs from that of `low`."""
    before, low_s, high_s = offset_at(low, zone), millis(low) // 1000, millis(high) // 1000
    while high_s - low_s > 1:
        middle = (low_s + high_s) // 2
        if offset_at(from_millis(middle * 1000), zone) == before:
            low_s = middle
        else:
            high_s = middle
    return from_millis(high_s * 1000)


def first_change(low: datetime, high: datetime, zone: tzinfo | None) -> datetime | None:
    """When clocks are first changed after `low`, if not later than `high`."""
    before = offset_at(low, zone)
    while low < high:
        step = min(low + _STEADY, high)
        if offset_at(step, zone) != before:
            return change_between(low, step, zone)
        low = step
    return None


def zone_name(zone: tzinfo | None) -> str:
    """The zone's name, the same on every machine and in every process (Z3)."""
    for attribute in ("key", "zone"):  # of zoneinfo, of pytz
        name = getattr(zone, attribute, None)
        if isinstance(name, str) and name:
            return name
    if isinstance(zone, timezone):
        return str(zone)
    # It has no name, or one that says where a file lies on this machine; tell it by what it does.
    months = [datetime(2020 + n // 12, n % 12 + 1, 1, tzinfo=timezone.utc) for n in range(144)]
    offsets = " ".join(str(offset_at(month, zone) // timedelta(seconds=1)) for month in months)
    return f"zone {hashlib.sha256(offsets.encode()).hexdigest()[:16]}"
