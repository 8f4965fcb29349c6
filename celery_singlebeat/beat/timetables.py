"""The slots of a schedule, asked of Celery's own schedule objects and of nothing that is stored.

T1  An interval's slots lie at its anchor plus whole multiples of its period: no drift, and a restart
    more often than the period starves nothing.
T2  A crontab that names hours runs once for each local date and time: a time that does not exist runs
    at the moment of the change, a time that exists twice runs the first time.
T3  A crontab for every hour runs whenever the wall clock matches, in real minutes and hours, also in
    the hour that is repeated.
T4  Anything else is asked as stock beat asks it, `is_due` at the present moment, and its slot is the
    moment at which it said yes. That moment is the one by which slots are due, and its own clock shows it
    while it is asked: were it ahead by a millisecond only, the next question would begin before the slot.
T5  A schedule that names its slots by `slot_after` is asked by it, and may come to an end.

The calendar of a crontab is in `celery_singlebeat.policy.calendars`; how changes of the clock are met is
decided here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, schedule, solar
from celery.utils.time import LocalTimezone

from celery_singlebeat.moments import iso, next_whole, whole
from celery_singlebeat.policy.calendars import calendar
from celery_singlebeat.policy.entries import SHORTEST
from celery_singlebeat.zones import first_change, first_instant, offset_at, wall_time, zone_name

_DAY = timedelta(days=1)
#: What the search for an event of the sun finds so soon after a slot is that slot again.
_SAME_EVENT = timedelta(minutes=10)
#: A clock that is read just after another one is the same if it shows no other time than this.
_SAME_CLOCK = timedelta(seconds=1)
#: After how many days without an event of the sun there is none.
_DAYS_WITHOUT = 400


class Timetable(Protocol):
    """The slots of one entry."""

    #: Whether slots can be named in advance, so that a standby can tell that one is overdue.
    is_predictable: bool
    #: Whether it is in order that there is no next slot.
    ends: bool

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:
        """The first slot later than `moment`, which is a slot itself or the anchor; None: never."""
        ...

    def rule(self) -> str:
        """What the slots depend on, as text: another text is another rule."""
        ...


class Interval:
    """Every `period` from the anchor on (T1)."""

    __slots__ = ("_period",)
    is_predictable = True
    ends = False

    def __init__(self, period: timedelta) -> None:
        self._period = period

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:
        turns = max(0, (moment - anchor) // self._period) + 1
        try:
            slot = whole(anchor + turns * self._period)
            # a period of odd microseconds, rounded down, may name the same millisecond again
            return slot if slot > moment else whole(anchor + (turns + 1) * self._period)
        except OverflowError:
            return None  # beyond the year 9999

    def earlier(self, anchor: datetime, moment: datetime) -> datetime:
        """The anchor, or as many periods before it as lead to before `moment`."""
        return anchor - max(0, (anchor - moment) // self._period + 1) * self._period

    def leap(self, slot: datetime, now: datetime, *, keep: int, anchor: datetime) -> tuple[datetime, int]:
        """The slot `keep` periods before `now`, and how many slots from `slot` on it leaps over."""
        turns = max(0, (now - slot) // self._period - keep)
        if not turns:
            return slot, 0
        found = self.after(slot + (turns - 1) * self._period, anchor=anchor)
        return found or slot, turns

    def rule(self) -> str:
        return f"every {self._period // timedelta(microseconds=1)} us"


class Wall:
    """A crontab in a time zone (T2, T3)."""

    __slots__ = ("_calendar", "_zone")
    is_predictable = True
    ends = False

    def __init__(self, cron: Any, zone: tzinfo | None) -> None:
        self._zone = zone
        self._calendar = calendar(
            minutes=frozenset(cron.minute),
            hours=frozenset(cron.hour),
            days=frozenset(cron.day_of_month),
            months=frozenset(cron.month_of_year),
            weekdays=frozenset(cron.day_of_week),
        )

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:  # noqa: ARG002 - the protocol
        return self._named(moment) if self._calendar.names_hours else self._real(moment)

    def rule(self) -> str:
        return f"cron {self._calendar} {zone_name(self._zone)}"

    def _named(self, moment: datetime) -> datetime | None:
        wall = self._calendar.after(wall_time(moment, self._zone))
        while wall is not None:
            slot = first_instant(wall, self._zone)
            if slot > moment:
                return slot
            wall = self._calendar.after(wall)
        return None

    def _real(self, moment: datetime) -> datetime | None:
        since = low = moment
        while True:
            offset = offset_at(low, self._zone)
            wall = self._calendar.after((since + offset).replace(tzinfo=None))
            if wall is None:
                return None
            slot = (wall - offset).replace(tzinfo=timezone.utc)
            change = first_change(low, slot, self._zone)
            if change is None or slot < change:
                return slot
            since, low = change - timedelta(seconds=1), change


class Rounded:
    """A relative interval: the end of each period is rounded down to a whole day, hour, minute or second of
    the zone, by Celery; to a day by this class, since Celery before 5.7 misses midnight when clocks change.
    """

    is_predictable = True
    ends = False

    def __init__(self, asked: schedule, zone: tzinfo | None) -> None:
        self._asked = asked
        self._zone = zone
        self._period = _period(asked)

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:  # noqa: ARG002 - the protocol
        if self._period >= _DAY:
            end = wall_time(moment, self._zone) + self._period
            return first_instant(end.replace(hour=0, minute=0, second=0, microsecond=0), self._zone)
        local = moment.astimezone(self._zone)
        # remaining_estimate counts from now
        frozen = schedule(self._period, relative=True, nowfun=lambda: local, app=self._asked.app)
        slot = whole(moment + frozen.remaining_estimate(local))
        # below a second, rounding may lead back to where it started
        return slot if slot > moment else whole(moment + self._period)

    def rule(self) -> str:
        return f"every {self._period} rounded {zone_name(self._zone)}"


class Solar:
    """The events of the sun at a place. At some latitudes there are days without one."""

    is_predictable = True
    ends = False

    def __init__(self, asked: solar) -> None:
        self._asked: Any = asked

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:
        slot = self._next(moment)
        if slot is not None and moment != anchor and slot - moment < _SAME_EVENT:
            slot = self._next(moment + _SAME_EVENT)
        return slot

    def rule(self) -> str:
        return repr(self._asked)

    def _next(self, moment: datetime) -> datetime | None:
        sun, ephem, observer = self._asked.ephem.Sun(), self._asked.ephem, self._asked.cal
        options = {"use_center": True} if self._asked.use_center else {}
        start = ephem.Date(moment.replace(tzinfo=None))
        for _ in range(_DAYS_WITHOUT):
            try:
                found = getattr(observer, self._asked.method)(sun, start=start, **options)
            except ephem.CircumpolarError:
                start = observer.next_antitransit(sun, start=start)
            else:
                return whole(found.datetime().replace(tzinfo=timezone.utc))
        return None


class Foreseen:
    """A schedule that names its own slots, such as `celery_singlebeat.schedules.rrule` (T5)."""

    is_predictable = True
    ends = True

    def __init__(self, asked: Any) -> None:
        self._asked = asked

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:  # noqa: ARG002 - the protocol
        slot: Any = self._asked.slot_after(moment)  # the schedule is the user's, and may answer anything
        if slot is None:
            return None
        if not isinstance(slot, datetime) or slot.tzinfo is None or slot <= moment:
            raise ValueError(
                f"slot_after({iso(moment)}) is {slot!r}; it has to be a later, aware datetime, or None"
            )
        return next_whole(slot)

    def rule(self) -> str:
        text, plain = repr(self._asked), object.__repr__(self._asked)  # the plain one is new in each process
        return text if text != plain else _kind_name(type(self._asked))


class Live:
    """A schedule that decides at the moment it is asked (T4)."""

    is_predictable = False
    ends = False

    def __init__(self, asked: BaseSchedule) -> None:
        self._asked = asked

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:  # noqa: ARG002 - the protocol
        return moment  # ask at once; `is_due` says for how long it is not

    def is_due(self, last: datetime, now: datetime, own: datetime) -> tuple[bool, float]:
        """Ask the schedule: due at `now`, and otherwise the seconds until it wants to be asked again.

        `own` is what this machine's clock shows, which may be ahead of `now`.
        """
        with _held(self._asked, now, own):
            due, wait = self._ask(last)
        is_number = isinstance(wait, (int, float)) and not math.isnan(wait)
        return bool(due), float(wait) if is_number else 1.0

    def rule(self) -> str:
        return f"live {_kind_name(type(self._asked))}"

    def _ask(self, last: datetime) -> Any:
        """What the schedule answers: it is the user's, and may answer anything."""
        zone = self._asked.now().tzinfo or timezone.utc
        return self._asked.is_due(last.astimezone(zone))


