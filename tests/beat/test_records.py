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


def _nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


class Own(BaseSchedule):
    def is_due(self, last_run_at):
        raise NotImplementedError  # it cannot be stored, and nothing may ask it


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": Own()}, "which cannot be stored"),
        ({"schedule": crontab(nowfun=lambda: AT)}, "a nowfun, which cannot be stored"),
        ({"timezone": timezone.utc}, "give text or a number"),
        ({"args": [object()]}, "its args cannot"),
        ({"kwargs": {"a": float("nan")}}, "its kwargs cannot"),
        ({"options": {"eta": AT}}, "its options cannot"),
        ({"schedul": 1}, "did you mean 'schedule'"),
        ({"queue": "q"}, "'options'"),
        ({"task": ""}, "no 'task'"),
        ({"schedule": 0}, "not above 0"),
        ({"schedule": float("inf")}, "longer than any interval"),
        ({"task": Own()}, "its task is a Own"),
        ({"task": ["t"]}, "its task is a list"),
        ({"args": "abc"}, "its args are a str; give a list"),
        ({"args": {1}}, "its args are a set"),
        ({"args": 5}, "its args are a int"),
        ({"args": [{1: 2, "a": 3}]}, "keys that are no text"),
        ({"kwargs": "abc"}, "its kwargs are a str; give a dict"),
        ({"kwargs": {1: 2}}, "keys that are no text"),
        ({"options": [1]}, "its options are a list"),
        ({"args": _nested(100_000)}, "nested too deep"),
        ({"last_run_at": AT}, "last_run_at cannot be given"),
        ({"total_run_count": 3}, "total_run_count cannot be given"),
        ({"options": {"quee": "slow"}}, "did you mean 'queue'"),
        ({"options": {"queue": 5}}, "queue=5; give text"),
        ({"options": {"serializer": "nonsense"}}, "the name of a serializer"),
        ({"options": {"compression": "x"}}, "gzip"),
        ({"options": {"queue": ""}}, "queue=''; give text"),
        ({"options": {"delivery_mode": "slow"}}, "'persistent' or their numbers"),
        ({"options": {"priority": "high"}}, "a whole number"),
        ({"options": {"priority": True}}, "a whole number"),
        ({"options": {"expires": "soon"}}, "a number of seconds, or a moment"),
        ({"options": {"countdown": "x"}}, "a number of seconds"),
        ({"options": {"eta": "nope"}}, "a moment such as"),
        ({"options": {"headers": ["hidden"]}}, "headers=a list; give an object"),
        ({"options": {"retry_policy": "hidden"}}, "retry_policy=a str"),
        ({"options": {"link": "hidden"}}, "a signature"),
        ({"options": {"link_error": [{"task": ""}]}}, "a signature"),
        ({"options": {"task_id": 5}}, "task_id=5; give text"),
        ({"options": {"ignore_result": "x"}}, "true or false"),
        ({"options": {"producer": 5}}, "cannot have 'producer'; leave it out"),
        ({"options": {"args": [5]}}, "cannot have 'args'"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(fields, words):
    with pytest.raises(EntryError, match=words) as caught:
        records.write("e", {"task": "t", "schedule": 1, **fields})
    assert "\n" not in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {"compression": "gzip", "delivery_mode": "transient"},
        {"compression": "application/x-bz2", "delivery_mode": 1},
        {"exchange": "", "routing_key": "q", "queue": None},
        {"exchange": "fan", "routing_key": "", "queue": None},
        {"stamped_headers": ["of"], "of": "me", "route_name": "other"},
    ],
    ids=str,
)
def test_every_option_from_which_a_message_can_be_made_is_kept(more):
    call = {"task": "next", "args": [], "kwargs": {}, "options": {}}
    options = {
        "queue": "q",
        "priority": 3,
        "expires": 60,
        "eta": "2026-03-02T12:00:00Z",
        "headers": {"a": 1},
        "link": call,
        "link_error": [call, call],
        "serializer": "json",
        "time_limit": 5.5,
        "retry": False,
        "MessageGroupId": "of a transport",
        "shadow": None,
        **more,
    }
    _, text = records.write("e", {"task": "t", "schedule": 1, "options": options})
    assert records.read("e", text)["options"] == options


@pytest.mark.parametrize("name", ["", None, 5, "a\nb", "a\x1b[31m", "a\0", "a\u2028b", "\udcff"], ids=ascii)
def test_a_name_that_does_not_fit_into_a_line_or_a_store_is_refused(name):
    with pytest.raises(EntryError, match="name") as caught:
        records.write(name, {"task": "t", "schedule": 1})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", [" ", "é☃", "{tag}", "[x]*", "-x", "a b", "👩‍💻", "x" * 10_000], ids=lambda name: ascii(name)[:20]
)
def test_any_other_name_is_good(name):
    assert records.write(name, {"task": "t", "schedule": 1})


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
        (_stored(v=2), "^entry 'e': it is stored in form 2, and this version reads form 1: update it$"),
        (_stored(schedule={"cron": {"minute": "61"}}), "cannot be read"),
        (_stored(schedule={"every": 1e300}), "cannot be read"),
        (_stored(schedule={"every": "soon"}), "cannot be read"),
        (_stored(schedule={"clocked": "yesterday"}), "cannot be read"),
        (_stored(schedule={"rrule": "FREQ=x", "start": "2026-01-01", "zone": "UTC"}), "cannot be read"),
        (_stored(schedule={"lunar": 1}), "cannot be read"),
        (_stored(args=7), "cannot be read"),
        (_stored(args="abc"), "args is a str"),
        (_stored(kwargs=[["a", 1]]), "kwargs is a list"),
        (_stored(options=[["queue", "q"]]), "options is a list"),
        (_stored(task=["t"]), "task is a list"),
        (_stored(keys=[1]), "keys is a list"),
        (_stored(schedule=None), "schedule is a NoneType"),
        (_stored(schedule={"solar": "moonrise", "lat": 0, "lon": 0}), "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        (_stored().replace('"v": 1', '"v": ' + "9" * 5000), "cannot be read"),
    ],
    ids=lambda text: text[-40:] if len(text) < 100 else None,
)
def test_a_damaged_record_concerns_its_entry_alone_and_says_so_in_one_line(text, words):  # G8
    with pytest.raises(EntryError, match=words) as caught:
        records.read("e", text)
    assert "\n" not in str(caught.value)
