"""What a worker makes of a task's backoff: budgets, servers that say when, and retries by hand."""

import itertools

import pytest

pytestmark = [pytest.mark.process, pytest.mark.redis]


def waits(crew, name):
    moments = [float(text.split()[1]) for text in crew.events(name)]
    return [later - sooner for sooner, later in itertools.pairwise(moments)]


def test_a_retry_by_hand_waits_as_an_automatic_one_does(crew, name):  # B1
    automatic, by_hand = crew.send("fails", name), crew.send("fails_by_hand", f"{name}h")
    found = [crew.letter(result.id) for result in (automatic, by_hand)]
    assert [[item.get("wait") for item in letter["attempts"]] for letter in found] == [
        [0.1, 0.2, 0.4, None]
    ] * 2
    assert [letter["reason"] for letter in found] == ["max_retries"] * 2


def test_a_call_whose_time_is_used_up_is_buried(crew, name):  # B5
    result = crew.send("fails_for_a_second", name)
    letter = crew.letter(result.id)
    # After 0.3 and 0.6 the next wait would be 1.2, and end after the budget of a second.
    assert (letter["reason"], len(letter["attempts"])) == ("max_retries", 3)
    assert len(crew.events(name)) == 3


def test_a_call_waits_as_long_as_its_exception_asks(crew, name):  # B6
    result = crew.send("is_told_to_wait", name)
    letter = crew.letter(result.id)
    (wait,) = waits(crew, name)
    assert wait >= 1.5
    assert letter["attempts"][0]["wait"] == pytest.approx(1.51)


def test_a_countdown_by_hand_wins_over_what_the_exception_asks(crew, name):  # B6
    result = crew.send("is_told_to_wait", name, 0.05)
    letter = crew.letter(result.id)
    assert letter["attempts"][0]["wait"] == 0.05


def test_arguments_by_hand_win(crew, name):
    result = crew.send("changes_its_mind", name, 1)
    assert result.get(timeout=15) == 3
    assert crew.events(name) == ["1", "2", "3"]


def test_an_exception_without_text_and_pickle_is_tried_again_and_buried(crew, name):  # G7
    result = crew.send("fails_oddly", name)
    letter = crew.letter(result.id)
    assert (letter["reason"], letter["exception"]) == ("max_retries", "OddError")
    assert [item["exception"] for item in letter["attempts"]] == ["OddError"] * 2
    assert crew.events(name) == ["ran"] * 2


def test_a_retry_with_arguments_that_cannot_travel_is_a_failure_like_any_other(crew, name):  # G7
    result = crew.send("retries_with_an_object", name)
    letter = crew.letter(result.id)
    assert letter["reason"] == "max_retries"
    assert [item["exception"] for item in letter["attempts"]] == ["EncodeError", "MaxRetriesExceededError"]
    assert letter["args"] == [name]
    assert crew.events(name) == ["ran"] * 2
