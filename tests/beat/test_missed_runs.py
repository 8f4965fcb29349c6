"""Stops and restarts of any length, on a clock that is moved: what runs late, what does not, what is told.

Each start is a new replica over the same store in memory, as after a deploy.
"""

from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import crontab

from celery_singlebeat import signals
from celery_singlebeat.testing import FakeClock
from tests.support.simulated import Fleet, messages, run

UTC = timezone.utc
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SUNDAY = datetime(2026, 3, 1, tzinfo=UTC)
FRIDAY = datetime(2026, 3, 27, 15, 30, tzinfo=UTC)  # three Sundays later


def fleet_at(moment):
    clock = FakeClock(moment)
    return Fleet(clock), clock


def live(fleet, clock, entries, span, **settings):
    """One replica leads for a while, and ends; what it sent, as (entry, second on the clock)."""
    with messages(clock) as sent, fleet.leader(entries, **settings) as scheduler:
        run(scheduler, clock, clock.now() + span)
    return [(name, moment.replace(microsecond=0)) for name, moment, _ in sent]


def times(sent):
    return [moment.strftime("%a %H:%M") for _, moment in sent]


@pytest.fixture
def skipped():
    """(entry, slot, reason) of each slot that is told to have been skipped."""
    found = []

    def hear(entry, slot, reason, **_):
        found.append((entry, slot, reason))

    signals.slot_skipped.connect(hear, weak=False)
    yield found
    signals.slot_skipped.disconnect(hear)


@pytest.mark.parametrize(
    ("keys", "settings", "ran", "reasons"),
    [
        ({}, {}, ["Fri 15:30"], ["superseded"] * 2),
        ({"misfire": "all"}, {}, ["Fri 15:30"] * 3, []),
        ({"misfire": "skip"}, {}, [], ["skip"] * 3),
        ({"misfire_grace": 86_400}, {}, [], ["grace"] * 3),
        ({"misfire": "all", "misfire_grace": 6 * 86_400}, {}, ["Fri 15:30"], ["grace"] * 2),
        ({"misfire": "all", "catch_up_limit": 2}, {}, ["Fri 15:30"] * 2, ["limit"]),
        ({}, {"beat_cron_starting_deadline": 3600}, [], ["deadline"] * 3),
        ({}, {"beat_cron_starting_deadline": "1000000"}, ["Fri 15:30"], ["deadline"] * 2),
    ],
)
def test_after_a_long_stop_each_slot_gets_one_verdict_and_nothing_else_runs(
    skipped, caplog, keys, settings, ran, reasons
):  # S1, S3
    fleet, clock = fleet_at(SUNDAY - HOUR)
    weekly = {"weekly": {"schedule": crontab(0, 3, day_of_week="sun"), **keys}}
    assert times(live(fleet, clock, weekly, 5 * HOUR)) == ["Sun 03:00"]
    clock.advance((FRIDAY - clock.now()).total_seconds())
    with messages(clock) as sent, fleet.leader(weekly, **settings) as scheduler:
        run(scheduler, clock, clock.now() + HOUR)
        missed = scheduler._machine._store.overview().counters.get("missed", 0)
    assert times([(name, moment) for name, moment, _ in sent]) == ran
    assert [reason for _, _, reason in skipped] == reasons
    assert missed == len(reasons)
    assert caplog.text.count("does not run") == len(reasons)
    clock.advance((SUNDAY + 28 * DAY - HOUR - clock.now()).total_seconds())
    assert times(live(fleet, clock, weekly, 5 * HOUR, **settings)) == ["Sun 03:00"]


def test_a_deadline_of_celery_concerns_crontabs_alone(skipped):  # S3
    fleet, clock = fleet_at(SUNDAY)
    entries = {"cron": crontab(0), "interval": 3600.0}
    live(fleet, clock, entries, MINUTE, beat_cron_starting_deadline=60)
    clock.advance(3.5 * 3600)
    assert [name for name, _ in live(fleet, clock, entries, MINUTE, beat_cron_starting_deadline=60)] == [
        "interval"
    ]
    assert {(entry, reason) for entry, _, reason in skipped} == {
        ("cron", "deadline"),
        ("interval", "superseded"),
    }


def test_slots_beyond_the_newest_are_told_together_and_all_are_counted(skipped, caplog):  # S1
    fleet, clock = fleet_at(SUNDAY)
    entries = {"often": 60.0, "cron": {"schedule": crontab(), "misfire": "skip"}}
    live(fleet, clock, entries, timedelta(seconds=30))
    clock.advance(3 * 86_400)
    with fleet.leader(entries) as scheduler:
        run(scheduler, clock, clock.now() + timedelta(seconds=1))
        missed = scheduler._machine._store.overview().counters["missed"]
    assert missed == 2 * 4320 - 1
    assert len(skipped) == 40
    assert "entry 'often': 4299 more slots before" in caplog.text
    assert "entry 'cron': 4300 more slots before" in caplog.text
    assert caplog.text.count("does not run") == 40


