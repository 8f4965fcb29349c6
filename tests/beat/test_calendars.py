"""Crontabs against a calendar by brute force: anything that Celery can parse, anywhere, around any change."""

import calendar
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import celery
import pytest
from celery import Celery
from celery.schedules import crontab
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.calendars import all_changes, ours, rows
from celery_singlebeat.beat.timetables import timetable
from tests.support.walls import Fields, changes, expected

UTC = timezone.utc
#: Where clocks are put forward and back at different hours, by half an hour, one or two, at midnight, never;
#: where winter time is the exception, where a day was skipped, where a change was undone within a week, and
#: where summer time ends for a month of fasting.
ZONES = [
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Africa/Cairo",
    "America/Santiago",
    "America/Havana",
    "America/Noronha",
    "Atlantic/Azores",
    "Africa/Casablanca",
    "Asia/Tehran",
    "Pacific/Apia",
    "Asia/Kolkata",
    "UTC",
]
EVERYWHERE = sorted(available_timezones())
SKIPPED_DAY = datetime(2011, 12, 30, 10, tzinfo=UTC)


@lru_cache
def dates(zone, year):
    """Days around which slots are compared: each change of a year, and dates that are easily got wrong."""
    easily = [datetime(year, 12, 31, 20), datetime(year, 2, 28, 20), datetime(year, 4, 30, 12)]
    return [*changes(ZoneInfo(zone), year), *(moment.replace(tzinfo=UTC) for moment in easily)]


@st.composite
def moments(draw):
    """A zone, and a moment near one of its dates."""
    zone = draw(st.sampled_from(ZONES) | st.sampled_from(EVERYWHERE))
    year = draw(st.sampled_from([2026, 2028]) | st.integers(2000, 2035))
    return zone, draw(st.sampled_from(dates(zone, year)))


# Celery 5.4 does not know the months by name
KNOWS_MONTHS = tuple(map(int, celery.__version__.split(".")[:2])) >= (5, 5)
MONTHS = [name.lower() for name in calendar.month_abbr[1:]] if KNOWS_MONTHS else []
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@st.composite
def parts(draw, low, high, names=()):
    """A field as its text, and the numbers that it means; spelt out here, not asked of Celery."""

    def spell(number):
        return names[number - low] if names and draw(st.booleans()) else str(number)

    numbers = st.integers(low, high)
    texts, meant = [], set()
    for kind in draw(st.lists(st.sampled_from(["one", "range", "step", "*/"]), min_size=1, max_size=3)):
        first, last, step = draw(numbers), draw(numbers), draw(st.integers(1, high))
        through = list(range(first, last + 1))
        if last < first:  # it wraps around
            through = [*range(first, high + 1), *range(low, last + 1)]
        if kind == "one":
            texts.append(spell(first))
            meant.add(first)
        elif kind == "range":
            texts.append(f"{spell(first)}-{spell(last)}")
            meant.update(through)
        elif kind == "step":
            texts.append(f"{spell(first)}-{spell(last)}/{step}")
            meant.update(through[::step])
        else:
            texts.append(f"*/{step}")
            meant.update(range(low, high + 1, step))
    return ",".join(texts), meant


def star(low, high):
    return st.just(("*", set(range(low, high + 1))))


FIELDS = st.fixed_dictionaries(
    {
        "minute": star(0, 59) | parts(0, 59),
        "hour": star(0, 23) | parts(0, 23),
        "day_of_month": star(1, 31) | parts(1, 31),
        "month_of_year": star(1, 12) | parts(1, 12, MONTHS),
        "day_of_week": star(0, 6) | parts(0, 6, WEEKDAYS),
    }
)
EVERY = {
    "minute": ("*", set(range(60))),
    "hour": ("*", set(range(24))),
    "day_of_month": ("*", set(range(1, 32))),
    "month_of_year": ("*", set(range(1, 13))),
    "day_of_week": ("*", set(range(7))),
}


