"""The slots of a schedule, asked of Celery's own schedule objects and of nothing that is stored.

T1  An interval's slots lie at its anchor plus whole multiples of its period: no drift, and a restart
    more often than the period starves nothing.
T2  A crontab that names hours runs once for each local date and time: a time that does not exist runs
    at the moment of the change, a time that exists twice runs the first time.
T3  A crontab for every hour runs whenever the wall clock matches, in real minutes and hours, also in
    the hour that is repeated.
T4  Anything else is asked as stock beat asks it, `is_due` at the present moment, and its slot is the
    moment at which it said yes.

The crontab's calendar is Celery's (`crontab.remaining_delta`), evaluated in a frame without daylight
saving; the changes of the clock are decided here.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Protocol

from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_singlebeat.moments import from_millis, millis, whole

_HOURS = frozenset(range(24))


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

    is_predictable = True
    ends = False

    def __init__(self, period: timedelta) -> None:
        self._period = period

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:
        turns = max(0, (moment - anchor) // self._period) + 1
        slot = whole(anchor + turns * self._period)
        # a period of odd microseconds, rounded down, may name the same millisecond again
        return slot if slot > moment else whole(anchor + (turns + 1) * self._period)

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

    is_predictable = True
    ends = False

    def __init__(self, cron: Any, zone: tzinfo) -> None:
        self._zone = zone
        self._cron = cron
        self._frame = twin(cron, tz=timezone.utc, utc_enabled=True)
        self._every_hour = set(cron.hour) >= _HOURS

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:  # noqa: ARG002 - the protocol
        try:
            return self._real(moment) if self._every_hour else self._named(moment)
        except (RuntimeError, OverflowError):
            return None  # Celery looked thousands of months ahead: there is no such date

    def rule(self) -> str:
        cron = self._cron
        parts = [cron.minute, cron.hour, cron.day_of_week, cron.day_of_month, cron.month_of_year]
        fields = " ".join(",".join(map(str, sorted(part))) for part in parts)
        return f"cron {fields} {self._zone}"

    def _next(self, local: datetime) -> datetime:
        """The next match after a wall time, as if clocks were never changed."""
        moment = local.replace(tzinfo=timezone.utc)
        self._frame.nowfun = lambda: moment  # before 5.5 the answer depends on today's date
        start, delta, _ = self._frame.remaining_delta(moment, tz=timezone.utc)
        found: datetime = start + delta
        return found.replace(tzinfo=None)

    def _named(self, moment: datetime) -> datetime:
        local = moment.astimezone(self._zone).replace(tzinfo=None)
        while True:
            local = self._next(local)
            slot = self._first_instant(local)
            if slot > moment:
                return slot

    def _first_instant(self, local: datetime) -> datetime:
        """The instant of a wall time: the first of two, or the change that jumped over it."""
        early = local.replace(tzinfo=self._zone, fold=0).astimezone(timezone.utc)
        if early.astimezone(self._zone).replace(tzinfo=None) == local:
            return early
        late = local.replace(tzinfo=self._zone, fold=1).astimezone(timezone.utc)
        return self._change_between(min(early, late), max(early, late))

    def _real(self, moment: datetime) -> datetime:
        offset = self._offset(moment)
        slot = self._in_frame(moment, offset)
        while self._offset(slot) != offset:
            change = self._change_between(moment, slot)
            if slot < change:
                break
            moment, offset = change - timedelta(seconds=1), self._offset(change)
            slot = self._in_frame(moment, offset)
        return slot

    def _in_frame(self, moment: datetime, offset: timedelta) -> datetime:
        local = (moment + offset).replace(tzinfo=None)
        return (self._next(local) - offset).replace(tzinfo=timezone.utc)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta(0)

    def _change_between(self, low: datetime, high: datetime) -> datetime:
        """The first second in (low, high] whose offset differs from that of `low`."""
        before, low_s, high_s = self._offset(low), millis(low) // 1000, millis(high) // 1000
        while high_s - low_s > 1:
            middle = (low_s + high_s) // 2
            if self._offset(from_millis(middle * 1000)) == before:
                low_s = middle
            else:
                high_s = middle
        return from_millis(high_s * 1000)


class Estimated:
    """A schedule whose next slot follows from the one before: solar events, rounded intervals."""

    is_predictable = True
    ends = False

    def __init__(self, asked: BaseSchedule, rule: str) -> None:
        self._asked = asked
        self._rule = rule

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:  # noqa: ARG002 - the protocol
        frozen = twin(self._asked, nowfun=lambda: moment)
        slot = whole(moment + frozen.remaining_estimate(moment))
        return slot if slot > moment else slot + timedelta(milliseconds=1)

    def rule(self) -> str:
        return self._rule


class Live:
    """A schedule that decides at the moment it is asked (T4)."""

    is_predictable = False
    ends = False

    def __init__(self, asked: BaseSchedule) -> None:
        self._asked = asked

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:  # noqa: ARG002 - the protocol
        return moment  # ask at once; `is_due` says for how long it is not

    def is_due(self, last: datetime) -> tuple[bool, float]:
        """Ask the schedule: due now, and otherwise the seconds until it wants to be asked again."""
        zone = self._asked.now().tzinfo or timezone.utc
        answer: Any = self._asked.is_due(last.astimezone(zone))
        due, wait = answer  # the schedule is the user's, and may answer anything
        return bool(due), float(wait) if isinstance(wait, (int, float)) else 1.0

    def rule(self) -> str:
        kind = type(self._asked)
        return f"live {kind.__module__}.{kind.__qualname__}"


def timetable(asked: Any, *, zone: tzinfo | None = None) -> Timetable:
    """The timetable of a Celery schedule object; `zone` replaces a crontab's own."""
    kind = type(asked)
    if _has_own_will(kind):
        return Live(asked)
    if issubclass(kind, crontab):
        return Wall(asked, zone or asked.now().tzinfo or asked.tz)
    if issubclass(kind, solar):
        return Estimated(asked, repr(asked))
    if asked.relative:
        return Estimated(asked, f"every {asked.run_every} rounded {asked.tz}")
    return Interval(asked.run_every)


def _has_own_will(kind: type) -> bool:
    """Whether a schedule class is none of Celery's, or a subclass that decides itself when it is due."""
    for ours in (crontab, solar, schedule):
        if issubclass(kind, ours):
            names = ("is_due", "remaining_estimate", "remaining_delta")
            return any(getattr(kind, name, None) is not getattr(ours, name, None) for name in names)
    return True


def twin(original: Any, **attributes: Any) -> Any:
    """A copy with other attributes, without running anybody's constructor.

    Celery's own way to copy schedules and entries is to pickle them, which forgets their app and
    whatever a subclass has added.
    """
    copy = object.__new__(type(original))
    copy.__dict__.update(vars(original), **attributes)
    return copy
