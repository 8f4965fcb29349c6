"""At most one execution holds a key (G6), in real workers."""

import os
import signal
import time

import pytest

from celery_singlebeat import Locks, was_skipped
from celery_singlebeat.testing.processes import wait_until
from tests.task.conftest import SLACK
from tests.task.jobs import TTL

pytestmark = [pytest.mark.process, pytest.mark.redis]


def test_two_hundred_calls_on_one_key_never_run_two_bodies_at_once(crew, name):  # G6
    for number in range(200):
        crew.send("once_each", name, number, ignore_result=True)
    fences = [int(text) for text in crew.await_events(name, 200, timeout=60)]
    assert crew.highest(name) == 1
    assert len(fences) == 200
    assert fences == sorted(set(fences))  # N2: in the order in which they ran
    wait_until(lambda: not crew.lock("once_each"))


@pytest.mark.parametrize("task", ["bypasses", "mixes"])
def test_a_call_of_its_own_that_bypasses_ours_still_locks(crew, name, task):  # G6, T1
    for number in range(40):
        crew.send(task, name, number, ignore_result=True)
    fences = [int(text) for text in crew.await_events(name, 40, timeout=60)]
    assert crew.highest(name) == 1
    assert fences == sorted(set(fences))
    assert fences[0] > 0


def test_an_execution_costs_two_round_trips(make_crew, name):  # T2
    crew = make_crew(task_ignore_result=True)
    crew.start(concurrency=1)
    crew.ready()
    crew.send("scheduled", f"{name}0")
    crew.await_events(f"{name}0", 1)  # the scripts are loaded now
    wait_until(lambda: not crew.unacked())
    with crew.redis.monitor() as monitor:
        for number in range(1, 21):
            crew.send("scheduled", f"{name}{number}")
        wait_until(lambda: all(crew.events(f"{name}{number}") for number in range(1, 21)), 15, crew.logs)
        wait_until(lambda: not crew.unacked())
        crew.redis.echo(name)
        asked = iter(lambda: monitor.next_command()["command"], f"ECHO {name}")
        scripts = [command for command in asked if command.startswith("EVALSHA") and ":lock:" in command]
    assert len(scripts) == 40


def test_a_body_of_several_ttls_stays_exclusive(crew, name):  # G6
    holder = crew.send("hold", name, 5 * TTL)
    crew.await_events(name, 1)
    deadline = time.monotonic() + 4 * TTL
    while time.monotonic() < deadline:
        skipped = crew.send("hold", name, 0).get(timeout=10)
        assert was_skipped(skipped)
        assert skipped["skipped"] == "conflict"
        assert skipped["holder"]["task_id"] == holder.id
        time.sleep(TTL / 4)
    crew.go(name)
    holder.get(timeout=10)
    assert crew.highest(name) == 1
    assert crew.events(name)[-1].endswith("True")  # held to the end


def test_a_conflict_names_the_holder_in_the_result_and_the_log_and_is_counted(crew, name):
    holder = crew.send("hold", name, 20)
    crew.await_events(name, 1)
    lock = crew.lock("hold", task_id=holder.id)
    conflicts = crew.counter("lock_conflicts:tests.task.jobs.hold")
    late = crew.send("hold", name, 0)
    result = late.get(timeout=10)
    about = {**lock["holder"], "since": lock["since"]}
    assert set(about) == {"task_id", "host", "pid", "since"}
    assert about["task_id"] == holder.id
    assert result == {"skipped": "conflict", "key": lock["key"], "holder": about}
    described = ", ".join(f"{name} {about[name]}" for name in ("task_id", "host", "pid", "since"))
    assert f"[{late.id}] does not run (skip): lock {lock['key']} is held by {described}" in crew.logs()
    assert crew.counter("lock_conflicts:tests.task.jobs.hold") == conflicts + 1
    crew.go(name)
    holder.get(timeout=10)


def test_an_eager_call_in_a_worker_on_the_key_of_its_caller_is_a_conflict(crew, name):
    result = crew.send("nests", name, 1)
    skipped, other = result.get(timeout=10)
    assert was_skipped(skipped)
    assert skipped["holder"]["task_id"] == result.id
    assert set(skipped["holder"]) == {"task_id", "host", "pid", "since"}
    assert other.startswith("tests.task.jobs.nests:")
    assert other != skipped["key"]


