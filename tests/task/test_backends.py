"""Locks of tasks over the other backends, in real workers."""

import os
import signal
import time

import pytest

from celery_singlebeat import Locks, was_skipped
from celery_singlebeat.clock import SystemClock
from celery_singlebeat.moments import later
from celery_singlebeat.store.postgres_session import Session, read_dsn
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis
from tests.task.conftest import SLACK, THREADS, Crew
from tests.task.jobs import TTL

pytestmark = [pytest.mark.process, pytest.mark.redis]

_postgresql = pytest.mark.postgresql


@pytest.fixture(scope="module")
def five(redis_server):  # asked for its marker
    servers = [EmbeddedRedis().start() for _ in range(5)]
    yield servers
    for server in servers:
        server.stop()


def _crew(folder, **settings):
    with EmbeddedRedis() as server:
        crew = Crew(server, folder, singlebeat_lock_ttl=TTL, **settings)
        try:
            crew.start(concurrency=4)
            yield crew.ready()
        finally:
            crew.close()


@pytest.fixture(scope="module")
def redlock(five, tmp_path_factory):
    urls = [server.url() for server in five]
    settings = {"singlebeat_lock_backend": "redlock", "singlebeat_lock_urls": urls}
    yield from _crew(tmp_path_factory.mktemp("redlock"), **settings)


@pytest.fixture(scope="module")
def postgresql(postgres_server, tmp_path_factory):
    settings = {"singlebeat_lock_backend": "postgresql", "singlebeat_postgres_dsn": postgres_server.dsn}
    yield from _crew(tmp_path_factory.mktemp("postgresql"), **settings)


@pytest.fixture(scope="module")
def both(postgres_server, tmp_path_factory):
    settings = {"singlebeat_lock_backend": "redis+postgresql", "singlebeat_postgres_dsn": postgres_server.dsn}
    yield from _crew(tmp_path_factory.mktemp("both"), **settings)


@pytest.fixture(
    params=["redlock", pytest.param("postgresql", marks=_postgresql), pytest.param("both", marks=_postgresql)]
)
def backed(request):
    return request.getfixturevalue(request.param)


def cut_sessions(postgres_server):
    """End every connection that holds a lock, as an administrator or a firewall would."""
    clock = SystemClock()
    deadline = later(clock.monotonic(), 10)
    parameters = read_dsn(postgres_server.dsn, setting="dsn")
    session = Session(parameters, "administrator", clock=clock, until=deadline)
    ended = session.ask(
        "select pg_terminate_backend(pid, 1000) from pg_locks where locktype = 'advisory'", until=deadline
    )
    session.close()
    return len(ended)


# Over each backend


def test_calls_on_one_key_never_run_two_bodies_at_once_and_their_fences_grow(backed, name):  # G6, N2
    for number in range(60):
        backed.send("once_each", name, number, ignore_result=True)
    fences = [int(text) for text in backed.await_events(name, 60, timeout=60)]
    assert backed.highest(name) == 1
    assert len(fences) == 60
    assert fences == sorted(set(fences))
    wait_until(lambda: not backed.lock("once_each"))


def test_a_body_that_outlives_its_ttl_stays_exclusive_and_its_holder_is_named(backed, name):  # G6
    holder = backed.send("hold", name, 20)
    backed.await_events(name, 1)
    key = backed.lock("hold", task_id=holder.id)["key"]
    began = time.monotonic()
    while time.monotonic() < began + TTL:
        backed.await_renewal(key)
        skipped = backed.send("hold", name, 0).get(timeout=10)
        assert was_skipped(skipped)
        assert skipped["holder"]["task_id"] == holder.id
    assert backed.lock("hold", task_id=holder.id)["fence"] > 0
    backed.go(name)
    holder.get(timeout=10)
    assert backed.events(name)[-1] == "end  True"


@pytest.mark.fault
def test_the_key_of_a_killed_child_is_free_at_once(backed, name):  # G6, P2
    result = backed.send("hold", name, 20, "first")
    backed.await_events(name, 1)
    lock = backed.lock("hold", task_id=result.id)
    os.kill(lock["holder"]["pid"], signal.SIGKILL)
    backed.await_end_of(lock, TTL + SLACK)
    backed.await_events(name, 2)
    backed.go(name)
    result.get(timeout=10)


@pytest.mark.fault
def test_an_operator_can_take_a_lock_away_and_its_holder_learns(backed, name, caplog):
    result = backed.send("careful", name, 20)
    backed.await_events(name, 1)
    key = backed.lock("careful", task_id=result.id)["key"]
    assert Locks(backed.app).release(key)["holder"]["task_id"] == result.id
    [line] = [record.getMessage() for record in caplog.records if "by an operator" in record.getMessage()]
    assert key in line
    assert result.id in line
    assert backed.letter(result.id)["exception"] == "LockLost"
    assert backed.events(name) == ["start"]
    assert backed.counter("locks_broken:tests.task.jobs.careful") > 0


