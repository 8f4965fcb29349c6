"""`on_conflict="queue"` and `"replace"`: who runs after a holder, and who in its place."""

import os
import signal

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError

from celery_singlebeat import was_skipped
from celery_singlebeat.testing.processes import wait_until
from tests.task.conftest import IMPATIENT, SLACK
from tests.task.jobs import TTL

pytestmark = [pytest.mark.process, pytest.mark.redis]


def starts(crew, name):
    return [text.split()[1] for text in crew.events(name) if text.startswith("start")]


@pytest.mark.parametrize("fails", [False, True])
def test_however_many_calls_come_while_a_key_is_held_one_follows(crew, name, fails):  # N9
    holder = crew.send("queues", name, "holder", 30, fails)
    crew.await_events(name, 1)
    first = crew.send("queues", name, "first")
    wait_until(lambda: first.state == "RETRY", 10, crew.logs)
    others = [crew.send("queues", name, f"other{number}") for number in range(20)]
    for other in others:
        result = other.get(timeout=15)
        assert was_skipped(result)
        assert (result["skipped"], result["holder"]["task_id"]) == ("conflict", holder.id)
    crew.go(name)
    assert first.get(timeout=10) == "first"
    assert starts(crew, name) == ["holder", "first"]
    assert crew.highest(name) == 1
    assert not crew.letters(first.id)
    wait_until(lambda: crew.lock("queues", task_id=first.id) is None)


def test_waiting_for_its_turn_uses_up_no_attempts_and_keeps_id_and_arguments(crew, name):  # N9
    crew.send("queues", name, "holder", 30)
    crew.await_events(name, 1)
    follower = crew.send("queues", name, "follower", task_id=f"id-{name}", expires=1)
    wait_until(lambda: crew.logs().count(f"id-{name}] received") > 7, 15, crew.logs)
    crew.go(name)
    assert follower.get(timeout=10) == "follower"
    assert crew.record(follower.id)["finished"] == "1"


def test_a_chain_goes_on_after_the_call_that_followed(crew, name):  # N9
    crew.send("queues", name, "holder", 30)
    crew.await_events(name, 1)
    first = crew.app.signature("tests.task.jobs.queues", args=(name, "first"))
    second = crew.app.signature("jobs.collects", kwargs={"name": f"{name}c"})
    result = (first | second).apply_async()
    wait_until(lambda: result.parent.state == "RETRY", 10, crew.logs)
    crew.go(name)
    assert result.get(timeout=10) == "first"


@pytest.mark.fault
def test_a_call_whose_child_is_killed_runs_again_and_so_does_the_one_that_follows(crew, name):  # N9, P2
    holder = crew.send("queues", name, "holder", 30)
    crew.await_events(name, 1)
    follower = crew.send("queues", name, "follower")
    wait_until(lambda: follower.state == "RETRY", 10, crew.logs)
    os.kill(crew.lock("queues", task_id=holder.id)["holder"]["pid"], signal.SIGKILL)
    wait_until(lambda: crew.lock("queues", task_id=holder.id) is None, TTL + SLACK, crew.logs)
    crew.go(name)
    assert follower.get(timeout=15) == "follower"
    assert holder.get(timeout=15) == "holder"
    assert sorted(starts(crew, name)) == ["follower", "holder", "holder"]


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def test_the_call_that_follows_outlives_its_worker(make_crew, request, name, kind):  # N9
    if kind == "redis":
        crew = make_crew(broker_transport_options=IMPATIENT)
    else:
        url = request.getfixturevalue("rabbitmq_url")
        crew = make_crew(broker=url, singlebeat_redis_url=make_crew.lock_server().url())
    victim = crew.start()
    crew.ready()
    crew.send("queues", name, "holder", 60)
    crew.await_events(name, 1)
    follower = crew.send("queues", name, "follower")
    wait_until(lambda: follower.state == "RETRY", 10, crew.logs)
    skipped = crew.send("queues", name, "other").get(timeout=10)
    assert was_skipped(skipped)
    if kind == "redis":  # a call that was skipped and not acknowledged yet would come again as a new one
        wait_until(lambda: crew.unacked() == 2, 10, crew.logs)
    victim.kill()
    crew.go(name)
    crew.start()
    crew.ready()

    def followed():
        if kind == "redis":
            crew.deliver_again()
        return follower.state == "SUCCESS"

    wait_until(followed, 25, crew.logs, interval=0.2)
    assert starts(crew, name).count("follower") == 1
    assert kind != "redis" or "other" not in starts(crew, name)


