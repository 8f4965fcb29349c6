"""A call that fails for good is in the dead-letter queue exactly once, or still in its own (G7)."""

import base64
import itertools
import json
import threading

import pytest

from celery_singlebeat import DeadLetters, LetterNotFound, ReplayRefused, SettingsError
from celery_singlebeat.testing.processes import wait_until
from tests.task.jobs import TTL

pytestmark = [pytest.mark.process, pytest.mark.redis]


def test_attempts_wait_longer_and_longer_and_the_last_one_leaves_a_letter(crew, name):  # B1, G7
    result = crew.send("fails", name, kwargs={"secret": "hush"})
    letter = crew.letter(result.id)
    moments = [float(text.split()[1]) for text in crew.events(name)]
    assert len(moments) == 4
    waits = [later - sooner for sooner, later in itertools.pairwise(moments)]
    assert [wait >= least for wait, least in zip(waits, (0.1, 0.2, 0.4), strict=True)] == [True] * 3
    assert waits[2] < 0.4 + 2
    assert (letter["reason"], letter["exception"]) == ("max_retries", "ValueError")
    assert letter["message"] == "it does not work"
    assert "it does not work" in letter["traceback"]
    assert (letter["args"], letter["kwargs"]) == ([name], {"secret": "hush"})
    assert (letter["queue"], letter["replays"]) == ("celery", 0)
    assert [item["attempt"] for item in letter["attempts"]] == [1, 2, 3, 4]
    assert [item.get("wait") for item in letter["attempts"]] == [0.1, 0.2, 0.4, None]
    assert letter["first_failed_at"] < letter["died_at"]
    assert result.state == "FAILURE"


def test_a_key_is_held_through_the_backoff_for_its_own_call(crew, name):  # N7
    result = crew.send("by_hand", name)
    crew.await_events(name, 1)
    other = crew.send("by_hand", name).get(timeout=10)
    assert (other["skipped"], other["holder"]["task_id"]) == ("conflict", result.id)
    assert result.get(timeout=10) == 2
    moments = [float(text.split()[1]) for text in crew.events(name)]
    assert len(moments) == 3
    assert moments[1] - moments[0] >= 0.2  # a retry by hand has the task's backoff
    assert moments[2] - moments[1] >= 0.4
    wait_until(lambda: crew.lock("by_hand", task_id=result.id) is None)


def test_an_exception_that_is_not_tried_again_leaves_a_letter_at_once(crew, name):  # D1
    result = crew.send("refuses", name)
    letter = crew.letter(result.id)
    assert (letter["reason"], letter["exception"], len(letter["attempts"])) == (
        "not_retryable",
        "KeyError",
        1,
    )
    assert crew.events(name) == ["ran"]


def test_a_letter_is_the_message_itself_with_its_failure_in_a_header(crew, name):  # R2, T6
    result = crew.send("refuses", name, priority=3, headers={"mine": "kept"})
    crew.letter(result.id)
    raws = [json.loads(raw) for raw in crew.redis.lrange("dead_letters", 0, -1)]
    raw = next(item for item in raws if item["headers"]["id"] == result.id)
    assert json.loads(base64.b64decode(raw["body"]))[0] == [name]
    assert raw["headers"]["mine"] == "kept"
    assert raw["headers"]["singlebeat_letter"]["priority"] == 3
    assert raw["properties"]["priority"] == 3
    assert raw["properties"]["correlation_id"] == result.id
    assert raw["properties"]["delivery_info"] == {"exchange": "", "routing_key": "dead_letters"}


def test_burying_acknowledges_the_message(crew, name):  # P1
    result = crew.send("refuses", name)
    crew.letter(result.id)
    wait_until(lambda: result.id not in str(crew.redis.hgetall("unacked")), TTL)


def test_a_letter_is_replayed_to_its_queue_under_its_id_with_all_its_attempts_before_it(crew, name):  # D5
    result = crew.send("fails", name)
    crew.letter(result.id)
    assert len(crew.events(name)) == 4
    DeadLetters(crew.app).replay(result.id)
    again = wait_until(
        lambda: [letter for letter in crew.letters(result.id) if letter["replays"] == 1], 15, crew.logs
    )[0]
    assert [text.split()[0] for text in crew.events(name)] == ["0", "1", "2", "3"] * 2
    assert [(item["attempt"], item.get("replay", 0)) for item in again["attempts"]] == [
        *((number, 0) for number in (1, 2, 3, 4)),
        *((number, 1) for number in (1, 2, 3, 4)),
    ]
    assert again["first_failed_at"] == again["attempts"][0]["failed_at"]
    assert len(crew.letters(result.id)) == 1


