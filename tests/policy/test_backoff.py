"""How long a failed call waits (B1 to B6 of `policy.backoff`)."""

import math
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import backoff as picture
from celery_singlebeat.policy.backoff import Backoff, Jitter, asked_by, ceiling, longest, may_retry, wait

attempts = st.integers(1, 10_000)
luck = st.floats(0, 1, exclude_max=True)
backoffs = st.builds(
    Backoff,
    base=st.floats(0.001, 1000),
    cap=st.floats(0.001, 100_000),
    jitter=st.sampled_from(Jitter),
)


@pytest.mark.parametrize(
    ("base", "cap", "waits"),
    [
        (1, 600, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]),
        (0.25, 600, [0.25, 0.5, 1, 2]),
        (1.5, 5, [1.5, 3, 5, 5]),
        (10, 5, [5, 5]),
    ],
)
def test_waits_double_from_the_base_up_to_the_cap(base, cap, waits):  # B1
    backoff = Backoff(base=base, cap=cap, jitter=Jitter.NONE)
    assert [wait(n, backoff=backoff, luck=0.7) for n in range(1, len(waits) + 1)] == waits


@pytest.mark.parametrize(
    ("jitter", "luck", "expected"),
    [
        (Jitter.FULL, 0.0, 0.0),
        (Jitter.FULL, 0.5, 4.0),
        (Jitter.EQUAL, 0.0, 4.0),
        (Jitter.EQUAL, 0.5, 6.0),
        (Jitter.NONE, 0.5, 8.0),
    ],
)
def test_luck_decides_between_the_bounds_of_the_jitter(jitter, luck, expected):  # B2, B3
    assert wait(4, backoff=Backoff(jitter=jitter), luck=luck) == expected


def test_a_decorrelated_wait_follows_from_the_last_one():  # B3
    backoff = Backoff(jitter=Jitter.DECORRELATED)
    assert wait(1, backoff=backoff, luck=0.5) == 2.0
    assert wait(5, backoff=backoff, luck=0.5, last=10.0) == 15.5


@given(attempts, backoffs, luck, st.none() | st.floats(0, 1e6))
def test_no_wait_is_negative_or_above_the_cap(attempt, backoff, luck, last):  # B1
    seconds = wait(attempt, backoff=backoff, luck=luck, last=last)
    assert 0 <= seconds <= backoff.cap
    assert math.isfinite(seconds)


@given(attempts, st.floats(0.001, 100), st.floats(0.001, 10_000), luck)
def test_full_and_equal_jitter_stay_within_their_bounds(attempt, base, cap, luck):  # B3
    top = ceiling(attempt, Backoff(base=base, cap=cap))
    full = wait(attempt, backoff=Backoff(base=base, cap=cap, jitter=Jitter.FULL), luck=luck)
    equal = wait(attempt, backoff=Backoff(base=base, cap=cap, jitter=Jitter.EQUAL), luck=luck)
    assert 0 <= full <= top
    assert top / 2 <= equal <= top


@given(attempts, backoffs)
def test_a_later_attempt_never_has_a_lower_ceiling(attempt, backoff):  # B1
    assert ceiling(attempt, backoff) <= ceiling(attempt + 1, backoff)


@pytest.mark.parametrize(
    ("retries", "limit", "allowed"),
    [(0, 5, True), (4, 5, True), (5, 5, False), (6, 5, False), (0, 0, False), (10_000, None, True)],
)
def test_a_call_has_its_first_attempt_and_max_retries_more(retries, limit, allowed):  # B4
    assert may_retry(retries, limit) is allowed


NOW = datetime(2026, 3, 2, 12, 0, tzinfo=timezone.utc)


@given(attempts, backoffs, st.floats(0, 1), luck, st.none() | st.floats(0, 1e6))
def test_no_wait_is_below_the_floor_or_above_the_cap(attempt, backoff, part, luck, last):  # B3
    floored = Backoff(base=backoff.base, cap=backoff.cap, floor=part * backoff.cap, jitter=backoff.jitter)
    seconds = wait(attempt, backoff=floored, luck=luck, last=last)
    assert floored.floor <= seconds <= floored.cap


def test_full_jitter_spreads_from_the_floor_to_the_ceiling():  # B3
    backoff = Backoff(floor=2.0)
    assert wait(4, backoff=backoff, luck=0.0) == 2.0
    assert wait(4, backoff=backoff, luck=0.5) == 5.0
    assert wait(1, backoff=backoff, luck=0.5) == 2.0  # where the ceiling is lower


