"""Slots of every kind of schedule, both changes of the clock, and schedules with a will of their own."""

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.beat.timetables import Interval, Live, timetable
from celery_singlebeat.moments import millis, whole

UTC = timezone.utc
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
# Celery 5.4 has no from_string
FROM_STRING = crontab.from_string("17 4 * * 2") if hasattr(crontab, "from_string") else crontab(17, 4, 2)


def app_in(zone):
    app = Celery("zones", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    return app


def slots(table, start, hours, *, zone="UTC"):
    """Local wall times of all slots after `start`, with the offset's sign and hours."""
    found, moment = [], start
    while True:
        moment = table.after(moment, anchor=start)
        if moment is None or moment > start + timedelta(hours=hours):
            return found
        found.append(moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z"))


def test_an_interval_keeps_to_its_anchor():  # T1
    table = Interval(timedelta(seconds=10))
    assert table.after(NOON, anchor=NOON) == NOON + timedelta(seconds=10)
    late = NOON + timedelta(seconds=47.3)
    assert table.after(late, anchor=NOON) == NOON + timedelta(seconds=50)


@given(
    period=st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=40)),
    turns=st.integers(1, 50),
    anchor=st.integers(0, 4_000_000_000_000),
)
def test_interval_slots_are_whole_milliseconds_rise_and_do_not_drift(period, turns, anchor):  # T1
    start = whole(datetime.fromtimestamp(anchor / 1000, UTC))
    table, moment, seen = Interval(period), start, []
    for _ in range(turns):
        moment = table.after(moment, anchor=start)
        seen.append(moment)
    assert seen == sorted(set(seen))
    assert all(slot == whole(slot) for slot in seen)
    exact = start + turns * period
    assert abs((seen[-1] - exact).total_seconds()) <= 0.001 * (
        1 + (period < timedelta(milliseconds=2)) * turns
    )


# One row: zone, crontab, start (UTC), hours, expected wall times.
CHANGES = [
    (
        "Europe/Berlin", crontab(minute=30, hour=2), datetime(2026, 3, 28, 12, tzinfo=UTC), 48,
        ["29 03:00 +0200", "30 02:30 +0200"],
    ),
    (
        "Europe/Berlin", crontab(minute=30, hour=2), datetime(2026, 10, 24, 12, tzinfo=UTC), 48,
        ["25 02:30 +0200", "26 02:30 +0100"],
    ),
    (
        "Europe/Berlin", crontab(minute=0), datetime(2026, 10, 24, 23, 30, tzinfo=UTC), 4,
        ["25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100", "25 04:00 +0100"],
    ),
    (
        "Europe/Berlin", crontab(minute=0), datetime(2026, 3, 28, 23, 30, tzinfo=UTC), 3,
        ["29 01:00 +0100", "29 03:00 +0200", "29 04:00 +0200"],
    ),
    (
        "America/New_York", crontab(minute="*/15"), datetime(2026, 11, 1, 5, 20, tzinfo=UTC), 1.25,
        ["01 01:30 -0400", "01 01:45 -0400", "01 01:00 -0500", "01 01:15 -0500", "01 01:30 -0500"],
    ),
    (
        "America/New_York", crontab(minute="*/10", hour=2), datetime(2026, 3, 8, 6, 30, tzinfo=UTC), 12,
        ["08 03:00 -0400"],
    ),
    (
        "Australia/Lord_Howe", crontab(minute="*/20"), datetime(2026, 4, 4, 14, 15, tzinfo=UTC), 1.25,
        ["05 01:20 +1100", "05 01:40 +1100", "05 01:40 +1030", "05 02:00 +1030"],
    ),
    (
        "Australia/Lord_Howe", crontab(minute=15, hour=2), datetime(2026, 10, 3, 12, tzinfo=UTC), 20,
        ["04 02:30 +1100"],
    ),
    (
        "America/Santiago", crontab(minute=30, hour=0), datetime(2026, 9, 5, 12, tzinfo=UTC), 40,
        ["06 01:00 -0300", "07 00:30 -0300"],
    ),
    (
        "Africa/Cairo", crontab(minute=0, hour=23), datetime(2026, 10, 29, 12, tzinfo=UTC), 36,
        ["29 23:00 +0300", "30 23:00 +0200"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "cron", "start", "hours", "expected"), CHANGES)
def test_both_changes_of_the_clock(zone, cron, start, hours, expected):  # T2, T3
    cron.app = app_in(zone)
    assert slots(timetable(cron), start, hours, zone=zone) == expected


def test_the_entrys_zone_wins_over_the_apps():
    cron = crontab(minute=0, hour=9, app=app_in("America/New_York"))
    table = timetable(cron, zone=ZoneInfo("Europe/London"))
    assert table.after(NOON, anchor=NOON) == datetime(2026, 3, 3, 9, tzinfo=UTC)


def test_a_crontab_with_a_clock_of_its_own_keeps_that_clocks_zone():
    class Shanghai(crontab):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, nowfun=lambda: datetime.now(ZoneInfo("Asia/Shanghai")), **kwargs)

    cron = Shanghai(minute=0, hour=10, app=app_in("UTC"))
    assert timetable(cron).after(NOON, anchor=NOON) == datetime(2026, 3, 3, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        (crontab(minute="0, 30"), "02 12:30"),
        (crontab(hour=9, minute=0, day_of_week="tue", day_of_month="1-7"), "03 09:00"),
        (crontab(minute="*/40"), "02 12:40"),
        (crontab(minute=0, hour="22-2"), "02 22:00"),
        (crontab(0, 0, month_of_year="*/3", day_of_month="1"), "01 00:00"),
        (FROM_STRING, "03 04:17"),
        (crontab(minute=5, hour=3, day_of_month=29, month_of_year=2), "29 03:05"),
    ],
)
def test_calendars_are_celerys_own(cron, expected):
    cron.app = app_in("UTC")
    assert timetable(cron).after(NOON, anchor=NOON).strftime("%d %H:%M") == expected


