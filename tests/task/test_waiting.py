"""Calls that wait for their next attempt in Redis: `retry_store="redis"`."""

import json
import signal

import pytest

from celery_singlebeat import DeadLetters
from celery_singlebeat.store.ports import Push
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis
from celery_singlebeat.wiring import wire
from tests.task.conftest import Crew

pytestmark = [pytest.mark.process, pytest.mark.redis]


def moments(crew, name):
    return [float(text.split()[1]) for text in crew.events(name)]


def test_a_call_waits_in_redis_as_it_will_be_sent_and_nowhere_else(crew, name):  # W1, W2
    result = crew.send("parks", name, kwargs={"secret": "hush"}, priority=3)
    (record,) = wait_until(crew.waiting, 10, crew.logs)
    assert record.startswith("Lcelery\x06\x163\0")
    message = json.loads(record.partition("\0")[2])
    assert (message["headers"]["id"], message["headers"]["retries"]) == (result.id, 1)
    assert message["headers"]["eta"] is None
    wait_until(lambda: result.id not in str(crew.redis.hgetall("unacked")), 5)
    letter = crew.letter(result.id)
    assert [item["attempt"] for item in letter["attempts"]] == [1, 2, 3]
    first, second, third = moments(crew, name)
    assert second - first >= 0.3
    assert third - second >= 0.6
    assert crew.waiting() == []


def test_a_call_that_succeeds_in_the_end_has_its_result(crew, name):
    result = crew.send("parks", name, 1)
    assert result.get(timeout=15) == "done"
    assert len(crew.events(name)) == 2


def test_a_call_that_waits_for_its_lock_waits_in_redis(crew, name):
    crew.send("shares", name, 20)
    crew.await_events(name, 1)
    result = crew.send("parks_for_lock", name)
    wait_until(lambda: any(result.id in record for record in crew.waiting()), 10, crew.logs)
    crew.go(name)
    result.get(timeout=15)
    assert crew.events(name) == ["shares", "ran"]


@pytest.mark.fault
@pytest.mark.slow
def test_the_visibility_timeout_does_not_touch_a_call_that_waits_longer(make_crew, name):  # W1, N5
    crew = make_crew(broker_transport_options={"visibility_timeout": 3})
    crew.start()
    crew.start()
    crew.ready()
    result = crew.send("parks_long", name)

    def it_failed_for_good():
        crew.deliver_again()
        return crew.letters(result.id)

    letter = wait_until(it_failed_for_good, 30, crew.logs, interval=0.1)[0]
    assert len(crew.events(name)) == 2  # max_retries + 1
    assert crew.logs().count(f"[{result.id}] received") == 2  # not one copy came
    assert len(letter["attempts"]) == 2
    first, second = moments(crew, name)
    assert second - first >= 8


@pytest.mark.fault
def test_a_waiting_call_survives_the_end_of_everything(tmp_path, name):  # W1
    with EmbeddedRedis("--appendfsync", "always", appendonly=True) as server:
        crew = Crew(server, tmp_path)
        try:
            worker = crew.start()
            crew.ready()
            result = crew.send("parks", name)
            wait_until(crew.waiting, 10, crew.logs)
            worker.kill(signal.SIGKILL)
            server.kill()
            server.start()
            worker.start()
            letter = crew.letter(result.id, timeout=30)
            assert (letter["reason"], len(letter["attempts"])) == ("max_retries", 3)
            assert len(crew.events(name)) == 3
        finally:
            crew.close()


@pytest.mark.fault
def test_the_leader_moves_and_without_any_beat_the_workers_do(make_crew, name):  # W4
    crew = make_crew(singlebeat_retry_store="redis")
    beat = crew.beat()
    store = wire(crew.app).waiting_store()
    for number in range(3):
        store.park([Push("nobody", f"{number}")], 0.05)
    wait_until(lambda: crew.redis.llen("nobody") == 3, 10, beat.logs)
    crew.start()
    crew.ready()
    beat.kill(signal.SIGKILL)
    store.park([Push("nobody", "last")], 0.05)
    wait_until(lambda: crew.redis.llen("nobody") == 4, 15, crew.logs)
    assert crew.redis.lrange("nobody", 0, -1)[0] == "last"
    store.close()


@pytest.mark.rabbitmq
def test_on_rabbitmq_a_waiting_call_is_published_when_it_is_due(make_crew, rabbitmq_url, name):  # W3
    crew = make_crew(broker=rabbitmq_url, singlebeat_redis_url=make_crew.lock_server().url())
    crew.start()
    crew.start()
    crew.ready()
    result = crew.send("parks", name, headers={"mine": "kept"})
    with make_crew.lock_server().client(decode_responses=True) as locks:
        key = "singlebeat:jobs:{sb}:waiting"
        (record,) = wait_until(lambda: locks.zrange(key, 0, -1), 10, crew.logs)
        assert record.startswith("R\0")
        letter = crew.letter(result.id, timeout=30)
        assert locks.zcard(key) == 0
    assert [item["attempt"] for item in letter["attempts"]] == [1, 2, 3]
    first, second, third = moments(crew, name)
    assert second - first >= 0.3
    assert third - second >= 0.6
    assert DeadLetters(crew.app).count() == 1


@pytest.mark.fault
@pytest.mark.rabbitmq
def test_while_rabbitmq_is_away_what_is_due_goes_on_waiting(
    make_crew, rabbitmq_server, rabbitmq_url, name
):  # W3
    crew = make_crew(broker=rabbitmq_url, singlebeat_redis_url=make_crew.lock_server().url())
    crew.start()
    crew.ready()
    result = crew.send("parks", name, 1)
    with make_crew.lock_server().client(decode_responses=True) as locks:
        key = "singlebeat:jobs:{sb}:waiting"
        ((record, due),) = wait_until(lambda: locks.zrange(key, 0, -1, withscores=True), 10, crew.logs)
        rabbitmq_server.pause()
        wait_until(lambda: locks.zscore(key, record) != due, 10)  # a mover has it in hand, and cannot send it
        rabbitmq_server.resume()
    assert result.get(timeout=40) == "done"
    assert len(crew.events(name)) == 2
