"""Timetables that begin, end, happen once, or are an entry's own: what Celery's schedules do not know.

W1  A window's slots are its schedule's, at or after its start and before its end. An interval counts from
    the start; its first slot is the start itself.
W2  What happens once has one slot: the first after the anchor. A clocked time that was over when the entry
    was first seen is due at once.
W3  An entry whose class decides itself when it is due is asked at the present moment (T4).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery.beat import ScheduleEntry

from celery_singlebeat.beat.timetables import Interval, Live, Timetable, timetable
from celery_singlebeat.moments import MILLISECOND, iso, whole
from celery_singlebeat.policy.entries import EntryRules


class Window:
    """The slots of another timetable from `start` on and before `end`, or the first of them only (W1, W2)."""

    is_predictable = True
    ends = True

    def __init__(self, inner: Timetable, start: datetime | None, end: datetime | None, *, once: bool) -> None:
        self._inner = inner
        self._start = whole(start) if start else None
        self._end = end
        self._once = once

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:
        if self._once and moment > anchor:
            return None
        slot = self._within(moment, anchor)
        return slot if slot is None or self._end is None or slot < self._end else None

    def _within(self, moment: datetime, anchor: datetime) -> datetime | None:
        start = self._start
        if start is None:
            return self._inner.after(moment, anchor=anchor)
        if isinstance(self._inner, Interval):
            return start if moment < start else self._inner.after(moment, anchor=start)
        if moment < start:
            moment = anchor = start - MILLISECOND
        return self._inner.after(moment, anchor=anchor)

    def leap(self, slot: datetime, now: datetime, *, keep: int, anchor: datetime) -> tuple[datetime, int]:
        """As that of an interval, if it is one."""
        if self._once or not isinstance(self._inner, Interval):
            return slot, 0
        last = now if self._end is None else min(now, self._end)
        return self._inner.leap(slot, last, keep=keep, anchor=self._start or anchor)

    def rule(self) -> str:
        start = iso(self._start) if self._start else ""
        end = iso(self._end) if self._end else ""
        return f"{self._inner.rule()} from {start} to {end}{' once' if self._once else ''}"


class Clocked:
    """One moment (W2)."""

    is_predictable = True
    ends = True

    def __init__(self, at: datetime) -> None:
        self._at = whole(at)

    def after(self, moment: datetime, *, anchor: datetime) -> datetime | None:
        slot = max(self._at, anchor + MILLISECOND)
        return slot if slot > moment else None

    def rule(self) -> str:
        return f"at {iso(self._at)}"


class OwnWill(Live):
    """An entry that is asked itself, and not its schedule (W3)."""

    def __init__(self, entry: Any) -> None:
        super().__init__(entry.schedule)
        #: The newest form of the entry, which knows how often it has run.
        self.entry = entry

    def _ask(self, last: datetime) -> Any:
        zone = getattr(self.entry.last_run_at, "tzinfo", None)
        self.entry.last_run_at = last.astimezone(zone) if zone else last
        return self.entry.is_due()

    def rule(self) -> str:
        kind = type(self.entry)
        return f"live {kind.__module__}.{kind.__qualname__}"


def timetable_of(entry: Any, rules: EntryRules) -> Timetable:
    """The timetable of an entry under its rules; raises whatever its schedule object raises."""
    if getattr(type(entry), "is_due", None) is not ScheduleEntry.is_due:
        return OwnWill(entry)
    at = getattr(entry.schedule, "clocked_time", None)
    if isinstance(at, datetime):  # the schedule class of django-celery-beat, and of others after it
        inner: Timetable = Clocked(at)
    else:
        inner = timetable(entry.schedule, zone=rules.timezone)
    if isinstance(inner, Live) or not (rules.start or rules.end or rules.once):
        return inner
    return Window(inner, rules.start, rules.end, once=rules.once)