def test_a_date_that_never_comes_has_no_slot():
    cron = crontab(minute=0, hour=0, day_of_month=30, month_of_year="1,2", app=app_in("UTC"))
    cron.month_of_year, cron._orig_month_of_year = {2}, "2"
    assert timetable(cron).after(NOON, anchor=NOON) is None


def test_a_relative_interval_is_rounded_as_celery_rounds_it():
    table = timetable(schedule(timedelta(minutes=20), relative=True, app=app_in("UTC")))
    start = NOON + timedelta(minutes=3, seconds=7)
    assert table.after(start, anchor=start) == NOON + timedelta(minutes=23)


def test_asking_never_changes_the_users_object():
    cron = crontab(minute=0, app=app_in("UTC"))
    before = dict(vars(cron))
    timetable(cron).after(NOON, anchor=NOON)
    assert vars(cron) == before


class Moody(BaseSchedule):
    """Decides when it is asked, and counts how often it was."""

    def __init__(self, app):
        super().__init__(app=app)
        self.asked_about = []
        self.answer = (False, 7)

    def is_due(self, last_run_at):
        self.asked_about.append(last_run_at)
        return schedstate(*self.answer)


def test_a_schedule_with_its_own_will_is_asked_at_the_moment():  # T4
    moody = Moody(app_in("Europe/Berlin"))
    table = timetable(moody)
    assert isinstance(table, Live)
    assert not table.is_predictable
    assert table.is_due(NOON) == (False, 7.0)
    assert moody.asked_about == [NOON]
    assert moody.asked_about[0].tzinfo is not None


@pytest.mark.parametrize("wait", [None, "soon", 3])
def test_whatever_such_a_schedule_says_to_wait_is_survived(wait):  # T4
    moody = Moody(app_in("UTC"))
    moody.answer = (True, wait)
    assert timetable(moody).is_due(NOON)[0]


def test_a_subclass_that_decides_itself_is_live_and_one_that_does_not_is_not():
    class Offset(schedule):
        def is_due(self, last_run_at):
            return super().is_due(last_run_at)

    class Named(schedule):
        pass

    assert isinstance(timetable(Offset(60, app=app_in("UTC"))), Live)
    assert isinstance(timetable(Named(60, app=app_in("UTC"))), Interval)


def test_rules_differ_exactly_when_slots_may():
    app = app_in("UTC")
    rules = [
        timetable(schedule(60, app=app)).rule(),
        timetable(schedule(61, app=app)).rule(),
        timetable(crontab(minute=1, app=app)).rule(),
        timetable(crontab(minute=1, app=app), zone=ZoneInfo("Europe/Berlin")).rule(),
    ]
    assert len(set(rules)) == 4
    same = timetable(crontab(minute="1", app=app)).rule()
    assert same == rules[2]


def test_millis_round_down_and_come_back():
    moment = datetime(2026, 3, 2, 12, 0, 0, 123999, tzinfo=UTC)
    assert millis(moment) % 1000 == 123
    assert whole(moment).microsecond == 123000
