from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.policy.jitter import delay
from celery_singlebeat.policy.pauses import Pause

START = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)
moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(timezone.utc))


@given(st.text(), moments, st.floats(0, 1e6), st.floats(0.001, 1e6))
def test_a_delay_is_stable_and_ends_before_the_next_slot(entry, slot, jitter, gap):  # J1 J2
    following = slot + timedelta(seconds=gap)
    found = delay(entry, slot, jitter=jitter, following=following)
    assert found == delay(entry, slot, jitter=jitter, following=following)
    assert timedelta(0) <= found < timedelta(seconds=gap)
    assert found <= timedelta(seconds=jitter)


def test_delays_are_spread_over_the_whole_jitter():  # J2
    found = [delay(f"e{n}", START, jitter=100, following=None).total_seconds() for n in range(2000)]
    tenths = [sum(10 * n <= value < 10 * n + 10 for value in found) for n in range(10)]
    assert all(140 <= number <= 260 for number in tenths)
    assert {delay("e", START + timedelta(days=n), jitter=9, following=None) for n in range(5)} != {
        timedelta(0)
    }


def test_a_pause_keeps_back_whatever_is_due_and_afterwards_the_slots_of_its_time():
    end = START + timedelta(hours=1)
    for slot in (START - timedelta(hours=1), START, end):
        assert Pause(START).covers(slot)
    assert not Pause(START, end).covers(START - timedelta(milliseconds=1))
    assert Pause(START, end).covers(end - timedelta(milliseconds=1))
    assert not Pause(START, end).covers(end)
