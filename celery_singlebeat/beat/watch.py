"""What a standby does: follow the schedule, and notice when a due slot stays undispatched.

It reads, and hands the elector a few overdue slots to ask about with its next bid (B5). At most
`MOST_WATCHED` are asked about at once: one undispatched slot is enough to see that the leader is gone,
so the others are taken as dispatched until the next of theirs. Their mark says still what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from celery_singlebeat.beat.elector import Elector
from celery_singlebeat.beat.lines import ASK_AGAIN, Agenda, Line
from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.moments import Monotonic
from celery_singlebeat.store.ports import Overdue, SlotStore

MOST_WATCHED = 50
#: Seconds between two reads of the store while it does not know some entries: at first, since a leader is
#: often about to enroll them, and at most; each pause is twice the one before.
READ_SOON, READ_AGAIN = 0.25, 5.0


class Watch:
    """Follows an agenda without touching it in the store."""

    def __init__(
        self, agenda: Agenda, store: SlotStore, elector: Elector, *, grace: float, clock: Clock
    ) -> None:
        self._agenda = agenda
        self._store = store
        self._elector = elector
        self._grace = timedelta(seconds=grace)
        self._clock = clock
        self._watched: dict[str, Line] = {}
        self._read_at: Monotonic | None = None
        self._unknown: list[Line] = []  # lines that the store does not know
        self._pause = READ_SOON

    def start_over(self) -> None:
        """Read the store again at the next turn: the schedule, or this node's role, has changed."""
        self._read_at = None
        self._pause = READ_SOON
        self._watched = {}
        self._elector.overdue = {}

    def forget(self, names: Iterable[str]) -> None:
        """Stop asking about entries that have changed or gone."""
        forgotten = frozenset(names)
        for name in forgotten:
            self._watched.pop(name, None)
        self._unknown = [line for line in self._unknown if line.name not in forgotten]

    def expect(self, lines: Sequence[Line]) -> None:
        """Ask for these lines until the leader has enrolled them."""
        if lines:
            self._unknown += lines
            self._pause = READ_SOON

    def turn(self) -> None:
        """Take in what the last bids brought, and look for slots that are overdue."""
        self._read()
        while self._elector.marks_seen:
            for name, mark in self._elector.marks_seen.popleft().items():
                line = self._watched.get(name)
                if line is not None and mark is not None and line.next is not None and mark >= line.next:
                    line.last = line.mark = mark
                    del self._watched[name]
                    self._agenda.put(line)
        overdue_since = self._elector.due_now() - self._grace
        for line in self._agenda.take_due(overdue_since, 1000):
            if not line.is_watched:
                self._agenda.put(line, at=overdue_since + timedelta(seconds=ASK_AGAIN))
            elif len(self._watched) < MOST_WATCHED:
                self._watched[line.name] = line
            else:
                line.last = line.next
                self._agenda.put(line)
        self._elector.overdue = {
            name: Overdue(line.next, line.since)
            for name, line in self._watched.items()
            if line.next is not None
        }

    def _read(self) -> None:
        now = self._clock.monotonic()
        if self._read_at is not None and (not self._unknown or now - self._read_at < self._pause):
            return
        if not self._elector.has_heard_the_store:
            return
        is_first = self._read_at is None
        try:
            memory = self._store.remember(None if is_first else [line.name for line in self._unknown])
        except StoreUnavailable:
            return
        if is_first:
            self._watched = {}
            self._unknown = self._agenda.settle(memory)
        else:
            self._unknown = self._agenda.seat(self._unknown, memory)
            self._pause = min(READ_AGAIN, 2 * self._pause)
        self._read_at = now
