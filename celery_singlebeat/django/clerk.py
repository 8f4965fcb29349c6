"""The one thread that talks to the database (D2).

It looks for changes every `period` seconds, and hands a new state of the table to the tick loop. On the node
that leads it writes what ran, soon after it ran; what the leader before could not write any more; the entries
of the configuration, once; and it switches off the rows that have nothing left to run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from celery_singlebeat.django.rows import Rows, moment, state
from celery_singlebeat.django.table import Table
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.ports import BeatStore

logger = logging.getLogger(__name__)

#: Seconds for which runs are gathered before they are written.
GATHER = 0.1
#: Seconds between two full reads: rows can be changed without a word to anybody.
READ_ALL = 300.0
#: Seconds between two lines about a database that does not answer.
REMIND = 60.0
#: Seconds that the end waits for the newest runs to be written.
FAREWELL = 2.0


class Clerk:
    """Reads and writes the table.

    `read` makes entries of rows; `epoch` says under which epoch this node leads, if it does and has taken the
    schedule over; `publish` writes the configured entries and returns the faulty ones.
    """

    def __init__(
        self,
        table: Table,
        store: BeatStore,
        *,
        read: Callable[[list[Any]], Rows],
        epoch: Callable[[], int | None],
        publish: Callable[[], dict[str, str]],
        period: float,
    ) -> None:
        self._table = table
        self._store = store
        self._read = read
        self._epoch = epoch
        self._publish = publish
        self._period = period
        self._thread: threading.Thread | None = None
        self._wake, self._over = threading.Event(), threading.Event()
        self._is_urgent = False
        #: When the newest look began that was finished, on the monotonic clock.
        self.seen_at = float("-inf")
        self._fresh: deque[Rows] = deque(maxlen=1)
        self._ran: deque[tuple[str, datetime]] = deque()
        self._models: dict[str, Any] = {}
        self._ending: dict[str, datetime] = {}
        self._unwritten: dict[str, datetime] = {}
        self._faults: dict[str, str] | None = None  # of the configured entries, once they are published
        self._served: int | None = None
        self._states: dict[str, int] | None = None
        self._mark: datetime | None = None
        self._read_at = float("-inf")
        self._failing_since: float | None = None
        self._told_at = float("-inf")

    # -- for the tick loop ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin; in the process that ticks."""
        self._thread = threading.Thread(target=self._run, name="singlebeat-database", daemon=True)
        self._thread.start()

    def take(self) -> Rows | None:
        """The newest state of the table, if there is one that was not taken yet."""
        try:
            return self._fresh.pop()
        except IndexError:
            return None

    def note(self, entry: str) -> None:
        """A slot of this entry was dispatched just now."""
        self._ran.append((entry, datetime.now(timezone.utc)))
        self._wake.set()

    def wake(self, *, urgent: bool = False) -> None:
        """Look again soon, or if it is urgent, at once."""
        self._is_urgent = self._is_urgent or urgent
        self._wake.set()

    def stop(self) -> None:
        """Write what ran, and end; waits for a bounded time."""
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(FAREWELL)

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.is_set():
            self._turn()
            if self._wake.wait(self._period):
                if not self._is_urgent:
                    self._over.wait(GATHER)
                self._wake.clear()
                self._is_urgent = False
        self._turn(last=True)
        try:
            self._table.close()
            self._store.close()
        except Exception as error:  # a connection that is gone is closed
            logger.debug("closing failed: %s", error)

    def _turn(self, *, last: bool = False) -> None:
        """One look, and what is to be written; whatever fails is tried again at the next turn."""
        try:
            self._table.freshen()
            for step in (self._write,) if last else (self._write, self._serve, self._look):
                try:
                    step()
                except StoreUnavailable as error:
                    logger.debug("the history is written later: %s", error)
            self._table.settle()
        except Exception as error:  # whatever a database and its driver raise
            self._failed(error)
        else:
            if self._failing_since is not None:
                seconds = time.monotonic() - self._failing_since
                logger.info("the database answers again, after %.1f s", seconds)
                self._failing_since, self._told_at = None, float("-inf")

    def _failed(self, error: Exception) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._told_at >= REMIND:
            self._told_at = now
            problem = " ".join(str(error).split())
            logger.warning(
                "the database does not answer, the known schedule goes on: %s: %s",
                type(error).__name__,
                problem,
            )
        try:
            self._table.close()
        except Exception as closing:  # the next turn gets a new connection
            logger.debug("closing failed: %s", closing)

    # -- what ran -------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write the newest runs: what ran was sent by this node, so it may be written whoever leads now."""
        while self._ran:
            name, at = self._ran.popleft()
            self._unwritten[name] = at
        if not self._unwritten:
            return
        written = dict(self._unwritten)
        counts = self._store.remember(list(written)).runs
        self._record({name: (counts.get(name, 0), at) for name, at in written.items()})
        once = [name for name in written if name in self._models and self._models[name].one_off]
        self._switch_off(once)
        for name, at in written.items():
            if self._unwritten.get(name) == at:
                del self._unwritten[name]

    def _record(self, runs: Mapping[str, tuple[int, datetime]]) -> None:
        known = {self._models[name].pk: run for name, run in runs.items() if name in self._models}
        if known:
            self._table.note(known)

    def _switch_off(self, names: list[str]) -> None:
        if names:
            self._table.switch_off([self._models[name].pk for name in names])

    # -- what a leader owes ---------------------------------------------------------------------

    def _serve(self) -> None:
        epoch = self._epoch()
        if epoch is None or self._states is None:
            return
        if self._faults is None:
            self._faults = self._publish()
            self._states = None  # read again, with those faults
        if epoch != self._served:
            self._mend()
            self._served = epoch
        now = datetime.now(timezone.utc)
        self._switch_off([name for name, expires in self._ending.items() if expires <= now])

    def _mend(self) -> None:
        """Write what the store knows and the rows do not: a leader died before it had written it (D1, D4)."""
        memory = self._store.remember()
        missing: dict[str, tuple[int, datetime]] = {}
        done = []
        for name, model in self._models.items():
            count, mark, enrolment = (
                memory.runs.get(name, 0),
                memory.marks.get(name),
                memory.entries.get(name),
            )
            if mark is None:
                continue
            if count > model.total_run_count:
                missing[name] = (count, mark)
            if model.one_off and model.enabled and enrolment is not None and mark > enrolment.anchor:
                done.append(name)
        self._record(missing)
        self._switch_off(done)

    # -- what changed ---------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        self._see(now)
        self.seen_at = now

    def _see(self, now: float) -> None:
        mark = self._table.mark()
        if self._states is not None and mark == self._mark and now - self._read_at < READ_ALL:
            return
        models = self._table.rows()  # after the mark: what changes meanwhile has another one
        self._models = {model.name: model for model in models}
        self._ending = {
            model.name: moment(model.expires) for model in models if model.enabled and model.expires
        }
        self._mark, self._read_at = mark, now
        states = {model.name: state(model) for model in models}
        if states == self._states:
            return
        self._states = states
        rows = self._read(models)
        self._fresh.append(replace(rows, faults={**(self._faults or {}), **rows.faults}))