def test_a_task_may_let_go_of_its_key_through_a_backoff(crew, name):
    first = crew.send("lets_go", name, True)
    crew.await_events(name, 1)
    wait_until(lambda: crew.lock("lets_go", task_id=first.id) is None, TTL)
    wait_until(lambda: first.state == "RETRY", 10, crew.logs)
    assert not was_skipped(crew.send("lets_go", name, False).get(timeout=10))
    assert crew.events(name) == ["ran True", "ran False"]


def test_other_keys_of_the_same_task_run_beside_it(crew, name):
    first, second = crew.send("hold", f"{name}a", 10), crew.send("hold", f"{name}b", 10)
    crew.await_events(f"{name}a", 1)
    crew.await_events(f"{name}b", 1)
    crew.go(f"{name}a")
    crew.go(f"{name}b")
    assert first.get(timeout=10) != second.get(timeout=10)


@pytest.mark.fault
def test_the_key_of_a_killed_child_is_free_at_once_and_its_call_comes_back(crew, name):  # G6, P2
    result = crew.send("hold", name, 20, "first")
    crew.await_events(name, 1)
    lock = crew.lock("hold", task_id=result.id)
    os.kill(lock["holder"]["pid"], signal.SIGKILL)
    crew.await_end_of(lock, TTL + SLACK)
    crew.await_events(name, 2)
    crew.go(name)
    result.get(timeout=10)
    first, second = (int(text.split()[2]) for text in crew.events(name)[:2])
    assert second > first


@pytest.mark.fault
def test_the_key_of_a_killed_worker_is_free_within_its_ttl(make_crew, name):  # G6, N4
    crew = make_crew()
    victim = crew.start()
    crew.ready()
    crew.send("hold", name, 60, "victim")
    crew.await_events(name, 1)
    crew.start()
    crew.ready()
    victim.kill()
    killed = time.monotonic()
    wait_until(lambda: crew.send("hold", name, 0, "next").get(timeout=10) and len(crew.events(name)) > 1)
    assert time.monotonic() - killed < TTL + SLACK


@pytest.mark.fault
def test_a_holder_that_was_frozen_past_its_ttl_leaves_the_new_holder_alone(crew, name):  # G6, N3
    first = crew.send("hold", name, 30, "old")
    crew.await_events(name, 1)
    old = crew.lock("hold", task_id=first.id)
    pid = old["holder"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: crew.lock("hold", task_id=first.id) is None, TTL + SLACK)
        second = crew.send("hold", f"{name}", 30, "new")
        crew.await_events(name, 2)
    finally:
        os.kill(pid, signal.SIGCONT)
    new = crew.lock("hold", task_id=second.id)
    assert new["fence"] > old["fence"]
    crew.redis.set(f"go:{name}", 1, ex=60)
    first.get(timeout=10)
    second.get(timeout=10)
    ends = [text for text in crew.events(name) if text.startswith("end")]
    assert "end old False" in ends  # T3: it knew by its own clock
    assert "end new True" in ends


@pytest.mark.fault
def test_a_holder_that_aborts_learns_of_its_loss_and_is_not_tried_again(crew, name, caplog):
    result = crew.send("careful", name, 20)
    crew.await_events(name, 1)
    key = crew.lock("careful", task_id=result.id)["key"]
    broken = crew.counter("locks_broken:tests.task.jobs.careful")
    assert Locks(crew.app).release(key)["holder"]["task_id"] == result.id
    letter = crew.letter(result.id)
    assert (letter["reason"], letter["exception"]) == ("not_retryable", "LockLost")
    assert crew.events(name) == ["start"]
    [line] = [record.getMessage() for record in caplog.records if "by an operator" in record.getMessage()]
    assert f"lock {key} " in line
    assert f"[{result.id}]" in line
    assert crew.counter("locks_broken:tests.task.jobs.careful") == broken + 1
    assert f"[{result.id}] lost lock {key}" in crew.logs()


