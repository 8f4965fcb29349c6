"""A calendar by brute force: walk through UTC minute by minute, and look at the clock on the wall.

It is written from what a crontab and a change of the clock mean, and shares nothing with the package. Two
readings of the same walk:

* every time the clock shows a matching minute: what a job of every minute or every hour wants;
* once for each matching wall time of the calendar: the first time that the clock shows it or, if it is put
  forward over it, at the moment at which that happens: what a job with hours wants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@dataclass(frozen=True)
class Fields:
    """What a crontab says, as sets of numbers; Sunday is 0."""

    minutes: Collection[int] = range(60)
    hours: Collection[int] = range(24)
    days: Collection[int] = range(1, 32)
    months: Collection[int] = range(1, 13)
    weekdays: Collection[int] = range(7)

    def name(self, wall: datetime) -> bool:
        return self.name_date(wall) and wall.hour in self.hours and wall.minute in self.minutes

    def name_date(self, wall: datetime) -> bool:
        return (
            wall.month in self.months and wall.day in self.days and (wall.weekday() + 1) % 7 in self.weekdays
        )


def shown(fields: Fields, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """Instants in (start, end] at which the clock begins to show a matching minute."""
    return [moment for moment, wall, _ in _walk(fields, zone, start, end) if fields.name(wall)]


def once(fields: Fields, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """Instants in (start, end] at which a matching wall time comes for the first time, or is jumped over."""
    return [
        moment
        for moment, wall, furthest in _walk(fields, zone, start, end)
        if any(fields.name(new) for new in _minutes(furthest, wall))
    ]


def expected(fields: Fields, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """What a crontab with these fields wants: times for jobs with hours, real minutes for the others."""
    return (shown if set(fields.hours) == set(range(24)) else once)(fields, zone, start, end)


def _walk(
    fields: Fields, zone: ZoneInfo, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, datetime]]:
    """Each UTC minute with what the clock shows, and the furthest that it has shown before."""
    moment = (start - DAY).replace(second=0, microsecond=0)
    furthest = _wall(moment, zone)
    while moment < end:
        if not _anything_near(fields, moment, zone):
            moment += DAY
            furthest = max(furthest, _wall(moment, zone))
            continue
        moment += MINUTE
        wall = _wall(moment, zone)
        if start < moment <= end:
            yield moment, wall, furthest
        furthest = max(furthest, wall)


def _anything_near(fields: Fields, moment: datetime, zone: ZoneInfo) -> bool:
    """Whether a date around this moment matches: if none does, the walk may go on a day later."""
    today = _wall(moment, zone)
    return any(fields.name_date(today + number * DAY) for number in range(-2, 4))


def _minutes(after: datetime, until: datetime) -> Iterator[datetime]:
    while after < until:
        after += MINUTE
        yield after


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def changes(zone: ZoneInfo, year: int) -> list[datetime]:
    """The minutes of a year, in UTC, at which the clock of a zone is put forward or back."""
    moment = datetime(year, 1, 1, tzinfo=timezone.utc)
    found = []
    while moment.year == year:
        if moment.astimezone(zone).utcoffset() != (moment + DAY).astimezone(zone).utcoffset():
            minute = moment
            while minute.astimezone(zone).utcoffset() == moment.astimezone(zone).utcoffset():
                minute += MINUTE
            found.append(minute)
        moment += DAY
    return found