@pytest.mark.fault
def test_the_call_that_follows_outlives_the_death_of_the_whole_worker_of_its_holder(make_crew, name):  # N4
    crew = make_crew()
    victim = crew.start(concurrency=1)
    crew.ready()
    crew.send("queues", name, "holder", 60)
    crew.await_events(name, 1)
    crew.start(concurrency=1)
    crew.ready()
    follower = crew.send("queues", name, "follower")
    wait_until(lambda: follower.state == "RETRY", 10, crew.logs)
    crew.go(name)
    victim.kill()
    assert follower.get(timeout=TTL + SLACK) == "follower"


# Replace


def test_a_running_call_is_revoked_and_the_newcomer_runs_in_its_place(crew, name):  # G6, N10
    holder = crew.send("replaces", name, "holder", 30, False)
    crew.await_events(name, 1)
    assert crew.send("replaces", name, "newcomer").get(timeout=15) == "newcomer"
    wait_until(lambda: holder.state == "REVOKED", 10, crew.logs)
    with pytest.raises(TaskRevokedError):
        holder.get(timeout=5)
    assert crew.events(name) == ["start holder", "start newcomer", "end newcomer"]
    assert not crew.letters(holder.id)


def test_of_many_that_replace_each_other_the_last_runs_to_its_end(crew, name):  # G6, N10
    results = []
    for number in range(7):
        result = crew.send("replaces", name, f"{number}", 30)
        results.append(result)
        wait_until(  # two workers may take two calls in another order than they were sent in
            lambda number=number, result=result: f"{number}" in starts(crew, name) or result.state == "RETRY",
            15,
            crew.logs,
        )
    assert crew.send("replaces", name, "last").get(timeout=20) == "last"
    wait_until(lambda: all(result.state == "REVOKED" for result in results), 20, crew.logs)
    assert [text for text in crew.events(name) if text.startswith("end")] == ["end last"]
    assert not [letter for result in results for letter in crew.letters(result.id)]


def test_a_call_that_waits_for_its_retry_is_replaced_at_once(crew, name):  # N10
    waiting = crew.send("replaces", name, "fails", -1)
    crew.await_events(name, 1)
    wait_until(lambda: waiting.state == "RETRY", 10, crew.logs)
    assert crew.send("replaces", name, "newcomer").get(timeout=10) == "newcomer"
    wait_until(lambda: waiting.state == "REVOKED", 15, crew.logs)
    assert starts(crew, name) == ["fails", "newcomer"]
    assert not crew.letters(waiting.id)


def test_a_chord_with_a_replaced_member_fails_and_does_not_hang(crew, name):  # N10
    header = [crew.app.signature("tests.task.jobs.replaces", args=(name, "member", 30))]
    header += [crew.app.signature("jobs.plain", args=(1,))]
    result = chord(header)(crew.app.signature("jobs.collects", kwargs={"name": f"{name}c"}))
    crew.await_events(name, 1)
    crew.send("replaces", name, "newcomer").get(timeout=15)
    with pytest.raises((ChordError, TaskRevokedError)):
        result.get(timeout=15)


@pytest.mark.parametrize("checks", [True, False])
def test_a_body_that_cannot_be_killed_is_replaced_when_it_asks_or_ends(make_crew, name, checks):  # G6, N10
    crew = make_crew()
    crew.start(pool="threads")
    crew.ready()
    holder = crew.send("replaces", name, "holder", 30 if checks else 2, checks)
    crew.await_events(name, 1)
    assert crew.send("replaces", name, "newcomer").get(timeout=15) == "newcomer"
    assert holder.state == ("REVOKED" if checks else "SUCCESS")
    ended = [] if checks else ["end holder"]
    assert crew.events(name) == ["start holder", *ended, "start newcomer", "end newcomer"]
    assert not crew.letters(holder.id)
