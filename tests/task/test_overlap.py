"""Entries that must not overlap themselves: real beats, workers and signals; what the bodies left decides."""

import os
import signal
import time

import pytest

from celery_singlebeat import Schedule
from celery_singlebeat.testing.processes import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.process]

PERIOD = 0.2
#: Periods that pass before the queue is looked at: none of their slots may be there.
MANY = 5


@pytest.fixture(scope="module")
def scheduled(crew):
    crew.beat()
    return crew


def running(crew, entry):
    return crew.redis.hget("singlebeat:jobs:{sb}:running", entry)


def marks(crew, entry):
    """Slots of the entry that have their verdict."""
    return int(crew.redis.hget("singlebeat:jobs:{sb}:marks", entry) or 0)


def add(crew, name, task, *args, overlap="skip", **keys):
    Schedule(crew.app).add(
        name, f"tests.task.jobs.{task}", PERIOD, args=(name, *args), overlap=overlap, **keys
    )


def await_marks(crew, name, number):
    """Until so many further slots have their verdict."""
    goal = marks(crew, name) + number * PERIOD * 1000
    wait_until(lambda: marks(crew, name) >= goal, 20, crew.logs)


def test_no_run_begins_while_the_one_before_goes_on(scheduled):
    name = "overlap-skip"
    add(scheduled, name, "hold", 30)
    scheduled.await_events(name, 1)
    await_marks(scheduled, name, MANY)
    assert len(scheduled.events(name)) == 1
    scheduled.go(name)
    scheduled.await_events(name, 6)
    Schedule(scheduled.app).remove(name)
    assert scheduled.highest(name) == 1


def test_the_newest_slot_follows_when_the_run_before_has_ended(scheduled):
    name = "overlap-queue"
    add(scheduled, name, "hold", 30, overlap="queue")
    scheduled.await_events(name, 1)
    wait_until(lambda: time.time() * 1000 > marks(scheduled, name) + MANY * PERIOD * 1000, 20)
    assert len(scheduled.events(name)) == 1
    scheduled.go(name)
    scheduled.await_events(name, 4)
    Schedule(scheduled.app).remove(name)
    assert scheduled.highest(name) == 1


@pytest.mark.parametrize("how", ["ignore", "reject", "fail", "memory", "return"])
def test_every_end_of_a_run_lets_the_next_one_begin(scheduled, how):
    name = f"overlap-{how}"
    add(scheduled, name, "ends", how)
    scheduled.await_events(name, 2)
    Schedule(scheduled.app).remove(name)


def test_a_run_that_meets_its_time_limit_has_ended(scheduled):
    name = "overlap-limit"
    add(scheduled, name, "overruns")
    scheduled.await_events(name, 2)
    Schedule(scheduled.app).remove(name)


def test_a_run_that_is_revoked_or_expires_before_it_begins_has_ended(scheduled):
    name = "overlap-expires"
    add(scheduled, name, "hold", 0, options={"expires": 0.001, "queue": "nobody"})
    wait_until(lambda: running(scheduled, name), 10, scheduled.logs)
    before = running(scheduled, name)
    # a worker takes the message once it has expired
    wait_until(lambda: scheduled.redis.rpoplpush("nobody", "celery"), 10, scheduled.logs)
    wait_until(lambda: running(scheduled, name) != before, 10, scheduled.logs)
    assert scheduled.events(name) == []
    Schedule(scheduled.app).remove(name)


def assert_that_a_run_nobody_can_run_ends(crew):
    name = "overlap-unknown"
    add(crew, name, "nobody_has_it")
    first = wait_until(lambda: running(crew, name), 10, crew.logs)
    wait_until(lambda: running(crew, name) not in (None, first), 10, crew.logs)
    Schedule(crew.app).remove(name)


def test_a_run_that_no_worker_can_run_has_ended(scheduled):
    assert_that_a_run_nobody_can_run_ends(scheduled)


def test_a_run_that_no_worker_can_run_has_ended_where_such_calls_are_not_buried(make_crew):
    crew = make_crew(singlebeat_bury_undecodable=False)
    crew.start(concurrency=1)
    crew.beat()
    assert_that_a_run_nobody_can_run_ends(crew)


def test_a_run_that_is_replaced_by_another_call_has_ended(scheduled):
    name = "overlap-replaced"
    add(scheduled, name, "replaces", "fails", -1)
    scheduled.await_events(name, 1)
    first = running(scheduled, name)
    assert scheduled.send("replaces", name, "newcomer").get(timeout=15) == "newcomer"
    wait_until(lambda: running(scheduled, name) != first, 10, scheduled.logs)
    Schedule(scheduled.app).remove(name)


def test_a_run_goes_on_through_its_retries(scheduled):
    name = "overlap-retries"
    add(scheduled, name, "slow_to_retry")
    scheduled.await_events(name, 1)
    first = running(scheduled, name)
    await_marks(scheduled, name, MANY)
    assert running(scheduled, name) == first
    assert {event.split()[0] for event in scheduled.events(name)} == {"0"}
    Schedule(scheduled.app).remove(name)


def test_a_run_whose_worker_is_killed_goes_on_when_it_is_delivered_again(scheduled):
    name = "overlap-killed"
    add(scheduled, name, "hold", 30)
    scheduled.await_events(name, 1)
    lock = wait_until(lambda: scheduled.lock("hold"), 10, scheduled.logs)
    first = running(scheduled, name)
    os.kill(lock["holder"]["pid"], signal.SIGKILL)
    scheduled.await_events(name, 2)
    assert running(scheduled, name) == first
    scheduled.go(name)
    wait_until(lambda: running(scheduled, name) != first, 10, scheduled.logs)
    Schedule(scheduled.app).remove(name)
    assert all(event.startswith(("start", "end")) for event in scheduled.events(name))
