"""Which wall times a crontab names.

K1  A wall time matches if its minute, hour, day of the month, month and day of the week are all among the
    crontab's: day of the month *and* day of the week, as Celery reads a crontab, not either of them.
K2  A date that does not come within forty years never comes.

The fields are Celery's own, already parsed. Its search for the next date is not used, because its answers
differ from version to version and it takes ten times as long.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections.abc import Collection, Iterator
from datetime import date, datetime, time
from functools import lru_cache

#: A 29 February on a given day of the week may be forty years away, around 2100 (K2).
_YEARS = 41
#: Python's dates end in 9999, and zones need some room.
_LAST_YEAR = 9990
_HOURS_OF_A_DAY = 24


class Calendar:
    """The wall times that match five sets of numbers; Sunday is 0 (K1)."""

    __slots__ = ("_days", "_hours", "_minutes", "_months", "_weekdays")

    def __init__(
        self,
        *,
        minutes: Collection[int],
        hours: Collection[int],
        days: Collection[int],
        months: Collection[int],
        weekdays: Collection[int],
    ) -> None:
        self._minutes = _ordered(frozenset(minutes))
        self._hours = _ordered(frozenset(hours))
        self._days = _ordered(frozenset(days))
        self._months = _ordered(frozenset(months))
        self._weekdays = _ordered(frozenset(weekdays))

    @property
    def names_hours(self) -> bool:
        """Whether some hours of the day are left out."""
        return len(self._hours) < _HOURS_OF_A_DAY

    def after(self, wall: datetime) -> datetime | None:
        """The first match later than the minute of `wall` (naive); None if there is none."""
        if not (self._minutes and self._hours):
            return None
        day, hour, minute = wall.date(), wall.hour, wall.minute
        if not self._has(day):
            return self._opening(day)
        if hour in self._hours:
            place = bisect_right(self._minutes, minute)
            if place < len(self._minutes):
                return datetime.combine(day, time(hour, self._minutes[place]))
        place = bisect_right(self._hours, hour)
        if place < len(self._hours):
            return datetime.combine(day, time(self._hours[place], self._minutes[0]))
        return self._opening(day)

    def __str__(self) -> str:
        fields = (self._minutes, self._hours, self._weekdays, self._days, self._months)
        return " ".join(map(_listed, fields))

    def _has(self, day: date) -> bool:
        return day.day in self._days and day.month in self._months and day.isoweekday() % 7 in self._weekdays

    def _opening(self, day: date) -> datetime | None:
        """The first match on any date after `day`."""
        for found in self._dates(day):
            return datetime.combine(found, time(self._hours[0], self._minutes[0]))
        return None

    def _dates(self, day: date) -> Iterator[date]:
        for year in range(day.year, min(day.year + _YEARS, _LAST_YEAR)):
            for month in self._months:
                if (year, month) < (day.year, day.month):
                    continue
                first, length = monthrange(year, month)
                for number in self._days:
                    if number > length:
                        break
                    if (first + number) % 7 in self._weekdays:  # `first`: the weekday of the 1st, Monday 0
                        found = date(year, month, number)
                        if found > day:
                            yield found


@lru_cache(maxsize=4096)
def calendar(
    *,
    minutes: frozenset[int],
    hours: frozenset[int],
    days: frozenset[int],
    months: frozenset[int],
    weekdays: frozenset[int],
) -> Calendar:
    """The calendar of five sets of numbers. Many crontabs of a big schedule are equal, and share theirs."""
    return Calendar(minutes=minutes, hours=hours, days=days, months=months, weekdays=weekdays)


@lru_cache(maxsize=4096)
def _ordered(numbers: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers))


@lru_cache(maxsize=4096)
def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
