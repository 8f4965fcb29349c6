import itertools
import time
from datetime import datetime, timedelta

import pytest
import redis

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.store.connection import address_from
from celery_singlebeat.store.connection import connect as connect_to
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.memory_beat import MemoryBeatStore
from celery_singlebeat.store.ports import Candidate, Claim, Push
from celery_singlebeat.store.postgres_locks import PostgresBackend
from celery_singlebeat.store.postgres_session import read_dsn
from celery_singlebeat.store.redis_beat import RedisBeatStore
from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.servers import EmbeddedRedis

_prefixes = (f"contract{number}" for number in itertools.count(1))


class Bench:
    """One store under test, whichever it is, with a way to let its time pass."""

    def __init__(self, store, wait, client=None, keys=None):
        self.store = store
        self.wait = wait
        self.client = client
        self.keys = keys

    def now(self) -> datetime:
        return self.store.overview().time

    def ago(self, seconds: float) -> datetime:
        return self.now() - timedelta(seconds=seconds)

    def queue(self, name: str) -> list[str]:
        """Payloads of a list, oldest first."""
        if self.client is None:
            return list(reversed(self.store.queues.get(name, [])))
        return list(reversed(self.client.lrange(name, 0, -1)))

    def candidate(self, node: str, **about) -> Candidate:
        return Candidate(node=node, host="host", pid=1, schedule="same", **about)

    def lead(self, nonce: str = "a", *, ttl: float = 60.0, **about):
        """The grant of a fresh leader."""
        return self.store.bid(nonce, ttl=ttl, candidate=self.candidate(nonce, **about)).grant


def _memory_bench() -> Bench:
    clock = FakeClock()
    return Bench(MemoryBeatStore(clock), clock.advance)


def _redis_bench(url: str) -> Bench:
    keys = Keys(next(_prefixes))

    def connect(hasty: bool) -> redis.Redis:
        return connect_to(address_from(url, {}, setting="url"), timeout=5)

    return Bench(RedisBeatStore(connect, keys), time.sleep, connect(False), keys)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def bench(request):
    """Each beat store in turn: what is asked of one is asked of all (M5)."""
    if request.param == "memory":
        yield _memory_bench()
        return
    yield from _open(_redis_bench(request.getfixturevalue("redis_url")))


def _open(bench: Bench):
    yield bench
    bench.store.close()
    bench.client.close()


@pytest.fixture(scope="session")
def lock_servers(redis_server):  # asked for its marker, and to skip where there is no server
    """Three independent servers; a test that harms one takes servers of its own."""
    with EmbeddedRedis() as one, EmbeddedRedis() as two, EmbeddedRedis() as three:
        yield one, two, three


@pytest.fixture
def postgres_backend(postgres_server):
    """The backend of one process, under a prefix of its own."""
    parameters = read_dsn(postgres_server.dsn, setting="dsn")
    backend = PostgresBackend(parameters, next(_prefixes), patience=5, clock=SystemClock())
    yield backend
    backend.close()


@pytest.fixture
def redis_bench(redis_url):
    """The Redis store alone, for what only Redis can be asked."""
    yield from _open(_redis_bench(redis_url))


@pytest.fixture
def emit(bench):
    """Claim one slot with one message; the outcome's kind."""

    def claim(grant, entry, slot, payload="message", queue="q", **about):
        claims = [Claim(entry, slot, (Push(f"{queue}:{id(bench)}", payload),), **about)]
        return bench.store.emit(grant, claims)[1][0].kind

    return claim