@pytest.mark.fault
def test_a_lock_outlives_a_pause_of_redis_that_is_shorter_than_its_ttl(make_crew, name):  # G9
    crew = make_crew()
    crew.start()
    crew.ready()
    result = crew.send("hold", name, 30, "x")
    crew.await_events(name, 1)
    until = time.monotonic() + 3 * TTL
    while time.monotonic() < until:
        crew.server.pause()
        time.sleep(TTL / 3)
        crew.server.resume()
        time.sleep(TTL / 3)
    crew.go(name)
    result.get(timeout=10)
    assert crew.events(name)[-1] == "end x True"


@pytest.mark.parametrize("how", ["ok", "ignore", "reject", "fail", "memory"])
def test_however_the_body_ends_its_lock_is_free(crew, name, how):  # T1
    result = crew.send("ends", name, how)
    crew.await_events(name, 1)
    wait_until(lambda: crew.lock("ends", task_id=result.id) is None, TTL / 2)


def test_a_call_that_ends_its_process_is_buried_as_poison_and_its_lock_is_free(crew, name):  # G7, P3
    result = crew.send("ends", name, "exit")
    letter = crew.letter(result.id, timeout=30)
    assert (letter["reason"], len(letter["attempts"])) == ("poison", 5)
    assert crew.events(name) == ["exit"] * 5
    assert crew.lock("ends", task_id=result.id) is None


@pytest.mark.fault
@pytest.mark.parametrize("sent", ["SIGTERM", "SIGKILL"])
def test_a_call_that_is_revoked_while_it_runs_frees_its_lock(crew, name, sent):  # P2
    result = crew.send("hold", name, 30, "revoked")
    crew.await_events(name, 1)
    crew.app.control.revoke(result.id, terminate=True, signal=sent)
    wait_until(lambda: crew.lock("hold", task_id=result.id) is None, TTL + SLACK, crew.logs)
    wait_until(lambda: result.state == "REVOKED", 10, crew.logs)
    assert not crew.letters(result.id)
    crew.send("hold", name, 0, "next").get(timeout=10)
    assert len(crew.events(name)) == 3


def test_a_soft_time_limit_frees_the_lock(crew, name):  # T1
    result = crew.send("overruns_softly", name)
    assert crew.letter(result.id)["exception"] == "SoftTimeLimitExceeded"
    assert crew.lock("overruns_softly") is None


def test_a_hard_time_limit_frees_the_lock_and_buries_the_call(crew, name):  # G7, P2
    result = crew.send("overruns", name)
    letter = crew.letter(result.id)
    assert letter["exception"] == "TimeLimitExceeded"
    wait_until(lambda: crew.lock("overruns") is None, TTL / 2)
    assert crew.events(name) == ["start"]


def test_a_conflict_can_fail_the_call(crew, name):
    holder = crew.send("alone", name, 30)
    crew.await_events(name, 1)
    late = crew.send("alone", f"{name}b")
    letter = crew.letter(late.id)
    assert (letter["reason"], letter["exception"]) == ("not_retryable", "LockConflict")
    crew.go(name)
    holder.get(timeout=10)
    assert crew.events(f"{name}b") == []


def test_a_call_that_waits_for_its_lock_gives_up_in_time(crew, name):  # D1
    holder = crew.send("shares", name, 30)
    crew.await_events(name, 1)
    late = crew.send("waits", name)
    letter = crew.letter(late.id)
    assert (letter["reason"], letter["exception"]) == ("conflict_timeout", "LockConflict")
    crew.go(name)
    holder.get(timeout=10)
    assert crew.events(name) == ["shares"]


def test_two_tasks_with_one_lock_key_exclude_each_other(crew, name):  # K5
    holder = crew.send("shares", name, 0.3)
    crew.await_events(name, 1)
    waiting = crew.send("waits", name)
    holder.get(timeout=10)
    waiting.get(timeout=10)
    assert crew.events(name) == ["shares", "waits"]


def test_waiting_for_a_lock_uses_up_no_attempts(crew, name):
    results = [crew.send("once_each", name, number, 0.1) for number in range(12)]
    crew.await_events(name, 12, timeout=30)
    wait_until(lambda: all(result.state == "SUCCESS" for result in results))
    assert not [letter for result in results for letter in crew.letters(result.id)]
