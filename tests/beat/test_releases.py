"""Replicas with different schedules, as during a release: whose counts, what is kept, what is seen of it."""

import copy
import random
from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import crontab

from celery_singlebeat import Leadership
from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.processes import wait_until
from tests.support.simulated import Fleet, messages, run

UTC = timezone.utc
SUNDAY = datetime(2026, 3, 1, tzinfo=UTC)
OLD = {"kept": 600.0, "changed": 600.0, "removed": 600.0}
NEW = {"kept": {"schedule": 600.0, "args": (2,)}, "changed": 900.0, "added": 600.0}


@pytest.fixture
def clock():
    return FakeClock(SUNDAY)


@pytest.fixture
def fleet(clock):
    return Fleet(clock)


def live(fleet, clock, entries, span):
    """A release is out for a while: when each of its entries ran."""
    with messages(clock) as sent, fleet.leader(entries) as scheduler:
        run(scheduler, clock, clock.now() + span)
    found = {}
    for name, moment, _ in sent:
        found.setdefault(name, []).append(moment.strftime("%H:%M:%S"))
    return found


def state(scheduler):
    kept = scheduler._machine._store._kept
    return copy.deepcopy((kept.marks, kept.entries, kept.runs))


def test_the_leaders_own_schedule_counts_and_a_standby_writes_nothing(fleet, clock):  # B5
    with messages(clock) as sent, fleet.leader(OLD) as leader, fleet.replica(NEW) as standby:
        before = state(leader)
        for _ in range(50):
            assert standby.tick() < 1
        assert state(leader) == before
        while clock.now() < SUNDAY + timedelta(minutes=31):
            run(leader, clock, clock.now() + timedelta(minutes=1))
            standby.tick()
        assert set(state(leader)[1]) == set(OLD)
    assert {name for name, _, _ in sent} == set(OLD)
    assert all(len([1 for name, _, _ in sent if name == entry]) == 3 for entry in OLD)


def test_forward_and_back_each_entry_keeps_where_it_stands(fleet, clock):
    seconds = timedelta(minutes=14, seconds=30)
    assert live(fleet, clock, OLD, seconds) == {name: ["00:10:00"] for name in OLD}
    # the changed rule begins at 00:14:30, and so does what was added
    assert live(fleet, clock, NEW, timedelta(minutes=16)) == {
        "kept": ["00:20:00", "00:30:00"],
        "changed": ["00:29:30"],
        "added": ["00:24:30"],
    }
    # what was removed goes on in its rhythm, and the newest slot that it has missed runs late
    back = live(fleet, clock, OLD, timedelta(minutes=15))
    assert back["kept"] == ["00:40:00"]
    assert back["changed"] == ["00:40:30"]
    assert back["removed"] == ["00:30:30", "00:40:00"]
    forth = live(fleet, clock, NEW, timedelta(minutes=10))
    assert forth["added"] == ["00:45:30", "00:54:30"]
    assert forth["kept"] == ["00:50:00"]


def test_a_schedule_that_every_process_draws_anew_is_seen_in_the_status(fleet, clock):
    draw = random.Random(4)

    def drawn():
        return {"steady": 600.0, "drawn": crontab(minute=draw.randrange(60))}

    with fleet.leader(drawn()) as leader, fleet.replica(drawn()) as one, fleet.replica(drawn()) as two:
        one.tick(), two.tick()
        nodes = {scheduler._wiring.settings.node for scheduler in (one, two)}
        status = Leadership(leader.app).status
        wait_until(lambda: set(status()["other_schedules"]) == nodes, 10, lambda: str(status()))


def test_replicas_with_the_same_entries_in_another_order_have_the_same_schedule(fleet, clock):
    turned = dict(reversed(OLD.items()))
    with fleet.leader(OLD) as leader, fleet.replica(turned) as standby:
        standby.tick()
        node, status = standby._wiring.settings.node, Leadership(leader.app).status
        wait_until(lambda: any(shown["node"] == node for shown in status()["standbys"]), 10, "never heard")
        assert status()["other_schedules"] == []


def test_where_a_removed_entry_stood_is_kept_for_a_release_back_and_not_for_ever(fleet, clock):
    def known(entries):
        with fleet.leader(entries) as scheduler:
            run(scheduler, clock, clock.now() + timedelta(minutes=15))
            memory = scheduler._machine._store.remember()
        return set(memory.entries) | set(memory.marks)

    assert known({"kept": 600.0, "removed": 600.0}) == {"kept", "removed"}
    for _ in range(4):
        assert known({"kept": 600.0}) == {"kept", "removed"}
        clock.advance(timedelta(days=29).total_seconds())
    assert known({"kept": 600.0}) == {"kept"}
    # as an entry that nobody has seen before
    back = live(fleet, clock, {"removed": 600.0}, timedelta(minutes=11))
    assert [len(moments) for moments in back.values()] == [1]


@pytest.mark.slow
def test_an_entry_that_comes_back_now_and_then_is_never_forgotten(fleet, clock):
    yearly = {"yearly": crontab(0, 0, day_of_month=1, month_of_year=1)}
    for _ in range(5):
        for entries in (yearly, {"other": 600.0}):
            with fleet.leader(entries) as scheduler:
                run(scheduler, clock, clock.now() + timedelta(minutes=1))
                anchor = scheduler._machine._store.remember().entries["yearly"].anchor
            clock.advance(timedelta(days=60).total_seconds())
    assert anchor < SUNDAY + timedelta(minutes=1)


def test_an_entry_that_was_back_for_a_while_is_kept(fleet, clock):
    daily = {"kept": 86_400.0}
    live(fleet, clock, {**daily, "back": 86_400.0}, timedelta(days=1, minutes=1))
    with fleet.leader(daily) as scheduler:  # it notes that the other has gone
        fields = {"name": "back", "task": "back", "schedule": 86_400.0, "app": scheduler.app}
        line = scheduler._line("back", scheduler.Entry(**fields), scheduler._defaults)
        scheduler._machine.amend([line], (), {})  # as a row that is made again
        clock.advance(timedelta(days=100).total_seconds())
        run(scheduler, clock, clock.now() + timedelta(minutes=1))
        before = scheduler._machine._store.remember()
    assert clock.now() - before.gone["back"] > timedelta(days=100)
    with fleet.leader(daily) as scheduler:
        after = scheduler._machine._store.remember()
    assert (after.marks["back"], after.entries["back"]) == (before.marks["back"], before.entries["back"])
