"""Locks, renewal, retries, letters and shutdown in every pool but prefork, which all other tests have."""

import os
import signal
import time
from importlib.util import find_spec

import celery
import pytest

from celery_singlebeat import was_skipped
from celery_singlebeat.testing.processes import wait_until
from tests.support.missing import miss
from tests.task.conftest import THREADS
from tests.task.jobs import TTL

pytestmark = [pytest.mark.process, pytest.mark.redis]

GREEN = ("gevent", "eventlet")
GEVENT = pytest.mark.skipif(
    celery.VERSION < (5, 5), reason="the gevent pool of older Celery cannot end a call from outside"
)
POOLS = [
    pytest.param("threads", marks=THREADS),
    "solo",
    *GREEN,
]


def demand(pool):
    if pool in GREEN and find_spec(pool) is None:
        miss(f"{pool} is not installed")


@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_of_any_kind_excludes_renews_retries_buries_and_lets_go(make_crew, name, pool):  # G6, T1, T2
    demand(pool)
    crew = make_crew()
    worker = crew.start(pool=pool, concurrency=4)
    crew.ready()

    for number in range(10):  # many calls of one key in one process
        crew.send("once_each", name, number, 0.01)
    failed = crew.send("fails", f"{name}f")
    crew.await_events(name, 10, timeout=30)
    assert crew.highest(name) == 1
    assert crew.letter(failed.id)["reason"] == "max_retries"
    assert len(crew.events(f"{name}f")) == 4

    if pool == "gevent":  # the others know no time limit
        late = crew.send("overruns", f"{name}l")
        assert crew.letter(late.id)["exception"] == "TimeLimitExceeded"
        wait_until(lambda: crew.lock("overruns") is None, TTL, crew.logs)
        assert crew.events(f"{name}l") == ["start"]

    holder = crew.send("hold", f"{name}h", 60, "x")
    crew.await_events(f"{name}h", 1)
    lock = crew.lock("hold", task_id=holder.id)
    until = time.monotonic() + 1.5 * TTL
    while time.monotonic() < until:
        assert crew.lock("hold", task_id=holder.id)["fence"] == lock["fence"]
        time.sleep(TTL / 10)
    if pool != "solo":  # which runs one call after the other
        assert was_skipped(crew.send("hold", f"{name}h", 0).get(timeout=10))

    worker.kill(signal.SIGTERM)
    crew.go(f"{name}h")
    assert holder.get(timeout=15) == lock["fence"]
    assert crew.events(f"{name}h")[-1] == "end x True"
    wait_until(lambda: crew.lock("hold", task_id=holder.id) is None, 5, crew.logs)


@pytest.mark.parametrize("pool", [pytest.param("gevent", marks=GEVENT), "eventlet"])
def test_a_greenlet_that_is_revoked_frees_its_lock(make_crew, name, pool):  # P2, N10
    demand(pool)
    crew = make_crew()
    crew.start(pool=pool, concurrency=4)
    crew.ready()
    result = crew.send("hold", name, 60, "revoked")
    crew.await_events(name, 1)
    crew.app.control.revoke(result.id, terminate=True)
    wait_until(lambda: crew.lock("hold", task_id=result.id) is None, TTL, crew.logs)
    wait_until(lambda: result.state == "REVOKED", 10, crew.logs)
    holder = crew.send("replaces", name, "holder", 60)
    crew.await_events(name, 2)
    assert crew.send("replaces", name, "newcomer").get(timeout=15) == "newcomer"
    wait_until(lambda: holder.state == "REVOKED", 10, crew.logs)
    assert "end holder" not in crew.events(name)


QUIT, INT, TERM = signal.SIGQUIT, signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(
    ("pool", "signals"),
    [
        pytest.param("threads", [QUIT], marks=THREADS),
        pytest.param("threads", [INT, INT], marks=THREADS),
        ("solo", [QUIT]),
        ("solo", [TERM, TERM]),
        ("gevent", [QUIT]),
        ("gevent", [INT, INT]),
        ("eventlet", [QUIT]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(signum.name for signum in value),
)
def test_a_cold_shutdown_of_any_pool_loses_no_call_and_runs_none_beside_itself(
    make_crew, name, pool, signals
):  # G3, G6, P5
    demand(pool)
    crew = make_crew()
    worker = crew.start(pool=pool, concurrency=4)
    crew.ready()
    names = [name] if pool == "solo" else [f"{name}a", f"{name}b"]
    results = [crew.send("hold", each, 60, "x") for each in names]
    for each in names:
        crew.await_events(each, 1)
    for number, signum in enumerate(signals):
        if number:
            wait_until(lambda: "Warm shutdown" in worker.logs(), 10, worker.logs)
        os.kill(worker.pid, signum)
    if pool in GREEN:
        crew.start()  # whose bodies were ended, run here
        crew.ready()
    elif signals != [TERM, TERM]:  # the second of which is nothing to Celery
        waits = ("cannot be ended", "Cold shutdown")
        wait_until(lambda: any(text in worker.logs() for text in waits), 10, worker.logs)
    for each in names:
        crew.go(each)
    wait_until(lambda: all(result.state == "SUCCESS" for result in results), 20, crew.logs)
    wait_until(lambda: not worker.running, 20, worker.logs)
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 10, crew.logs)
    for each, result in zip(names, results, strict=True):
        assert crew.highest(each) == 1
        assert [text for text in crew.events(each) if text.startswith("end")] == ["end x True"]
        assert crew.lock("hold", task_id=result.id) is None
        assert crew.letters(result.id) == []
    if pool not in GREEN:
        assert [len(crew.events(each)) for each in names] == [2] * len(names)  # and needs no other worker
