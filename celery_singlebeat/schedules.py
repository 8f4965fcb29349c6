"""Schedules that Celery has not: `clocked`, once at a time, and `rrule`, a recurrence rule of RFC 5545.

Both know their slots in advance, by `slot_after`. Any schedule class that has this method is asked by it,
and needs no `is_due` for this package's schedulers; these have one, so that stock beat can run them too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, schedstate
from dateutil.parser import isoparse
from dateutil.rrule import DAILY, HOURLY, MINUTELY, SECONDLY, WEEKLY, YEARLY, rrulestr

from celery_singlebeat.moments import iso, reachable, whole
from celery_singlebeat.zones import first_instant, offset_at, wall_time

#: Seconds after which stock beat asks again whose schedule has no further slot.
_NEVER = 3600.0
#: The most slots that a rule may count: those before a slot have to be counted to find it.
_MOST_COUNTED = 10_000
#: The calendar repeats itself after so many years, and dateutil counts no further than to the year 9999.
_CYCLE, _END = 400, 9999
#: Turns of a rule that are all of the same length.
_STEPS = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}


class _Foreseen(BaseSchedule):
    """A schedule whose slots are named by `slot_after`."""

    def slot_after(self, moment: datetime) -> datetime | None:
        """The first slot later than `moment`, aware and in UTC; None: there is none."""
        raise NotImplementedError  # both kinds below have their own; Celery's base class is no ABC

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Time from now to the slot after `last_run_at`."""
        slot = self.slot_after(last_run_at)
        return timedelta(seconds=_NEVER) if slot is None else slot - self.now()

    def is_due(self, last_run_at: datetime) -> Any:
        """Celery's question: due now, and the seconds until it is worth asking again."""
        now = self.now()
        slot = self.slot_after(last_run_at)
        is_due = slot is not None and slot <= now
        following = self.slot_after(now)
        wait = _NEVER if following is None else (following - now).total_seconds()
        if slot is not None and not is_due:
            wait = (slot - now).total_seconds()
        return schedstate(is_due=is_due, next=wait)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))


class clocked(_Foreseen):  # noqa: N801 - named as Celery's own schedules are
    """Once, at an aware datetime. Raises `ValueError` for a naive one."""

    def __init__(self, at: datetime, nowfun: Callable[[], datetime] | None = None, app: Any = None) -> None:
        if at.tzinfo is None:
            raise ValueError(f"clocked({at.isoformat()}) has no time zone; give an aware datetime")
        self.at = whole(reachable(at).astimezone(timezone.utc))
        super().__init__(nowfun=nowfun, app=app)

    def slot_after(self, moment: datetime) -> datetime | None:
        """The time itself, until it is over."""
        return self.at if self.at > moment else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.at,)

    def __repr__(self) -> str:
        return f"<clocked: {iso(self.at)}>"


