"""What a task lock costs beside redis-py's own Lock, and whether anything grows over many locked tasks."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import LockNotOwnedError

from benchmarks.fleets import resident
from benchmarks.queues import enqueue, wait_until_empty
from benchmarks.workers import processes, working
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.lock_ports import Caller, Granted, Outcome
from celery_singlebeat.store.redis_locks import RedisLockStore
from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis

OURS, THEIRS = "singlebeat", "redis-py"
THREADS = 8
TTL = 30.0

Pair = Callable[[str, int], bool]


@dataclass(frozen=True, slots=True)
class Contention:
    """Pairs of acquire and release by `contenders` on one key or a key each; latencies of a pair in ms."""

    contender: str
    contenders: int
    is_shared: bool
    rate: float
    p50: float
    p99: float
    #: Requests that Redis read, per pair; those of refused contenders are among them.
    requests: float


@dataclass(frozen=True, slots=True)
class Flatness:
    """Workers before and after `tasks` locked tasks: open files, threads, resident bytes; keys in Redis."""

    tasks: int
    rate: float
    files: tuple[int, int]
    threads: tuple[int, int]
    resident: tuple[int, int]
    keys: tuple[int, int]


def contention(contenders: Sequence[int], *, pairs: int) -> list[Contention]:
    """Both kinds of locks, in turn, on one Redis; each contender has its turn until `pairs` are done."""
    found = []
    with EmbeddedRedis() as server:
        for number in contenders:
            for is_shared in (True, False):
                found += [
                    _contend(server, name, number, is_shared=is_shared, pairs=max(pairs, number))
                    for name in (THEIRS, OURS)
                ]
    return found


def memory_per_lock(number: int) -> dict[str, float]:
    """Bytes of Redis for each of `number` held locks; ours with the record of its call."""
    found = {}
    for name in (THEIRS, OURS):
        with EmbeddedRedis() as server, server.client(decode_responses=True) as client:
            take = _holder(server, name)
            take("warm", 0)
            info: Any = client.info("memory")
            before = info["used_memory"]
            for n in range(number):
                take(f"key{n}", n)
            info = client.info("memory")
            found[name] = (info["used_memory"] - before) / number
    return found


def _connect(server: EmbeddedRedis) -> redis.Redis:
    pool = redis.BlockingConnectionPool.from_url(server.url(), max_connections=THREADS, decode_responses=True)
    return redis.Redis(connection_pool=pool)


def _store(server: EmbeddedRedis) -> RedisLockStore:
    return RedisLockStore(lambda: _connect(server), Keys("bench"))


def _caller(run: str, number: int) -> Caller:
    return Caller(task="bench.job", task_id=f"{run}-{number}", host="host", pid=1)


def _holder(server: EmbeddedRedis, name: str) -> Callable[[str, int], object]:
    if name == THEIRS:
        client = _connect(server)
        return lambda key, _: client.lock(key, timeout=TTL).acquire(blocking=False)
    store = _store(server)
    return lambda key, n: store.acquire(
        key, uuid.uuid4().hex, ttl=TTL, caller=_caller("held", n), poison_limit=5
    )


def _pair(server: EmbeddedRedis, name: str) -> Pair:
    """Acquire and release; False if another has the key."""
    if name == THEIRS:
        client = _connect(server)

        def theirs(key: str, _: int) -> bool:
            lock = client.lock(key, timeout=TTL, thread_local=False)
            if not lock.acquire(blocking=False):
                return False
            with suppress(LockNotOwnedError):
                lock.release()
            return True

        return theirs
    store, run = _store(server), uuid.uuid4().hex

    def ours(key: str, number: int) -> bool:
        token, caller = uuid.uuid4().hex, _caller(run, number)
        if not isinstance(store.acquire(key, token, ttl=TTL, caller=caller, poison_limit=5), Granted):
            return False
        store.release(key, token, caller=caller, outcome=Outcome.SUCCESS, dedupe_ttl=1.0)
        return True

    return ours


def _contend(server: EmbeddedRedis, name: str, contenders: int, *, is_shared: bool, pairs: int) -> Contention:
    pair, waiting, guard = _pair(server, name), list(range(pairs)), threading.Lock()
    times: list[float] = []
    pair("warm", -1)

    def work() -> None:
        while True:
            with guard:
                if not waiting:
                    return
                number = waiting.pop(0)
            key = "shared" if is_shared else f"key{number % contenders}"
            begun = time.perf_counter()
            if pair(key, number):
                times.append(time.perf_counter() - begun)
            else:
                with guard:
                    waiting.append(number)

    threads = min(contenders, THREADS)
    with server.client() as client:
        before: Any = client.info("stats")
        begun = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            for job in [pool.submit(work) for _ in range(threads)]:
                job.result()
        took = time.perf_counter() - begun
        after: Any = client.info("stats")
    times.sort()
    requests = (after["total_reads_processed"] - before["total_reads_processed"] - 1) / pairs
    p50, p99 = (times[int(len(times) * part)] * 1000 for part in (0.5, 0.99))
    return Contention(name, contenders, is_shared, pairs / took, p50, p99, requests)


# Many tasks

#: Seconds after which nothing is left of a finished call.
SETTLE = 3.0


def flatness(*, tasks: int, workers: int = 2) -> Flatness:
    """`tasks` locked tasks through some workers, after a fifth of that to warm up."""
    with EmbeddedRedis() as server, server.client() as client, working(server, number=workers) as fleet:
        _run(client, server, range(max(200, tasks // 5)))
        before = _sizes(fleet, client)
        took = _run(client, server, range(tasks))
        after = _sizes(fleet, client)
    files, threads, memory, keys = zip(before, after, strict=True)
    return Flatness(tasks, tasks / took, files, threads, memory, keys)


def _run(client: redis.Redis, server: EmbeddedRedis, numbers: Sequence[int]) -> float:
    """Fill the queue and wait until all of it is acknowledged; the seconds that the workers took."""
    enqueue(server, "locked", numbers)
    begun = time.monotonic()
    wait_until_empty(client)
    took = time.monotonic() - begun
    # Finished calls are remembered for a while, and then no more.
    wait_until(lambda: next(client.scan_iter("*:call:*", count=1000), None) is None, 60, interval=0.2)
    return took


def _sizes(fleet: Sequence[ManagedProcess], client: redis.Redis) -> tuple[int, int, int, int]:
    """Open files, threads and resident bytes of all processes of the workers, and the keys in Redis."""
    time.sleep(SETTLE)
    files = threads = memory = 0
    for pid in processes(fleet):
        files += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        threads += len(list(Path(f"/proc/{pid}/task").iterdir()))
        memory += resident(pid)
    return files, threads, memory, int(client.dbsize())
