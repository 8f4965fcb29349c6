"""Quorum queues of RabbitMQ, Celery's native delayed delivery over them, and letters in one of them."""

import itertools

import celery
import pytest

from celery_singlebeat import DeadLetters, was_skipped
from celery_singlebeat.testing.processes import wait_until

pytest.importorskip("celery.worker.consumer.delayed_delivery", reason="Celery 5.4 declares no quorum queues")
pytestmark = [pytest.mark.process, pytest.mark.redis, pytest.mark.rabbitmq]

#: Native delayed delivery cannot serve an exchange of Celery's default type, direct.
SETTINGS = {
    "task_default_queue_type": "quorum",
    "task_default_exchange_type": "topic",
    "task_create_missing_queue_type": "quorum",  # those of `-Q`
    "task_create_missing_queue_exchange_type": "topic",
}
DEAD_LETTERS = {"x-queue-type": "quorum"}
#: What `-Q` names is declared as a quorum queue.
MISSING = pytest.mark.skipif(celery.VERSION < (5, 6), reason="older Celery makes no quorum queues for -Q")


@pytest.fixture
def crew(make_crew, rabbitmq_url):
    """Two workers on a quorum queue, whose dead-letter queue is one as well."""
    crew = make_crew(broker=rabbitmq_url, singlebeat_redis_url=make_crew.lock_server().url(), **SETTINGS)
    with crew.app.connection_for_write() as connection:
        connection.channel().queue_declare(
            queue="dead_letters", durable=True, auto_delete=False, arguments=DEAD_LETTERS
        )
    crew.start(concurrency=1)
    crew.start(concurrency=1)
    return crew.ready()


def number_in(crew, queue):
    with crew.app.connection_for_write() as connection:
        return connection.channel().queue_declare(queue=queue, passive=True).message_count


def test_a_call_waits_in_native_delayed_delivery_and_is_buried_and_replayed(crew, name):  # G7, N7
    result = crew.send("delays", name)
    wait_until(lambda: number_in(crew, "celery_delayed_1") == 1, 15, crew.logs)  # two of the three seconds
    other = crew.send("delays", name).get(timeout=10)
    assert was_skipped(other)
    assert other["holder"]["task_id"] == result.id
    letter = crew.letter(result.id)
    moments = [float(text.split()[1]) for text in crew.events(name)]
    assert len(moments) == 3  # max_retries + 1
    waits = [later - sooner for sooner, later in itertools.pairwise(moments)]
    assert [wait >= least for wait, least in zip(waits, (1.5, 3.0), strict=True)] == [True, True]
    assert (letter["reason"], letter["queue"]) == ("max_retries", "celery")
    assert [item.get("wait") for item in letter["attempts"]] == [1.5, 3.0, None]
    crew.redis.set(f"works:{name}", 1)
    assert DeadLetters(crew.app).replay(result.id)["id"] == result.id
    wait_until(lambda: crew.app.AsyncResult(result.id).state == "SUCCESS", 15, crew.logs)
    assert len(crew.events(name)) == 4
    assert DeadLetters(crew.app).count() == 0


@MISSING
def test_a_call_that_came_through_an_exchange_waits_for_the_queue_that_it_came_from(crew, name):
    crew.start(concurrency=1, queues="orders")
    crew.ready()
    result = crew.send("delays", name, queue="orders")
    letter = crew.letter(result.id)
    assert letter["queue"] == "orders"
    assert len(letter["attempts"]) == 3
    assert len({attempt["pid"] for attempt in letter["attempts"]}) == 1  # of the one child on that queue


def test_a_wait_below_a_second_is_kept_where_the_broker_counts_whole_seconds(crew, name):  # B1
    result = crew.send("fails", name)
    letter = crew.letter(result.id)
    moments = [float(text.split()[1]) for text in crew.events(name)]
    waits = [later - sooner for sooner, later in itertools.pairwise(moments)]
    assert [wait >= least for wait, least in zip(waits, (0.1, 0.2, 0.4), strict=True)] == [True] * 3
    assert len(letter["attempts"]) == 4


@pytest.mark.fault
def test_poison_goes_from_a_quorum_queue_into_one_byte_for_byte(crew, name):  # G7, N6, R2
    result = crew.send("deadly", name, headers={"mine": "kept"})
    letter = crew.letter(result.id, timeout=30)
    assert (letter["reason"], len(letter["attempts"]), letter["queue"]) == ("poison", 3, "celery")
    assert crew.events(name) == ["start"] * 3
    crew.app.send_task("not.known", (1,), task_id=name)
    assert crew.letter(name)["reason"] == "undecodable"
    wait_until(lambda: number_in(crew, "celery") == 0, 10, crew.logs)
    (found,) = [
        parcel
        for store in DeadLetters(crew.app)._wiring.letter_stores()
        for parcel in store.letters()
        if parcel.headers["id"] == result.id
    ]
    assert found.headers["mine"] == "kept"
    assert not [header for header in found.headers if header.startswith("x-")]
    assert DeadLetters(crew.app).purge(reason="undecodable") == 1
    assert DeadLetters(crew.app).count() == 1


@MISSING
def test_a_worker_on_a_dead_letter_queue_of_this_kind_replays_each_letter_once(crew, name):  # P4
    result = crew.send("refuses", name)
    crew.letter(result.id)
    crew.start(concurrency=1, queues="dead_letters")
    again = wait_until(
        lambda: [letter for letter in crew.letters(result.id) if letter["replays"] == 1], 20, crew.logs
    )[0]
    assert (again["queue"], crew.events(name)) == ("celery", ["ran"] * 2)
    wait_until(lambda: number_in(crew, "dead_letters") == 0, 10, crew.logs)
    assert number_in(crew, "dead_letters.failed") == 1