@contextmanager
def _held(asked: Any, now: datetime, own: datetime) -> Iterator[None]:
    """Let the clock of a schedule show `now` meanwhile, if it shows the time of this machine.

    The schedule is the user's: it may allow no attribute to be set, or have no place for one.
    """
    shown: datetime = asked.now()
    zone = shown.tzinfo or timezone.utc  # Celery takes a naive time for one in UTC
    attributes = getattr(asked, "__dict__", {})
    if "now" in attributes or abs(shown.replace(tzinfo=zone) - own) > _SAME_CLOCK:
        yield
        return
    held = now.astimezone(zone).replace(tzinfo=shown.tzinfo)
    attributes["now"] = lambda: held
    try:
        yield
    finally:
        del attributes["now"]


def _kind_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def timetable(asked: Any, *, zone: tzinfo | None = None) -> Timetable:
    """The timetable of a Celery schedule object; `zone` replaces its own.

    Raises `ValueError` for an interval that cannot be.
    """
    kind = type(asked)
    if hasattr(asked, "slot_after"):
        return Foreseen(asked)
    if _has_own_will(kind):
        return Live(asked)
    if issubclass(kind, crontab):
        return Wall(asked, _zone(asked, zone))
    if issubclass(kind, solar):
        return Solar(asked)
    if asked.relative:
        return Rounded(asked, _zone(asked, zone))
    return Interval(_period(asked))


