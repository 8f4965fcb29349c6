"""Letters that a worker receives, and messages that no worker can run."""

import base64
import json
import uuid

import pytest

from celery_singlebeat import DeadLetters
from celery_singlebeat.testing.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.redis]

JOBS = "tests.task.jobs"
EMPTY = base64.b64encode(b"[[], {}, {}]").decode()


def push(crew, queue, body, *, content_type="application/json", headers=None, encoding="utf-8"):
    """A message as any producer may write it."""
    message = {
        "body": body,
        "content-type": content_type,
        "content-encoding": encoding,
        "headers": headers if headers is not None else {},
        "properties": {
            "delivery_tag": str(uuid.uuid4()),
            "delivery_info": {"exchange": "", "routing_key": queue},
            "body_encoding": "base64",
        },
    }
    crew.redis.lpush(queue, json.dumps(message))
    return message


def only_letter(crew, wanted):
    def found():
        return [letter for letter in DeadLetters(crew.app).list() if wanted(letter)]

    return wait_until(found, 15, crew.logs)[0]


def test_a_worker_on_the_dead_letter_queue_replays_each_letter_once(make_crew, name):  # P4
    crew = make_crew()
    crew.start(concurrency=1)
    crew.ready()
    fails, succeeds = crew.send("fails", name), crew.send("fails", f"{name}s", kwargs={"until": 4})
    crew.letter(fails.id)
    crew.letter(succeeds.id)
    crew.start(concurrency=1, queues="dead_letters")
    crew.ready()
    again = wait_until(
        lambda: [letter for letter in crew.letters(fails.id) if letter["replays"] == 1], 20, crew.logs
    )[0]
    assert (again["queue"], len(again["attempts"])) == ("celery", 8)
    wait_until(lambda: len(crew.letters(succeeds.id)) == 1, 20, crew.logs)
    wait_until(lambda: not crew.unacked() and not crew.redis.llen("celery"), 10, crew.logs)
    assert crew.redis.llen("dead_letters") == 0
    assert crew.redis.llen("dead_letters.failed") == 2
    assert len(crew.events(name)) == 8  # and not for ever


def test_a_letter_in_its_own_queue_is_a_replay_too(make_crew, name):  # P4
    crew = make_crew()
    crew.start(concurrency=1)
    crew.ready()
    result = crew.send("refuses", name)
    crew.letter(result.id)
    assert crew.redis.rpoplpush("dead_letters", "celery")  # as a broker's own tools move messages
    wait_until(lambda: [found for found in crew.letters(result.id) if found["replays"] == 1], 15, crew.logs)
    assert crew.events(name) == ["ran"] * 2
    assert DeadLetters(crew.app).count() == 1


def test_a_call_that_came_by_a_pattern_is_replayed_to_the_queue_that_it_came_from(make_crew, name):  # D5
    jobs = {"exchange": "jobs", "exchange_type": "topic", "routing_key": "job.#"}
    crew = make_crew(task_queues={"work": jobs})
    crew.start(concurrency=1)
    crew.ready()
    result = crew.send("refuses", name, queue="work", routing_key="job.pay")
    assert crew.letter(result.id)["queue"] == "work"
    DeadLetters(crew.app).replay(result.id)
    wait_until(lambda: [found for found in crew.letters(result.id) if found["replays"] == 1], 15, crew.logs)
    assert crew.events(name) == ["ran"] * 2


def test_a_letter_of_an_unknown_task_on_the_dead_letter_queue_is_set_aside_as_it_is(make_crew, name):  # P4
    crew = make_crew()
    crew.start(concurrency=1, queues="celery,dead_letters")
    crew.ready()
    push(crew, "celery", EMPTY, headers={"id": name, "task": "not.known"})
    wait_until(lambda: crew.redis.llen("dead_letters.failed") == 1, 15, crew.logs)
    wait_until(lambda: not crew.unacked(), 5)
    (letter,) = crew.letters(name)
    assert (letter["reason"], letter["queue"], letter["task"]) == ("undecodable", "celery", "not.known")
    assert crew.redis.llen("dead_letters") == 0


