"""The schedules that Celery has not, by themselves and under stock beat's questions."""

import itertools
import pickle
import time
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_singlebeat.beat.timetables import Foreseen, timetable
from celery_singlebeat.schedules import clocked, rrule

START = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)
NINE = "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0"


def slots(schedule, moment, number):
    found = []
    while len(found) < number and (moment := schedule.slot_after(moment)) is not None:
        found.append(moment)
    return found


def wall(moment, zone):
    return moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M")


def test_a_clocked_schedule_has_one_slot():
    once = clocked(START)
    assert slots(once, START - timedelta(days=400), 3) == [START]
    assert once.slot_after(START) is None


def test_a_clocked_schedule_needs_a_zone():
    with pytest.raises(ValueError, match="no time zone"):
        clocked(datetime(2026, 3, 2))


def test_a_rule_keeps_its_wall_time_through_both_changes_of_the_clock():  # T5
    nine = rrule(NINE, datetime(2020, 1, 1), "Europe/Berlin")
    for day in (datetime(2026, 3, 27, 12), datetime(2026, 10, 23, 12)):
        found = slots(nine, day.replace(tzinfo=timezone.utc), 4)
        assert {wall(moment, "Europe/Berlin")[3:] for moment in found} == {"09:00"}


@pytest.mark.parametrize(
    ("zone", "time", "around", "expected"),
    [
        (
            "Europe/Berlin",
            "BYHOUR=2;BYMINUTE=30",
            datetime(2026, 3, 28),
            ["28 02:30", "29 03:00", "30 02:30"],
        ),
        (
            "Europe/Berlin",
            "BYHOUR=2;BYMINUTE=30",
            datetime(2026, 10, 24),
            ["24 02:30", "25 02:30", "26 02:30"],
        ),
        (
            "Australia/Lord_Howe",
            "BYHOUR=2;BYMINUTE=15",
            datetime(2026, 10, 3),
            ["03 02:15", "04 02:30", "05 02:15"],
        ),
        (
            "America/Santiago",
            "BYHOUR=0;BYMINUTE=0",
            datetime(2026, 9, 5),
            ["05 00:00", "06 01:00", "07 00:00"],
        ),
    ],
)
def test_a_wall_time_that_does_not_exist_comes_at_the_change_and_one_that_exists_twice_once(
    zone, time, around, expected
):  # T5
    rule = rrule(f"FREQ=DAILY;{time};BYSECOND=0", datetime(2020, 1, 1), zone)
    first = around.replace(tzinfo=ZoneInfo(zone)) - timedelta(minutes=1)
    assert [wall(moment, zone) for moment in slots(rule, first.astimezone(timezone.utc), 3)] == expected


def test_a_rule_of_minutes_counts_real_time_through_the_change():
    rule = rrule("FREQ=MINUTELY;INTERVAL=20", datetime(2020, 1, 1), "Europe/Berlin")
    found = slots(rule, datetime(2026, 10, 24, 23, 30, tzinfo=timezone.utc), 12)
    assert {after - before for before, after in itertools.pairwise(found)} == {timedelta(minutes=20)}


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["WEEKLY", "DAILY", "HOURLY", "MINUTELY", "MONTHLY"]),
    st.integers(1, 9),
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31), timezones=st.just(timezone.utc)),
)
def test_a_rule_asked_from_nearby_answers_as_one_that_counts_from_its_start(freq, interval, moment):
    text = f"FREQ={freq};INTERVAL={interval}"
    start = datetime(2025, 12, 20, 7, 41)
    counted = rrulestr(text, dtstart=start).after(moment.replace(tzinfo=None))
    assert rrule(text, start).slot_after(moment) == counted.replace(tzinfo=timezone.utc)


def test_the_first_slot_of_a_rule_is_its_start():
    start = datetime(2026, 3, 2, 12)
    for rule in ("FREQ=MINUTELY;INTERVAL=3;COUNT=4", "FREQ=DAILY;COUNT=4"):
        found = slots(rrule(rule, start), START - timedelta(seconds=1), 9)
        assert (len(found), found[0]) == (4, START)


def test_a_rule_ends_with_its_count_or_its_until():
    twice = rrule("FREQ=DAILY;COUNT=2", datetime(2026, 3, 1))
    assert len(slots(twice, START - timedelta(days=9), 9)) == 2
    until = rrule("FREQ=DAILY;UNTIL=20260303T230000Z", datetime(2026, 3, 1, 0, 30), "Europe/Berlin")
    assert wall(slots(until, START, 9)[-1], "Europe/Berlin") == "03 00:30"


@pytest.mark.parametrize("frequency", ["DAILY", "HOURLY", "SECONDLY;INTERVAL=3600"])
@pytest.mark.parametrize(
    ("until", "day"),
    [("20260102T140000Z", 2), ("20260102T090000", 2), ("20260103", 2), ("20260102t135959z", 1)],
)
def test_an_until_is_an_instant_in_utc_or_a_wall_time_of_the_zone_however_often_the_rule_repeats(
    frequency, until, day
):
    hour = 9 if frequency == "DAILY" else 14  # of the zone, and in UTC
    key = "until" if until.endswith("z") else "UNTIL"
    text = f"FREQ={frequency};BYHOUR={hour};{key}={until}"
    rule = rrule(text, datetime(2026, 1, 1, 9), "America/New_York")
    assert slots(rule, datetime(2026, 1, 1, tzinfo=timezone.utc), 9)[-1] == datetime(
        2026, 1, day, 14, tzinfo=timezone.utc
    )


