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
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kombu import Connection
from typing_extensions import override

from celery_singlebeat.beat.lines import make_line
from celery_singlebeat.beat.machine import STANDBY_NAP, Machine
from celery_singlebeat.beat.publishing import (
    CollectingProducer,
    DeclaringOnce,
    collecting_connection,
    current_tray,
)
from celery_singlebeat.beat.surroundings import signals_wait
from celery_singlebeat.errors import EntryError
from celery_singlebeat.policy.entries import EntryRules, check_schedule, read_rules, split
from celery_singlebeat.policy.slots import Misfire, MissedRules
from celery_singlebeat.wiring import wire

if TYPE_CHECKING:
    from celery.beat import Scheduler as _Base
else:
    _Base = object


class SingleBeatMixin(_Base):
    """Put in front of a `celery.beat.Scheduler` class: every replica may run it, at most one
    dispatches.

        class MyScheduler(SingleBeatMixin, SomeScheduler): ...

    Raises `SettingsError` when the app's settings cannot work.
    """

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._wiring = wire(app)
        settings = self._wiring.settings
        self._atomic = self._wiring.is_atomic
        self._defaults = MissedRules(
            misfire=Misfire(settings.misfire),
            grace=settings.misfire_grace,
            limit=settings.catch_up_limit,
            failover=2 * settings.lease_ttl,
        )
        self._rules: dict[str, EntryRules] = {}
        self._faults: dict[str, str] = {}
        self._machine: Machine | None = None
        self._changed = True
        self._in_tick = False
        self._closed = False
        super().__init__(app, *args, **kwargs)

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
                theirs, ours = split(name, entry)
                check_schedule(name, theirs.get("schedule"))
                rules = read_rules(name, ours, self._defaults)
                self.Entry(**dict(theirs, name=name, app=self.app))
            except EntryError as error:
                self._faults[name] = error.problem
            except Exception as error:  # the user's objects may raise anything
                self._faults[name] = f"it cannot be built: {type(error).__name__}: {error}"
            else:
                self._faults.pop(name, None)
                self._rules[name] = rules
                sound[name] = theirs
        return sound

    def _fill(self, machine: Machine) -> None:
        self._changed = False
        lines, parked = [], dict(self._faults)
        for name, entry in self.schedule.items():
            rules = self._rules.get(name) or EntryRules(missed=self._defaults)
            try:
                lines.append(make_line(name, entry, rules))
            except Exception as error:
                parked[name] = f"its schedule raises {type(error).__name__}: {error}"
        machine.fill(lines, parked)

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
                machine = self._machine = Machine(self._wiring, send=self._send, atomic=self._atomic)
            if self._changed:
                self._fill(machine)
            return machine.turn(self.max_interval or STANDBY_NAP)
        finally:
            self._in_tick = False

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