def test_of_two_operators_who_replay_a_letter_one_sends_it(make_crew, name):  # R3, guard: letter
    crew = make_crew()
    worker = crew.start()
    crew.ready()
    results = [crew.send("refuses", f"{name}{number}") for number in range(10)]
    for result in results:
        crew.letter(result.id)
    wait_until(lambda: not crew.unacked())
    worker.kill()  # else a call could fail again before the second operator looks
    outcomes, start = [], threading.Barrier(2)

    def operate():
        letters = DeadLetters(crew.app)
        for result in results:
            start.wait()
            try:
                letters.replay(result.id)
                outcomes.append("sent")
            except (LetterNotFound, ReplayRefused):
                outcomes.append("refused")

    operators = [threading.Thread(target=operate) for _ in range(2)]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()
    assert sorted(outcomes) == ["refused"] * 10 + ["sent"] * 10
    sent = [json.loads(raw)["headers"]["id"] for raw in crew.redis.lrange("celery", 0, -1)]
    assert sorted(sent) == sorted(result.id for result in results)
    worker.start()
    for number, result in enumerate(results):
        wait_until(lambda result=result: crew.letters(result.id), 15, crew.logs)
        assert crew.events(f"{name}{number}") == ["ran"] * 2
        assert crew.letters(result.id)[0]["replays"] == 1


def test_a_letter_that_is_not_there_is_said_to_be_not_there(crew):
    letters = DeadLetters(crew.app)
    with pytest.raises(LetterNotFound):
        letters.get("nobody")
    with pytest.raises(LetterNotFound):
        letters.replay("nobody")


def test_letters_are_chosen_by_task_reason_and_time(crew, name):
    first, second = crew.send("refuses", name), crew.send("fails", name)
    older, newer = crew.letter(first.id), crew.letter(second.id)
    letters = DeadLetters(crew.app)
    assert letters.count() >= 2
    assert letters.get(first.id) == older
    task = "tests.task.jobs.refuses"
    ids = [letter["id"] for letter in letters.list(task=task, reason="not_retryable")]
    assert first.id in ids
    assert second.id not in ids
    since = [letter["id"] for letter in letters.list(since=newer["died_at"])]
    assert second.id in since
    assert first.id not in since
    assert len(letters.list(limit=1)) == 1


def test_letters_can_be_thrown_away(make_crew, name):
    crew = make_crew()
    crew.start(concurrency=1)
    crew.ready()
    kept, thrown = crew.send("fails", name), crew.send("refuses", name)
    crew.letter(kept.id)
    crew.letter(thrown.id)
    letters = DeadLetters(crew.app)
    assert letters.purge(reason="not_retryable") == 1
    assert [letter["id"] for letter in letters.list()] == [kept.id]
    assert letters.purge() == 1
    assert letters.count() == 0


def test_a_letter_that_cannot_be_decoded_is_still_a_letter(crew, name):
    message = {"body": "%%%", "content-type": "application/x-odd", "content-encoding": "utf-8"}
    headers = {"id": name, "task": "odd", "singlebeat_letter": {"reason": "max_retries"}}
    crew.redis.lpush("dead_letters", json.dumps({**message, "headers": headers, "properties": {}}))
    crew.redis.lpush("dead_letters", "not even json")
    letters = DeadLetters(crew.app)
    letter = letters.get(name)
    assert (letter["args"], letter["kwargs"], letter["reason"]) == (None, None, "max_retries")
    with pytest.raises(ReplayRefused):
        letters.replay(name)
    crew.redis.lrem("dead_letters", 1, "not even json")


def test_the_oldest_letters_are_trimmed_beyond_the_limit_and_counted(make_crew, name):
    crew = make_crew(singlebeat_dead_letter_limit=3)
    crew.start(concurrency=1)
    crew.ready()
    results = [crew.send("refuses", f"{name}{number}") for number in range(5)]
    wait_until(lambda: crew.letters(results[-1].id), 15, crew.logs)
    ids = [letter["id"] for letter in DeadLetters(crew.app).list()]
    assert ids == [result.id for result in results[-3:]]
    assert crew.redis.hget("singlebeat:jobs:{sb}:counters", "dead_letters_trimmed") == "2"


@pytest.mark.fault
def test_while_a_letter_cannot_be_written_its_message_stays_unacknowledged(make_crew, name):  # P1
    crew = make_crew()
    crew.start(concurrency=1)
    crew.ready()
    crew.redis.hset("dead_letters", "in", "the way")
    result = crew.send("refuses", name)
    wait_until(lambda: "cannot be buried yet" in crew.logs(), 15, crew.logs)
    assert result.id in str(crew.redis.hgetall("unacked"))
    crew.redis.delete("dead_letters")
    assert crew.letter(result.id)["reason"] == "not_retryable"
    wait_until(lambda: not crew.unacked(), 5)
    assert crew.events(name) == ["ran"]


def test_without_a_queue_for_them_there_are_no_letters(make_crew, name):
    crew = make_crew(singlebeat_dead_letter_queue="")
    crew.start(concurrency=1)
    crew.ready()
    result = crew.send("refuses", name)
    with pytest.raises(KeyError):
        result.get(timeout=10)
    wait_until(lambda: not crew.unacked())
    assert not crew.redis.exists("dead_letters")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"singlebeat_lock_tll": 5}, "did you mean singlebeat_lock_ttl?"),
        ({"singlebeat_lock_ttl": "soon"}, "singlebeat_lock_ttl='soon'"),
    ],
)
def test_a_worker_with_bad_settings_stops_with_one_line(make_crew, settings, problem):  # X3
    crew = make_crew(**settings)
    worker = crew.start()
    assert worker.wait(20) != 0
    lines = [line for line in worker.logs().splitlines() if problem in line]
    assert len(lines) == 1
    assert "Traceback" not in worker.logs()
    assert issubclass(SettingsError, ValueError)
