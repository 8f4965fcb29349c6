"""Entries as the beat works with them: a line each, and an agenda of all."""

from __future__ import annotations

import hashlib
import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from celery.schedules import crontab

from celery_singlebeat.beat.timetables import Interval, Live, Timetable
from celery_singlebeat.beat.windows import Window, timetable_of
from celery_singlebeat.events import EntryParked, Listener
from celery_singlebeat.moments import whole
from celery_singlebeat.policy.entries import EntryRules
from celery_singlebeat.policy.jitter import delay
from celery_singlebeat.policy.pauses import Pause
from celery_singlebeat.store.ports import Enrolment, Memory

logger = logging.getLogger(__name__)

#: How many due slots of one entry get their verdict one by one, beside those that may be caught up; and how
#: many older ones are counted in one turn.
MOST_DUE, MOST_COUNTED = 1000, 4000
#: How far a stored mark may lie ahead: clocks may be wrong by hours, and no slot is claimed in advance.
PLAUSIBLE = timedelta(days=1)
#: After so many lines a long loop says that it goes on.
PULSE_EVERY = 1000
#: Seconds until a line whose timetable failed is asked again.
ASK_AGAIN = 30.0


class Due(NamedTuple):
    """Slots of one entry that wait for a verdict, oldest first, and how many older ones wait with them.

    A part: there are more after these, and the verdict of the first is that of the older ones.
    """

    slots: Sequence[datetime]
    older: int = 0
    is_part: bool = False


@dataclass(slots=True)
class Line:
    """One entry: Celery's object, its rules, and where it stands.

    `mark` is its newest slot with a verdict, as far as this node knows; `last` is that, or the anchor if
    that is later; `next` its next slot, or for a live schedule the moment to ask again; `opens` is when that
    slot may go out: later by its jitter. `since` is that of a dynamic entry's record.
    """

    name: str
    entry: Any
    rules: EntryRules
    timetable: Timetable
    rule: str
    anchor: datetime | None = None
    last: datetime | None = None
    mark: datetime | None = None
    next: datetime | None = None
    runs: int = 0  # where the count begins, if the store has none
    opens: datetime | None = None
    since: datetime | None = None
    ticket: int = 0  # of its newest place in the agenda; older places do not count
    _planned: tuple[datetime, datetime] | None = None  # from which `next` follows
    _ahead: tuple[datetime, datetime | None] | None = None  # a slot, and the one after it, if that is known

    @property
    def is_watched(self) -> bool:
        """Whether a slot that stays undispatched says something about the leader."""
        return self.timetable.is_predictable and self.rules.overlap != "queue"

    def stand_at(self, anchor: datetime, mark: datetime | None, floor: datetime | None = None) -> None:
        """Take over what the store remembers of this entry; no slot up to `floor` is due any more."""
        self.anchor = anchor
        self.mark = mark
        self._ahead = None
        self.last = max(moment for moment in (anchor, mark, floor) if moment is not None)

    def plan(self) -> datetime | None:
        """Work out the next slot, and when it opens; whatever the user's schedule object raises goes
        through.
        """
        if self.anchor is None or self.last is None:
            raise LookupError(f"line {self.name!r} does not know where it stands")
        stands = (self.anchor, self.last)
        if isinstance(self.timetable, Live):
            is_known = self.next is not None and self.next > self.last
        else:
            is_known = self._planned == stands
        if not is_known:
            known, self._ahead = self._ahead, None
            if known is not None and known[0] == self.last:
                self.next = known[1]
            else:
                self.next = self.timetable.after(self.last, anchor=self.anchor)
            self.opens = self.next
            if self.next is not None and self.rules.jitter:
                self.opens = self.next + self.delay(self.next)
            self._planned = stands
        return self.opens

    def delay(self, slot: datetime) -> timedelta:
        """How long after its slot a message goes out."""
        if not self.rules.jitter or isinstance(self.timetable, Live):
            return timedelta(0)
        following = self.timetable.after(slot, anchor=self.anchor or slot)
        return delay(self.name, slot, jitter=self.rules.jitter, following=following)

    def due(self, now: datetime, *, own: datetime | None = None) -> Due:
        """The slots up to `now` that have no verdict. `own` is what this machine's clock shows, if that is
        another time.

        After a very long stop it is a part of them, so that no other entry has to wait for their count.
        """
        if isinstance(self.timetable, Live):
            return Due(self._live(self.timetable, now, own or now))
        keep = MOST_DUE + self.rules.missed.most_caught_up
        slots: deque[datetime] = deque(maxlen=keep)
        slot, leapt, anchor = self.next, 0, self.anchor or now
        if isinstance(self.timetable, (Interval, Window)) and slot is not None:
            slot, leapt = self.timetable.leap(slot, now, keep=keep, anchor=anchor)
        older = leapt
        while slot is not None and slot <= now:
            older += len(slots) == keep
            slots.append(slot)
            if older - leapt == MOST_COUNTED:
                return Due(list(slots), older, is_part=True)
            slot = self.timetable.after(slot, anchor=anchor)
        if slots and not older:
            self._ahead = (slots[-1], slot)
        if slots and slots[-1] + self.delay(slots[-1]) > now:
            slots.pop()
        return Due(list(slots), older)

    def _live(self, live: Live, now: datetime, own: datetime) -> list[datetime]:
        slot = whole(now)
        last = self.last or slot
        if slot >= last:
            due, wait = live.is_due(last, slot, own)
        else:  # a clock was set back, and what it said yes to now could not be claimed
            due, wait = False, (last - slot).total_seconds()
        self.next = self.opens = slot + timedelta(seconds=min(max(wait, 0.02), ASK_AGAIN))
        return [slot] if due else []


