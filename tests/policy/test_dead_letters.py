"""When a call has failed for good, and what its letter says (D1 to D5 of `policy.dead_letters`)."""

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.policy import dead_letters
from celery_singlebeat.policy.dead_letters import (
    ATTEMPTS,
    LETTER,
    LONGEST_HISTORY,
    LONGEST_TRACEBACK,
    MOST_TRACEBACKS,
    REPLAYS,
    RERUN,
    WAITING,
    Choice,
    add,
    died_at,
    is_poison,
    last_wait,
    read_history,
    read_replays,
    reason_of,
    record,
    restored,
    shorten,
    shown,
    since_replay,
    unfit,
)
from tests.support.letters import letter_with, longest_letter


def a_letter(**facts):
    failure = {
        "exception": "ValueError",
        "message": "no",
        "traceback": "",
        "history": [],
        "died_at": "2026-01-01T00:00:10+00:00",
    }
    return letter_with(**{**failure, **facts})


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"retryable": True, "retries": 5, "max_retries": 5}, "max_retries"),
        ({"retryable": True, "retries": 0, "max_retries": 0}, "max_retries"),
        ({"retryable": True, "retries": 1, "max_retries": 5}, "not_retryable"),
        ({"retryable": True, "retries": 99, "max_retries": None}, "not_retryable"),
        ({"retryable": False, "retries": 5, "max_retries": 5}, "not_retryable"),
        ({"lost": True, "retryable": True, "retries": 5, "max_retries": 5}, "poison"),
        ({"waited_for_lock": True, "retryable": True}, "conflict_timeout"),
    ],
)
def test_every_failure_for_good_has_one_reason(facts, reason):  # D1
    assert reason_of(**facts) == reason


@pytest.mark.parametrize(("deliveries", "limit", "poison"), [(4, 5, False), (5, 5, True), (1, 1, True)])
def test_a_call_is_poison_at_the_limit(deliveries, limit, poison):  # D2
    assert is_poison(deliveries, limit) is poison


@given(st.integers(0, 200))
def test_the_history_keeps_the_first_record_and_the_newest_ones(length):  # D3
    history = []
    for number in range(1, length + 1):
        history = add(history, record(attempt=number, failed_at="t", exception="E"))
    numbers = [item["attempt"] for item in history]
    assert len(numbers) == min(length, LONGEST_HISTORY)
    if length > LONGEST_HISTORY:
        assert numbers == [1, *range(length - LONGEST_HISTORY + 2, length + 1)]
    else:
        assert numbers == list(range(1, length + 1))


@pytest.mark.parametrize("header", [None, "text", 5, {"a": 1}, [1, "x"]])
def test_a_header_that_is_no_history_counts_as_none(header):  # D3
    assert read_history(header) == []


def test_the_wait_before_this_attempt_is_read_from_the_history():
    assert last_wait([]) is None
    assert last_wait([record(attempt=1, failed_at="t", exception="E", wait=1.25)]) == 1.25
    assert last_wait([{"wait": "nonsense"}]) is None


@pytest.mark.parametrize(("header", "replays"), [(None, 0), (3, 3), (-1, 0), ("7", 0), (True, 0)])
def test_a_header_that_is_no_count_of_replays_counts_as_none(header, replays):
    assert read_replays(header) == replays


@given(st.text(max_size=500), st.integers(80, 400), st.booleans())
def test_a_shortened_text_fits_and_a_short_one_stays(text, longest, middle):  # D4
    short = shorten(text, longest, middle=middle)
    assert len(short.encode()) <= longest
    if len(text.encode()) <= longest:
        assert short == text


def test_a_long_traceback_keeps_its_beginning_and_its_end():  # D4
    text = shorten("begin" + "x" * 100_000 + "end", LONGEST_TRACEBACK, middle=True)
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "left out" in text


@pytest.mark.parametrize("character", ["x", "ä", "🙂", "\udcff"])
def test_a_letter_is_bounded(character):  # D4
    headers = longest_letter(character)
    assert len(json.dumps(headers, ensure_ascii=False).encode("utf-8", "surrogatepass")) < 64 * 1024
    assert ATTEMPTS not in headers


def test_a_letter_knows_when_its_call_failed_first():
    history = [record(attempt=1, failed_at="2026-01-01T00:00:00+00:00", exception="E")]
    assert a_letter(history=history)["first_failed_at"] == "2026-01-01T00:00:00+00:00"
    assert a_letter()["first_failed_at"] == a_letter()["died_at"]