@pytest.mark.parametrize(
    ("body", "about", "exception"),
    [
        (EMPTY, {"headers": {"task": "not.known", "id": "x"}}, "NotRegistered"),
        (EMPTY, {"headers": {"mine": 1}}, "InvalidTaskError"),
        (EMPTY, {"headers": {"task": f"{JOBS}.refuses", "id": "x"}, "content_type": "application/x-odd"}, ""),
        ("bm8ganNvbg==", {"headers": {"task": f"{JOBS}.refuses", "id": "x"}}, "DecodeError"),
        (EMPTY[:8], {"headers": {"task": f"{JOBS}.refuses", "id": "x"}}, "DecodeError"),
        ("bnVsbA==", {"headers": {"task": f"{JOBS}.refuses", "id": "x"}}, "InvalidTaskError"),
        ("WzEsIDJd", {"headers": {"task": "jobs.plain", "id": "x"}}, "InvalidTaskError"),
    ],
    ids=["unregistered", "no task", "odd type", "not json", "half written", "null", "two values"],
)
def test_a_message_that_no_worker_can_run_is_buried_byte_for_byte(crew, name, body, about, exception):  # R2
    headers = {key: name if key == "id" else value for key, value in about["headers"].items()}
    headers["mine"] = name
    push(crew, "celery", body, **{**about, "headers": headers})

    def raw():
        found = [json.loads(text) for text in crew.redis.lrange("dead_letters", 0, -1)]
        return [letter for letter in found if letter["headers"].get("mine") == name]

    (message,) = wait_until(raw, 15, crew.logs)
    assert message["body"] == body
    letter = message["headers"]["singlebeat_letter"]
    assert (letter["reason"], letter["queue"]) == ("undecodable", "celery")
    assert exception in letter["exception"]
    shown = DeadLetters(crew.app).get(headers.get("id") or letter["id"])
    assert shown["reason"] == "undecodable"
    assert all(worker.running for worker in crew.workers)
    wait_until(lambda: name not in str(crew.redis.hgetall("unacked")), 5)


def test_a_call_of_an_unregistered_task_is_replayed_once_somebody_knows_it(crew, name):
    push(crew, "elsewhere", EMPTY, headers={"id": name, "task": "not.known", "retries": 0})
    crew.redis.rpoplpush("elsewhere", "celery")
    crew.letter(name)
    DeadLetters(crew.app).replay(name, queue=f"new{name}")
    (raw,) = crew.redis.lrange(f"new{name}", 0, -1)
    message = json.loads(raw)
    assert (message["headers"]["id"], message["body"]) == (name, EMPTY)


def test_messages_that_celery_drops_can_be_left_to_it(make_crew, name):
    crew = make_crew(singlebeat_bury_undecodable=False)
    crew.start(concurrency=1)
    crew.ready()
    push(crew, "celery", EMPTY, headers={"id": name, "task": "not.known"})
    wait_until(lambda: "Received unregistered task" in crew.logs(), 15, crew.logs)
    wait_until(lambda: not crew.unacked(), 5)
    assert DeadLetters(crew.app).count() == 0


@pytest.mark.rabbitmq
def test_on_rabbitmq_letters_go_into_a_queue_that_the_user_declared(make_crew, rabbitmq_url, name):  # R1
    crew = make_crew(broker=rabbitmq_url, singlebeat_redis_url=make_crew.lock_server().url())
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "beyond", "x-max-length": 1}
    with crew.app.connection_for_write() as connection:
        channel = connection.channel()
        channel.queue_declare(queue="dead_letters", durable=True, auto_delete=False, arguments=arguments)
        channel.queue_declare(queue="beyond", durable=True, auto_delete=False)
    crew.start(concurrency=1)
    crew.ready()
    first = crew.send("refuses", name)
    crew.letter(first.id, timeout=30)
    crew.app.send_task("not.known", task_id=name)
    letter = crew.letter(name)
    assert (letter["reason"], letter["queue"]) == ("undecodable", "celery")
    with crew.app.connection_for_write() as connection:
        beyond = connection.SimpleQueue("beyond").get(timeout=10)
        assert beyond.headers["id"] == first.id  # trimmed by the broker's own rules
        beyond.ack()
