"""Thirty shapes of configuration that people have today, taken as they are.

Each runs through the real scheduler over a store in memory: every entry is made due, and what Celery
then publishes must be the task, the arguments and the options that the entry says.
"""

import enum
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, Task, signals
from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar

from celery_singlebeat import SingleBeatScheduler
from celery_singlebeat.testing.processes import wait_until


class Priority(enum.IntEnum):
    HIGH = 0
    LOW = 2


class Offset(schedule):
    """Waits longer before its first run: it changes itself when it is due."""

    def __init__(self, run_every, offset):
        self._regular = run_every
        super().__init__(run_every=run_every + offset)

    def is_due(self, last_run_at):
        answer = super().is_due(last_run_at)
        if answer.is_due:
            self.run_every = self._regular
        return answer


class DataDriven(BaseSchedule):
    """Decides from elsewhere, refers to itself, cannot be pickled."""

    def __init__(self):
        super().__init__()
        self.schedule = self
        self.unpicklable = lambda: None
        self.answers = iter([False, True] + [False] * 1000)

    def is_due(self, last_run_at):
        return schedstate(next(self.answers), 0.05)


class London(crontab):
    """A crontab with a clock of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, nowfun=lambda: datetime.now(ZoneInfo("Europe/London")), **kwargs)


class NamesItsSlots:
    """Has nothing else that Celery expects of a schedule."""

    def slot_after(self, moment):
        return moment.replace(microsecond=0) + timedelta(seconds=1)


class Wordy(BaseSchedule):
    """Raises when Celery asks for the time, in two lines."""

    def now(self):
        raise RuntimeError("no\nclock")


class ReturnsNothing(Task):
    """Sends, and keeps the result to itself."""

    def apply_async(self, *args, **kwargs):
        super().apply_async(*args, **kwargs)


def pytz_zone():
    return pytest.importorskip("pytz").timezone("America/New_York")


def stamp():
    return "stamped"


MINUTE, QUARTERS = timedelta(minutes=1), "0, 15, 30, 45"
IN_AN_HOUR = datetime.now(timezone.utc) + timedelta(hours=1)

# Celery 5.4 has no from_string
FROM_STRING = crontab.from_string("17 4 * * 2") if hasattr(crontab, "from_string") else crontab(17, 4, 2)


def one(when, **fields):
    return {"a": {"task": "t.a", "schedule": when, **fields}}


# name -> (entries, other settings)
SHAPES = {
    "float seconds": (one(86400.0), {}),
    "whole seconds": (one(3 * 60), {}),
    "timedelta and a queue": (one(timedelta(minutes=63), options={"queue": "periodic"}), {}),
    "crontab every minute": (one(crontab()), {}),
    "crontab with spaces, and a list": (
        {**one(crontab(minute=QUARTERS)), "b": {"task": "t.b", "schedule": crontab(minute=[0, 10, 20])}},
        {},
    ),
    "day of week and day of month": (
        one(crontab(hour=9, minute=0, day_of_week="tue", day_of_month="1-7")),
        {},
    ),
    "names, wrap-around, every third month": (
        {
            "a": {
                "task": "t.a",
                "schedule": crontab(minute=0, hour=9, day_of_week="monday,wednesday,friday"),
            },
            "b": {"task": "t.b", "schedule": crontab(minute="*", hour="22-2")},
            "c": {"task": "t.c", "schedule": crontab(0, 0, month_of_year="*/3", day_of_month="1")},
        },
        {},
    ),
    "steps that do not divide": (
        {**one(crontab(minute="*/40")), "b": {"task": "t.b", "schedule": crontab(0, 2, day_of_month="*/2")}},
        {},
    ),
    "from a string, and positional": (
        {
            **one(FROM_STRING),
            "b": {"task": "t.b", "schedule": crontab("5", "*/1", "sun", "*", "*")},
        },
        {},
    ),
    "a schedule object": (one(schedule(5)), {}),
    "relative": (one(timedelta(minutes=20), relative=True), {}),
    "arguments as tuple, list and empty": (
        {
            "a": {"task": "t.a", "schedule": 60, "args": (90,)},
            "b": {"task": "t.b", "schedule": 60, "args": ["Daily"]},
            "c": {"task": "t.c", "schedule": 60, "args": ()},
        },
        {},
    ),
    "nested keyword arguments": (one(3600, kwargs={"every": {"hours": 1}, "max_count": 0}), {}),
    "all options": (
        one(
            60,
            options={
                "queue": "q1",
                "expires": 9.0 * 60,
                "priority": Priority.LOW,
                "headers": {"trigger_source": "scheduled"},
                "time_limit": 1800,
            },
        ),
        {},
    ),
    "private option keys": (
        one(20, options={"expires": 900, "skip_gated": False, "MessageGroupId": "g"}),
        {},
    ),
    "expires as a datetime": (one(60, options={"expires": IN_AN_HOUR}), {}),
    "a lazy argument": (one(60, kwargs={"at": BeatLazyFunc(stamp)}), {}),
    "a schedule that changes itself": (one(Offset(timedelta(seconds=60), timedelta(seconds=90))), {}),
    "a schedule that decides from data": (one(DataDriven()), {}),
    "a schedule that names its slots": (one(NamesItsSlots()), {}),
    "a crontab with its own zone": (one(London(minute="0", hour="10")), {}),
    "names with spaces, colons and braces": (
        {
            name: {"task": "t.a", "schedule": 60}
            for name in ["Check all e-mail accounts", "ingest:update", "测试同步任务", "delete-{x}*[y]"]
        },
        {},
    ),
    "two names for one task": (
        {
            "a1": {"task": "t.a", "schedule": 600, "kwargs": {"m": 1}},
            "a2": {"task": "t.a", "schedule": crontab(hour=20, minute=0), "kwargs": {"m": 2}},
        },
        {},
    ),
    "a task that only workers know": ({"a": {"task": "elsewhere.only", "schedule": 60}}, {}),
    "nothing": ({}, {}),
    "a zone by name without UTC": (
        one(crontab(hour=3, minute=0)),
        {"timezone": "Africa/Nairobi", "enable_utc": False},
    ),
    "a zone of pytz": (one(crontab(minute="*/15")), {"timezone": pytz_zone}),
    "a task whose apply_async returns nothing": ({"n": {"task": "t.none", "schedule": 60}}, {}),
}


def make_app(name, entries, **settings):
    app = Celery(name, broker="memory://", set_as_current=False)
    settings = {key: value() if callable(value) else value for key, value in settings.items()}
    app.conf.update(beat_schedule=dict(entries), result_expires=None, task_ignore_result=True, **settings)

    def body(*args, **kwargs):
        """The tasks are published only."""

    for letter in "abc":
        app.task(name=f"t.{letter}", typing=False, shared=False)(body)
    app.task(name="t.none", base=ReturnsNothing, typing=False, shared=False)(body)
    return app


class Wire:
    """What Celery publishes, as its own signal tells it."""

    def __init__(self):
        self.messages = {}

    def __enter__(self):
        signals.before_task_publish.connect(self.hear, weak=False)
        return self

    def __exit__(self, *exc_info):
        signals.before_task_publish.disconnect(self.hear)

    def hear(self, sender, body, headers, routing_key, properties, **_):
        args, kwargs, _embedded = body
        self.messages.setdefault(headers["singlebeat_entry"], []).append(
            {"task": sender, "args": args, "kwargs": kwargs, "headers": headers}
            | {"queue": routing_key, "properties": properties}
        )


def run(app, expected):
    """Tick until every expected entry was published, each being made due once."""
    scheduler = SingleBeatScheduler(app)
    made_due = set()

    def all_sent():
        scheduler.tick()
        for line in scheduler._machine.agenda:
            if line.name not in made_due and line.anchor is not None and line.last is not None:
                made_due.add(line.name)
                now = scheduler._machine.elector.due_now()
                for days in (1, 800):  # of rare slots one is due after two years, and of others not a million
                    line.anchor = line.last = line.next = now - timedelta(days=days)
                    following = line.timetable.after(line.last, anchor=line.anchor)
                    if following is not None and following <= now:
                        break
                scheduler._machine.agenda.put(line)
        return expected <= set(wire.messages)

    with Wire() as wire:
        try:
            wait_until(all_sent, 10, lambda: f"published {set(wire.messages)} of {expected}")
            assert dict(scheduler._machine.agenda.parked) == {}
        finally:
            scheduler.close()
    return wire.messages


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_taken_as_it_is(name):
    entries, settings = SHAPES[name]
    app = make_app(f"shape {list(SHAPES).index(name)}", entries, **settings)
    sent = run(app, set(entries))
    assert set(sent) == set(entries)
    for entry, fields in entries.items():
        message = sent[entry][0]
        assert message["task"] == fields["task"]
        assert list(message["args"]) == list(fields.get("args", ()))
        kwargs = {key: "stamped" if isinstance(value, BeatLazyFunc) else value
                  for key, value in fields.get("kwargs", {}).items()}  # fmt: skip
        assert message["kwargs"] == kwargs
        options = fields.get("options", {})
        assert message["queue"] == options.get("queue", "celery")
        assert message["headers"].get("celery_beat_task", True) is True  # Celery 5.4 has none
        for key, value in options.get("headers", {}).items():
            assert message["headers"][key] == value


def test_solar_schedules_are_taken_where_their_library_is_installed():
    pytest.importorskip("ephem")
    app = make_app("solar", one(solar("sunset", -37.81753, 144.96715), args=(16, 16)))
    assert list(run(app, {"a"})["a"][0]["args"]) == [16, 16]


def test_periodic_signatures_are_taken():
    app = make_app("periodic", {})
    app.add_periodic_task(crontab(minute="*/5"), app.tasks["t.a"].s())
    app.add_periodic_task(30, app.tasks["t.a"].s(1), name="named", expires=45)
    app.add_periodic_task(timedelta(minutes=5), app.tasks["t.b"].si(x=1).set(queue="export"))
    app.finalize()
    names = set(app.conf.beat_schedule)
    assert len(names) == 3
    sent = run(app, names)
    assert list(sent["named"][0]["args"]) == [1]
    assert {message[0]["queue"] for message in sent.values()} == {"celery", "export"}


def test_entries_that_are_added_after_the_configuration_was_read_are_taken():
    app = make_app("mutated", one(60))
    app.conf.beat_schedule["late"] = {"task": "t.b", "schedule": crontab(minute=0)}
    assert set(run(app, {"a", "late"})) == {"a", "late"}


def test_the_scheduler_is_made_lazily_without_a_connection_and_says_where_it_will_connect():
    app = Celery("lazy", broker="redis://:s3cret@nowhere.invalid:1/4", set_as_current=False)
    info = SingleBeatScheduler(app, lazy=True).info
    assert "nowhere.invalid:1, db 4 (from broker_url)" in info
    assert "atomic" in info
    assert "s3cret" not in info


BAD = {
    "text": ({"task": "t.a", "schedule": "60"}, "schedule='60' is a str"),
    "unknown key": ({"task": "t.a", "schedule": 60, "misfyre": "all"}, "did you mean 'misfire'?"),
    "no task": ({"schedule": 60}, "it has no 'task'"),
    "raises": ({"task": "t.a", "schedule": type("Away", (BaseSchedule,), {})()}, "NotImplementedError"),
    "options": ({"task": "t.a", "schedule": 60, "options": "queue"}, "options='queue' is a str; give a dict"),
    "headers": ({"task": "t.a", "schedule": 60, "options": {"headers": [("a", 1)]}}, "headers=[('a', 1)] is"),
    "raises in two lines": ({"task": "t.a", "schedule": Wordy()}, "RuntimeError: no clock"),
    "no such zone": ({"task": "t.a", "schedule": crontab(), "timezone": "Mars/Base"}, "'Mars/Base'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_entry_is_parked_with_one_line_and_the_others_run(name, caplog):  # B4, E1
    fields, words = BAD[name]
    app = make_app(f"bad {name}", {"bad one": fields, **one(60)})
    scheduler = SingleBeatScheduler(app)
    with Wire() as wire:
        try:
            wait_until(
                lambda: (
                    scheduler.tick()
                    and scheduler._machine.dispatcher.is_adopted
                    and scheduler._machine.agenda.parked
                ),
                10,
                lambda: caplog.text,
            )
            assert words in scheduler._machine.agenda.parked["bad one"]
            for line in scheduler._machine.agenda:
                if line.name == "a":
                    line.anchor = line.last = scheduler._machine.elector.due_now() - MINUTE
                    scheduler._machine.agenda.put(line)
            wait_until(lambda: scheduler.tick() and "a" in wire.messages, 10, "the good entry did not run")
        finally:
            scheduler.close()
    lines = [record.getMessage() for record in caplog.records if "bad one" in record.getMessage()]
    assert len(lines) == 1
    assert "\n" not in lines[0]
