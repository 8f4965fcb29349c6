"""Letters by the ten thousand: two operators at once, and reading without holding all."""

import json
import subprocess
import sys
import threading
import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from kombu import Connection, Queue

from celery_singlebeat import DeadLetters
from celery_singlebeat.mover import Mover
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.store.letter_ports import Verdict
from celery_singlebeat.store.waiting_ports import Rank
from celery_singlebeat.wiring import wire
from tests.support.letters import letter_with

TASKS = ("shop.charge", "shop.refund")
DIED = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)


def headers(number, **about):
    letter = letter_with(
        exception="ValueError" if number % 10 else "KeyError",
        message="no",
        traceback="Traceback (most recent call last): ...",
        history=[dead_letters.record(attempt=1, failed_at="t", exception="ValueError")],
        died_at=(DIED + timedelta(seconds=number)).isoformat(),
    )
    return {"id": f"call{number}", "task": TASKS[number % 2], dead_letters.LETTER: {**letter, **about}}


def payload(number, **about):
    return json.dumps(
        {
            "body": "W1tdLCB7fSwge31d",
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": headers(number, **about),
            "properties": {
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
                "delivery_info": {"exchange": "", "routing_key": "dead_letters"},
            },
        }
    )


def fill(client, number):
    for start in range(0, number, 1000):
        client.lpush("dead_letters", *(payload(n) for n in range(start, min(number, start + 1000))))


@pytest.fixture
def app(redis_url):
    app = Celery("many", broker=redis_url, set_as_current=False)
    yield app
    for store in wire(app).letter_stores():
        store.close()
    app.close()


def sent(client):
    return [json.loads(raw)["headers"]["id"] for raw in client.lrange("celery", 0, -1)]