class rrule(_Foreseen):  # noqa: N801 - named as Celery's own schedules are
    """A recurrence rule such as "FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9;BYMINUTE=0;BYSECOND=0".

    `start` is its DTSTART: a wall time of `zone` (an IANA name, UTC if not given), or an instant. Slots are
    wall times of the zone: one that does not exist comes at the change of the clock, one that exists twice
    comes the first time. A rule that repeats each hour or more often counts real time, and its BYHOUR is in
    UTC. An UNTIL that ends in Z is in UTC, and any other a wall time of the zone.

    COUNT is 10,000 at most. Raises `ValueError` for a rule that cannot be read, or names no day of any year.
    """

    def __init__(
        self,
        rule: str,
        start: datetime,
        zone: str = "UTC",
        nowfun: Callable[[], datetime] | None = None,
        app: Any = None,
    ) -> None:
        self.rule = rule.removeprefix("RRULE:")
        try:
            self.zone = ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"zone={zone!r} is not an IANA zone; give one such as 'Europe/Berlin'") from None
        reachable(start)
        self.start = wall_time(start, self.zone) if start.tzinfo is not None else start
        if ":" in self.rule or len(self.rule.split()) > 1:
            raise ValueError(f"rrule {rule!r}: give the rule alone, and DTSTART as start=...")
        self._rule = self._read(self.start, self.zone)
        self._check()
        self._step = _STEPS.get(self._rule._freq)  # noqa: SLF001 - it has no other name
        self._in_real_time = self._step is not None and self._step < timedelta(days=1)
        if self._in_real_time:
            start_utc = first_instant(self.start, self.zone).replace(tzinfo=None)
            self._rule = self._read(start_utc, timezone.utc)
        super().__init__(nowfun=nowfun, app=app)

    def _read(self, start: datetime, zone: tzinfo) -> Any:
        """The rule from a naive `start`; its slots are wall times of `zone`, and so has its UNTIL to be."""

        def local(until: re.Match[str]) -> str:
            moment = isoparse(until[1].upper())
            with suppress(OverflowError):  # the end of all time is not moved
                if moment.tzinfo is not None:
                    moment = wall_time(moment, zone)
                elif zone is not self.zone:
                    moment = wall_time(first_instant(moment, self.zone), zone)
            return f"UNTIL={moment:%Y%m%dT%H%M%S}"

        try:
            text = re.sub(r"UNTIL=(\w+)", local, self.rule, flags=re.IGNORECASE)
            return rrulestr(text, dtstart=start, ignoretz=True, cache="COUNT=" in text.upper())
        except Exception as error:  # whatever dateutil makes of it
            raise ValueError(f"rrule {self.rule!r} cannot be read: {error}") from None

    def _check(self) -> None:
        """Refuse a rule whose next slot dateutil would look for in vain, for minutes or for ever."""
        rule = self._rule
        if rule._interval < 1:  # noqa: SLF001
            raise ValueError(f"rrule {self.rule!r}: INTERVAL is below 1")
        if (rule._count or 0) > _MOST_COUNTED:  # noqa: SLF001
            raise ValueError(f"rrule {self.rule!r}: COUNT is above {_MOST_COUNTED}; give UNTIL instead")
        freq, positions = rule._freq, rule._bysetpos or ()  # noqa: SLF001
        if freq >= DAILY and any(abs(position) > _times(rule) for position in positions):
            raise ValueError(f"rrule {self.rule!r}: no turn has as many slots as BYSETPOS says")
        every: dict[str, Any] = {"interval": 1, "count": None, "until": None, "bysetpos": None}
        every |= {"byhour": 0, "byminute": 0, "bysecond": 0, "cache": False}
        every["freq"] = YEARLY if freq >= WEEKLY else freq  # a year's days are looked at together
        cycle = datetime(_END - _CYCLE, 1, 1)  # noqa: DTZ001 - a wall time
        try:
            day = next(iter(rule.replace(dtstart=cycle, **every)), None)
        except Exception as error:  # whatever dateutil makes of it
            raise ValueError(f"rrule {self.rule!r} cannot be read: {error}") from None
        if day is None:
            raise ValueError(f"rrule {self.rule!r} names no day of any year")

    def _near(self, local: datetime) -> Any:
        """The rule from a start shortly before `local`: dateutil counts every turn since the start."""
        rule = self._rule
        if self._step is None or rule._count is not None or local <= rule._dtstart:  # noqa: SLF001
            return rule
        step = self._step * rule._interval  # noqa: SLF001
        turns = (local - rule._dtstart) // step - 1  # noqa: SLF001
        return rule.replace(dtstart=rule._dtstart + turns * step) if turns > 0 else rule  # noqa: SLF001

    def slot_after(self, moment: datetime) -> datetime | None:
        """The first instant of the rule later than `moment`."""
        if self._in_real_time:
            local = moment.astimezone(timezone.utc).replace(tzinfo=None)
            found = self._near(local).after(local)
            return None if found is None else whole(found.replace(tzinfo=timezone.utc))
        # A change of the clock may shift a wall time by hours: look back that far.
        local = wall_time(moment, self.zone) - (_shift(moment, self.zone) + timedelta(seconds=1))
        rule = self._near(local)
        while (local := rule.after(local)) is not None:
            slot = whole(first_instant(local, self.zone))
            if slot > moment:
                return slot
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rule, self.start, self.zone.key)

    def __repr__(self) -> str:
        return f"<rrule: {self.rule} from {self.start.isoformat()} {self.zone.key}>"


def _times(rule: Any) -> int:
    """How many slots a turn of a day or less can have."""
    parts = [rule._byhour, rule._byminute, rule._bysecond][max(0, rule._freq - DAILY) :]  # noqa: SLF001
    return math.prod(len(part or (0,)) for part in parts)


def _shift(moment: datetime, zone: ZoneInfo) -> timedelta:
    day = timedelta(days=1)
    return abs(offset_at(moment + day, zone) - offset_at(moment - day, zone))
