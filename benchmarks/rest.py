"""What beat costs while nothing happens, and what stays behind when much has happened."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.fleets import Fleet, RedBeatFleet, SingleBeatFleet, resident

#: Seconds after the start of a process until it has settled.
SETTLE = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """Per second: requests that Redis reads, and commands that it executes for them, inside scripts too."""

    requests: float
    commands: float


def idle(*, seconds: float) -> dict[str, tuple[Load, Load]]:
    """What an idle leader and an idle standby cost, by contender: one beat alone, then two, less the one."""
    with ThreadPoolExecutor(2) as threads:  # counts, not times: they may run side by side
        answers = [threads.submit(_idle, kind, seconds) for kind in (SingleBeatFleet, RedBeatFleet)]
        return dict(answer.result() for answer in answers)


def _idle(kind: type[Fleet], seconds: float) -> tuple[str, tuple[Load, Load]]:
    with kind(period=3600.0) as fleet:
        fleet.add()
        alone = _load(fleet, seconds)
        fleet.add()
        both = _load(fleet, seconds)
    return fleet.name, (alone, Load(both.requests - alone.requests, both.commands - alone.commands))


def _load(fleet: Fleet, seconds: float) -> Load:
    time.sleep(SETTLE)
    before: Any = fleet.client.info("stats")
    begun = time.monotonic()
    time.sleep(seconds)
    after: Any = fleet.client.info("stats")
    took = time.monotonic() - begun
    reads, commands = (
        (after[count] - before[count] - 1) / took  # one INFO is counted with them
        for count in ("total_reads_processed", "total_commands_processed")
    )
    return Load(reads, commands)


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
