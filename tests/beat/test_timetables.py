"""Slots of every kind of schedule, both changes of the clock, and schedules with a will of their own."""

import functools
import itertools
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar
from celery.utils.time import LocalTimezone
from dateutil import tz as dateutil_zone
from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.beat.timetables import Interval, Live, timetable
from celery_singlebeat.moments import millis, whole
from celery_singlebeat.zones import zone_name
from tests.support.walls import Fields, changes, expected

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


@pytest.mark.parametrize("app_zone", ["UTC", None])
def test_a_clock_that_tells_the_present_offset_of_the_machine_means_its_zone(monkeypatch, app_zone):  # Z1
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        app = app_in(app_zone or LocalTimezone())
        clock = (lambda: datetime.now().astimezone()) if app_zone else app.now
        table = timetable(crontab(minute=30, hour=9, nowfun=clock, app=app))
        for day in (NOON, NOON + timedelta(days=120)):
            assert table.after(day, anchor=day).astimezone(ZoneInfo("Europe/Berlin")).hour == 9
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_clock_with_an_offset_of_its_own_keeps_it():  # Z1
    fixed = timezone(timedelta(hours=8))
    cron = crontab(minute=0, hour=10, nowfun=lambda: datetime.now(fixed), app=app_in("Europe/Berlin"))
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


def test_a_date_that_never_comes_has_no_slot():  # K2
    cron = crontab(minute=0, hour=0, day_of_month=30, month_of_year="1,2", app=app_in("UTC"))
    cron.month_of_year, cron._orig_month_of_year = {2}, "2"
    assert timetable(cron).after(NOON, anchor=NOON) is None


@pytest.mark.parametrize(
    ("zone", "period", "expected"),
    [
        ("UTC", timedelta(minutes=20), ["02 12:23:00", "02 12:43:00", "02 13:03:00"]),
        ("UTC", timedelta(seconds=2.5), ["02 12:03:09", "02 12:03:11", "02 12:03:13"]),
        ("UTC", timedelta(seconds=0.5), ["02 12:03:07", "02 12:03:08", "02 12:03:08"]),
        ("Asia/Kolkata", timedelta(hours=2), ["02 19:00:00", "02 21:00:00", "02 23:00:00"]),
        ("Europe/Berlin", timedelta(days=1), ["03 00:00:00", "04 00:00:00", "05 00:00:00"]),
    ],
)
def test_a_relative_interval_is_rounded_as_celery_rounds_it(zone, period, expected):
    table = timetable(schedule(period, relative=True, app=app_in(zone)))
    start = NOON + timedelta(minutes=3, seconds=7)
    found, moment = [], start
    for _ in expected:
        moment = table.after(moment, anchor=start)
        found.append(moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M:%S"))
    assert found == expected


def test_a_relative_interval_of_days_ends_at_midnight_of_its_zone_through_both_changes():
    table = timetable(schedule(timedelta(days=1), relative=True, app=app_in("Europe/Berlin")))
    for day in (datetime(2026, 3, 27, 23, tzinfo=UTC), datetime(2026, 10, 23, 22, tzinfo=UTC)):
        found = slots(table, day, 73, zone="Europe/Berlin")
        assert [slot[3:8] for slot in found] == ["00:00"] * 3


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("seconds", [0.001, 0.3, 1, 59, 60, 3601, 5400, 86400, 100_000])
def test_a_relative_interval_always_goes_on_and_never_in_a_rush(zone, seconds):
    period = timedelta(seconds=seconds)
    table = timetable(schedule(period, relative=True, app=app_in(zone)))
    moment = NOON + timedelta(seconds=17.25)
    for _ in range(60):
        found = table.after(moment, anchor=NOON)
        assert moment < found <= moment + max(period, timedelta(days=1, hours=1))
        moment = found
    assert moment - NOON >= 20 * period


def test_a_relative_interval_with_a_clock_of_its_own_is_rounded_like_any_other():
    class Now(schedule):
        def now(self):
            return datetime.now(ZoneInfo("Asia/Kolkata"))

    table = timetable(Now(timedelta(hours=2), relative=True, app=app_in("UTC")))
    assert table.after(NOON, anchor=NOON) == NOON + timedelta(minutes=90)  # 19:00 there


@pytest.mark.parametrize(
    ("event", "latitude", "longitude"),
    [("sunrise", -37.8, 144.96), ("sunset", 52.5, 13.4), ("solar_noon", 0, 0), ("dawn_nautical", 48, 11)],
)
def test_an_event_of_the_sun_comes_once_a_day(event, latitude, longitude):
    pytest.importorskip("ephem")
    table = timetable(solar(event, latitude, longitude, app=app_in("UTC")))
    found, moment = [], NOON
    for _ in range(400):
        moment = table.after(moment, anchor=NOON)
        found.append(moment)
    gaps = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert timedelta(hours=23) < min(gaps)
    assert max(gaps) < timedelta(hours=25)


def test_an_event_just_after_an_entry_was_first_seen_is_not_left_out():
    pytest.importorskip("ephem")
    table = timetable(solar("sunrise", 52.5, 13.4, app=app_in("UTC")))
    sunrise = table.after(NOON, anchor=NOON)
    for seconds in (0.5, 1, 30, 500):
        start = sunrise - timedelta(seconds=seconds)
        assert abs(table.after(start, anchor=start) - sunrise) < timedelta(seconds=1)


def test_where_the_sun_does_not_rise_nothing_runs_until_it_does():
    pytest.importorskip("ephem")
    table = timetable(solar("sunrise", 69.6, 18.9, app=app_in("UTC")))  # Tromso
    autumn = datetime(2026, 11, 20, tzinfo=UTC)
    found, moment = [], autumn
    for _ in range(20):
        moment = table.after(moment, anchor=autumn)
        found.append(moment)
    dark = max(itertools.pairwise(found), key=lambda pair: pair[1] - pair[0])
    assert dark[0].month == 11
    assert dark[1].month == 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (schedule(timedelta(0)), "below the resolution"),
        (schedule(timedelta(seconds=-5)), "below the resolution"),
        (schedule(timedelta(microseconds=900), relative=True), "below the resolution"),
    ],
)
def test_an_interval_that_cannot_be_is_refused(asked, words):
    asked.app = app_in("UTC")
    with pytest.raises(ValueError, match=words):
        timetable(asked)


