"""How long a failed call waits (B1 to B4 of `policy.backoff`)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.policy.backoff import Backoff, Jitter, ceiling, may_retry, wait

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
