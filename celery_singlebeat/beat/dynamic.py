"""The dynamic part of the schedule, as far as this node has read it.

Y1  A node reads what changed, not everything, and builds the lines of a big change a few at a time, the
    newest first: no slot of another entry waits for it, and no later change.
Y2  The cursor that a leader emits with says what it has read. What it has read and not built yet, it holds.
Y3  An entry of the configuration hides a dynamic one of the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from celery_singlebeat.beat.lines import Line
from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import EntryError
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.policy.pauses import Pause
from celery_singlebeat.store.schedule_ports import Record, ScheduleStore

logger = logging.getLogger(__name__)

#: Seconds between two reads when nobody told of a change, and that one turn may build lines for.
READ_EVERY, BUILD_FOR = 0.5, 0.03


@dataclass(slots=True)
class Update:
    """What has to change in the agenda."""

    lines: list[Line] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    parked: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lines or self.gone or self.parked)


class Dynamic:
    """Follows the dynamic schedule. `make` builds a line; it raises `EntryError`."""

    def __init__(self, store: ScheduleStore, make: Callable[[str, Record], Line], clock: Clock) -> None:
        self._store = store
        self._make = make
        self._clock = clock
        self._read_at = Monotonic(float("-inf"))
        self._told = True
        self._pending: dict[str, Record | None] = {}
        self._lines: dict[str, Line] = {}
        self._records: dict[str, Record] = {}
        self._parked: dict[str, str] = {}
        #: The place in the stream of changes up to which everything is read (Y2).
        self.cursor = ""
        self.pauses: dict[str, Pause] = {}

    def tell(self) -> None:
        """Something has changed: read at the next turn. Any thread may call."""
        self._told = True

    @property
    def is_building(self) -> bool:
        """Whether there is more to build."""
        return bool(self._pending)

    def holds(self, name: str) -> bool:
        """Whether this entry has changed in a way that is not built yet (Y2)."""
        return name in self._pending

    def lines(self, hidden: Collection[str]) -> Iterator[Line]:
        """All lines but those of the hidden names (Y3)."""
        for name, line in self._lines.items():
            if name in hidden:
                logger.warning("entry %r: the configuration has it too, the dynamic one rests", name)
            else:
                yield line

    def line(self, name: str) -> Line | None:
        """The line of this name, whether the configuration hides it or not."""
        return self._lines.get(name)

    def parked(self, hidden: Collection[str]) -> Mapping[str, str]:
        """What is wrong with the others."""
        return {name: problem for name, problem in self._parked.items() if name not in hidden}

    def turn(self, pulse: Callable[[], None]) -> Update:
        """Read if it is time, and build some lines; raises `StoreUnavailable`."""
        now = self._clock.monotonic()
        first = not self.cursor
        if self._told or now >= later(self._read_at, READ_EVERY):
            self._read_at = now
            self._told = False
            try:
                self._read()
            except BaseException:
                self._told = True
                raise
        update = Update()
        until = later(now, BUILD_FOR)
        while self._pending:
            name, record = self._pending.popitem()
            self._build(name, record, update)
            pulse()
            if not first and self._clock.monotonic() > until:
                break
        return update

    def _read(self) -> None:
        changes = self._store.changes(self.cursor)
        self.cursor = changes.cursor
        if changes.is_everything:
            self.pauses = {name: pause for name, pause in changes.pauses.items() if pause is not None}
            gone = {*self._records, *self._parked, *self._pending} - {*changes.records, *changes.unreadable}
            self._pending.update(dict.fromkeys(gone))
        for name, pause in changes.pauses.items():
            if pause is None:
                self.pauses.pop(name, None)
            else:
                self.pauses[name] = pause
        for name, record in changes.records.items():
            self._pending.pop(name, None)
            if record is None or self._records.get(name) != record:
                self._pending[name] = record  # and otherwise it was paused or resumed
        for name in changes.unreadable:
            self._pending[name] = Record(self._clock.now(), "")

    def _build(self, name: str, record: Record | None, update: Update) -> None:
        self._lines.pop(name, None)
        self._records.pop(name, None)
        self._parked.pop(name, None)
        if record is None:
            update.gone.append(name)
            return
        self._records[name] = record
        try:
            line = self._make(name, record)
        except EntryError as error:
            self._parked[name] = update.parked[name] = error.problem
        else:
            self._lines[name] = line
            update.lines.append(line)
