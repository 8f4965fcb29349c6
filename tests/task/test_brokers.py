"""Locks in one place and messages in another: RabbitMQ, a second Redis, and a store that is away."""

import pytest

from celery_singlebeat import DeadLetters
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis

pytestmark = [pytest.mark.process, pytest.mark.redis]


@pytest.fixture
def second_redis():
    with EmbeddedRedis() as server:
        yield server


@pytest.mark.rabbitmq
def test_on_rabbitmq_a_call_fails_into_a_real_queue_and_is_replayed_from_it(
    make_crew, rabbitmq_url, name
):  # G7, R1 to R3
    crew = make_crew(broker=rabbitmq_url, singlebeat_redis_url=f"{redis_of(make_crew)}")
    crew.start()
    crew.ready()
    first = crew.send("fails", name, kwargs={"secret": "hush"}, headers={"mine": "kept"})
    other = crew.send("refuses", f"{name}o")
    letter = crew.letter(first.id)
    crew.letter(other.id)
    assert (letter["reason"], letter["queue"], len(letter["attempts"])) == ("max_retries", "celery", 4)
    assert (letter["args"], letter["kwargs"]) == ([name], {"secret": "hush"})
    letters = DeadLetters(crew.app)
    assert letters.count() == 2
    letters.replay(first.id)
    again = wait_until(
        lambda: [found for found in crew.letters(first.id) if found["replays"] == 1], 20, crew.logs
    )[0]
    assert len(crew.events(name)) == 8
    assert len(again["attempts"]) == 8
    assert len(letters.list()) == 2
    assert crew.events(f"{name}o") == ["ran"]


@pytest.mark.rabbitmq
def test_on_rabbitmq_calls_on_one_key_run_one_after_the_other(make_crew, rabbitmq_url, name):  # G6
    crew = make_crew(broker=rabbitmq_url, singlebeat_redis_url=redis_of(make_crew))
    crew.start()
    crew.ready()
    for number in range(20):
        crew.send("once_each", name, number, 0.01)
    crew.await_events(name, 20, timeout=30)
    assert crew.highest(name) == 1


def test_a_broker_on_another_redis_keeps_its_own_letters(make_crew, second_redis, name):  # R1
    crew = make_crew(broker=second_redis.url(), singlebeat_redis_url=redis_of(make_crew))
    crew.start()
    crew.ready()
    result = crew.send("fails", name)
    crew.letter(result.id)
    with second_redis.client() as broker:
        assert broker.llen("dead_letters") == 1
        wait_until(lambda: not broker.hlen("unacked"))
    with make_crew.lock_server().client(decode_responses=True) as locks:
        assert locks.hget(f"singlebeat:jobs:{{sb}}:call:{result.id}", "buried") == "1"
    DeadLetters(crew.app).replay(result.id)
    wait_until(lambda: [found for found in crew.letters(result.id) if found["replays"] == 1], 15, crew.logs)
    assert len(crew.events(name)) == 8


@pytest.mark.fault
def test_while_the_store_is_away_calls_wait_and_use_up_no_attempts(make_crew, second_redis, name):  # G9
    crew = make_crew(broker=second_redis.url(), singlebeat_redis_url=redis_of(make_crew))
    crew.start()
    crew.ready()
    crew.send("once_each", name, 1).get(timeout=15)
    lock_server = make_crew.lock_server()
    lock_server.kill()
    late = crew.send("waits_out", name)
    wait_until(lambda: "no answer to lock_acquire" in crew.logs(), 15, crew.logs)
    assert len(crew.events(name)) == 1
    lock_server.start()
    late.get(timeout=20)
    assert crew.events(name)[1:] == ["0"]


@pytest.mark.fault
@pytest.mark.parametrize(("task", "ran"), [("insists", ["unlocked"]), ("gives_up", [])])
def test_a_task_says_what_to_do_without_an_answer_of_the_store(make_crew, second_redis, name, task, ran):
    crew = make_crew(broker=second_redis.url(), singlebeat_redis_url=redis_of(make_crew))
    crew.start()
    crew.ready()
    make_crew.lock_server().kill()
    result = crew.send(task, name)
    if ran:
        result.get(timeout=20)
    else:
        wait_until(lambda: result.state == "FAILURE", 20, crew.logs)
    assert crew.events(name) == ran


def redis_of(make_crew):
    """The address of a Redis for locks alone, that a test may kill."""
    return make_crew.lock_server().url()
