"""Failover: what the messages say when the leader is killed, terminated or frozen.

The fleets run side by side, each on a server of its own. Where fractions of a second matter, only one
fault is under way at a time, and no process is being started elsewhere.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import datetime

from benchmarks.fleets import Arrival, Beat, Fleet, SingleBeatFleet, strike
from benchmarks.peers import (
    LeasedDefaults,
    LeasedFleet,
    MultiBeatDefaults,
    MultiBeatFleet,
    RedBeatFleet,
    StockFleet,
)

FAULTS = ("SIGKILL", "SIGTERM", "SIGSTOP")
FLEETS: tuple[type[Fleet], ...] = (SingleBeatFleet, RedBeatFleet, LeasedFleet, MultiBeatFleet, StockFleet)
#: Peers whose defaults take minutes, and no longer: one round of them, beside the others.
DEFAULTS: tuple[type[Fleet], ...] = (LeasedDefaults, MultiBeatDefaults)


@dataclass(slots=True)
class Record:
    """What one fleet has shown. Seconds."""

    title: str
    #: By fault: how late the first slot after it was dispatched, and when another process led.
    lateness: dict[str, list[float]] = field(default_factory=dict)
    takeover: dict[str, list[float]] = field(default_factory=dict)
    messages: int = 0
    lost: int = 0
    twice: int = 0


def measure(
    *, rounds: int, faults: Sequence[str] = FAULTS, defaults: bool = True, seed: int = 1
) -> dict[str, Record]:
    """`rounds` of each fault on each fleet; the phases within a second are the same for all."""
    dice = random.Random(seed)
    phases = [(fault, dice.uniform(0.15, 0.85)) for _ in range(rounds) for fault in faults]
    kinds = FLEETS + DEFAULTS if defaults else FLEETS
    quiet, ready = threading.Lock(), threading.Barrier(len(kinds), timeout=300)
    with ExitStack() as stack:
        fleets = [stack.enter_context(kind()) for kind in kinds]
        threads = stack.enter_context(ThreadPoolExecutor(len(fleets)))
        results = [
            threads.submit(
                _Trial(fleet, quiet, ready).run, phases[: len(faults)] if kind in DEFAULTS else phases
            )
            for kind, fleet in zip(kinds, fleets, strict=True)
        ]
        return {fleet.name: result.result() for fleet, result in zip(fleets, results, strict=True)}


class _Trial:
    def __init__(self, fleet: Fleet, quiet: threading.Lock, ready: threading.Barrier) -> None:
        self.fleet = fleet
        self.quiet = quiet
        self.ready = ready
        self.record = Record(fleet.title)

    def run(self, phases: Sequence[tuple[str, float]]) -> Record:
        fleet = self.fleet
        fleet.consume()
        try:
            with self.quiet:
                fleet.add()
            if fleet.elects:
                with self.quiet:
                    fleet.add()
        except BaseException:
            self.ready.abort()
            raise
        self.ready.wait()
        begun = len(fleet.arrivals)
        for number, (fault, phase) in enumerate(phases, start=1):
            with self.quiet if fleet.swift else nullcontext():  # nobody waits for those that take seconds
                back = self.hit(fault, phase)
            if number < len(phases) or fault == "SIGSTOP":
                back()
            fleet.next_arrival(len(fleet.arrivals) + 1)
        judge(fleet.arrivals[begun:], fleet.period, self.record)
        return self.record

    def hit(self, fault: str, phase: float) -> Callable[[], None]:
        """Strike the leader between two slots and wait for the next message; returns what undoes it."""
        fleet, record = self.fleet, self.record
        count = len(fleet.arrivals)
        last = fleet.next_arrival(count)
        time.sleep(max(0.0, last.at + phase * fleet.period - time.time()))
        victim, reign, count = fleet.leader(), fleet.reign(), len(fleet.arrivals)
        last = fleet.arrivals[-1]
        struck = time.time()
        strike(victim, signal.Signals[fault])
        if fault == "SIGSTOP" and not fleet.elects:
            time.sleep(fleet.frozen)
            strike(victim, signal.SIGCONT)
        if fleet.elects:
            fleet.wait(lambda: fleet.reign() not in (None, reign), "no next leader", fleet.patience)
            record.takeover.setdefault(fault, []).append(time.time() - struck)
        first = fleet.next_arrival(count)
        record.lateness.setdefault(fault, []).append(max(0.0, first.at - last.at - fleet.period))
        return lambda: self.undo(victim, fault, struck)

    def undo(self, victim: Beat, fault: str, struck: float) -> None:
        """Thaw the victim or put a new process in its place; what it still sends is counted, too."""
        fleet = self.fleet
        if not fleet.elects:
            return
        if fault == "SIGSTOP":
            time.sleep(max(0.0, struck + fleet.frozen - time.time()))
            strike(victim, signal.SIGCONT)
            time.sleep(1.5)
            if victim.running:  # it stands by; RedBeat's has ended
                return
        else:
            victim.wait(10)
        fleet.remove(victim)
        with self.quiet:
            fleet.add()


def judge(arrivals: Sequence[Arrival], period: float, record: Record) -> None:
    """Count lost and double slots: by the slots that messages name, or else by the gaps between them.

    Without names, a gap of n periods, rounded, is n - 1 lost slots, and one of less than half a period is
    a slot sent twice.
    """
    record.messages = len(arrivals)
    named = Counter(arrival.slot for arrival in arrivals)
    if None not in named:
        record.twice = sum(count - 1 for count in named.values())
        moments = sorted(_seconds(slot) for slot in named if slot)
        record.lost = round((moments[-1] - moments[0]) / period) + 1 - len(moments)
        return
    for before, after in itertools.pairwise(arrivals):
        periods = (after.at - before.at) / period
        record.lost += max(0, round(periods) - 1)
        record.twice += periods < 0.5


def _seconds(slot: str) -> float:
    return datetime.fromisoformat(slot).timestamp()