def test_an_interval_beyond_all_dates_has_no_slot():
    assert Interval(timedelta(days=4_000_000)).after(NOON, anchor=NOON) is None


FORMS = {
    "a name": lambda: "Europe/Berlin",
    "zoneinfo": lambda: ZoneInfo("Europe/Berlin"),
    "pytz": lambda: pytest.importorskip("pytz").timezone("Europe/Berlin"),
    "dateutil": lambda: dateutil_zone.gettz("Europe/Berlin"),
}


@functools.cache
def around_the_changes_of_berlin(daily):
    berlin, day = ZoneInfo("Europe/Berlin"), timedelta(hours=30)
    meant = Fields(minutes={30}, hours={2}) if daily else Fields(minutes={0, 20, 40})
    spans = [(change - day, change + day) for change in changes(berlin, 2026)]
    return {span: expected(meant, berlin, *span) for span in spans}


@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cron", [{"minute": 30, "hour": 2}, {"minute": "*/20"}])
def test_every_form_of_a_zone_means_the_same(form, enable_utc, cron):  # Z1
    app = app_in(FORMS[form]())
    app.conf.enable_utc = enable_utc
    table = timetable(crontab(**cron, app=app))
    for (start, end), meant in around_the_changes_of_berlin("hour" in cron).items():
        found, moment = [], start
        while (moment := table.after(moment, anchor=start)) <= end:
            found.append(moment)
        assert found == meant


@pytest.mark.parametrize(
    ("zone", "hour"),
    [
        (UTC, 9),
        (timezone(timedelta(hours=5, minutes=30)), 3.5),
        (dateutil_zone.UTC, 9),
        (dateutil_zone.tzoffset(None, -3600), 10),
        ("UTC", 9),
        (None, 9),
    ],
)
def test_zones_without_changes_are_taken_as_well(zone, hour):  # Z1
    table = timetable(crontab(minute=0, hour=9, app=app_in(zone)))
    midnight = NOON - timedelta(hours=12)
    assert table.after(midnight, anchor=midnight) == midnight + timedelta(hours=hour)


