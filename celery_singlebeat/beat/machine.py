"""The parts of one beat process, put together: what ticks, and what it ticks on.

Made at the first tick, in the process that ticks; nothing here knows Celery's scheduler classes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from celery_singlebeat.beat.dispatcher import Dispatcher
from celery_singlebeat.beat.dynamic import Dynamic
from celery_singlebeat.beat.elector import Elector, Timing
from celery_singlebeat.beat.heartbeat import Heartbeat, Pulse
from celery_singlebeat.beat.lines import Agenda, Line
from celery_singlebeat.beat.publisher import Publisher
from celery_singlebeat.beat.surroundings import nobody_waits_for_results
from celery_singlebeat.beat.watch import Watch
from celery_singlebeat.errors import Deposed, NotLeader, StoreUnavailable
from celery_singlebeat.events import Listener
from celery_singlebeat.health import birth
from celery_singlebeat.mover import Mover
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.store.ports import Candidate, NodeReport
from celery_singlebeat.store.schedule_ports import Record
from celery_singlebeat.store.waiting_ports import Rank
from celery_singlebeat.wiring import Wiring

logger = logging.getLogger(__name__)

#: Longest sleeps between two ticks, in seconds, for a standby and for a leader: so soon this loop sees what
#: its threads have heard. Each awakening costs a tenth of a millisecond, and a standby must not be late.
STANDBY_NAP, LEADER_NAP = 0.025, 0.1
#: How long a standby may sleep after it was told to go; and the sleep after leadership was lost.
SOON = 0.01
#: How many overdue entries a report names at most.
MOST_OVERDUE = 100


class Machine:
    """Elector, heartbeat, agenda, watch, dispatcher and publisher of one process.

    `send` makes the message of an entry through Celery; `atomic` says that it goes out with its claim;
    `make` builds the line of a dynamic entry, or raises `EntryError`; `tell` hears what happens. Under a new
    grant nothing is done before `ready` says so.
    """

    def __init__(
        self,
        wiring: Wiring,
        *,
        send: Callable[[Any], None],
        atomic: bool,
        make: Callable[[str, Record], Line],
        tell: Listener,
        ready: Callable[[Grant], bool] = lambda _: True,
    ) -> None:
        settings, clock = wiring.settings, wiring.clock
        self._node = settings.node
        self._grace = settings.takeover_grace
        self._ready = ready
        self._clock = clock
        self._store = wiring.beat_store()
        self._farewell = self._store.farewell()  # made now, so that a signal handler makes nothing
        self._began = clock.monotonic()
        self._has_led = False
        self._schedule = ""
        self.elector = Elector(
            self._store,
            Candidate(node=settings.node, host=socket.gethostname(), pid=os.getpid()),
            Timing(ttl=settings.lease_ttl, renew_every=settings.renew_every, grace=settings.takeover_grace),
            clock=clock,
            tell=tell,
            place=wiring.place,
        )
        self._pulse = Pulse(clock, patience=settings.lease_ttl)
        self.agenda = Agenda(tell, self.elector.due_now, self._pulse.beat)
        self.dynamic = Dynamic(self._store.schedule, make, clock)
        self._static: set[str] = set()
        self._strangers: list[Line] = []  # static lines that do not know where they stand
        self._watch = Watch(
            self.agenda, self._store, self.elector, grace=settings.takeover_grace, clock=clock
        )
        self._publisher = Publisher(
            wiring.app,
            self._store,
            self.elector.term,
            clock=clock,
            tell=tell,
        )
        self._broker_patience = 2 * settings.lease_ttl
        self.dispatcher = Dispatcher(
            self.agenda,
            self._store,
            self.elector,
            send=send,
            prefix=settings.prefix,
            tell=tell,
            kept=self._publisher.send,
            drain=(lambda: None) if atomic else self._publisher.drain,
            pulse=self._pulse.beat,
            changes=self.dynamic,
            clock=clock,
            patience=settings.takeover_grace / 3,
        )
        self._heartbeat = Heartbeat(
            self.elector,
            self._store.ears,
            self._store,
            self._pulse,
            self._report,
            hear=self._hear,
            clock=clock,
        )

        self._mover = Mover(wiring, Rank.BEAT, self._may_lead)

    def fill(self, lines: Iterable[Line], parked: Mapping[str, str]) -> None:
        """Take another static schedule."""
        static = list(lines)
        self._static = {*(line.name for line in static), *parked}
        dynamic = self.dynamic.lines(self._static)
        self.agenda.fill((*static, *dynamic), {**self.dynamic.parked(self._static), **parked})
        self._describe()
        self._look_again()

    def amend(self, lines: Iterable[Line], gone: Iterable[str], parked: Mapping[str, str]) -> None:
        """Take over what has changed in the static schedule; no other entry notices."""
        changed, gone = list(lines), frozenset(gone)
        self._static -= gone
        self._static.update(line.name for line in changed)
        self._static.update(parked)
        changed += [line for name in gone if (line := self.dynamic.line(name)) is not None]
        self._strangers += self._replace(changed, gone, parked)
        self._describe()

    def _describe(self) -> None:
        self._schedule = self.agenda.digest()
        self.elector.describe(self._schedule)

    def turn(self, longest: float) -> float:
        """Dispatch what is due if this node leads, watch otherwise; seconds until the next turn."""
        self._pulse.beat()
        self._heartbeat.start()
        self._mover.start()
        nap = min(longest, self._lead() if self._may_lead() else self._stand_by())
        self._pulse.beat(away=nap)
        return nap

    def give_back(self) -> None:
        """Free the lease for good, within a bounded time; a signal handler may call it anywhere."""
        self._heartbeat.tell_to_stop()
        self.elector.close(self._farewell)

    def stop(self) -> None:
        """End the threads and the connections."""
        self._publisher.stop()
        self._mover.stop()
        self._heartbeat.stop()
        try:
            self._farewell.leave(self._node)
            self._farewell.close()
            self._store.close()
        except StoreUnavailable:
            pass  # it will see that we are gone

    def _hear(self, event: str) -> bool:
        if event == "changed":
            self.dynamic.tell()
        return self.elector.hear(event)

    def _read_changes(self) -> None:
        """Take in what changed in the dynamic schedule; raises `StoreUnavailable`."""
        update = self.dynamic.turn(self._pulse.beat)
        self.agenda.pauses = self.dynamic.pauses
        if not update:
            return
        lines = [line for line in update.lines if line.name not in self._static]
        gone = [name for name in update.gone if name not in self._static]
        parked = {name: problem for name, problem in update.parked.items() if name not in self._static}
        if self._seat(self._replace(lines, gone, parked)):
            self._look_again()  # their stored state is damaged, and has to be written anew

    def _replace(self, lines: list[Line], gone: Iterable[str], parked: Mapping[str, str]) -> list[Line]:
        """Put lines in the place of those of the same names; returns those that do not know where they
        stand.
        """
        self._watch.forget((*gone, *parked, *(line.name for line in lines)))
        return self.agenda.change(lines, gone, parked)

    def _seat(self, strangers: list[Line]) -> list[Line]:
        """Let lines stand where the store remembers them; returns those that it does not know."""
        if not strangers:
            return []
        try:
            memory = self._store.remember([line.name for line in strangers])
        except StoreUnavailable:
            self._look_again()
            raise
        return self.agenda.seat(strangers, memory)

    def _seat_strangers(self) -> list[Line]:
        """`_seat` for what has changed in the static schedule; raises `StoreUnavailable`."""
        strangers, self._strangers = self._strangers, []
        return self._seat([line for line in strangers if self.agenda.line(line.name) is line])

    def _look_again(self) -> None:
        """Some lines do not know where they stand: read everything before anything else is done."""
        self.dispatcher.forget()
        self._watch.start_over()

    def _may_lead(self) -> bool:
        try:
            self.elector.term()
        except NotLeader:
            return False
        return True

    def _lead(self) -> float:
        try:
            grant = self.elector.term().grant
        except NotLeader:
            return SOON
        self._has_led = True
        if self._publisher.stuck_for() > self._broker_patience:
            self.elector.stand_down(grant, "publishing")
            return SOON
        if not self._ready(grant):
            return SOON
        try:
            with nobody_waits_for_results():
                if not self.dispatcher.is_current(grant):
                    self._mend(grant)
                    self.dynamic.tell()
                self._read_changes()
                self.dispatcher.adopt(grant)
                self.dispatcher.enroll(grant, self._seat_strangers())
                self.dispatcher.turn(grant)
        except Deposed:
            self.elector.stand_down(grant, "deposed")
            return SOON
        except NotLeader:
            # Trust may lapse for a moment only: what was taken in hand by then has to be found again.
            self.dispatcher.forget()
            return SOON
        except StoreUnavailable:
            self.elector.silences += 1  # also an answer that cannot be used: look at everything again
            return STANDBY_NAP
        if self.dynamic.is_building:
            return SOON
        next_at = self.agenda.next_at()
        if next_at is None:
            return LEADER_NAP
        return min(LEADER_NAP, max(0.001, (next_at - self.elector.due_now()).total_seconds()))

    def _mend(self, grant: Grant) -> None:
        for key, kept in self._store.mend(grant).items():
            what = f"was of another type, and is kept as {kept}" if kept else "was gone: is anything evicted?"
            logger.error("state of the schedule in %s %s; what it said begins anew, from now", key, what)

    def _stand_by(self) -> float:
        if self._has_led:
            self._has_led = False
            self._look_again()
        if self.elector.has_heard_the_store:
            try:
                self._read_changes()
                self._watch.expect(self._seat_strangers())
            except StoreUnavailable:
                return STANDBY_NAP
        self._watch.turn()
        return STANDBY_NAP

    def _report(self) -> NodeReport:
        """What this node says of itself; the heartbeat's thread asks."""
        leads = self._may_lead()
        moment = self.elector.due_now() - timedelta(seconds=self._grace + 1)
        if leads:
            overdue = self.agenda.overdue(moment, MOST_OVERDUE)
        else:
            waiting = self.elector.overdue.items()
            overdue = tuple(name for name, late in waiting if late.slot < moment)[:MOST_OVERDUE]
        return NodeReport(
            node=self._node,
            host=socket.gethostname(),
            pid=os.getpid(),
            role="leader" if leads else "standby",
            tick_age=self._pulse.age(),
            stuck=self._publisher.stuck_for(),
            entries=len(self.agenda),
            faulty=dict(self.agenda.parked),
            overdue=overdue,
            birth=birth(os.getpid()),
            up=self._clock.monotonic() - self._began,
            schedule=self._schedule,
        )
