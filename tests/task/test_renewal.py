"""A lock outlives whatever happens to Redis for a shorter time than its ttl (G6, G9, T3)."""

import threading
import time
from contextlib import contextmanager, suppress

import pytest
import redis
from celery import Celery

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.store.lock_ports import Caller, Granted
from celery_singlebeat.task.heartbeat import Heartbeat
from celery_singlebeat.task.holding import TaskLock
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis
from celery_singlebeat.wiring import wire

pytestmark = [pytest.mark.redis, pytest.mark.fault]

TTL = 2.4
OUTAGE = 0.55 * TTL


@pytest.fixture(scope="module")
def server(redis_server):  # asked for its marker
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def client(server):
    with server.client(decode_responses=True) as client:
        yield client


@contextmanager
def beside(work, *, end):
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join()


@contextmanager
def frozen(server, _):
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def gone_and_back(server, _):
    server.restart()
    yield


@contextmanager
def cutting_every_connection(server, client):
    stop = threading.Event()

    def cut():
        while not stop.wait(0.02):
            with suppress(redis.RedisError):
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    with beside(cut, end=stop.set):
        yield


@contextmanager
def forgetting_its_scripts(_, client):
    client.script_flush()
    yield


@contextmanager
def busy_with_a_script(server, client):
    def spin():
        with server.client() as other, suppress(redis.RedisError):
            other.eval("while true do end", 0)

    client.config_set("busy-reply-threshold", 10)
    with beside(spin, end=client.script_kill):
        yield


@contextmanager
def a_replica(server, client):
    client.execute_command("REPLICAOF", "127.0.0.1", server.port + 1 if server.port < 65535 else 1)
    try:
        yield
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def short_of_replicas(_, client):
    client.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def full(_, client):
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def without_permission(_, client):
    client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    try:
        yield
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+@all")


@contextmanager
def at_its_limit_of_clients(_, client):
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    before = client.config_get("maxclients")["maxclients"]
    client.config_set("maxclients", 1)
    try:
        yield
    finally:
        client.config_set("maxclients", before)


@pytest.mark.parametrize(
    "outage",
    [
        frozen,
        gone_and_back,
        cutting_every_connection,
        forgetting_its_scripts,
        busy_with_a_script,
        a_replica,
        short_of_replicas,
        full,
        without_permission,
        at_its_limit_of_clients,
    ],
    ids=lambda outage: outage.__name__,
)
def test_a_lock_outlives_every_outage_that_is_shorter_than_its_ttl(server, client, outage):  # G6, G9, T3
    told, clock = [], SystemClock()
    with Celery("renewal", set_as_current=False) as app:
        app.conf.update(broker_url=server.url(), singlebeat_lock_ttl=TTL)
        store = wire(app).lock_store()
        caller = Caller(task="t", task_id=outage.__name__, host="h", pid=1)
        asked_at = clock.monotonic()
        answer = store.acquire("k", "token", ttl=TTL, caller=caller, poison_limit=5)
        assert isinstance(answer, Granted)
        lock = TaskLock(
            "k", "token", answer.fence, caller=caller, store=store, clock=clock, ttl=TTL, asked_at=asked_at
        )
        heartbeat = Heartbeat(clock)
        heartbeat.watch(lock, told.append)

        def await_renewal():
            before = lock._trusted_until
            wait_until(lambda: lock._trusted_until > before or lock.lapsed, TTL)

        await_renewal()
        with outage(server, client):
            time.sleep(OUTAGE)
        await_renewal()
        assert lock.held
        assert told == []
        assert [(record.key, record.fence) for record in store.locks()] == [("k", answer.fence)]
        heartbeat.forget(lock)
        assert store.break_lock("k") is not None