def test_the_zone_of_the_machine_is_read_from_the_machine(monkeypatch):  # Z1
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        table = timetable(crontab(minute=30, hour=2, app=app_in(LocalTimezone())))
        start = datetime(2026, 10, 24, 12, tzinfo=UTC)
        assert slots(table, start, 48, zone="Europe/Berlin") == ["25 02:30 +0200", "26 02:30 +0100"]
        table = timetable(crontab(minute=0, hour=3, app=app_in(LocalTimezone())))
        assert slots(table, start, 24, zone="Europe/Berlin") == ["25 03:00 +0100"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_zone_has_the_same_name_in_every_process_and_form():  # Z3
    names = {form: zone_name(FORMS[form]()) for form in ("zoneinfo", "pytz")}
    assert set(names.values()) == {"Europe/Berlin"}
    assert zone_name(UTC) == zone_name(ZoneInfo("UTC")) == "UTC"
    berlin, again = (zone_name(dateutil_zone.gettz.nocache("Europe/Berlin")) for _ in range(2))
    assert berlin == again != zone_name(dateutil_zone.gettz("America/New_York"))
    assert "0x" not in berlin


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
    assert table.is_due(NOON, NOON, NOON) == (False, 7.0)
    assert moody.asked_about == [NOON]
    assert moody.asked_about[0].tzinfo is not None


@pytest.mark.parametrize("wait", [None, "soon", 3])
def test_whatever_such_a_schedule_says_to_wait_is_survived(wait):  # T4
    moody = Moody(app_in("UTC"))
    moody.answer = (True, wait)
    assert timetable(moody).is_due(NOON, NOON, NOON)[0]


LITTLE = timedelta(milliseconds=5)


@dataclass(frozen=True)
class Frozen:
    """A schedule that is none of Celery's, and whose attributes cannot be set."""

    shown: datetime

    def now(self):
        return self.shown

    def is_due(self, last_run_at):
        return schedstate(self.now() > last_run_at, 7)


class SlotsAlone:
    """One that has no place for an attribute."""

    __slots__ = ()

    def now(self):
        return NOON + LITTLE

    def is_due(self, last_run_at):
        return schedstate(self.now() > last_run_at, 7)


class Shown(schedule):
    """One whose clock is a property."""

    now = property(lambda self: lambda: NOON + LITTLE)

    def is_due(self, last_run_at):
        return schedstate(self.now() > last_run_at, 7)


@pytest.mark.parametrize("asked", [Frozen(NOON + LITTLE), SlotsAlone(), Shown(60)])
def test_a_schedule_whose_attributes_cannot_be_set_is_asked_all_the_same(asked):  # T4
    due, wait = timetable(asked).is_due(NOON - timedelta(1), NOON, NOON + LITTLE)
    assert (due, wait) == (True, 7)


def test_a_subclass_that_decides_itself_is_live_and_one_that_does_not_is_not():
    class Offset(schedule):
        def is_due(self, last_run_at):
            return super().is_due(last_run_at)

    class Named(schedule):
        pass

    class Changing(schedule):
        run_every = property(lambda self: timedelta(seconds=7), lambda self, value: None)

    assert isinstance(timetable(Offset(60, app=app_in("UTC"))), Live)
    assert isinstance(timetable(Changing(60, app=app_in("UTC"))), Live)
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


class Shrinking(schedule):
    """Changes itself each time that it runs."""

    def is_due(self, last_run_at):
        answer = super().is_due(last_run_at)
        if answer.is_due:
            self.run_every /= 2
        return answer


def test_a_schedule_that_changes_itself_is_asked_itself_and_no_copy():  # T4
    now = [NOON]
    shrinking = Shrinking(timedelta(seconds=60), nowfun=lambda: now[0], app=app_in("UTC"))
    table = timetable(shrinking)
    assert not table.is_due(NOON, now[0], now[0])[0]
    now[0] += timedelta(seconds=60)
    assert table.is_due(NOON, now[0], now[0])[0]
    assert shrinking.run_every == timedelta(seconds=30)


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), -1, True, timedelta(1), NOON])
def test_no_answer_of_such_a_schedule_is_beyond_survival(wait):  # T4
    moody = Moody(app_in("UTC"))
    moody.answer = (False, wait)
    due, seconds = timetable(moody).is_due(NOON, NOON, NOON)
    assert not due
    assert timedelta(seconds=min(max(seconds, 0), 30)) >= timedelta(0)


def test_millis_round_down_and_come_back():
    moment = datetime(2026, 3, 2, 12, 0, 0, 123999, tzinfo=UTC)
    assert millis(moment) % 1000 == 123
    assert whole(moment).microsecond == 123000
