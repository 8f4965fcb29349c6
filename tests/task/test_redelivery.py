"""Copies of one call: concurrent ones, finished ones, and those that a broker delivers again (G3)."""

import json
import os
import signal
import time
import uuid

import pytest
from celery import chain, chord, group

from celery_singlebeat import was_skipped
from celery_singlebeat.task.conflicts import _SHORTEST_STANDBY as SHORTEST_STANDBY
from celery_singlebeat.testing.processes import wait_until
from tests.task.conftest import IMPATIENT, SLACK
from tests.task.jobs import TTL

pytestmark = [pytest.mark.process, pytest.mark.redis]

JOBS = "tests.task.jobs"


def call(crew, task, *args, **options):
    return crew.app.signature(f"{JOBS}.{task}", args=args, **options)


def test_the_copy_of_a_running_call_stands_back_and_is_a_duplicate_in_the_end(crew, name):  # G3, T4
    call_id = str(uuid.uuid4())
    result = crew.send("hold", name, 20, "first", task_id=call_id)
    crew.await_events(name, 1)
    crew.send("hold", name, 20, "copy", task_id=call_id)
    wait_until(lambda: f"{call_id}] does not run (duplicate)" in crew.logs(), 10, crew.logs)
    assert result.state != "SUCCESS"
    crew.go(name)
    fence = result.get(timeout=10)
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 15, crew.logs)
    assert len(crew.events(name)) == 2  # one start, one end
    assert crew.highest(name) == 1
    assert crew.app.AsyncResult(call_id).result == fence


def test_calls_that_are_delivered_twice_at_once_run_once_each(crew, name):  # G3, T4
    ids = [f"{name}-{number}" for number in range(6)]
    for number, call_id in enumerate(ids):
        for _ in range(2):
            crew.send("hold", f"{name}{number}", 0.2, task_id=call_id)
    for number in range(len(ids)):
        crew.await_events(f"{name}{number}", 2)
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 20, crew.logs)
    assert [len(crew.events(f"{name}{number}")) for number in range(len(ids))] == [2] * len(ids)
    assert {crew.app.AsyncResult(call_id).state for call_id in ids} == {"SUCCESS"}


def test_copies_of_a_running_call_come_back_seldom(crew, name):  # T4: no storm of requeues
    call_id, copies = str(uuid.uuid4()), 5
    result = crew.send("hold", name, 20, "first", task_id=call_id)
    crew.await_events(name, 1)
    key = crew.lock("hold", task_id=call_id)["key"]
    began = time.monotonic()
    for _ in range(copies):
        crew.send("hold", name, 20, "copy", task_id=call_id)
    wait_until(lambda: crew.receptions(call_id) > copies, 10, crew.logs)
    while time.monotonic() < began + 1.5 * TTL:
        crew.await_renewal(key)
    received, passed = crew.receptions(call_id), time.monotonic() - began
    assert received <= 1 + copies * (1 + passed / SHORTEST_STANDBY)
    crew.go(name)
    result.get(timeout=10)
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 20, crew.logs)
    assert len(crew.events(name)) == 2


@pytest.mark.fault
@pytest.mark.parametrize("task", ["watches", "stumbles"])
def test_a_call_that_lost_its_lock_writes_nothing_over_the_result_of_its_copy(crew, name, task):  # G3, G6
    call_id = str(uuid.uuid4())
    result = crew.send(task, name, task_id=call_id)
    crew.await_events(name, 1)
    pid = crew.lock(task, task_id=call_id)["holder"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: crew.lock(task, task_id=call_id) is None, TTL + SLACK)
        crew.send(task, name, task_id=call_id)  # as the broker would
        first, second = crew.await_events(name, 2)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: f"[{call_id}] lost lock" in crew.logs(), 10, crew.logs)
    wait_until(lambda: crew.unacked() == 1, 10, crew.logs)  # the first has ended
    assert result.state == "PENDING"
    assert crew.letters(call_id) == []
    crew.go(name)
    assert f"start {result.get(timeout=10)}" == second != first
    assert [text for text in crew.events(name) if text.startswith("end")] == [second.replace("start", "end")]


def test_a_finished_call_does_not_run_again(crew, name):  # G3, N5, guard: outcome
    call_id = str(uuid.uuid4())
    crew.send("hold", name, 0, task_id=call_id).get(timeout=10)
    crew.send("hold", name, 0, task_id=call_id)
    wait_until(lambda: crew.logs().count(f"[{call_id}] received") == 2, 10, crew.logs)
    wait_until(lambda: not crew.unacked(), 10)
    assert len(crew.events(name)) == 2


