"""The demo's story, act by act: what is done to whom, and what has to come of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from celery_singlebeat import DeadLetters, Leadership, StoreUnavailable
from celery_singlebeat.testing.processes import ManagedProcess
from celery_singlebeat.wiring import wire
from example_project import ledger
from example_project.fleet import Fleet
from example_project.narration import Narrator, Player, Scene
from example_project.rehearsal import (
    LEASE_TTL,
    LOCK_TTL,
    LOOKS_OFTEN,
    VISIBILITY_TIMEOUT,
    app,
    look_for_calls,
)
from example_project.sideshow import LedgerReader, Sideshow
from example_project.tasks import import_orders
from example_project.verdict import Count, Fault, Rescue, Row, Verdict, count

T = TypeVar("T")

#: Seconds between two looks at the ledger, and between two looks at everything else.
_LOOK, _REFRESH = 0.01, 0.25
#: Seconds between two looks for the calls of killed workers, where kombu cannot be told to look itself.
_LOOK_FOR_CALLS = 1.0
#: Seconds that any one thing may take, on a machine that is busy with other things too.
_PATIENCE = 40.0
#: Seconds until a supervisor starts anew what died.
_RESTART = 1.0


class StuckError(Exception):
    """Something that must happen did not."""


class Story:
    """Three attacks on the leader, one on a worker.

    `pause`: seconds between two acts. `wanted` is called often, and raises what shall end the story.
    """

    def __init__(self, fleet: Fleet, narrator: Narrator, *, pause: float, wanted: Callable[[], None]) -> None:
        self._fleet = fleet
        self._narrator = narrator
        self._pause = pause
        self._wanted = wanted
        self._looked_at = self._looked_for_calls_at = 0.0
        self._restarts: list[tuple[float, ManagedProcess]] = []
        self._sideshow = Sideshow(narrator.say)

    def play(self, url: str) -> Verdict:
        """Play it all; raises `StuckError`, and what `wanted` raises."""
        app.conf.update(broker_url=url)
        with closing(ledger.connect()) as client:
            self._ledger = LedgerReader(client)
            self._leadership = Leadership(app)
            self._begin(url)
            faults = [
                self._kill_leader(),
                self._terminate_leader(),
                self._freeze_leader(),
            ]
            rescue = self._kill_worker()
            verdict = Verdict(self._settle(), faults, rescue)
            verdict.letters = self._ask(DeadLetters(app).list)
            self._refresh()
            return verdict

    # -- the acts -------------------------------------------------------------------------------

    def _begin(self, url: str) -> None:
        self._say("Three beats and two workers start, all with the same schedule of four entries.")
        self._fleet.start(url)
        self._until(self._all_there, "the beats and workers do not come up")
        leader, _ = self._leader()
        others = " and ".join(beat.name for beat in self._fleet.beats if beat is not leader)
        self._say(f"{leader.name} leads: it alone puts due calls into the queue. {others} stand by.")
        self._until(lambda: self._ledger.first("run"), "no worker begins a call")
        self._say("The first call runs: a sales report, due every second, to be sent once each time.")
        self._rest()

    def _all_there(self) -> bool:
        status = self._ask(self._leadership.status)
        heard = {node["pid"] for node in status["standbys"]}
        if status["leader"] is not None:
            heard.add(status["leader"]["pid"])
        beats = all(beat.pid in heard for beat in self._fleet.beats)
        return beats and all(" ready." in worker.logs() for worker in self._fleet.workers)

    def _kill_leader(self) -> Fault:
        victim, epoch = self._leader()
        self._say(f"1. Kill {victim.name}, which leads (SIGKILL): it cannot say goodbye.", "bold")
        fault = self._strike(victim, epoch, "killed", lambda: victim.kill(signal.SIGKILL))
        self._restart_later(victim)
        self._rest()
        return fault

    def _terminate_leader(self) -> Fault:
        victim, epoch = self._leader()
        self._say(f"2. Terminate {victim.name}, which leads (SIGTERM), as a deployment does.", "bold")
        fault = self._strike(victim, epoch, "terminated", lambda: victim.kill(signal.SIGTERM))
        self._until(lambda: not victim.running, f"{victim.name} does not end")
        self._restart_later(victim)
        self._rest()
        return fault

    def _freeze_leader(self) -> Fault:
        victim, epoch = self._leader()
        self._say(
            f"3. Freeze {victim.name}, which leads (SIGSTOP): it still seems to be there. "
            "Only a slot that is overdue gives it away.",
            "bold",
        )
        frozen_at = time.monotonic()
        fault = self._strike(victim, epoch, "frozen", victim.pause)
        frozen_for = LEASE_TTL * 1.2
        self._wait(frozen_at + frozen_for - time.monotonic())
        seen = len(self._ledger.rows)
        victim.resume()
        self._say(f"{victim.name} wakes up after {frozen_for:.1f} s. When it fell asleep it was the leader.")
        pid = victim.pid
        self._until(
            lambda: any(row["kind"] == "stand_by" and row["pid"] == pid for row in self._ledger.rows[seen:]),
            f"{victim.name} does not notice that it leads no more",
        )
        self._say(f"{victim.name} finds {fault.successor} in its place, sends nothing, and stands by.")
        self._rest()
        return fault

    def _strike(self, victim: ManagedProcess, epoch: int, name: str, hit: Callable[[], None]) -> Fault:
        """Hit the leader, and wait until the next one has dispatched its first slot.

        The epoch counts the times that a beat began to lead: whatever has a larger one came after.
        """
        struck_at = time.time()
        hit()
        lead = self._until(
            lambda: next((row for row in self._ledger.rows if _begins_after(row, epoch)), None),
            "nobody takes over",
        )
        gap = max(0.0, lead["moment"] - struck_at)
        beat = self._fleet.beat(lead["pid"])
        successor = beat.name if beat else f"pid {lead['pid']}"
        self._refresh()
        self._say(f"{successor} leads, {gap * 1000:.0f} ms later.", "green")
        dispatch = self._until(
            lambda: next((row for row in self._ledger.rows if _dispatches_after(row, epoch)), None),
            "the new leader dispatches nothing",
        )
        lateness: float = dispatch["lateness"]
        self._say(f"The next slot goes into the queue, {lateness * 1000:.0f} ms late.")
        return Fault(name=name, victim=victim.name, successor=successor, gap=gap, lateness=lateness)

    def _kill_worker(self) -> Rescue:
        call = import_orders.delay("orders of today", seconds=3.0)
        run = self._until(lambda: self._ledger.first("run", id=call.id), "no worker begins the import")
        victim = self._fleet.worker(run["worker"])
        self._wait(0.5)
        self._say(f"4. Kill {victim.name} (SIGKILL) in the middle of importing orders.", "bold")
        struck_at = time.time()
        victim.kill(signal.SIGKILL)
        self._say(
            f"Its lock frees itself within {LOCK_TTL:g} s, and the queue hands its calls out again "
            f"after {VISIBILITY_TIMEOUT} s (a setting; an hour by default)."
        )
        again = self._until(
            lambda: next((row for row in self._ledger.rows if _runs_again(row, run)), None),
            "nobody executes the call of the killed worker",
        )
        rescuer = self._fleet.worker(again["worker"])
        gap = again["moment"] - struck_at
        self._say(f"{rescuer.name} begins the import again, {gap:.1f} s after the kill.")
        self._until(
            lambda: self._ledger.first("outcome", id=call.id, outcome="success"), "the import does not end"
        )
        self._say("The import is complete.", "green")
        self._restart_later(victim)
        completions = [
            row for row in self._ledger.rows if row.get("outcome") == "success" and row["id"] == call.id
        ]
        return Rescue(victim=victim.name, rescuer=rescuer.name, gap=gap, completions=len(completions))

    def _settle(self) -> Count:
        """Wait until every call that was due until now has come to its end, and count."""
        self._until(lambda: not self._restarts, "what died was not started anew")
        with closing(wire(app).beat_store()) as store:
            memory = self._ask(store.remember)
            until = self._ask(store.overview).time
        anchors = {name: enrolment.anchor for name, enrolment in memory.entries.items()}
        periods = {name: float(entry["schedule"]) for name, entry in app.conf.beat_schedule.items()}
        self._say("The calls that are still under way come to their end ...")

        def so_far() -> Count:
            return count(self._ledger.rows, anchors=anchors, periods=periods, until=until)

        deadline = time.monotonic() + _PATIENCE
        while so_far().lost and time.monotonic() < deadline:
            self._wait(0.2)
        return so_far()

    # -- who is who -----------------------------------------------------------------------------

    def _leader(self) -> tuple[ManagedProcess, int]:
        """The beat that leads, and its epoch; waits for one."""

        def found() -> tuple[ManagedProcess, int] | None:
            leader = self._ask(self._leadership.status)["leader"]
            beat = None if leader is None else self._fleet.beat(leader["pid"])
            return None if beat is None else (beat, leader["epoch"])

        return self._until(found, "nobody leads")

    def _restart_later(self, process: ManagedProcess) -> None:
        self._restarts.append((time.monotonic() + _RESTART, process))

    # -- time passes ----------------------------------------------------------------------------

    def _until(self, answer: Callable[[], T | None], trouble: str) -> T:
        """Wait for an answer, and let the show go on meanwhile."""
        deadline = time.monotonic() + _PATIENCE
        while not (found := answer()):
            if time.monotonic() > deadline:
                raise StuckError(f"{trouble}, for {_PATIENCE:g} s")
            self._go_on()
        return found

    def _ask(self, ask: Callable[[], T]) -> T:
        """Ask until Redis answers in time, which on a busy machine it may not do at once."""
        answers: list[Any] = []

        def answered() -> bool:
            try:
                answers.append(ask())
            except StoreUnavailable:
                return False
            return True

        self._until(answered, "Redis does not answer")
        answer: T = answers[0]
        return answer

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._go_on()

    def _rest(self) -> None:
        self._wait(self._pause)
        self._until(lambda: not self._restarts and self._all_there(), "not everything is back")

    def _go_on(self) -> None:
        self._wanted()
        time.sleep(_LOOK)
        for row in self._ledger.read():
            self._sideshow.watch(row)
        now = time.monotonic()
        for due, process in list(self._restarts):
            if now >= due:
                self._restarts.remove((due, process))
                process.start()
                self._say(f"A supervisor starts {process.name} again.")
        if now - self._looked_at >= _REFRESH:
            self._refresh()
        if not LOOKS_OFTEN and now - self._looked_for_calls_at >= _LOOK_FOR_CALLS:
            self._looked_for_calls_at = now
            look_for_calls()

    def _refresh(self) -> None:
        self._looked_at = time.monotonic()
        try:
            status = self._leadership.status()
        except StoreUnavailable:
            return  # the machine is busy; there is another look soon
        leader = status["leader"]["pid"] if status["leader"] else None
        standbys = {node["pid"] for node in status["standbys"]}
        players = [_beat(beat, leader, standbys) for beat in self._fleet.beats]
        players += [self._worker(worker) for worker in self._fleet.workers]
        numbers = self._sideshow.numbers
        counters = {
            "dispatched": status["dispatched"],
            "executed": numbers["success"],
            "skipped by lock": numbers["conflict"],
            "retries": numbers["retry"],
            "dead letters": status["dead_letters"] or 0,
            "leaders": status["elections"],
        }
        self._narrator.show(Scene(players, counters))

    def _worker(self, worker: ManagedProcess) -> Player:
        if not worker.running:
            return Player(worker.name, None, "down")
        if " ready." not in worker.logs_since_start():
            return Player(worker.name, worker.pid, "starts")
        number = worker.name.removeprefix("worker ")
        done = self._sideshow.done.get(f"worker{number}@example", 0)
        return Player(worker.name, worker.pid, "works", f"{done} calls executed")

    def _say(self, text: str, style: str = "") -> None:
        self._narrator.say(text, style)


def _beat(beat: ManagedProcess, leader: int | None, standbys: set[int]) -> Player:
    if not beat.running:
        return Player(beat.name, None, "down")
    if beat.status == "paused":
        return Player(beat.name, beat.pid, "frozen", "still has the lease" if beat.pid == leader else "")
    if beat.pid == leader:
        return Player(beat.name, beat.pid, "leads", "puts due calls into the queue")
    if beat.pid in standbys:
        return Player(beat.name, beat.pid, "stands by")
    return Player(beat.name, beat.pid, "starts")


def _begins_after(row: Row, epoch: int) -> bool:
    return bool(row["kind"] == "lead" and row["epoch"] > epoch)


def _dispatches_after(row: Row, epoch: int) -> bool:
    return bool(row["kind"] == "dispatch" and row["epoch"] > epoch)


def _runs_again(row: Row, first: Row) -> bool:
    return bool(row["kind"] == "run" and row["id"] == first["id"] and row["pid"] != first["pid"])
