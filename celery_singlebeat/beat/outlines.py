"""The schedule at one moment, and what follows from it: where each entry stands, and its slots to come."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_singlebeat.beat.lines import Line
from celery_singlebeat.beat.timetables import Live
from celery_singlebeat.errors import EntryError, EntryNotFound
from celery_singlebeat.moments import iso
from celery_singlebeat.store.ports import Memory

Shown = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outline:
    """The schedule at one moment: all its lines, or the one that was asked for, and what the store
    remembers of them. `names` are those of all entries.
    """

    now: datetime
    lines: Mapping[str, Line]
    parked: Mapping[str, str]
    names: frozenset[str]
    static: frozenset[str]
    paused: frozenset[str]
    memory: Memory

    def demand(self, name: str) -> None:
        """Raise `EntryNotFound` unless there is such an entry, whether it can work or not."""
        if name not in self.names:
            nearest = difflib.get_close_matches(name, self.names, n=1)
            raise EntryNotFound(name, nearest[0] if nearest else "")

    def line(self, name: str) -> Line:
        """The line of an entry that can work; raises `EntryNotFound` or `EntryError`."""
        self.demand(name)
        if name in self.parked:
            raise EntryError(name, self.parked[name])
        return self.lines[name]

    def slots(self, line: Line, start: datetime, end: datetime) -> Iterator[datetime]:
        """The slots of an entry from `start` on, before `end`."""
        if isinstance(line.timetable, Live):
            raise EntryError(line.name, "its schedule decides when it is asked, so its slots cannot be named")
        anchor = self._anchor(line) or start
        slot = line.timetable.after(start - timedelta(milliseconds=1), anchor=anchor)
        while slot is not None and slot < end:
            if slot >= start:
                yield slot
            slot = line.timetable.after(slot, anchor=anchor)

    def coming(self, line: Line, number: int) -> list[datetime]:
        """The next slots of an entry, at most so many; raises `EntryError` if its schedule raises."""
        if isinstance(line.timetable, Live) or not line.rules.enabled:
            return []
        anchor = self._anchor(line) or self.now
        mark = self.memory.marks.get(line.name)
        slot: datetime | None = max(moment for moment in (self.now, anchor, mark) if moment is not None)
        found: list[datetime] = []
        while slot is not None and len(found) < number:
            try:
                slot = line.timetable.after(slot, anchor=anchor)
            except Exception as error:
                raise EntryError(line.name, f"its schedule raises {type(error).__name__}: {error}") from error
            if slot is not None:
                found.append(slot)
        return found

    def all_coming(self, number: int) -> list[tuple[datetime, str]]:
        """The next slots of each entry, and its name; those of one whose schedule raises are not known."""
        found: list[tuple[datetime, str]] = []
        for line in self.lines.values():
            with suppress(EntryError):
                found += ((slot, line.name) for slot in self.coming(line, number))
        return found

    def shown(self) -> list[Shown]:
        """Every entry that can work, by name."""
        following = {name: slot for slot, name in self.all_coming(1)}
        return [self._shown(line, following.get(name)) for name, line in sorted(self.lines.items())]

    def _anchor(self, line: Line) -> datetime | None:
        known = self.memory.entries.get(line.name)
        if line.since is not None:
            return line.since
        return known.anchor if known is not None and known.rule == line.rule else None

    def _shown(self, line: Line, following: datetime | None) -> Shown:
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