@pytest.mark.fault
@pytest.mark.slow
def test_a_task_longer_than_the_visibility_timeout_runs_once(make_crew, name):  # G3
    crew = make_crew(broker_transport_options=IMPATIENT)
    crew.start(concurrency=1)
    crew.start(concurrency=1)
    crew.ready()
    result = crew.send("hold", name, 30, "only")
    crew.await_events(name, 1)

    def a_copy_came():
        crew.deliver_again()
        return "does not run (duplicate)" in crew.logs()

    wait_until(a_copy_came, 20, crew.logs)
    crew.go(name)
    result.get(timeout=10)
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 30, crew.logs)
    assert len(crew.events(name)) == 2
    assert crew.highest(name) == 1


@pytest.mark.fault
@pytest.mark.slow
def test_a_backoff_longer_than_the_visibility_timeout_adds_no_attempts(make_crew, name):  # N5
    crew = make_crew(broker_transport_options=IMPATIENT)
    crew.start(concurrency=2)
    crew.start(concurrency=2)
    crew.ready()
    result = crew.send("slow_to_retry", name)

    def it_failed_for_good():
        crew.deliver_again()
        return crew.letters(result.id)

    wait_until(it_failed_for_good, 30, crew.logs, interval=0.1)
    warnings = [line for line in crew.logs().splitlines() if "WARNING" in line and "may wait 3 s" in line]
    assert len(warnings) == 2  # each worker says at its start that this may come
    assert "slow_to_retry" in warnings[0]
    assert "retry_store='redis'" in warnings[0]
    copies = crew.logs().count(f"[{result.id}] received") - 3
    assert copies > 0
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 30, crew.logs)
    assert [text.split()[0] for text in crew.events(name)] == ["0", "1", "2"]
    assert len(crew.letters(result.id)) == 1


@pytest.mark.fault
@pytest.mark.slow
def test_a_call_with_an_eta_beyond_the_visibility_timeout_runs_once(make_crew, name):  # G3, N5
    crew = make_crew(broker_transport_options=IMPATIENT)
    crew.start(concurrency=1)
    crew.start(concurrency=1)
    crew.ready()
    result = crew.send("hold", name, 0.1, "late", countdown=4)

    def it_ended():
        crew.deliver_again()
        return result.state == "SUCCESS"

    wait_until(it_ended, 20, crew.logs, interval=0.1)
    assert crew.logs().count(f"[{result.id}] received") > 1
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 20, crew.logs)
    assert len(crew.events(name)) == 2
    assert crew.app.AsyncResult(result.id).state == "SUCCESS"


@pytest.mark.fault
def test_a_call_that_kills_its_workers_is_buried_at_its_limit(crew, name):  # G7, N6, guard: poison
    result = crew.send("deadly", name)
    letter = crew.letter(result.id, timeout=30)
    assert (letter["reason"], letter["exception"]) == ("poison", "PoisonedCall")
    assert crew.events(name) == ["start"] * 3
    assert [item["exception"] for item in letter["attempts"]] == ["WorkerLostError"] * 3
    wait_until(lambda: result.state == "FAILURE")
    assert crew.lock("deadly", task_id=result.id) is None
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 10, crew.logs)
    assert len(crew.letters(result.id)) == 1
    assert crew.events(name) == ["start"] * 3


@pytest.mark.fault
@pytest.mark.slow
def test_poison_is_found_also_when_whole_workers_die(make_crew, name):  # N6
    crew = make_crew(broker_transport_options=IMPATIENT)
    worker = crew.start(concurrency=1)
    result = crew.send("deadly_to_workers", name)

    def it_is_buried():
        if not worker.running:
            # A dead worker for which Redis still waits would be given the message, and nobody had it.
            wait_until(lambda: not crew.redis.info("clients")["blocked_clients"])
            wait_until(lambda: crew.deliver_again() or crew.redis.llen("celery"))
            worker.start()
        return crew.letters(result.id)

    (letter,) = wait_until(it_is_buried, 60, crew.logs, interval=0.1)
    assert (letter["reason"], len(letter["attempts"])) == ("poison", 2)
    assert crew.events(name) == ["start"] * 2
    assert crew.lock("deadly_to_workers") is None
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 10, crew.logs)