def _zone(asked: Any, zone: tzinfo | None) -> tzinfo | None:
    """The zone that a schedule is read in: its entry's, that of its own clock, or the app's."""
    has_a_clock = asked.nowfun is not None or type(asked).now is not BaseSchedule.now
    apps = _own_zone(asked)
    moment = asked.now() if has_a_clock else None
    found = zone or (moment and moment.tzinfo) or apps
    if isinstance(found, LocalTimezone):
        return None  # Celery's own idea of the machine's zone errs around the changes of its clock
    if moment is not None and found is moment.tzinfo and _shows_the_machines_zone(moment, apps):
        return None
    name = getattr(found, "zone", None)
    # Celery's rounding adds to wall times, which pytz does not allow for.
    return ZoneInfo(name) if isinstance(name, str) else found


def _shows_the_machines_zone(moment: datetime, apps: tzinfo) -> bool:
    """Whether a clock shows that zone and tells its present offset alone, as `datetime.now().astimezone()`
    does, and Celery's own `app.now()`.
    """
    zone = moment.tzinfo
    if not isinstance(zone, timezone) or zone is timezone.utc:
        return False
    has_a_name = not str(zone).startswith("UTC")
    return (has_a_name or isinstance(apps, LocalTimezone)) and zone.utcoffset(None) == offset_at(moment, None)


def _own_zone(asked: Any) -> tzinfo:
    if "tz" in vars(asked) or type(asked).tz is not BaseSchedule.tz:
        own: tzinfo = twin(asked).tz
    else:
        own = asked.app.timezone  # asked of the schedule it would be kept there, one by one
    return own


def _period(asked: Any) -> timedelta:
    period: timedelta = asked.run_every
    if period.total_seconds() < SHORTEST:
        raise ValueError(f"run_every={period!r} is below the resolution of 1 ms")
    return period


def _has_own_will(kind: type) -> bool:
    """Whether a schedule class is none of Celery's, or a subclass that decides itself when it is due."""
    for ours in (crontab, solar, schedule):
        if issubclass(kind, ours):
            names = ("is_due", "remaining_estimate", "remaining_delta", "run_every", "seconds")
            return any(getattr(kind, name, None) is not getattr(ours, name, None) for name in names)
    return True


def twin(original: Any, **attributes: Any) -> Any:
    """A copy with other attributes, without running anybody's constructor.

    Celery's own way to copy schedules and entries is to pickle them, which forgets their app and
    whatever a subclass has added.
    """
    if not hasattr(original, "__dict__"):  # a class with slots alone
        slotted = copy.copy(original)
        for name, value in attributes.items():
            setattr(slotted, name, value)
        return slotted
    found = object.__new__(type(original))
    found.__dict__.update(vars(original), **attributes)
    return found