def test_a_replayed_call_starts_anew_with_one_replay_more():  # D5
    headers = {
        "id": "1",
        "task": "t",
        "retries": 5,
        "eta": "x",
        "expires": "y",
        "singlebeat_entry": "nightly",
        "mine": [1],
        LETTER: a_letter(),
        ATTEMPTS: [{}],
        RERUN: True,
        WAITING: 1.0,
        REPLAYS: 2,
    }
    assert restored(headers, 2) == {
        "id": "1",
        "task": "t",
        "retries": 0,
        "eta": None,
        "expires": None,
        "singlebeat_entry": "nightly",
        "mine": [1],
        REPLAYS: 3,
    }


def test_a_letter_is_shown_with_exactly_the_documented_fields():
    made = shown({"id": "1", "task": "t", LETTER: a_letter(replays=1)}, [1], {"a": 2})
    assert set(made) == {
        *("id", "task", "args", "kwargs", "queue", "reason", "exception", "message", "traceback"),
        *("attempts", "first_failed_at", "died_at", "entry", "slot", "replays"),
    }
    assert (made["id"], made["args"], made["kwargs"], made["replays"]) == ("1", [1], {"a": 2}, 1)


def test_a_message_that_is_no_letter_is_shown_all_the_same():
    made = shown({"some": "header"}, None, None)
    assert (made["id"], made["task"], made["reason"], made["attempts"]) == ("", "", None, [])
    assert dead_letters.VERSION == 1


def test_a_replayed_call_takes_its_history_along():  # D3, D5
    first = record(attempt=1, failed_at="t", exception="E")
    again = record(attempt=1, failed_at="u", exception="E", replays=1)
    headers = restored({"id": "1", LETTER: a_letter(history=[first])}, 0)
    assert headers[ATTEMPTS] == [first]
    history = add(headers[ATTEMPTS], again)
    assert history == [first, again]
    assert since_replay(history, 0) == [first]
    assert since_replay(history, 1) == [again]


@given(st.integers(0, 80))
def test_only_the_newest_attempts_keep_their_tracebacks(length):  # D3
    history = []
    for number in range(length):
        history = add(history, record(attempt=number, failed_at="t", exception="E", traceback="t" * 9_999))
    assert sum("traceback" in item for item in history) == min(length, MOST_TRACEBACKS)
    assert len(json.dumps(history)) < 25_000


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (None, "says nothing of itself"),
        ("text", "says nothing of itself"),
        ({}, "says nothing of itself"),
        ({"queue": ""}, "which queue"),
        ({"queue": "celery", "version": 2}, "format 2"),
        ({"queue": "celery", "version": "x"}, "format 'x'"),
        ({"queue": "celery"}, ""),
    ],
)
def test_a_letter_that_cannot_be_sent_says_why(about, words):  # D5
    problem = unfit({"id": "1", "task": "t", LETTER: about})
    assert words in problem
    assert bool(problem) is bool(words)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ({}, True),
        ({"task": "t", "reason": "max_retries", "exception": "ValueError", "entry": "nightly"}, True),
        ({"task": "u"}, False),
        ({"reason": "poison"}, False),
        ({"exception": "KeyError"}, False),
        ({"entry": "hourly"}, False),
        ({"since": "2026-01-01T00:00:10+00:00"}, True),
        ({"since": "2026-01-01T00:00:11+00:00"}, False),
        ({"before": "2026-01-01T00:00:11+00:00"}, True),
        ({"before": "2026-01-01T00:00:10+00:00"}, False),
    ],
)
def test_letters_are_chosen_by_everything_that_is_wanted(wanted, taken):
    moments = {name: datetime.fromisoformat(wanted[name]) for name in ("since", "before") if name in wanted}
    choice = Choice(**{**wanted, **moments})
    assert choice.takes({"id": "1", "task": "t", LETTER: a_letter(entry="nightly")}) is taken


@pytest.mark.parametrize("header", [{}, {LETTER: {"died_at": "yesterday"}}, {LETTER: "text"}])
def test_a_letter_that_does_not_say_when_it_died_has_no_place_in_time(header):
    assert died_at(header) is None
    assert not Choice(since=datetime(2000, 1, 1, tzinfo=timezone.utc)).takes(header)
    assert Choice().takes(header)