def test_the_lock_waits_for_the_next_attempt_of_its_call(backed, name):  # N7
    result = backed.send("slow_to_retry", name)
    backed.await_events(name, 1)
    wait_until(lambda: backed.lock("slow_to_retry", task_id=result.id))
    assert was_skipped(backed.send("slow_to_retry", name).get(timeout=10))
    assert len(backed.events(name)) == 1


@THREADS
@pytest.mark.parametrize("backed", ["redlock", pytest.param("postgresql", marks=_postgresql)], indirect=True)
def test_threads_and_processes_exclude_each_other(backed, name):  # G6, N2
    threads = backed.start(pool="threads", concurrency=4, queues="threads")
    backed.ready()
    queues = ["threads", "celery"]
    for number in range(30):
        backed.send("once_each", name, number, ignore_result=True, queue=queues[number % 2])
    fences = [int(text) for text in backed.await_events(name, 30, timeout=60)]
    assert backed.highest(name) == 1
    assert fences == sorted(set(fences))

    holder = backed.send("hold", f"{name}h", 20, "thread", queue="threads")
    backed.await_events(f"{name}h", 1)
    lock = backed.lock("hold", task_id=holder.id)
    assert lock["holder"]["pid"] == threads.pid
    began = time.monotonic()
    while time.monotonic() < began + TTL:
        backed.await_renewal(lock["key"])
    for queue in queues:
        skipped = backed.send("hold", f"{name}h", 0, queue=queue).get(timeout=10)
        assert skipped["holder"]["task_id"] == holder.id
    threads.kill(signal.SIGTERM)
    backed.go(f"{name}h")
    assert holder.get(timeout=15) == lock["fence"]
    assert backed.events(f"{name}h")[-1] == "end thread True"
    wait_until(lambda: not threads.running, 15, threads.logs)
    assert backed.lock("hold", task_id=holder.id) is None


# The servers of one backend


@pytest.mark.fault
def test_redlock_stands_two_killed_servers_and_waits_while_a_third_is_frozen(redlock, five, name):  # G6
    numbers = iter(range(100))

    def send(count):
        return [redlock.send("once_each", name, next(numbers)) for _ in range(count)]

    def await_refusals(results):
        """Each was asked for, and put back for later."""
        wait_until(lambda: {result.state for result in results} == {"RETRY"}, 20, redlock.logs)

    try:
        five[0].kill()
        five[1].kill()
        send(10)
        redlock.await_events(name, 10, timeout=30)  # available
        five[2].pause()
        await_refusals(send(5))
        assert len(redlock.events(name)) == 10  # nobody runs
        five[2].resume()
        redlock.await_events(name, 15, timeout=30)  # and nothing is lost
        five[2].kill()
        await_refusals(send(5))
        assert len(redlock.events(name)) == 15  # three killed: nobody runs
        five[2].start()
        fences = [int(text) for text in redlock.await_events(name, 20, timeout=30)]
    finally:
        for server in five:
            if server.running:
                server.resume()
            else:
                server.start()
    assert redlock.highest(name) == 1  # exclusive throughout
    assert fences == sorted(set(fences))


@pytest.mark.fault
@pytest.mark.postgresql
def test_the_next_call_runs_at_once_when_the_holders_connection_is_cut(postgresql, postgres_server, name):
    holder = postgresql.send("hold", name, 30, "old")
    postgresql.await_events(name, 1)
    assert was_skipped(postgresql.send("hold", name, 0, "early").get(timeout=10))
    lost = "locks_lost:tests.task.jobs.hold"
    before = postgresql.counter(lost)
    assert cut_sessions(postgres_server) == 1
    cut = time.monotonic()
    following = postgresql.send("hold", name, 30, "new")
    old, new = (int(text.split()[2]) for text in postgresql.await_events(name, 2))
    assert time.monotonic() - cut < TTL / 3 + SLACK
    assert new > old
    wait_until(lambda: postgresql.counter(lost) > before, 10, postgresql.logs)  # a renewal has seen it
    postgresql.go(name)
    holder.get(timeout=10)
    following.get(timeout=10)
    ends = [text for text in postgresql.events(name) if text.startswith("end")]
    assert sorted(ends) == ["end new True", "end old False"]


@pytest.mark.fault
@pytest.mark.postgresql
def test_with_both_neither_a_cut_connection_nor_a_lost_record_lets_two_run(both, postgres_server, name):  # Q6
    holder = both.send("hold", name, 30, "old")
    both.await_events(name, 1)
    for key in both.redis.scan_iter("singlebeat:jobs:{sb}:lock:*"):
        both.redis.delete(key)
    assert was_skipped(both.send("hold", name, 0, "early").get(timeout=10))  # refused by PostgreSQL
    wait_until(lambda: "lost lock" in both.logs(), TTL)  # a lost half is a lost lock
    both.go(name)
    holder.get(timeout=10)

    other = f"{name}2"
    holder = both.send("hold", other, 30, "old")
    both.await_events(other, 1)
    assert cut_sessions(postgres_server) == 1
    assert was_skipped(both.send("hold", other, 0, "early").get(timeout=10))  # refused by Redis
    both.go(other)
    holder.get(timeout=10)
    assert [text for text in both.events(name) + both.events(other) if "early" in text] == []