def cron_in(zone, **fields):
    app = Celery("calendars", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    return crontab(**fields, app=app)


def slots(cron, start, end):
    table, moment, found = timetable(cron), start, []
    while True:
        moment = table.after(moment, anchor=start)
        if moment is None or moment > end:
            return found
        found.append(moment)


def meant(fields):
    return Fields(
        minutes=fields["minute"][1],
        hours=fields["hour"][1],
        days=fields["day_of_month"][1],
        months=fields["month_of_year"][1],
        weekdays=fields["day_of_week"][1],
    )


def parsed(zone, fields):
    try:
        return cron_in(zone, **{name: text for name, (text, _) in fields.items()})
    except ValueError:
        return None  # Celery refuses dates that never come


@settings(max_examples=100, deadline=None)
@given(data=st.data(), fields=FIELDS, place=moments())
@example(data=None, fields={**EVERY, "hour": ("9", {9})}, place=("Pacific/Apia", SKIPPED_DAY))
@example(data=None, fields=EVERY, place=("Pacific/Apia", SKIPPED_DAY))
def test_every_crontab_runs_when_the_clock_on_the_wall_says_so(data, fields, place):  # K1, Z2, T2, T3
    zone, around = place
    cron = parsed(zone, fields)
    if cron is None:
        return
    before = (
        (20 * 60, 7) if data is None else data.draw(st.tuples(st.integers(1, 30 * 60), st.integers(0, 59)))
    )
    start = around - timedelta(minutes=before[0], seconds=before[1])
    end = start + timedelta(hours=32)
    assert slots(cron, start, end) == expected(meant(fields), ZoneInfo(zone), start, end)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), fields=FIELDS, place=moments())
def test_a_slot_is_found_from_however_far_it_is_asked_for(data, fields, place):  # K1
    zone, around = place
    fields = {**fields, "minute": ("59", {59})}
    cron = parsed(zone, fields)
    if cron is None:
        return
    start = around - timedelta(days=data.draw(st.integers(0, 300)))
    first = timetable(cron).after(start, anchor=start)
    end = start + timedelta(days=500)
    wanted = expected(meant(fields), ZoneInfo(zone), start, min(end, first) if first else end)
    assert wanted == ([first] if first and first <= end else [])


@pytest.mark.parametrize("field", ["minute", "hour", "day_of_week"])
def test_a_crontab_that_names_no_number_never_runs(field):  # K2
    assert timetable(cron_in("UTC", **{field: []})).after(SKIPPED_DAY, anchor=SKIPPED_DAY) is None


@pytest.mark.parametrize(("weekday", "year"), [("sun", 2032), ("tue", 2028), ("mon", 2112)])
def test_a_leap_day_on_a_day_of_the_week_may_be_decades_away(weekday, year):  # K2
    cron = cron_in("UTC", minute=0, hour=0, day_of_month=29, month_of_year=2, day_of_week=weekday)
    start = datetime(2084 if year > 2100 else 2026, 3, 1, tzinfo=UTC)
    assert timetable(cron).after(start, anchor=start) == datetime(year, 2, 29, tzinfo=UTC)


def _title(change):
    return f"{change.zone} {'forward' if change.forward else 'back'}"


@pytest.mark.slow
@pytest.mark.parametrize("change", all_changes(), ids=_title)
def test_a_day_around_each_change_is_sent_as_the_clock_on_the_wall_says(change):  # T2, T3
    assert ours(change) == {job: change.expected(job) for job in change.jobs}


def test_the_table_in_the_documentation_is_of_these_changes_and_ours_is_equal():
    page = (Path(__file__).resolve().parents[2] / "docs" / "calendars.md").read_text("utf-8")
    found = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| A")]
    found += [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| Europe")]
    assert sorted(line[:4] for line in found) == sorted(line[:4] for line in rows({}))
    assert {line[4] for line in found} == {"equal"}
