"""Takeover: at default settings, how soon another leads, and how late the slot is that was due meanwhile.

Ours alone, many rounds. Three replicas, or fifty that one process has forked. One thing happens at a time:
before each fault every replica has reported, the leader has emitted, and nobody starts.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis
from typing_extensions import Self, override

from benchmarks.failover import Record, judge
from benchmarks.fleets import Beat, Forked, SingleBeatFleet, strike
from tests.support.proxy import FaultProxy

FAULTS = ("SIGKILL", "SIGTERM", "SIGSTOP", "cut")
#: Seconds between two slots of the one entry.
PERIOD = 0.5
#: Seconds within which a slot is in time when nothing happens to the leader.
IN_TIME = 0.1
REPLICAS, MANY = 3, 50


@dataclass(slots=True)
class Takeovers(Record):
    """Also how often the lease changed hands, and how often it had to."""

    elections: int = 0
    due: int = 0


class ProxiedFleet(SingleBeatFleet):
    """Each replica reaches Redis through a proxy of its own."""

    def __init__(self) -> None:
        super().__init__(period=PERIOD)
        self.proxies: dict[int, FaultProxy] = {}

    @override
    def add(self, url: str | None = None) -> Beat:
        proxy = self._stack.enter_context(FaultProxy(self.server.port))
        beat = super().add(proxy.url())
        self.proxies[beat.pid] = proxy
        return beat


class Witness:
    """Hears in a thread when somebody takes the lease."""

    def __init__(self, fleet: SingleBeatFleet) -> None:
        self._fleet = fleet
        self._client = fleet.server.client(decode_responses=True)
        self._heard: dict[str, float] = {}

    def __enter__(self) -> Self:
        client: Any = self._client
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(self._fleet.keys.events)
        threading.Thread(target=self._listen, name="witness", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def after(self, reign: str | None) -> float:
        """When the next leader after this one took the lease, on the monotonic clock."""
        new = self._fleet.wait(
            lambda: next(
                (token for token in reversed(list(self._heard)) if _epoch(token) > _epoch(reign)), ""
            ),
            "no next leader",
        )
        return self._heard[new]

    def _listen(self) -> None:
        try:
            for message in self._pubsub.listen():
                kind, _, token = message["data"].partition(" ")
                if kind == "acquired":
                    self._heard.setdefault(token, time.monotonic())
        except (redis.RedisError, OSError, ValueError, AttributeError):
            return  # it was closed


def measure(*, rounds: int, faults: Sequence[str] = FAULTS, seed: int = 1) -> Takeovers:
    """`rounds` of each fault with three replicas, which are real `celery beat` commands."""
    dice = random.Random(seed)
    found = Takeovers(f"{REPLICAS} replicas")
    signals = [fault for fault in faults if fault != "cut"]
    for kind, chosen in ((SingleBeatFleet, signals), (ProxiedFleet, ["cut"] if "cut" in faults else [])):
        if not chosen:
            continue
        with ExitStack() as stack:
            fleet = stack.enter_context(kind(period=PERIOD) if kind is SingleBeatFleet else ProxiedFleet())
            for _ in range(REPLICAS):
                fleet.add()
            _storm(fleet, found, [fault for _ in range(rounds) for fault in chosen], dice)
    return found


def crowd(*, rounds: int, replicas: int = MANY, seed: int = 1) -> Takeovers:
    """SIGKILL and SIGSTOP with many replicas."""
    found = Takeovers(f"{replicas} replicas")
    with SingleBeatFleet(period=PERIOD) as fleet:
        fleet.fork(replicas)
        _storm(fleet, found, ["SIGKILL", "SIGSTOP"] * rounds, random.Random(seed))
    return found


def _storm(fleet: SingleBeatFleet, found: Takeovers, faults: Sequence[str], dice: random.Random) -> None:
    fleet.consume()
    _calm(fleet)
    begun, elections = len(fleet.arrivals), _elections(fleet)
    with Witness(fleet) as witness:
        for fault in faults:
            _hit(fleet, witness, fault, dice.uniform(0.1, 0.7), found)
    _calm(fleet)
    judged = Record("")
    judge(fleet.arrivals[begun:], PERIOD, judged)
    found.messages += judged.messages
    found.lost += judged.lost
    found.twice += judged.twice
    found.elections += _elections(fleet) - elections
    found.due += len(faults)


def _hit(fleet: SingleBeatFleet, witness: Witness, fault: str, phase: float, found: Takeovers) -> None:
    slot = _calm(fleet)
    time.sleep(max(0.0, slot + phase * PERIOD - time.time()))
    victim, reign, count = fleet.leader(), fleet.reign(), len(fleet.arrivals)
    struck = time.monotonic()
    if fault == "cut":
        assert isinstance(fleet, ProxiedFleet)
        fleet.proxies[victim.pid].blackhole()
    else:
        strike(victim, signal.Signals[fault])
    found.takeover.setdefault(fault, []).append(witness.after(reign) - struck)
    first = fleet.next_arrival(count)
    found.lateness.setdefault(fault, []).append(max(0.0, first.at - _seconds(first.slot)))
    _undo(fleet, victim, fault)


def _calm(fleet: SingleBeatFleet) -> float:
    """Wait until every replica is at its place and the slots come in time; the newest slot."""
    fleet.wait(fleet.settled, "the replicas do not settle", 60)
    while True:
        fleet.next_arrival(len(fleet.arrivals) + 1)
        last = fleet.arrivals[-1]
        if last.at - _seconds(last.slot) < IN_TIME:
            return _seconds(last.slot)


def _elections(fleet: SingleBeatFleet) -> int:
    count: Any = fleet.client.hget(fleet.keys.counters, "elections")
    return int(count)


def _undo(fleet: SingleBeatFleet, victim: Beat, fault: str) -> None:
    if fault == "cut":
        assert isinstance(fleet, ProxiedFleet)
        fleet.proxies[victim.pid].heal()
    elif fault == "SIGSTOP":
        strike(victim, signal.SIGCONT)
    else:
        victim.wait(10)
        fleet.remove(victim)
        if isinstance(victim, Forked):
            fleet.fork(1)
        else:
            fleet.add()


def _epoch(token: str | None) -> int:
    return int((token or "0").partition(":")[0])


def _seconds(slot: str | None) -> float:
    return datetime.fromisoformat(slot or "").timestamp()