@pytest.mark.fault
def test_a_worker_that_is_killed_between_tries_loses_no_call(make_crew, name):  # G3
    crew = make_crew()
    victim = crew.start(concurrency=1)
    crew.ready()
    result = crew.send("hold", name, 60, "x")
    crew.await_events(name, 1)
    victim.kill(signal.SIGKILL)
    # What Redis's visibility timeout would do in an hour: the message is in its queue again.
    tag = next(iter(crew.redis.hkeys("unacked")))
    crew.start(concurrency=1)
    crew.ready()
    with crew.app.connection_for_write() as connection:
        connection.default_channel.qos.restore_by_tag(tag)
    crew.await_events(name, 2, timeout=20)
    crew.go(name)
    result.get(timeout=10)


def test_a_chain_goes_on_with_the_result_of_a_skipped_call(crew, name):
    crew.send("hold", name, 20, "holder")
    crew.await_events(name, 1)
    skipped = chain(
        call(crew, "hold", name, 0), crew.app.signature("jobs.collects", kwargs={"name": f"{name}c"})
    )
    value = skipped.apply_async().get(timeout=10)
    assert was_skipped(value)
    crew.go(name)


def test_a_chord_with_a_skipped_member_does_not_hang(crew, name):
    crew.send("hold", name, 20, "holder")
    crew.await_events(name, 1)
    header = [call(crew, "hold", name, 0), call(crew, "adds", 1, 2)]
    body = crew.app.signature("jobs.collects", kwargs={"name": f"{name}c"})
    skipped, total = chord(header)(body).get(timeout=10)
    assert was_skipped(skipped)
    assert total == 3
    crew.go(name)


def test_a_group_with_skipped_members_does_not_hang(crew, name):
    crew.send("hold", name, 20, "holder")
    crew.await_events(name, 1)
    skipping = call(crew, "hold", name, 0)
    chained = chain(skipping, crew.app.signature("jobs.collects", kwargs={"name": f"{name}c"}))
    alone, total, last = group(skipping, call(crew, "adds", 1, 2), chained).apply_async().get(timeout=10)
    assert was_skipped(alone)
    assert was_skipped(last)
    assert total == 3
    crew.go(name)


def test_the_copy_of_a_finished_call_does_not_run_its_chain_again(crew, name):
    call_id = str(uuid.uuid4())
    follow = crew.app.signature("jobs.collects", kwargs={"name": f"{name}c"})
    first = call(crew, "adds", 1, 2).apply_async(task_id=call_id, link=follow)
    first.get(timeout=10)
    crew.await_events(f"{name}c", 1)
    wait_until(lambda: crew.record(call_id).get("continued") == "1")
    call(crew, "adds", 1, 2).apply_async(task_id=call_id, link=follow)
    wait_until(lambda: crew.logs().count(f"[{call_id}] received") == 2, 10, crew.logs)
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 10)
    assert crew.events(f"{name}c") == ["3"]


def test_a_scheduled_call_knows_its_entry_and_slot(crew, name):
    headers = {"singlebeat_entry": "nightly", "singlebeat_slot": "2026-01-01T02:00:00+02:00"}
    crew.send("scheduled", name, headers=headers).get(timeout=10)
    crew.send("scheduled", f"{name}b").get(timeout=10)
    assert crew.events(name) == ["nightly 2026-01-01T00:00:00+00:00"]
    assert crew.events(f"{name}b") == ["None None"]


def test_a_retry_keeps_the_entry_and_slot(crew, name):
    headers = {
        "singlebeat_entry": "nightly",
        "singlebeat_slot": "2026-01-01T00:00:00+00:00",
        "singlebeat_epoch": 7,
    }
    result = crew.send("fails", name, headers=headers)
    letter = crew.letter(result.id)
    assert (letter["entry"], letter["slot"]) == ("nightly", "2026-01-01T00:00:00+00:00")
    (raw,) = [raw for raw in crew.redis.lrange("dead_letters", 0, -1) if result.id in raw]
    assert json.loads(raw)["headers"]["singlebeat_epoch"] == 7


def test_a_finished_call_is_remembered_through_a_step_of_redis_clock_by_an_hour(crew):  # G2, G5
    call = crew.send("adds", 1)
    assert call.get(timeout=20) == 2
    key = f"singlebeat:jobs:{{sb}}:call:{call.id}"
    kept = wait_until(lambda: crew.redis.pttl(key), 10, crew.logs) / 1000
    assert kept > 3600 + 3600 - 60  # as if the hour of `dedupe_ttl` began again after the step