@given(attempts, st.floats(0.001, 1000), st.floats(0.001, 100_000), luck, st.floats(0.01, 1e5))
def test_a_decorrelated_wait_lies_between_the_base_and_three_times_the_last(attempt, base, cap, luck, last):
    # B3
    backoff = Backoff(base=base, cap=cap, jitter=Jitter.DECORRELATED)
    seconds = wait(attempt, backoff=backoff, luck=luck, last=last)
    assert min(base, cap) <= seconds <= min(cap, max(base, 3 * last))


@given(st.integers(1, 60), backoffs, st.lists(luck, min_size=60, max_size=60))
def test_no_wait_of_a_call_is_longer_than_its_longest(retries, backoff, lucks):
    last = None
    for attempt in range(1, retries + 1):
        last = wait(attempt, backoff=backoff, luck=lucks[attempt - 1], last=last)
        assert last <= longest(retries, backoff) * (1 + 1e-9)
    assert longest(None, backoff) == backoff.cap
    assert longest(0, backoff) == 0


@pytest.mark.parametrize(
    ("spent", "next_wait", "allowed"), [(0, 10, True), (50, 10, True), (50.1, 10, False), (70, 0, False)]
)
def test_no_attempt_starts_later_than_the_budget_after_the_first_failure(spent, next_wait, allowed):  # B5
    assert may_retry(3, None, spent=spent, wait=next_wait, budget=60) is allowed
    assert may_retry(3, 5, spent=spent, wait=next_wait, budget=60) is allowed
    assert not may_retry(5, 5, spent=spent, wait=next_wait, budget=60)


class HostileError(Exception):
    @property
    def retry_after(self):
        raise RuntimeError("no")


def response(**headers):
    return SimpleNamespace(headers=headers)


@pytest.mark.parametrize(
    ("about", "seconds"),
    [
        ({"retry_after": 30}, 30.0),
        ({"retry_after": 0.25}, 0.25),
        ({"retry_after": "30"}, 30.0),
        ({"retry_after": timedelta(minutes=2)}, 120.0),
        ({"retry_after": NOW + timedelta(seconds=5)}, 5.0),
        ({"response": response(**{"Retry-After": "120"})}, 120.0),
        ({"response": response(**{"retry-after": "7"})}, 7.0),
        ({"response": response(**{"Retry-After": "Mon, 02 Mar 2026 12:01:00 GMT"})}, 60.0),
        ({"response": response(**{"Retry-After": "Mon, 02 Mar 2026 11:00:00 GMT"})}, 0.0),
        ({"headers": {"Retry-After": "3"}}, 3.0),
        ({"response": response(**{"Retry-After": "soon"})}, None),
        ({"response": {"Error": {}}}, None),
        ({"retry_after": float("inf")}, None),
        ({"retry_after": float("nan")}, None),
        ({"retry_after": -5}, 0.0),
        ({"retry_after": True}, None),
        ({"retry_after": object()}, None),
        ({}, None),
    ],
)
def test_an_exception_may_ask_for_a_wait(about, seconds):  # B6
    error = ValueError("no")
    for name, value in about.items():
        setattr(error, name, value)
    assert asked_by(error, NOW) == seconds


@pytest.mark.parametrize("error", [HostileError(), ValueError, None, "text"])
def test_an_exception_that_asks_in_no_known_way_asks_for_nothing(error):  # B6
    assert asked_by(error, NOW) is None


def test_what_is_asked_for_comes_before_the_jittered_wait_below_the_cap():  # B6
    backoff = Backoff(cap=60, jitter=Jitter.FULL)
    assert wait(3, backoff=backoff, luck=0.0, asked=30) == 30
    assert wait(3, backoff=backoff, luck=0.5, asked=30) == 32
    assert wait(3, backoff=backoff, luck=0.5, asked=3600) == 60


@pytest.mark.parametrize("jitter", Jitter)
def test_ten_thousand_waits_spread_as_the_formula_says(jitter):  # B3
    shown = picture.spread(jitter)
    assert sum(shown.counts) == picture.WAITS
    for count, expected in zip(shown.counts, shown.expected, strict=True):
        assert abs(count - expected) <= 5 * math.sqrt(expected)  # five standard deviations


def test_the_picture_in_the_documentation_is_what_its_script_draws():
    assert picture.PICTURE.read_text("utf-8") == picture.draw()
