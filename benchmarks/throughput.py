"""How many calls two workers get through: plain tasks, plain ones that are acknowledged late, locked ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from rich.table import Table

from benchmarks.figures import Check
from benchmarks.fleets import cpu
from benchmarks.queues import enqueue, wait_until_empty
from benchmarks.workers import processes, working
from celery_singlebeat.testing.processes import ManagedProcess
from celery_singlebeat.testing.servers import EmbeddedRedis

PLAIN, LATE, LOCKED = "plain", "late", "locked"
TASKS = (PLAIN, LATE, LOCKED)
POOLS = ("solo", "prefork")
#: What two cores have to manage, which also carry Redis.
LEAST_A_MINUTE = 100_000
MOST_TRIPS = 2.05
#: Calls after which scripts are loaded and children have begun.
WARM = 200
#: Fewer calls are over before anything is warm: their rates are shown and not judged.
FEWEST_CALLS = 2_000


@dataclass(frozen=True, slots=True)
class Throughput:
    """One kind of call on one kind of pool; the fastest of the rounds.

    `busy` and `redis`: microseconds of processor for each call, of the workers and of Redis. `requests`:
    how many Redis read for each.
    """

    pool: str
    task: str
    a_minute: float
    busy: float
    redis: float
    requests: float


def throughput(*, calls: int, rounds: int = 2) -> list[Throughput]:
    """Two workers with one process for tasks each; the kinds take turns on a Redis of their own."""
    found: dict[tuple[str, str], Throughput] = {}
    for pool in POOLS:
        with EmbeddedRedis() as server, working(server, "-P", pool) as workers:
            for task in TASKS:
                _round(server, workers, task, WARM)
            for turn in range(rounds):
                for task in TASKS if turn % 2 == 0 else reversed(TASKS):
                    one = Throughput(pool, task, *_round(server, workers, task, calls))
                    if (pool, task) not in found or one.a_minute > found[pool, task].a_minute:
                        found[pool, task] = one
    return list(found.values())


def _round(
    server: EmbeddedRedis, workers: Sequence[ManagedProcess], task: str, calls: int
) -> tuple[float, ...]:
    """Calls a minute, microseconds of the workers and of Redis for each, and its requests."""
    pids = processes(workers)  # the children of a pool begin with its first round
    enqueue(server, task, range(calls))
    with server.client() as client:
        before = _counts(client, pids)
        begun = time.monotonic()
        wait_until_empty(client)
        took = time.monotonic() - begun
        after = _counts(client, pids)
    busy, redis, requests = ((late - early) / calls for early, late in zip(before, after, strict=True))
    return calls / took * 60, busy * 1e6, redis * 1e6, requests


def _counts(client: redis.Redis, pids: list[int]) -> tuple[float, ...]:
    info: Any = client.info()
    used = info["used_cpu_user"] + info["used_cpu_sys"]
    return sum(map(cpu, pids)), used, info["total_reads_processed"]


def table(found: list[Throughput]) -> Table:
    shown = Table(title="Calls through two workers of one process each", title_justify="left")
    for heading in ("pool", "task"):
        shown.add_column(heading)
    for heading in ("a minute", "CPU us of workers", "CPU us of Redis", "requests"):
        shown.add_column(heading, justify="right")
    for each in found:
        shown.add_row(
            each.pool,
            each.task,
            f"{each.a_minute:,.0f}",
            f"{each.busy:,.0f}",
            f"{each.redis:,.0f}",
            f"{each.requests:.2f}",
        )
    return shown


def checks(found: list[Throughput]) -> list[Check]:
    """What a lock may cost, and how much two cores have to manage."""
    by = {(each.pool, each.task): each for each in found}
    extra = max(by[pool, LOCKED].requests - by[pool, LATE].requests for pool in POOLS)
    most = max(by[pool, LOCKED].a_minute for pool in POOLS)
    return [
        Check("a locked call costs at most two round trips more", f"{extra:.2f}", extra <= MOST_TRIPS),
        Check(f"more than {LEAST_A_MINUTE:,} locked calls a minute", f"{most:,.0f}", most > LEAST_A_MINUTE),
    ]
