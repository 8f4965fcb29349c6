"""Crontabs against a calendar by brute force: anything that Celery can parse, anywhere, around any change."""

import calendar
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery
from celery.schedules import crontab
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calendars import all_changes, ours, rows
from celery_singlebeat.beat.timetables import timetable
from tests.support.walls import Fields, changes, expected

UTC = timezone.utc
#: Where clocks are put forward and back at different hours, by an hour or by half of one, at midnight, never;
#: where a day was skipped, and where summer time ends for a month of fasting.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Santiago",
    "America/Havana",
    "Atlantic/Azores",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Kolkata",
    "UTC",
]
#: Days around which slots are compared: both changes of several years, and dates that are easily got wrong.
DATES = {
    zone: [moment for year in (2026, 2027) for moment in changes(ZoneInfo(zone), year)]
    + [
        datetime(2027, 12, 31, 20, tzinfo=UTC),
        datetime(2028, 2, 28, 20, tzinfo=UTC),
        datetime(2027, 2, 28, 20, tzinfo=UTC),
        datetime(2026, 4, 30, 12, tzinfo=UTC),
    ]
    for zone in ZONES
} | {"Pacific/Apia": [datetime(2011, 12, 30, 10, tzinfo=UTC), datetime(2011, 9, 24, 14, tzinfo=UTC)]}

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
@given(data=st.data(), fields=FIELDS, zone=st.sampled_from(ZONES))
def test_every_crontab_runs_when_the_clock_on_the_wall_says_so(data, fields, zone):  # K1, Z2, T2, T3
    cron = parsed(zone, fields)
    if cron is None:
        return
    around = data.draw(st.sampled_from(DATES[zone]))
    start = around - timedelta(
        minutes=data.draw(st.integers(1, 30 * 60)), seconds=data.draw(st.integers(0, 59))
    )
    end = start + timedelta(hours=32)
    assert slots(cron, start, end) == expected(meant(fields), ZoneInfo(zone), start, end)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), fields=FIELDS, zone=st.sampled_from(ZONES))
def test_a_slot_is_found_from_however_far_it_is_asked_for(data, fields, zone):  # K1
    cron = parsed(zone, {**fields, "minute": ("59", {59})})
    if cron is None:
        return
    start = data.draw(st.sampled_from(DATES[zone])) - timedelta(days=data.draw(st.integers(0, 300)))
    first = timetable(cron).after(start, anchor=start)
    end = start + timedelta(days=500)
    wanted = expected(
        Fields(
            minutes={59},
            hours=fields["hour"][1],
            days=fields["day_of_month"][1],
            months=fields["month_of_year"][1],
            weekdays=fields["day_of_week"][1],
        ),
        ZoneInfo(zone),
        start,
        min(end, first) if first else end,
    )
    assert wanted == ([first] if first and first <= end else [])


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