def replay_all_twice_at_once(folder, *options):
    """Run two `dlq replay --all` at the same moment; how many letters each of them says it replayed."""
    argv = [sys.executable, "-m", "celery", *options, "singlebeat", "dlq", "replay", "--all", "--yes"]
    outputs = [folder / "first", folder / "second"]
    with outputs[0].open("w") as first, outputs[1].open("w") as second:  # a pipe would fill up and halt one
        operators = [
            subprocess.Popen(argv, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
            for file in (first, second)
        ]
        codes = [operator.wait(timeout=90) for operator in operators]
    texts = [output.read_text() for output in outputs]
    assert codes == [0, 0], [text[-1000:] for text in texts]
    return [sum(line.startswith("replayed ") for line in text.splitlines()) for text in texts]


@pytest.mark.process
@pytest.mark.slow
def test_two_commands_replay_all_at_the_same_moment_and_send_each_letter_once(
    tmp_path, redis_client, redis_url
):  # R3
    fill(redis_client, 10_000)
    replayed = replay_all_twice_at_once(tmp_path, "-b", redis_url)
    assert sum(replayed) == 10_000
    counts = Counter(sent(redis_client))
    assert len(counts) == 10_000
    assert set(counts.values()) == {1}
    assert redis_client.llen("dead_letters") == 0


def test_operators_with_other_wishes_do_not_make_each_other_skip_letters(app, redis_client):  # R5
    fill(redis_client, 3_000)
    start, done = threading.Barrier(3), []

    def operate(**wishes):
        letters = DeadLetters(app)
        start.wait()
        done.append(sum(not replayed.problem for replayed in letters.replay_each(**wishes)))

    wishes = ({"task": TASKS[0]}, {"task": TASKS[1], "exception": "ValueError"}, {"exception": "KeyError"})
    operators = [threading.Thread(target=operate, kwargs=wish) for wish in wishes]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()
    counts = Counter(sent(redis_client))
    assert len(counts) == 3_000
    assert set(counts.values()) == {1}
    assert sum(done) == 3_000
    assert DeadLetters(app).count() == 0


def test_a_reader_meets_every_letter_while_others_take_some(app, redis_client):  # R5
    fill(redis_client, 2_000)
    seen = []
    for position, letter in enumerate(DeadLetters(app).each()):
        seen.append(letter["id"])
        if position % 150 == 0:  # each time another part of what was read already
            raws = redis_client.lrange("dead_letters", -10 - position // 2, -1)
            for raw in raws[:10]:
                redis_client.lrem("dead_letters", -1, raw)
            redis_client.lpush("dead_letters", payload(5_000 + position))
    assert len(seen) == len(set(seen))
    assert {f"call{number}" for number in range(2_000)} <= set(seen)


def test_a_reader_begins_again_where_everything_it_read_is_gone(app, redis_client):  # R5
    fill(redis_client, 1_000)
    seen = []
    for letter in DeadLetters(app).each():
        seen.append(letter["id"])
        if len(seen) == 200:
            redis_client.ltrim("dead_letters", 0, 1_000 - 200 - 51)
    assert seen == [f"call{number}" for number in range(200)] + [
        f"call{number}" for number in range(250, 1_000)
    ]


def test_a_short_list_of_many_letters_reads_a_page(app, redis_client):  # R5
    fill(redis_client, 5_000)
    before = redis_client.info("stats")["total_net_output_bytes"]
    found = DeadLetters(app).list(limit=20)
    assert [letter["id"] for letter in found] == [f"call{number}" for number in range(20)]
    one = len(payload(1))
    assert redis_client.info("stats")["total_net_output_bytes"] - before < 1_000 * one


def test_a_rate_and_a_limit_are_kept(app, redis_client):
    fill(redis_client, 50)
    clock = wire(app).clock
    began = clock.monotonic()
    done = list(DeadLetters(app).replay_each(limit=5, rate=20))
    assert clock.monotonic() - began >= 5 / 20
    assert [replayed.letter["id"] for replayed in done] == [f"call{number}" for number in range(5)]
    assert len(sent(redis_client)) == 5


def test_letters_that_are_buried_meanwhile_are_left_and_told(app, redis_client):
    fill(redis_client, 3)
    future = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    redis_client.lpush("dead_letters", payload(99, died_at=future))
    found = list(DeadLetters(app).replay_each())
    assert [(item.letter["id"], item.is_young) for item in found] == [
        ("call0", False),
        ("call1", False),
        ("call2", False),
        ("call99", True),
    ]
    assert redis_client.llen("dead_letters") == 1
    assert DeadLetters(app).replay("call99")["id"] == "call99"  # whoever names it, means it


def test_what_cannot_be_sent_stays_and_says_why(app, redis_client):  # D5
    fill(redis_client, 2)
    redis_client.lpush("dead_letters", "half a lett", payload(7, version=9), payload(8, queue=None))
    found = {item.letter["id"]: item.problem for item in DeadLetters(app).replay_each()}
    assert len(found) == 5
    assert (found["call0"], found["call1"]) == ("", "")
    assert "format 9" in found["call7"]
    assert "which queue" in found["call8"]
    (nameless,) = [letter_id for letter_id in found if letter_id.startswith("nameless-")]
    assert "says nothing of itself" in found[nameless]
    assert DeadLetters(app).get(nameless)["reason"] is None
    assert redis_client.llen("dead_letters") == 3
    assert DeadLetters(app).purge(ids=[nameless]) == 1


def test_a_queue_that_takes_nothing_loses_no_letter(app, redis_client):  # R4
    fill(redis_client, 3)
    redis_client.set("celery", "not a list")
    with pytest.raises(Exception, match="WRONGTYPE"):
        DeadLetters(app).replay("call1")
    assert [letter["id"] for letter in DeadLetters(app).list()] == ["call0", "call1", "call2"]


def test_letters_that_are_too_old_are_trimmed_and_counted(redis_url, redis_client):
    app = Celery("many", broker=redis_url, set_as_current=False)
    app.conf.singlebeat_dead_letter_max_age = 3600
    fill(redis_client, 300)
    redis_client.lpush("dead_letters", payload(1000, died_at=datetime.now(timezone.utc).isoformat()))
    Mover(wire(app), Rank.WORKER).turn()
    assert [letter["id"] for letter in DeadLetters(app).list()] == ["call1000"]
    assert redis_client.hget("singlebeat:many:{sb}:counters", "dead_letters_trimmed") == "300"


@pytest.fixture
def many_on_rabbitmq(rabbitmq_url, redis_url):
    """An app with 1,000 letters on RabbitMQ; `python -m benchmarks.letters --broker rabbitmq` takes more."""
    app = Celery("many", broker=rabbitmq_url, set_as_current=False)
    app.conf.singlebeat_redis_url = redis_url
    with Connection(rabbitmq_url) as connection:
        channel = connection.channel()
        for queue in ("dead_letters", "celery"):
            channel.queue_declare(queue=queue, durable=True, auto_delete=False)
        producer = connection.Producer()
        for number in range(1_000):
            producer.publish(
                b"[[], {}, {}]",
                routing_key="dead_letters",
                content_type="application/json",
                content_encoding="utf-8",
                headers=headers(number),
                correlation_id=f"call{number}",
            )
    yield app
    app.close()


@pytest.mark.rabbitmq
@pytest.mark.process
@pytest.mark.slow
def test_on_rabbitmq_two_commands_at_the_same_moment_send_each_letter_once(
    tmp_path, many_on_rabbitmq, rabbitmq_url, redis_url
):  # R3, R5
    letters = DeadLetters(many_on_rabbitmq)
    assert sum(1 for _ in letters.each()) == 1_000
    first = letters.list(task=TASKS[1], limit=3)  # what a reader puts back is at once where it was
    assert [letter["id"] for letter in first] == ["call1", "call3", "call5"]
    (tmp_path / "many.py").write_text(
        f"from celery import Celery\napp = Celery('many', broker={rabbitmq_url!r})\n"
        f"app.conf.singlebeat_redis_url = {redis_url!r}\n"
    )
    replayed = replay_all_twice_at_once(tmp_path, "-A", "many")
    assert sum(replayed) == 1_000
    with Connection(rabbitmq_url) as connection:
        queue = Queue("celery", channel=connection.default_channel)
        counts = Counter()
        while (message := queue.get(no_ack=True)) is not None:
            counts[message.headers["id"]] += 1
    assert len(counts) == 1_000
    assert set(counts.values()) == {1}
    assert letters.count() == 0


def test_a_sweep_that_is_closed_leaves_the_rest(app, redis_client):  # R5
    fill(redis_client, 500)
    sweep = wire(app).letter_store("dead_letters").sweep(lambda _: Verdict.DROP, step=1)
    assert next(sweep).letter.headers["id"] == "call0"
    sweep.close()
    assert redis_client.llen("dead_letters") == 499
