"""Election and fenced dispatch in front of any Celery scheduler; translation, no thinking.

Facts of Celery that shape this class:

* beat builds the scheduler twice, first with `lazy=True` for the banner, so the constructor connects to
  nothing; the machine is made at the first tick, in the process that ticks.
* SIGTERM runs `close` in a signal handler that may interrupt a tick anywhere, and then again. So the
  first `close` gives the lease back over a connection of its own, and the rest waits for the second.
* `tick` returns seconds to sleep, and nothing but a signal interrupts that sleep. So it is short: that
  is how soon this loop sees what the heartbeat has won.
* Monitoring tools patch `Scheduler.apply_entry`. It stays the inherited method and runs once for each
  message, after this node has made sure that it may dispatch.
* A scheduler that keeps a history notes a run in `reserve` and writes it in `sync`. Both are called as Celery
  does, once the slot has been dispatched; on a standby there is nothing to write (B5).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.beat import ScheduleEntry, Scheduler
from kombu import Connection
from typing_extensions import Self, override

from celery_singlebeat.beat import records
from celery_singlebeat.beat.lines import PLAUSIBLE, Line, make_line
from celery_singlebeat.beat.machine import SOON, STANDBY_NAP, Machine
from celery_singlebeat.beat.surroundings import signals_wait
from celery_singlebeat.beat.windows import OwnWill
from celery_singlebeat.errors import EntryError, SettingsError
from celery_singlebeat.events import Event, SlotDispatched, SlotSkipped, SlotsSkipped
from celery_singlebeat.messages import (
    CollectingProducer,
    DeclaringOnce,
    collecting_connection,
    current_tray,
)
from celery_singlebeat.moments import Monotonic, iso, later
from celery_singlebeat.policy.entries import (
    EntryRules,
    check_call,
    check_name,
    check_schedule,
    read_rules,
    split,
)
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.policy.slots import Misfire, MissedRules
from celery_singlebeat.settings import cron_starting_deadline, demand_timezone
from celery_singlebeat.store.schedule_ports import Record
from celery_singlebeat.wiring import wire

if TYPE_CHECKING:
    _Base = Scheduler
else:
    _Base = object

logger = logging.getLogger(__name__)

#: Longest time between two looks at a schedule that may change by itself, in seconds.
LOOK = 5.0


class SingleBeatMixin(_Base):
    """Put in front of a `celery.beat.Scheduler` class: every replica may run it, at most one
    dispatches.

        class MyScheduler(SingleBeatMixin, SomeScheduler): ...

    Entries, `schedule`, `sync` and `reserve` stay those of the class behind; its `tick` is not run.
    Raises `SettingsError` when the app's settings cannot work.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raises `SettingsError` if no scheduler stands behind this class: `__init__` would be another's."""
        schedulers = [kind for kind in cls.__mro__ if _is_behind(kind)]
        if not schedulers or cls.__mro__.index(SingleBeatMixin) > cls.__mro__.index(schedulers[0]):
            behind = schedulers[0] if schedulers else Scheduler
            raise SettingsError(
                f"{cls.__name__}: SingleBeatMixin has to stand in front of a scheduler: "
                f"class {cls.__name__}(SingleBeatMixin, {behind.__name__})"
            )
        make: Any = super().__new__
        made: Self = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        return made

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._wiring = wire(app)
        settings = self._wiring.settings
        demand_timezone(app)
        self._atomic = self._wiring.is_atomic
        self._defaults = EntryRules(
            missed=MissedRules(
                misfire=Misfire(settings.misfire),
                grace=settings.misfire_grace,
                deadline=cron_starting_deadline(app.conf),
                limit=settings.catch_up_limit,
                failover=2 * settings.lease_ttl,
            )
        )
        self._rules: dict[str, EntryRules] = {}  # of entries that ask for something else
        self._faults: dict[str, str] = {}
        self._machine: Machine | None = None
        self._changed = True
        self._look_at = Monotonic(0.0)
        self.old_schedulers: dict[str, Any] | None = None  # Celery's own attribute, for the same purpose
        self._has_history = False
        self._in_tick = False
        self._closed = False
        super().__init__(app, *args, **kwargs)
        lock = getattr(self, "lock_key", None)
        if lock and any(kind.__name__ == "RedBeatScheduler" for kind in type(self).__mro__):
            raise SettingsError(
                f"redbeat_lock_key={lock!r}: other replicas would wait for RedBeat's own lock "
                "before they stand by; set redbeat_lock_key = None"
            )

    # -- the schedule ---------------------------------------------------------------------------

    @override
    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        super().merge_inplace(self._sound(b))

    @override
    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        super().update_from_dict(self._sound(dict_))

    @override
    def add(self, **kwargs: Any) -> Any:
        self._changed = True
        return super().add(**kwargs)

    def _sound(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """The entries that can work, in Celery's own form; the others are parked, one by one (B4)."""
        self._changed = True
        sound: dict[str, Any] = {}
        for name, entry in entries.items():
            if not isinstance(entry, Mapping):
                sound[name] = entry
                continue
            try:
                check_name(name)
                theirs, rules = self._read_entry(name, entry)
            except EntryError as error:
                self._faults[error.entry] = error.problem
            except Exception as error:  # the user's objects may raise anything
                self._faults[name] = f"it cannot be built: {type(error).__name__}: {error}"
            else:
                self._faults.pop(name, None)
                self._rules.pop(name, None)
                if rules is not self._defaults:
                    self._rules[name] = rules
                sound[name] = theirs
        return sound

    def _read_entry(self, name: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], EntryRules]:
        """What is Celery's of a configured entry, and its rules; raises `EntryError`, or what the user's
        objects raise.
        """
        theirs, ours = split(name, fields)
        asked = theirs.get("schedule")
        check_schedule(name, asked)
        rules = self._rules_of(name, ours)
        if hasattr(asked, "slot_after") and not hasattr(asked, "now"):
            theirs.setdefault("last_run_at", self.app.now())  # Celery would ask the schedule
        if not hasattr(self.Entry, "from_entry"):  # such a class keeps its entries elsewhere
            self.Entry(**dict(theirs, name=name, app=self.app))
        return theirs, rules

    def _rules_of(self, name: str, ours: Mapping[str, Any]) -> EntryRules:
        return read_rules(name, ours, self._defaults.missed) if ours else self._defaults

    def _is_celerys(self, name: str) -> bool:
        """Whether the class behind has this attribute of Celery's scheduler as Celery made it."""
        kinds = type(self).__mro__
        behind = kinds[kinds.index(SingleBeatMixin) + 1 :]
        return next(vars(kind)[name] for kind in behind if name in vars(kind)) is vars(Scheduler)[name]

    @cached_property
    def _changes_by_itself(self) -> bool:
        """Whether the schedule is another one from time to time without a word to this class."""
        return not self._is_celerys("schedule")

    def _read(self) -> Mapping[str, Any] | None:
        """The schedule, if it is another one than before. Celery compares at each tick, this now and then."""
        changes_by_itself = self._changes_by_itself
        if not self._changed and not changes_by_itself:
            return None
        now = self._wiring.clock.monotonic()
        if not self._changed and now < self._look_at:
            return None
        self._look_at = later(now, min(self.max_interval or LOOK, LOOK))
        changed, self._changed = self._changed, False
        try:
            schedule: dict[str, Any] = self.schedule
            if changes_by_itself:
                if not changed and self.schedules_equal(self.old_schedulers or {}, schedule):
                    return None
                self.old_schedulers = copy.copy(schedule)
        except Exception as error:  # whatever it is read from is the user's
            logger.warning(
                "the schedule cannot be read, the known one goes on: %s: %s", type(error).__name__, error
            )
            return None
        return schedule

    def _follow(self, machine: Machine) -> None:
        """Take over what has changed in the schedule."""
        schedule = self._read()
        if schedule is not None:
            self._fill(machine, schedule)

    def _fill(self, machine: Machine, schedule: Mapping[str, Any]) -> None:
        lines, parked = self._lines(schedule)
        machine.fill(lines.values(), parked)

    def _lines(self, schedule: Mapping[str, Any]) -> tuple[dict[str, Line], dict[str, str]]:
        lines: dict[str, Line] = {}
        parked = dict(self._faults)
        for name, entry in schedule.items():
            rules = self._rules.get(name, self._defaults)
            try:
                lines[name] = self._line(name, entry, rules)
            except EntryError as error:
                parked[name] = error.problem
        return lines, parked

    def _line(self, name: str, entry: Any, rules: EntryRules) -> Line:
        check_call(name, entry.task, entry.options or {})
        task = self.app.tasks.get(entry.task) if rules.overlap != "allow" else None
        if task is not None and not getattr(task, "_tells_its_end", False):
            raise EntryError(
                name,
                f"overlap={rules.overlap!r} needs a task that tells its end: "
                f"give {entry.task!r} base=SingleBeatTask",
            )
        try:
            return make_line(name, entry, rules)
        except Exception as error:
            raise EntryError(name, f"its schedule raises {type(error).__name__}: {error}") from error

    def outline(self) -> tuple[dict[str, Line], dict[str, str]]:
        """The static schedule of a scheduler that was not started: its lines, and why others cannot work."""
        if self._is_celerys("schedule"):
            Scheduler.setup_schedule(self)
        return self._lines(self.schedule)

    def dynamic_line(self, name: str, text: str, *, since: datetime) -> Line:
        """The line of a dynamic entry as it is stored; raises `EntryError`."""
        check_name(name)
        if since > self._wiring.clock.now() + PLAUSIBLE:
            raise EntryError(name, f"its stored form begins in the future, at {iso(since)}; add it again")
        theirs, ours = split(name, records.read(name, text))
        check_schedule(name, theirs.get("schedule"))
        rules = self._rules_of(name, ours)
        try:
            entry = ScheduleEntry(**dict(theirs, name=name, app=self.app))
        except Exception as error:
            raise EntryError(name, f"it cannot be built: {type(error).__name__}: {error}") from error
        line = self._line(name, entry, rules)
        line.since = since
        return line

    # -- the loop -------------------------------------------------------------------------------

    @override
    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Dispatch what is due if this node leads, watch otherwise; seconds to sleep."""
        if self._closed:
            return STANDBY_NAP
        self._in_tick = True
        try:
            machine = self._machine
            if machine is None:
                machine = self._machine = self._begin()
            self._follow(machine)
            return machine.turn(max(SOON, self.max_interval or STANDBY_NAP))
        finally:
            self._in_tick = False

    def _begin(self) -> Machine:
        if not self._is_celerys("tick"):
            logger.warning(
                "the tick() of %s is not run, celery-singlebeat's is; what it does beside dispatching "
                "belongs into a tick() that calls super(), in the class that begins with SingleBeatMixin",
                type(self).__name__,
            )
        return Machine(
            self._wiring,
            send=self._send,
            atomic=self._atomic,
            make=self._make,
            tell=self._hear,
            ready=self._may_begin,
        )

    def _may_begin(self, grant: Grant) -> bool:  # noqa: ARG002 - what is behind may ask for it
        """Whether this node may dispatch what it has as its schedule, under a new grant."""
        return True

    def _hear(self, event: Event) -> None:
        self._wiring.tell(event)
        if isinstance(event, (SlotDispatched, SlotSkipped, SlotsSkipped)) and self._machine is not None:
            line = self._machine.agenda.line(event.entry)
            if line is not None and line.since is None:
                self._note(line) if isinstance(event, SlotDispatched) else self._pass_over(line)

    def _pass_over(self, line: Line) -> None:
        """A slot of this line got the verdict not to run."""

    def _note(self, line: Line) -> None:
        """Let the class behind note a run, as Celery would."""
        if self._is_celerys("sync") and self._is_celerys("reserve"):
            return
        self._has_history = True
        try:
            line.entry = self.reserve(line.entry)
        except Exception as error:  # the message is out, and its mark says so
            logger.warning("entry %r: its run is not noted: %s: %s", line.name, type(error).__name__, error)
            return
        if isinstance(line.timetable, OwnWill):
            line.timetable.entry = line.entry

    @override
    def should_sync(self) -> bool:
        # not while a message is made: the loop asks again after each turn
        return current_tray() is None and bool(super().should_sync())

    @override
    def sync(self) -> None:
        if not self._has_history:
            return
        self._has_history = False
        try:
            super().sync()
        except Exception as error:  # where it is written is the user's
            self._has_history = True
            logger.warning("the history cannot be written: %s: %s", type(error).__name__, error)

    def _make(self, name: str, record: Record) -> Line:
        return self.dynamic_line(name, record.text, since=record.since)

    def _send(self, entry: Any) -> None:
        self.apply_entry(entry, producer=self.producer)

    @override
    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        tray = current_tray()
        try:
            return super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        except Exception as error:
            if tray is not None:  # Celery logs the error and goes on; the slot needs to know of it
                tray.error = error.__context__ if isinstance(error.__context__, Exception) else error
            raise

    @cached_property
    def connection(self) -> Connection:
        """Celery's own property: the broker connection of the producer."""
        return collecting_connection(self.app) if self._atomic else self.app.connection_for_write()

    @cached_property
    def producer(self) -> Any:
        """Celery's own property: what `apply_entry` publishes with."""
        if self._atomic:
            return DeclaringOnce(self.connection, auto_declare=False)
        return CollectingProducer(self.connection, auto_declare=False)

    # -- the end --------------------------------------------------------------------------------

    @override
    def close(self) -> None:
        self._closed = True
        with signals_wait():
            if self._machine is not None:
                self._machine.give_back()
            if self._in_tick:
                return  # in a signal handler that interrupted the tick; Celery calls again
            machine, self._machine = self._machine, None
            if machine is not None:
                machine.stop()
            super().close()

    @property
    @override
    def info(self) -> str:
        settings = self._wiring.settings
        how = "atomic" if self._atomic else "outbox"
        return "\n".join(
            (
                f"    . store -> {self._wiring.place}",
                f"    . dispatch -> {how}",
                f"    . lease -> {settings.lease_ttl:g} s, prefix {settings.prefix}",
            )
        )


def _is_behind(kind: type) -> bool:
    return issubclass(kind, Scheduler) and not issubclass(kind, SingleBeatMixin)
