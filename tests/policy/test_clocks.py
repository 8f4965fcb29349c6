from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.moments import Monotonic
from celery_singlebeat.policy.clocks import Offset, combine, disagreement, due_clock, sample

NOON = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


def heard(at, store_time, *, took=0.0):
    return sample(asked_at=Monotonic(at - took), answered_at=Monotonic(at), store_time=store_time)


def test_an_answer_proves_an_interval():  # C1
    assert heard(10.0, NOON, took=0.5) == Offset(Monotonic(10.0), NOON, NOON + timedelta(seconds=0.5))


@given(
    delays=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=20),
    gap=st.floats(0.1, 5),
)
def test_the_estimate_never_runs_ahead_of_an_even_clock(delays, gap):  # C2
    offset, at = None, 0.0
    for there, back in delays:
        read_at = at + there
        answered = read_at + back
        offset = combine(
            offset,
            sample(
                asked_at=Monotonic(at),
                answered_at=Monotonic(answered),
                store_time=NOON + timedelta(seconds=read_at),
            ),
        )
        truth = NOON + timedelta(seconds=answered)
        assert offset.earliest(Monotonic(answered)) <= truth + timedelta(microseconds=2)
        assert offset.latest(Monotonic(answered)) >= truth - timedelta(microseconds=2)
        at = answered + gap


def test_a_fast_answer_keeps_the_estimate_narrow_when_slow_ones_follow():
    offset = heard(10.0, NOON, took=0.001)
    offset = combine(offset, heard(12.0, NOON + timedelta(seconds=1.1), took=1.0))
    assert offset.high - offset.low < timedelta(seconds=0.01)


def test_a_step_of_the_stores_clock_is_believed_at_once():
    offset = combine(heard(10.0, NOON), heard(11.0, NOON + HOUR))
    assert offset.earliest(Monotonic(11.0)) == NOON + HOUR


def test_both_clocks_must_say_that_a_slot_is_due():  # C3
    offset = heard(10.0, NOON)
    moment = Monotonic(10.0)
    assert due_clock(NOON + HOUR, offset, moment) == NOON
    assert due_clock(NOON - HOUR, offset, moment) == NOON - HOUR


def test_disagreement_is_signed_and_zero_within_what_is_provable():
    offset = heard(10.0, NOON, took=0.5)
    moment = Monotonic(10.0)
    assert disagreement(NOON + timedelta(seconds=0.3), offset, moment) == 0
    assert disagreement(NOON - HOUR, offset, moment) == -3600
    assert disagreement(NOON + HOUR, offset, moment) == 3599.5
    assert disagreement(NOON, None, moment) == 0
