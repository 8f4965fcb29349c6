"""The one thread that talks to the database (D2).

It looks for changes every `period` seconds, reads the rows that have changed, and hands them to the tick
loop a few at a time. On the node that leads it writes what ran, soon after it ran; what the leader before
could not write any more; the entries of the configuration, once; and it switches off the rows that have
nothing left to run. It looks first: what cannot be written keeps nobody from reading.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from celery_singlebeat.django.rows import Rows, moment
from celery_singlebeat.django.table import Table
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.ports import BeatStore

logger = logging.getLogger(__name__)

#: Seconds for which runs are gathered before they are written.
GATHER = 0.1
#: Seconds between two full reads: rows can be changed without a word to anybody.
READ_ALL = 300.0
#: How often the time that a look took is to pass before the next one.
REST = 4
#: How many changed rows the tick loop gets at once.
HANDFUL = 200
#: Seconds between two lines about a database that does not work.
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
        self._fresh: deque[Rows] = deque()
        self._look_at = self._rested_at = float("-inf")
        self._ran: deque[tuple[str, datetime]] = deque()
        self._skipped: deque[str] = deque()
        self._spent: set[str] = set()
        self._models: dict[str, Any] = {}
        self._ending: dict[str, datetime] = {}
        self._unwritten: dict[str, datetime] = {}
        self._faults: dict[str, str] | None = None  # of the configured entries, once they are published
        self._served: int | None = None
        self._states: dict[str, int] = {}
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
        """The next of what has changed; first of all the whole table."""
        try:
            return self._fresh.popleft()
        except IndexError:
            return None

    @property
    def has_more(self) -> bool:
        """Whether there is something to be taken."""
        return bool(self._fresh)

    def note(self, entry: str) -> None:
        """A slot of this entry was dispatched just now."""
        self._ran.append((entry, datetime.now(timezone.utc)))
        self._wake.set()

    def note_spent(self, entry: str) -> None:
        """An entry that runs once does so no more: its slot was skipped."""
        self._skipped.append(entry)
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
            if self._wake.wait(max(0.0, self._look_at - time.monotonic())):
                if not self._is_urgent:
                    self._over.wait(GATHER)
                self._wake.clear()
        self._turn(last=True)
        try:
            self._table.close()
            self._store.close()
        except Exception as error:  # a connection that is gone is closed
            logger.debug("closing failed: %s", error)

    def _turn(self, *, last: bool = False) -> None:
        """One look, and what is to be written; whatever fails is tried again at the next turn."""
        problem = "the database cannot be read"
        try:
            self._table.freshen()
            if not last:
                self._look()
            problem = "the database cannot be written"
            for step in (self._write,) if last else (self._write, self._serve):
                try:
                    step()
                except StoreUnavailable as error:
                    logger.debug("the history is written later: %s", error)
            self._table.settle()
        except Exception as error:  # whatever a database and its driver raise
            self._failed(problem, error)
        else:
            if self._failing_since is not None:
                seconds = time.monotonic() - self._failing_since
                logger.info("the database works again, after %.1f s", seconds)
                self._failing_since, self._told_at = None, float("-inf")

    def _failed(self, problem: str, error: Exception) -> None:
        now = time.monotonic()
        if self._look_at <= now:
            self._look_at = now + self._period
        if self._failing_since is None:
            self._failing_since = now
        if now - self._told_at >= REMIND:
            self._told_at = now
            logger.warning(
                "%s, %s: %s: %s",
                problem,
                "this node does not lead" if self._is_blind else "the known schedule goes on",
                type(error).__name__,
                " ".join(str(error).split()),
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
        while self._skipped:
            self._spent.add(self._skipped.popleft())
        self._spent &= self._switch_off([name for name in self._spent if name in self._models])
        if not self._unwritten:
            return
        due = dict(self._unwritten)
        counts = self._store.remember(list(due)).runs
        waiting = self._record({name: (counts.get(name, 0), at) for name, at in due.items()})
        once = [name for name in due if name in self._models and self._models[name].one_off]
        waiting |= self._switch_off(once)
        for name, at in due.items():
            if name not in waiting and self._unwritten.get(name) == at:
                del self._unwritten[name]

    def _record(self, runs: Mapping[str, tuple[int, datetime]]) -> set[str]:
        """Write runs; returns those whose rows somebody else holds."""
        known = {self._models[name].pk: name for name in runs if name in self._models}
        written = self._table.note({pk: runs[name] for pk, name in known.items()})
        return {name for pk, name in known.items() if pk not in written}

    def _switch_off(self, names: list[str]) -> set[str]:
        """Switch rows off; returns those that somebody else holds."""
        known = {self._models[name].pk: name for name in names}
        if not known:
            return set()
        off = self._table.switch_off(list(known))
        done = [self._models[name] for pk, name in known.items() if pk in off]
        for model in done:  # so that it is seen at once if somebody switches it on again
            model.enabled = False
            self._states[model.name] = 0
        self._hand_over(done)
        return {name for pk, name in known.items() if pk not in off}

    # -- what a leader owes ---------------------------------------------------------------------

    def _serve(self) -> None:
        epoch = self._epoch()
        if epoch is None or self._is_blind:
            return
        if self._faults is None:
            self._faults = self._publish()
            if self._faults:
                self._fresh.append(Rows(faults=self._faults))
            self._look_soon()
        if epoch != self._served and not self._mend():
            self._served = epoch
        now = datetime.now(timezone.utc)
        over = [name for name, expires in self._ending.items() if expires <= now]
        for name in over:
            del self._ending[name]
        for name in self._switch_off(over):
            self._ending[name] = now

    def _mend(self) -> set[str]:
        """Write what the store knows and the rows do not: a leader died before it had written it (D1, D4).
        Returns the rows that somebody else holds.
        """
        memory, written = self._store.remember(), self._table.counts()
        missing: dict[str, tuple[int, datetime]] = {}
        done = []
        for name, model in self._models.items():
            mark, enrolment = memory.marks.get(name), memory.entries.get(name)
            if mark is None:
                continue
            count = memory.runs.get(name, 0)
            if count > written.get(name, count):
                missing[name] = (count, mark)
            if model.one_off and model.enabled and enrolment is not None and mark > enrolment.anchor:
                done.append(name)
        return self._record(missing) | self._switch_off(done)

    # -- what changed ---------------------------------------------------------------------------

    @property
    def _is_blind(self) -> bool:
        """Whether it has never seen the table."""
        return self.seen_at == float("-inf")

    def _look(self) -> None:
        now = time.monotonic()
        urgent, self._is_urgent = self._is_urgent, False
        if not urgent and now < self._look_at:
            return
        self._see(now)
        self.seen_at = now
        end = time.monotonic()
        self._rested_at = end + REST * (end - now)
        self._look_at = max(now + self._period, self._rested_at)

    def _look_soon(self) -> None:
        """This node itself has changed rows."""
        self._look_at = self._rested_at
        self._wake.set()

    def _see(self, now: float) -> None:
        mark = self._table.mark()
        if not self._is_blind and mark == self._mark and now - self._read_at < READ_ALL:
            return
        known, states = self._states, self._table.states()  # after the mark: see `Table.mark`
        changed = {name for name, found in states.items() if known.get(name) != found}
        read = self._table.rows(None if self._is_blind else changed)
        models = {model.name: model for model in read if model.name in changed}
        for name in changed - models.keys():
            del states[name]  # it has changed again meanwhile, and the mark as well
        gone = known.keys() - states.keys()
        for name in (*gone, *models):
            self._models.pop(name, None)
            self._ending.pop(name, None)
        self._models.update(models)
        for name, model in models.items():
            if model.enabled and model.expires:
                self._ending[name] = moment(model.expires)
        self._hand_over(list(models.values()), frozenset(gone))
        self._states, self._mark, self._read_at = states, mark, now

    def _hand_over(self, models: list[Any], gone: frozenset[str] = frozenset()) -> None:
        """Let the tick loop have what has changed; first of all everything at once."""
        if self._is_blind:
            self._fresh.append(self._read(models))
            return
        if gone:
            self._fresh.append(Rows(gone=gone))
        for start in range(0, len(models), HANDFUL):
            self._fresh.append(self._read(models[start : start + HANDFUL]))
