"""The schedule at one moment, and what follows from it: where each entry stands, and its slots to come."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from celery_singlebeat.beat.lines import Line
from celery_singlebeat.beat.timetables import Interval, Live
from celery_singlebeat.errors import EntryError, EntryNotFound
from celery_singlebeat.moments import MILLISECOND, iso
from celery_singlebeat.store.ports import Memory

Shown = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outline:
    """The schedule at one moment: all its lines, or the one that was asked for, and what the store
    remembers of them. `static` and `dynamic` are the names of all entries, whether they can work or not.
    """

    now: datetime
    lines: Mapping[str, Line]
    parked: Mapping[str, str]
    static: frozenset[str]
    dynamic: frozenset[str]
    paused: frozenset[str]
    memory: Memory

    def demand(self, name: str) -> None:
        """Raise `EntryNotFound` unless there is such an entry, whether it can work or not."""
        if name not in self.static and name not in self.dynamic:
            nearest = difflib.get_close_matches(name, self.static | self.dynamic, n=1)
            raise EntryNotFound(name, nearest[0] if nearest else "")

    def line(self, name: str) -> Line:
        """The line of an entry that can work; raises `EntryNotFound` or `EntryError`."""
        self.demand(name)
        if name in self.parked:
            raise EntryError(name, self.parked[name])
        return self.lines[name]

    def slots(self, line: Line, start: datetime, end: datetime) -> Iterator[datetime]:
        """The slots of an entry from `start` on, before `end`; an interval's anchor does not begin them."""
        if isinstance(line.timetable, Live):
            raise EntryError(line.name, "its schedule decides when it is asked, so its slots cannot be named")
        anchor = self._anchor(line) or start
        if isinstance(line.timetable, Interval):
            anchor = line.timetable.earlier(anchor, start)
        slot = line.timetable.after(start - MILLISECOND, anchor=anchor)
        while slot is not None and slot < end:
            if slot >= start:
                yield slot
            slot = line.timetable.after(slot, anchor=anchor)

    def coming(self, line: Line, number: int) -> list[datetime]:
        """The next slots of an entry, at most so many; raises `EntryError` if its schedule raises."""
        return list(islice(self._coming(line), number))

    def _coming(self, line: Line) -> Iterator[datetime]:
        if isinstance(line.timetable, Live) or not line.rules.enabled:
            return
        anchor = self._anchor(line) or self.now
        mark = self.memory.marks.get(line.name)
        slot: datetime | None = max(moment for moment in (self.now, anchor, mark) if moment is not None)
        while slot is not None:
            try:
                slot = line.timetable.after(slot, anchor=anchor)
            except Exception as error:
                raise EntryError(line.name, f"its schedule raises {type(error).__name__}: {error}") from error
            if slot is not None:
                yield slot

    def all_coming(self) -> Iterator[tuple[datetime, str]]:
        """The next slots of all entries and their names, soonest first. Whose schedule raises has none."""
        return heapq.merge(*map(self._known, self.lines.values()))

    def _known(self, line: Line) -> Iterator[tuple[datetime, str]]:
        with suppress(EntryError):
            yield from ((slot, line.name) for slot in self._coming(line))

    def shown(self) -> list[Shown]:
        """Every entry that can work, by name."""
        return [self._shown(line) for _, line in sorted(self.lines.items())]

    def _anchor(self, line: Line) -> datetime | None:
        known = self.memory.entries.get(line.name)
        if line.since is not None:
            return line.since
        return known.anchor if known is not None and known.rule == line.rule else None

    def _shown(self, line: Line) -> Shown:
        following, _ = next(self._known(line), (None, ""))
        mark = self.memory.marks.get(line.name)
        return {
            "name": line.name,
            "task": line.entry.task,
            "schedule": str(line.entry.schedule),
            "next": None if following is None else iso(following),
            "last": None if mark is None else iso(mark),
            "runs": self.memory.runs.get(line.name, 0),
            "enabled": line.rules.enabled,
            "paused": line.name in self.paused,
            "source": "config" if line.since is None else "dynamic",
        }
