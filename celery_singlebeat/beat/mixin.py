"""Election and fenced dispatch in front of any Celery scheduler; translation, no thinking.

Facts of Celery that shape this class:

* beat builds the scheduler twice, first with `lazy=True` for the banner, so the constructor connects to
  nothing; the heartbeat starts with the first tick, in the process that ticks.
* SIGTERM runs `close` in a signal handler that may interrupt a tick anywhere, and then again. So the
  first `close` gives the lease back over a connection of its own, and the rest waits for the second.
* `tick` returns seconds to sleep, and nothing but a signal interrupts that sleep. So it is short: that
  is how soon this loop sees what the heartbeat has won.
* Monitoring tools patch `Scheduler.apply_entry`. It stays the inherited method and runs once for each
  message, after this node has made sure that it may dispatch.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import _state
from kombu import Connection
from typing_extensions import override

from celery_singlebeat.beat.dispatcher import Dispatcher
from celery_singlebeat.beat.elector import Elector, Timing
from celery_singlebeat.beat.heartbeat import Heartbeat, Pulse
from celery_singlebeat.beat.lines import Agenda, make_line
from celery_singlebeat.beat.publisher import Publisher
from celery_singlebeat.beat.publishing import CollectingProducer, collecting_connection, current_tray
from celery_singlebeat.beat.watch import Watch
from celery_singlebeat.errors import Deposed, EntryError, NotLeader, StoreUnavailable
from celery_singlebeat.health import birth
from celery_singlebeat.policy.entries import EntryRules, check_schedule, read_rules, split
from celery_singlebeat.policy.slots import Misfire, MissedRules
from celery_singlebeat.store.ports import Candidate, NodeReport
from celery_singlebeat.wiring import wire

if TYPE_CHECKING:
    from celery.beat import Scheduler as _Base
else:
    _Base = object

#: Longest sleeps between two ticks, in seconds, for a standby and for a leader.
STANDBY_NAP, LEADER_NAP = 0.025, 0.1
#: How many overdue entries a report names: it is sent every second, and one is enough to act upon.
MOST_OVERDUE = 100


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
        self._changed = True
        self._in_tick = False
        self._closed = False
        self._running = False
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
                if not theirs.get("task"):
                    raise EntryError(name, "it has no 'task'; give the name of a task")
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

    def _fill(self) -> None:
        self._changed = False
        lines, parked = [], dict(self._faults)
        for name, entry in self.schedule.items():
            rules = self._rules.get(name) or EntryRules(missed=self._defaults)
            try:
                lines.append(make_line(name, entry, rules))
            except Exception as error:
                parked[name] = f"its schedule raises {type(error).__name__}: {error}"
        self._agenda.fill(lines, parked)
        self._elector.describe(self._agenda.digest())
        self._watch.start_over()
        self._dispatcher.forget()

    # -- the loop -------------------------------------------------------------------------------

    @override
    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Dispatch what is due if this node leads, watch otherwise; seconds to sleep."""
        if self._closed:
            return STANDBY_NAP
        self._in_tick = True
        try:
            self._pulse.beat()
            self._heartbeat.start()
            if self._changed:
                self._fill()
            nap = self._lead() if self._may_lead() else self._stand_by()
            self._pulse.beat(away=nap)
            return nap
        finally:
            self._in_tick = False

    def _may_lead(self) -> bool:
        try:
            self._elector.term()
        except NotLeader:
            return False
        return True

    def _lead(self) -> float:
        try:
            grant = self._elector.term().grant
            with _nobody_waits_for_results():
                self._dispatcher.adopt(grant)
                self._dispatcher.turn(grant)
        except Deposed as error:
            self._elector.stand_down(error.epoch, "deposed")
            return 0.01
        except NotLeader:
            return 0.01
        except StoreUnavailable:
            return STANDBY_NAP
        if self._dispatcher.has_waiting:
            return STANDBY_NAP
        next_at = self._agenda.next_at()
        longest = min(LEADER_NAP, self.max_interval or LEADER_NAP)
        if next_at is None:
            return longest
        return min(longest, max(0.001, (next_at - self._elector.due_now()).total_seconds()))

    def _stand_by(self) -> float:
        if self._dispatcher.is_adopted:
            self._dispatcher.forget()
            self._watch.start_over()
        self._watch.turn()
        return STANDBY_NAP

    # -- one message ----------------------------------------------------------------------------

    def _send(self, entry: Any) -> None:
        self.apply_entry(entry, producer=self.producer)

    @override
    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        tray = current_tray()
        try:
            return super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        except Exception as error:
            if tray is not None:
                cause = error.__context__ if isinstance(error.__context__, Exception) else error
                tray.error = cause
            raise

    @cached_property
    def connection(self) -> Connection:
        return collecting_connection(self.app) if self._atomic else self.app.connection_for_write()

    @cached_property
    def producer(self) -> Any:
        if self._atomic:
            return self.app.amqp.Producer(self.connection, auto_declare=False)
        return CollectingProducer(self.connection, auto_declare=False)

    # -- the end --------------------------------------------------------------------------------

    @override
    def close(self) -> None:
        self._closed = True
        with _signals_wait():
            if self._running:
                self._heartbeat.tell_to_stop()
                self._elector.close(self._farewell)
            if self._in_tick:
                return  # in a signal handler that interrupted the tick; Celery calls again
            if self._running:
                self._running = False
                self._hang_up()
            super().close()

    def _hang_up(self) -> None:
        self._publisher.stop()
        self._heartbeat.stop()
        try:
            self._farewell.leave(self._wiring.settings.node)
            self._farewell.close()
            self._store.close()
        except StoreUnavailable:
            pass  # it will see that we are gone

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

    # -- the parts, made at the first tick ------------------------------------------------------

    @cached_property
    def _store(self) -> Any:
        self._running = True
        return self._wiring.beat_store()

    @cached_property
    def _farewell(self) -> Any:
        return self._store.farewell()

    @cached_property
    def _elector(self) -> Elector:
        settings = self._wiring.settings
        candidate = Candidate(node=settings.node, host=socket.gethostname(), pid=os.getpid())
        timing = Timing(
            ttl=settings.lease_ttl, renew_every=settings.renew_every, grace=settings.takeover_grace
        )
        return Elector(
            self._store,
            candidate,
            timing,
            clock=self._wiring.clock,
            tell=self._wiring.tell,
            place=self._wiring.place,
        )

    @cached_property
    def _pulse(self) -> Pulse:
        return Pulse(self._wiring.clock, patience=self._wiring.settings.lease_ttl)

    @cached_property
    def _agenda(self) -> Agenda:
        return Agenda(self._wiring.tell, self._elector.due_now)

    @cached_property
    def _heartbeat(self) -> Heartbeat:
        _ = self._farewell  # made now, so that a signal handler makes nothing
        self._began = self._wiring.clock.monotonic()
        return Heartbeat(
            self._elector, self._store.ears, self._store, self._pulse, self._report, clock=self._wiring.clock
        )

    @cached_property
    def _watch(self) -> Watch:
        grace = self._wiring.settings.takeover_grace
        return Watch(self._agenda, self._store, self._elector, grace=grace, clock=self._wiring.clock)

    @cached_property
    def _publisher(self) -> Publisher:
        ttl = self._wiring.settings.lease_ttl
        return Publisher(
            self.app,
            self._store,
            self._elector.term,
            clock=self._wiring.clock,
            tell=self._wiring.tell,
            give_up=lambda epoch: self._elector.stand_down(epoch, "publishing"),
            patience=2 * ttl,
        )

    @cached_property
    def _dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self._agenda,
            self._store,
            self._elector,
            send=self._send,
            prefix=self._wiring.settings.prefix,
            tell=self._wiring.tell,
            kept=self._publisher.send,
            drain=(lambda: None) if self._atomic else self._publisher.drain,
            pulse=self._pulse.beat,
        )

    def _report(self) -> NodeReport:
        leads = self._may_lead()
        elector, wiring = self._elector, self._wiring
        moment = elector.due_now() - timedelta(seconds=wiring.settings.takeover_grace + 1)
        if leads:
            overdue = self._agenda.overdue(moment)
        else:
            overdue = tuple(name for name, slot in elector.overdue.items() if slot < moment)
        return NodeReport(
            node=self._wiring.settings.node,
            host=socket.gethostname(),
            pid=os.getpid(),
            role="leader" if leads else "standby",
            tick_age=self._pulse.age(),
            entries=len(self._agenda),
            faulty=dict(self._agenda.parked),
            overdue=overdue[:MOST_OVERDUE],
            birth=birth(os.getpid()),
            up=wiring.clock.monotonic() - self._began,
        )


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let a second SIGTERM or SIGINT wait until the bounded farewell is over: Celery's handler raises
    wherever it finds the process, and half a farewell helps nobody.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, _frame: came.append(signum))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _nobody_waits_for_results() -> Iterator[None]:
    """Keep result backends from subscribing to the result of each message: nobody here asks for it, and
    the subscriptions would pile up.

    Celery's switch for that is one for the whole process, so it is left alone where other threads may
    be waiting for results: beat embedded in a worker's thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    state: Any = _state
    before = state.task_join_will_block()
    state._set_task_join_will_block(True)  # noqa: SLF001 - as celery.app.trace does
    try:
        yield
    finally:
        state._set_task_join_will_block(before)  # noqa: SLF001
