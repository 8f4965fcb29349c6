"""Dynamic entries on their way into the store and back."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_singlebeat.beat import records
from celery_singlebeat.errors import EntryError
from celery_singlebeat.schedules import clocked, rrule

AT = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)

SCHEDULES = [
    schedule(2.5),
    schedule(timedelta(days=2), relative=True),
    crontab(),
    crontab(minute="*/5", hour="8-17,22", day_of_week="mon-fri", month_of_year="1,7", day_of_month="*"),
    crontab(minute=[0, 30], hour=4, day_of_week={0, 6}),
    solar("sunset", 52.5, 13.4),
    rrule("FREQ=WEEKLY;BYDAY=MO", datetime(2026, 1, 5, 9), "Europe/Berlin"),
    clocked(AT),
]


@pytest.mark.parametrize("asked", SCHEDULES, ids=str)
def test_every_kind_of_schedule_comes_back_as_it_was(asked):
    _, text = records.write("e", {"task": "t", "schedule": asked})
    assert records.read("e", text)["schedule"] == asked


def test_everything_else_comes_back_as_well():
    fields = {
        "task": "t",
        "schedule": schedule(1),
        "args": (1, "é", None),
        "kwargs": {"a": {"b": [1.5]}},
        "options": {"queue": "q", "priority": 3},
        "misfire": "all",
        "jitter": 2,
    }
    _, text = records.write("e", fields)
    assert records.read("e", text) == fields


def test_seconds_are_a_schedule():
    assert (
        records.write("e", {"task": "t", "schedule": 5})[0]
        == records.write("e", {"task": "t", "schedule": timedelta(seconds=5)})[0]
    )


def test_the_rule_changes_with_what_its_slots_follow_from_and_with_nothing_else():
    base = {"task": "t", "schedule": crontab(hour=4), "args": [1]}

    def rule(**changed):
        return records.write("e", {**base, **changed})[0]

    assert rule() == rule(args=[2]) == rule(task="u") == rule(misfire="all") == rule(options={"queue": "q"})
    others = [rule(schedule=crontab(hour=5)), rule(timezone="Europe/Berlin"), rule(enabled=False)]
    assert len({rule(), *others}) == 4


class Own(BaseSchedule):
    def is_due(self, last_run_at):
        raise NotImplementedError  # it cannot be stored, and nothing may ask it


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": Own()}, "which cannot be stored"),
        ({"args": [object()]}, "its args cannot"),
        ({"kwargs": {"a": float("nan")}}, "its kwargs cannot"),
        ({"options": {"eta": AT}}, "its options cannot"),
        ({"schedul": 1}, "did you mean 'schedule'"),
        ({"queue": "q"}, "'options'"),
        ({"task": ""}, "no 'task'"),
        ({"schedule": 0}, "not above 0"),
        ({"schedule": float("inf")}, "longer than any interval"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(fields, words):
    with pytest.raises(EntryError, match=words) as caught:
        records.write("e", {"task": "t", "schedule": 1, **fields})
    assert "\n" not in str(caught.value)


def _stored(**changed):
    record = json.loads(records.write("e", {"task": "t", "schedule": 1})[1])
    return json.dumps({**record, **changed})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("null", "cannot be read"),
        (_stored(v=2), "form 2"),
        (_stored(schedule={"cron": {"minute": "61"}}), "cannot be read"),
        (_stored(schedule={"every": 1e300}), "cannot be read"),
        (_stored(schedule={"every": "soon"}), "cannot be read"),
        (_stored(schedule={"clocked": "yesterday"}), "cannot be read"),
        (_stored(schedule={"rrule": "FREQ=x", "start": "2026-01-01", "zone": "UTC"}), "cannot be read"),
        (_stored(schedule={"lunar": 1}), "cannot be read"),
        (_stored(args=7), "cannot be read"),
    ],
)
def test_a_damaged_record_concerns_its_entry_alone_and_says_so_in_one_line(text, words):  # G8
    with pytest.raises(EntryError, match=words) as caught:
        records.read("e", text)
    assert "\n" not in str(caught.value)