@pytest.mark.parametrize("frequency", ["DAILY", "HOURLY"])
@pytest.mark.parametrize("until", ["99991231T235959Z", "99991231T235959", "99991231"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_an_until_may_be_the_end_of_all_time(frequency, until, zone):
    rule = rrule(f"FREQ={frequency};UNTIL={until}", datetime(2026, 1, 1, 9), zone)
    assert len(slots(rule, START, 3)) == 3


@pytest.mark.parametrize(
    ("rule", "zone", "words"),
    [
        ("FREQ=FORTNIGHTLY", "UTC", "cannot be read"),
        ("", "UTC", "cannot be read"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "UTC", "start="),
        ("FREQ=DAILY", "Berlin", "Europe/Berlin"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_in_one_line(rule, zone, words):
    with pytest.raises(ValueError, match=words) as caught:
        rrule(rule, datetime(2026, 1, 1), zone)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schedule", [clocked(START), rrule(NINE, datetime(2026, 1, 1), "Europe/Berlin")])
def test_schedules_survive_pickling_and_compare_by_what_they_say(schedule):
    copy = pickle.loads(pickle.dumps(schedule))
    assert copy == schedule
    assert len({copy, schedule}) == 1
    assert copy.slot_after(START - timedelta(days=1)) == schedule.slot_after(START - timedelta(days=1))


def test_stock_beat_can_ask_them():
    now = START
    once = clocked(START + timedelta(minutes=1), nowfun=lambda: now)
    assert once.is_due(START) == (False, 60.0)
    now = START + timedelta(minutes=2)
    assert once.is_due(START).is_due
    assert not once.is_due(now).is_due
    nine = rrule(NINE, datetime(2026, 1, 1), nowfun=lambda: START)
    assert nine.is_due(START).next == 21 * 3600
    assert nine.is_due(START - timedelta(days=1)).is_due


def test_whatever_names_its_slots_is_asked_for_them():  # T5
    class Twice:
        def slot_after(self, moment):
            return next((at for at in (START, START + timedelta(days=2)) if at > moment), None)

    table = timetable(Twice())
    assert isinstance(table, Foreseen)
    assert table.after(START, anchor=START) == START + timedelta(days=2)
    assert table.ends
    assert table.rule() == timetable(Twice()).rule()  # another text would be another rule, in each process


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL is below 1"),
        ("FREQ=DAILY;INTERVAL=-1", "INTERVAL is below 1"),
        ("FREQ=SECONDLY;COUNT=100000000", "give UNTIL instead"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "names no day"),
        ("FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "names no day"),
        ("FREQ=MINUTELY;BYHOUR=3;BYMONTH=4;BYMONTHDAY=31", "names no day"),
        ("FREQ=WEEKLY;BYMONTH=2;BYMONTHDAY=30", "names no day"),
        ("FREQ=MONTHLY;BYDAY=+6MO", "names no day"),
        ("FREQ=YEARLY;BYYEARDAY=366;BYMONTH=6", "names no day"),
        ("FREQ=SECONDLY;BYSETPOS=5", "as many slots as BYSETPOS"),
        ("FREQ=MINUTELY;BYSECOND=1,2;BYSETPOS=3", "as many slots as BYSETPOS"),
        ("FREQ=DAILY;BYSETPOS=366", "as many slots as BYSETPOS"),
        ("FREQ=MONTHLY;BYDAY=99MO", "cannot be read"),
        ("FREQ=YEARLY;BYEASTER=1000", "cannot be read"),
        ("EXDATE:20260101T000000", "give the rule alone"),
        ("FREQ=DAILY;UNTIL=20269999T000000Z", "cannot be read"),
    ],
)
def test_a_rule_that_would_be_searched_in_vain_is_refused_at_once(rule, words):
    began = time.process_time()
    with pytest.raises(ValueError, match=words) as caught:
        rrule(rule, datetime(2026, 1, 1, 9), "Europe/Berlin")
    assert "\n" not in str(caught.value)
    assert time.process_time() - began < 5  # it takes milliseconds; dateutil takes minutes, or never ends


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29", datetime(2028, 2, 29, 9)),
        ("FREQ=WEEKLY;BYMONTH=1;BYDAY=MO", datetime(2027, 1, 4, 9)),
        ("FREQ=MONTHLY;BYDAY=+5MO", datetime(2026, 3, 30, 9)),
        ("FREQ=YEARLY;BYYEARDAY=366", datetime(2028, 12, 31, 9)),
        ("FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=3", datetime(2028, 2, 29, 3)),
        ("FREQ=MINUTELY;BYSECOND=1,2;BYSETPOS=2", datetime(2026, 3, 2, 12, 0, 2)),
        ("FREQ=DAILY;COUNT=10000", datetime(2026, 3, 3, 9)),
    ],
)
def test_a_rule_that_is_only_rare_is_not_refused(rule, first):
    found = rrule(rule, datetime(2026, 1, 1, 9)).slot_after(START)
    assert found == first.replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "at", [datetime(9999, 12, 31, 23, 59, 59), datetime(1, 1, 1), datetime(1899, 12, 31)]
)
def test_a_moment_that_some_zone_does_not_have_is_refused(at):
    for make in (
        lambda: clocked(at.replace(tzinfo=timezone(timedelta(hours=1)))),
        lambda: rrule("FREQ=DAILY", at),
        lambda: rrule("FREQ=MINUTELY", at.replace(tzinfo=timezone.utc)),
    ):
        with pytest.raises(ValueError, match="is not within the years 1900 to 9998"):
            make()
