"""What beat costs while nothing happens, and what stays behind when much has happened."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fleets import Fleet, SingleBeatFleet, resident
from benchmarks.peers import LeasedFleet, MultiBeatFleet, RedBeatFleet

#: Who stands by in the idle part. Stock beat has no standby.
STANDING_BY: tuple[type[Fleet], ...] = (SingleBeatFleet, RedBeatFleet, LeasedFleet, MultiBeatFleet)
#: Seconds after the start of a process until it has settled.
SETTLE = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """Per second: requests that Redis reads, commands that it executes for them, inside scripts too, and the
    share of a core that this takes.
    """

    requests: float
    commands: float
    cpu: float

    def less(self, other: Load) -> Load:
        """What remains without the other."""
        return Load(
            self.requests - other.requests, self.commands - other.commands, max(0.0, self.cpu - other.cpu)
        )


@dataclass(frozen=True, slots=True)
class Idle:
    """What the leader costs alone, and all standbys together, by the number of replicas."""

    title: str
    leader: Load
    standbys: dict[int, Load]


def idle(*, seconds: float, sizes: Sequence[int]) -> dict[str, Idle]:
    """Each contender alone on the machine: one beat, then more of them, less the one."""
    return {kind.name: _idle(kind, seconds, sizes) for kind in STANDING_BY}


def _idle(kind: type[Fleet], seconds: float, sizes: Sequence[int]) -> Idle:
    with kind(period=3600.0) as fleet:
        fleet.fork(1)
        alone = _load(fleet, seconds)
        standbys = {}
        for size in sizes:
            fleet.fork(size - len(fleet.beats))
            standbys[size] = _load(fleet, seconds).less(alone)
    return Idle(fleet.title, alone, standbys)


def _load(fleet: Fleet, seconds: float) -> Load:
    time.sleep(SETTLE)
    before, begun = _counts(fleet), time.monotonic()
    time.sleep(seconds)
    after, took = _counts(fleet), time.monotonic() - begun
    reads, commands, cpu = (late - early for early, late in zip(before, after, strict=True))
    return Load((reads - 2) / took, (commands - 2) / took, cpu / took)  # the two INFO are counted with them


def _counts(fleet: Fleet) -> tuple[float, float, float]:
    cpu: Any = fleet.client.info("cpu")
    stats: Any = fleet.client.info("stats")
    used = cpu["used_cpu_sys"] + cpu["used_cpu_user"]
    return stats["total_reads_processed"], stats["total_commands_processed"], used


@dataclass(frozen=True, slots=True)
class Steadiness:
    """One leader before and after many dispatches: resident bytes, keys in Redis."""

    dispatches: int
    rate: float
    resident: tuple[int, int]
    keys: tuple[int, int]


def steady(*, dispatches: int, entries: int = 500, period: float = 0.5) -> Steadiness:
    """`dispatches` through one leader, after a fifth of that to warm up; the messages are taken at once."""
    with SingleBeatFleet(entries=entries, period=period) as fleet:
        leader = fleet.add()
        fleet.consume()
        warm = max(entries, dispatches // 5)
        fleet.next_arrival(warm)
        first, begun = len(fleet.arrivals), time.monotonic()
        before = resident(leader.pid), _keys(fleet)
        fleet.next_arrival(first + dispatches, timeout=120)
        done, took = len(fleet.arrivals) - first, time.monotonic() - begun
        after = resident(leader.pid), _keys(fleet)
    return Steadiness(done, done / took, (before[0], after[0]), (before[1], after[1]))


def _keys(fleet: Fleet) -> int:
    """Keys in Redis without the queue, which exists only while a message is in it."""
    with fleet.client.pipeline() as pipe:
        pipe.dbsize()
        pipe.exists("celery")
        size, queue = pipe.execute()
    return int(size) - int(queue)
