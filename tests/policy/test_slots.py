import uuid
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.policy.slots import Dispatch, Misfire, MissedRules, Skip, judge, task_id

NOON = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)


def at(minute):
    return NOON + timedelta(minutes=minute)


@pytest.mark.parametrize(
    ("misfire", "verdicts"),
    [
        (Misfire.SKIP, [Skip(at(0), "skip"), Skip(at(1), "skip")]),
        (Misfire.LATEST, [Skip(at(0), "superseded"), Dispatch(at(1))]),
        (Misfire.ALL, [Dispatch(at(0)), Dispatch(at(1))]),
    ],
)
def test_slots_missed_during_an_outage(misfire, verdicts):
    assert judge([at(0), at(1)], now=at(10), rules=MissedRules(misfire=misfire)) == verdicts


@pytest.mark.parametrize("misfire", Misfire)
def test_slots_that_fell_within_a_failover_are_dispatched_whatever_the_policy(misfire):  # S2
    due = [NOON, NOON + timedelta(seconds=5)]
    now = NOON + timedelta(seconds=20)
    rules = MissedRules(misfire=misfire, failover=20)
    assert judge(due, now=now, rules=rules) == [Dispatch(slot) for slot in due]


@pytest.mark.parametrize("misfire", Misfire)
def test_a_slot_later_than_its_grace_never_runs(misfire):  # S3
    rules = MissedRules(misfire=misfire, grace=3, failover=20)
    assert judge([NOON], now=NOON + timedelta(seconds=4), rules=rules) == [Skip(NOON, "grace")]
    assert judge([NOON], now=NOON + timedelta(seconds=3), rules=rules) == [Dispatch(NOON)]


@pytest.mark.parametrize("misfire", Misfire)
def test_a_slot_later_than_celerys_deadline_never_runs(misfire):  # S3
    rules = MissedRules(misfire=misfire, deadline=3, failover=20)
    assert judge([NOON], now=NOON + timedelta(seconds=4), rules=rules) == [Skip(NOON, "deadline")]
    assert judge([NOON], now=NOON + timedelta(seconds=3), rules=rules) == [Dispatch(NOON)]


def test_all_catches_up_the_newest_up_to_its_limit():
    rules = MissedRules(misfire=Misfire.ALL, limit=2)
    due = [at(0), at(1), at(2)]
    expected = [Skip(at(0), "limit"), Dispatch(at(1)), Dispatch(at(2))]
    assert judge(due, now=at(30), rules=rules) == expected


@given(
    gaps=st.lists(st.floats(0.001, 4000), min_size=1, max_size=30),
    misfire=st.sampled_from(Misfire),
    grace=st.none() | st.floats(0, 4000),
    limit=st.integers(0, 10),
    late=st.floats(0, 4000),
)
def test_every_due_slot_gets_one_verdict_in_its_order(gaps, misfire, grace, limit, late):  # S1
    due, slot = [], NOON
    for gap in gaps:
        slot += timedelta(seconds=gap)
        due.append(slot)
    rules = MissedRules(misfire=misfire, grace=grace, limit=limit)
    verdicts = judge(due, now=slot + timedelta(seconds=late), rules=rules)
    assert [verdict.slot for verdict in verdicts] == due
    caught_up = [
        v for v in verdicts if isinstance(v, Dispatch) and (slot - v.slot).total_seconds() + late > 20
    ]
    assert len(caught_up) <= {Misfire.SKIP: 0, Misfire.LATEST: 1, Misfire.ALL: limit}[misfire]


def test_the_same_slot_has_the_same_task_id_everywhere_and_no_other_has():  # S4
    one = task_id("singlebeat:shop", "report", NOON)
    assert one == task_id("singlebeat:shop", "report", NOON.astimezone(timezone(timedelta(hours=2))))
    assert uuid.UUID(one).version == 5
    others = [
        task_id("singlebeat:shop", "report", at(1)),
        task_id("singlebeat:shop", "other", NOON),
        task_id("singlebeat:cafe", "report", NOON),
        task_id("singlebeat:shop", "report", NOON, "run"),
    ]
    assert len({one, *others}) == 5