def make_line(name: str, entry: Any, rules: EntryRules) -> Line:
    """The line of an entry; raises whatever its schedule object raises."""
    table = timetable_of(entry, rules)
    if rules.missed.deadline is not None and not isinstance(entry.schedule, crontab):
        rules = replace(rules, missed=replace(rules.missed, deadline=None))
    # Being switched off is part of the rule, so that an entry starts from now when it is switched on.
    rule = f"{table.rule()}{'' if rules.enabled else ', off'}"
    return Line(name, entry, rules, table, _digest(rule), runs=entry.total_run_count or 0)


class Agenda:
    """All lines, by when they are next; only what is due is ever touched (B7)."""

    def __init__(
        self, tell: Listener, now: Callable[[], datetime], pulse: Callable[[], None] = lambda: None
    ) -> None:
        self._tell = tell
        self._now = now
        self._pulse = pulse
        self._lines: dict[str, Line] = {}
        self._heap: list[tuple[datetime, int, Line]] = []
        self._turn = 0
        self._put_off: dict[str, Line] = {}  # lines that wait although their slot is due
        self._damaged: set[str] = set()  # entries whose stored state could not be read, and which was said
        self._digest = 0
        #: Entries that cannot work, and why.
        self.parked: dict[str, str] = {}
        #: Entries that are paused, or were.
        self.pauses: dict[str, Pause] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def line(self, name: str) -> Line | None:
        """The line of this entry, if it has one."""
        return self._lines.get(name)

    def fill(self, lines: Iterable[Line], parked: Mapping[str, str]) -> None:
        """Replace all lines; those that were there keep where they stand."""
        before = self._lines
        self._lines = {}
        self._heap = []
        self._put_off = {}
        self._digest = 0
        for name in [name for name in self.parked if name not in parked]:
            del self.parked[name]
        for name, problem in parked.items():
            self.park(name, problem)
        for line in lines:
            self._set(line, before.get(line.name))

    def change(self, lines: Iterable[Line], gone: Iterable[str], parked: Mapping[str, str]) -> list[Line]:
        """Replace some lines; returns those that do not know where they stand."""
        for name in gone:
            self._drop(name)
            self.parked.pop(name, None)
        for name, problem in parked.items():
            self._drop(name)
            self.park(name, problem)
        new = list(lines)
        for line in new:
            self.parked.pop(line.name, None)
            self._set(line, self._drop(line.name))
        return [line for line in new if line.anchor is None]

    def _set(self, line: Line, before: Line | None) -> None:
        same = before is not None and (before.rule, before.since) == (line.rule, line.since)
        if before is not None and same and before.anchor is not None:
            line.anchor, line.last, line.mark = before.anchor, before.last, before.mark
        self._lines[line.name] = line
        self._digest ^= _fingerprint(line)
        if line.anchor is not None:
            self.put(line)

    def _drop(self, name: str) -> Line | None:
        line = self._lines.pop(name, None)
        if line is not None:
            line.ticket = 0
            self._put_off.pop(name, None)
            self._digest ^= _fingerprint(line)
        return line

    def park(self, name: str, problem: str) -> None:
        """Leave an entry out and say so, once for each problem and in one line."""
        problem = " ".join(problem.splitlines())
        if self.parked.get(name) != problem:
            self.parked[name] = problem
            self._tell(EntryParked(entry=name, problem=problem))

    def settle(self, memory: Memory) -> list[Line]:
        """Let every line stand where the store remembers it; returns those it does not know, or knows
        under another rule.
        """
        self._heap = []
        self._put_off = {}
        return self.seat(self._lines.values(), memory)

    def seat(self, lines: Iterable[Line], memory: Memory) -> list[Line]:
        """`settle` for these lines only."""
        unknown = []
        unreadable, tomorrow = set(memory.unreadable), self._now() + PLAUSIBLE
        for number, line in enumerate(lines):
            if number % PULSE_EVERY == 0:
                self._pulse()
            enrolment, mark = memory.entries.get(line.name), memory.marks.get(line.name)
            moments = (mark, enrolment.anchor if enrolment else None)
            damaged = line.name in unreadable or any(at is not None and at > tomorrow for at in moments)
            if damaged and line.name not in self._damaged:
                self._damaged.add(line.name)
                logger.warning("entry %r: its stored state cannot be read, it starts from now", line.name)
            elif not damaged:
                self._damaged.discard(line.name)
            if line.since is not None and not damaged:
                line.stand_at(line.since, mark, enrolment.anchor if enrolment else None)
                self.put(line)
                continue
            if damaged or enrolment is None or enrolment.rule != line.rule:
                if damaged or enrolment is not None:
                    line.anchor = line.last = line.mark = None
                unknown.append(line)
                continue
            line.stand_at(enrolment.anchor, mark)
            self.put(line)
        return unknown

    def enrolment(self, lines: Iterable[Line], now: datetime) -> dict[str, Enrolment]:
        """New lines begin now; a changed rule begins now as well, whatever its history.

        A line that the store has forgotten, and this node has not, goes on after the newest slot that this
        node knows to have its verdict.
        """
        return {line.name: Enrolment(line.anchor or now, line.rule, line.runs, line.mark) for line in lines}

    def put(self, line: Line, *, at: datetime | None = None, earliest: datetime | None = None) -> None:
        """Put a line where its next slot is, not before `earliest`; or where it is to be looked at again."""
        if at is None:
            try:
                at = line.plan()
            except Exception as error:
                # The schedule object is the user's; whatever it raises concerns this entry alone (B4).
                self.park(line.name, f"its schedule raises {type(error).__name__}: {error}")
                at = self._later()
            else:
                if at is None:
                    if not line.timetable.ends:
                        self.park(line.name, "its schedule has no next date")
                    return
                if line.name in self.parked:
                    del self.parked[line.name]
                at = max(at, earliest or at)
        if line.rules.enabled:
            if line.opens is not None and line.opens < at:
                self._put_off[line.name] = line
            else:
                self._put_off.pop(line.name, None)
            self._turn += 1
            line.ticket = self._turn
            heapq.heappush(self._heap, (at, self._turn, line))

    def _later(self) -> datetime:
        return self._now() + timedelta(seconds=ASK_AGAIN)

    def take_due(self, now: datetime, most: int) -> list[Line]:
        """Take out the lines that are due, earliest first, at most so many."""
        taken: list[Line] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < most:
            _, ticket, line = heapq.heappop(self._heap)
            if ticket == line.ticket:
                line.ticket = 0
                taken.append(line)
        return taken

    def next_at(self) -> datetime | None:
        """When the earliest line is to be looked at."""
        while self._heap and self._heap[0][1] != self._heap[0][2].ticket:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def overdue(self, moment: datetime, most: int) -> tuple[str, ...]:
        """Entries whose next slot was due before `moment` and waits, at most so many.

        Any thread may ask: it reads copies. What waits is either at the top of the heap, or was put off.
        """
        first = heapq.nsmallest(most, list(self._heap)[: 4 * most])
        waiting = {line.name: line for _, ticket, line in first if ticket == line.ticket}
        waiting.update(dict(self._put_off))
        return tuple(
            name
            for name, line in waiting.items()
            if line.opens is not None and line.opens < moment and line.is_watched and name not in self.parked
        )[:most]

    def digest(self) -> str:
        """A hash of the static schedule: nodes that have the same one may judge each other."""
        return f"{self._digest:016x}"


@lru_cache(maxsize=4096)
def _digest(rule: str) -> str:
    return hashlib.sha256(rule.encode()).hexdigest()[:16]


def _fingerprint(line: Line) -> int:
    if line.since is not None:
        return 0
    text = f"{line.name}\0{line.rule}\0{line.rules.jitter}\0{line.rules.overlap}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