@pytest.mark.parametrize("up", [pytest.param(0.001, marks=pytest.mark.slow), 3, 9.9])
def test_a_restart_more_often_than_the_interval_starves_nothing(up):  # T1
    fleet, clock = fleet_at(SUNDAY)
    sent = []
    while clock.now() < SUNDAY + timedelta(seconds=99):
        sent += live(fleet, clock, {"ten": 10.0}, timedelta(seconds=up))
        clock.advance(0.5)
    assert len(sent) == (clock.now() - SUNDAY) // timedelta(seconds=10)
    assert all((moment - SUNDAY).total_seconds() % 10 <= 1 for _, moment in sent)


def test_a_weekly_interval_outlives_daily_deploys():  # T1
    fleet, clock = fleet_at(SUNDAY)
    sent = []
    for _ in range(22):
        sent += live(fleet, clock, {"weekly": timedelta(days=7)}, timedelta(hours=23))
        clock.advance(3600)
    assert [moment - SUNDAY for _, moment in sent] == [7 * DAY, 14 * DAY, 21 * DAY]


def test_restarts_right_after_a_run_repeat_nothing():
    fleet, clock = fleet_at(SUNDAY - MINUTE)
    entries = {"nightly": crontab(0, 0), "hourly": 3600.0}
    assert len(live(fleet, clock, entries, MINUTE)) == 1
    for _ in range(10):
        assert live(fleet, clock, entries, timedelta(seconds=0.01)) == []


def test_a_restart_just_before_a_slot_leaves_it_on_time():
    fleet, clock = fleet_at(SUNDAY)
    live(fleet, clock, {"hourly": 3600.0}, HOUR - timedelta(seconds=5))
    assert live(fleet, clock, {"hourly": 3600.0}, timedelta(seconds=6)) == [("hourly", SUNDAY + HOUR)]


@pytest.mark.parametrize("misfire", ["latest", "all", "skip"])
def test_a_stop_of_seconds_over_a_slot_runs_it_late_whatever_the_policy(misfire):  # S2
    fleet, clock = fleet_at(SUNDAY + timedelta(hours=15, minutes=59))
    entries = {"at four": {"schedule": crontab(0, 16), "misfire": misfire}}
    live(fleet, clock, entries, timedelta(seconds=59))
    clock.advance(16)
    sent = live(fleet, clock, entries, MINUTE)
    assert [(moment - SUNDAY).total_seconds() for _, moment in sent] == [16 * 3600 + 15]


def test_several_overdue_entries_all_run_at_the_first_tick():
    fleet, clock = fleet_at(SUNDAY)
    entries = {"a": 600.0, "b": 600.0, "c": 600.0, "d": crontab(5)}
    live(fleet, clock, entries, MINUTE)
    clock.advance(3600)
    sent = live(fleet, clock, entries, timedelta(seconds=0.001))
    assert sorted(name for name, _ in sent) == ["a", "b", "c", "d"]
    assert len({moment for _, moment in sent}) == 1


def test_a_new_crontab_runs_once_and_at_its_time():
    fleet, clock = fleet_at(SUNDAY - 5 * MINUTE)
    sent = live(fleet, clock, {"midnight": crontab(0, 0)}, timedelta(hours=20))
    assert sent == [("midnight", SUNDAY)]


def test_a_simulated_month_of_a_daily_job_has_one_run_a_day():
    fleet, clock = fleet_at(SUNDAY)
    sent = live(fleet, clock, {"daily": crontab(30, 3)}, 31 * DAY)
    assert [moment for _, moment in sent] == [SUNDAY + n * DAY + timedelta(hours=3.5) for n in range(31)]


def test_a_changed_crontab_is_due_under_its_new_rule_only():
    fleet, clock = fleet_at(SUNDAY)
    live(fleet, clock, {"report": crontab(0, 3)}, timedelta(hours=12))
    clock.advance(3600)
    sent = live(fleet, clock, {"report": crontab(0, 4)}, timedelta(hours=20))
    assert sent == [("report", SUNDAY + DAY + timedelta(hours=4))]


def test_changed_arguments_leave_an_interval_where_it_is():
    fleet, clock = fleet_at(SUNDAY)
    live(fleet, clock, {"hourly": {"schedule": 3600.0}}, timedelta(minutes=45))
    changed = {"hourly": {"schedule": 3600.0, "args": (1,), "options": {"queue": "other"}, "misfire": "all"}}
    assert live(fleet, clock, changed, timedelta(minutes=16)) == [("hourly", SUNDAY + HOUR)]


def test_no_removed_entry_runs():
    fleet, clock = fleet_at(SUNDAY)
    live(fleet, clock, {"a": 60.0, "b": crontab()}, timedelta(minutes=5))
    assert live(fleet, clock, {}, timedelta(minutes=5)) == []


@pytest.mark.parametrize("deadline", ["soon", 0])
def test_a_wrong_deadline_is_refused_with_one_line(deadline):  # X3
    fleet, _ = fleet_at(SUNDAY)
    with (
        pytest.raises(
            Exception, match=rf"beat_cron_starting_deadline={deadline!r}: give a number of seconds"
        ) as caught,
        fleet.replica({}, beat_cron_starting_deadline=deadline),
    ):
        pass
    assert "\n" not in str(caught.value)
