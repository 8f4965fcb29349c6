"""`singlebeat schedule ...`: what the commands print, do and refuse, without a process of their own."""

import json
import time
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery.schedules import crontab, schedule

from celery_singlebeat import Schedule
from tests.cli.test_commands import documents, make_app, run

REPORT = {"task": "proj.report", "schedule": 3600}
DAY = ("--from", "2026-03-01T00:00Z", "--to", "2026-03-01T05:30:00+00:00")
RULE = ("--start", "2026-01-01T00:00Z", "--rrule")
KEYS = ["name", "task", "schedule", "next", "last", "runs", "enabled", "paused", "source"]


@pytest.fixture
def app():
    return make_app(beat_schedule={"static": REPORT})


@pytest.fixture
def queued(redis_url, redis_client):
    """An app on a Redis, and the messages in its queue (whatever their priority), oldest first."""
    app = make_app(redis_url, beat_schedule={"static": REPORT}, result_expires=None)

    def messages():
        texts = (redis_client.lrange(queue, 0, -1) for queue in ("celery", "celery\x06\x163"))
        return [json.loads(text) for found in texts for text in reversed(found)]

    return app, messages


def ask(app, *arguments, **options):
    return run(app, "schedule", *arguments, **options)


def add(app, *arguments):
    result = ask(app, "add", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def row(app, name):
    return next(entry for entry in documents(ask(app, "list", "--json")) if entry["name"] == name)


# Reading


def test_the_list_has_exactly_the_promised_shape(app):
    # O1
    add(app, "mine", "--task", "proj.mine", "--every", "60")
    found = documents(ask(app, "list", "--json"))
    assert [list(entry) for entry in found] == [KEYS, KEYS]
    mine, static = found
    assert (mine["name"], mine["task"], mine["source"]) == ("mine", "proj.mine", "dynamic")
    assert (static["name"], static["source"], static["last"], static["runs"]) == ("static", "config", None, 0)
    head, *lines = ask(app, "list").stdout.splitlines()
    assert head.split() == KEYS
    assert [line.split()[0] for line in lines] == ["mine", "static"]


def test_coming_slots_are_shown_of_all_entries_and_of_one(app):
    # O1
    add(app, "mine", "--task", "t", "--every", "60")
    ask(app, "pause", "mine")
    found = documents(ask(app, "next", "-n", "3", "mine", "--json"))
    assert [list(slot) for slot in found] == [["name", "slot", "paused"]] * 3
    assert {slot["paused"] for slot in found} == {True}
    moments = [datetime.fromisoformat(slot["slot"]) for slot in found]
    assert moments[2] - moments[0] == timedelta(seconds=120)
    every = documents(ask(app, "next", "--json"))
    assert len(every) == 10
    assert [slot["slot"] for slot in every] == sorted(slot["slot"] for slot in every)
    assert ask(app, "next", "-n", "1").stdout.splitlines()[1].split()[1:] == ["mine", "paused"]


def test_an_entry_whose_schedule_raises_hides_no_other(app):
    class Moody(schedule):
        def slot_after(self, moment):
            # it answers while the entry is read
            raise RuntimeError("not today")

    app.conf.beat_schedule["moody"] = {"task": "t", "schedule": Moody(60)}
    assert row(app, "moody")["next"] is None
    assert row(app, "static")["next"]
    assert {slot["name"] for slot in documents(ask(app, "next", "--json"))} == {"static"}
    result = ask(app, "next", "moody")
    assert result.exit_code == 2
    assert "not today" in result.stderr


def test_an_empty_schedule_is_an_empty_document_and_no_table():
    app = make_app(result_expires=None)
    for command in ("list", "next"):
        assert documents(ask(app, command, "--json")) == []
        result = ask(app, command)
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (0, "", 1)


# Changing


def test_an_entry_is_added_changed_and_removed(app):
    # O5
    arguments = ("mine", "--task", "t", "--every", "60")
    told = add(app, *arguments)
    assert told == f"added mine, next at {row(app, 'mine')['next']}\n"
    assert add(app, *arguments).startswith("same mine")
    assert add(app, *arguments, "--args", "[1]").startswith("changed mine")
    assert ask(app, "remove", "mine", "--yes").stdout == "removed mine\n"
    assert [entry["name"] for entry in documents(ask(app, "list", "--json"))] == ["static"]


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_an_entry_stays(app, answer):
    # O5
    add(app, "mine", "--task", "t", "--every", "60")
    result = ask(app, "remove", "mine", answer=answer)
    assert result.exit_code == 1
    assert "Remove mine?" in result.stderr
    assert row(app, "mine")
    assert ask(app, "remove", "mine", answer="y\n").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("--every", "90"), "<freq: 1.50 minutes>"),
        (("--cron", "0 9 * * mon-fri"), "<crontab: 0 9 * * mon-fri (m/h/dM/MY/d)>"),
        (("--solar", "sunset, 52.52, 13.4"), "<solar: sunset at latitude 52.52, longitude: 13.4>"),
        (("--at", "2100-01-01T00:00+01:00"), "<clocked: 2099-12-31T23:00:00+00:00>"),
        (
            ("--rrule", "FREQ=DAILY", "--start", "2026-01-01T08:00Z", "--timezone", "Europe/Berlin"),
            "<rrule: FREQ=DAILY from 2026-01-01T09:00:00 Europe/Berlin>",
        ),
        (
            ("--rrule", "FREQ=DAILY", "--start", "2026-01-01T08:00Z"),
            "<rrule: FREQ=DAILY from 2026-01-01T08:00:00 UTC>",
        ),
    ],
    ids=["every", "cron", "solar", "at", "rrule in a zone", "rrule"],
)
def test_each_way_to_say_when_is_understood(app, arguments, shown):
    pytest.importorskip("ephem")
    add(app, "mine", "--task", "t", *arguments)
    assert row(app, "mine")["schedule"] == shown


def test_a_crontab_is_read_in_its_zone(app):
    add(app, "mine", "--task", "t", "--cron", "0 9 * * *", "--timezone", "Asia/Tokyo")
    assert datetime.fromisoformat(row(app, "mine")["next"]).hour == 0


def test_everything_that_is_typed_is_in_the_call(queued):
    app, messages = queued
    call = ("--args", '[1, {"a": null}]', "--kwargs", '{"kind": "pdf"}', "--options", '{"priority": 3}')
    keys = ("--misfire", "all", "--misfire-grace", "60", "--catch-up-limit", "5", "--jitter", "2")
    add(app, "mine", "--task", "proj.mine", "--every", "60", *call, *keys, "--overlap", "skip")
    task_id = ask(app, "run", "mine").stdout.removeprefix("dispatched mine as ").strip()
    stored = Schedule(app)._wiring.schedule_store().changes().records["mine"].text
    assert json.loads(stored)["keys"] == {
        "misfire": "all",
        "misfire_grace": 60.0,
        "catch_up_limit": 5,
        "overlap": "skip",
        "jitter": 2.0,
    }
    (found,) = messages()
    assert found["headers"]["id"] == task_id
    assert found["headers"]["task"] == "proj.mine"
    assert found["headers"]["argsrepr"] == "[1, {'a': None}]"
    assert found["headers"]["kwargsrepr"] == "{'kind': 'pdf'}"
    assert found["properties"]["priority"] == 3
    assert found["headers"]["singlebeat_trigger"] == "run"


def test_pausing_and_resuming_say_whether_anything_was_to_do(app):
    # O5
    told = [ask(app, command, "static").stdout for command in ("pause", "pause", "resume", "resume")]
    assert told == [
        "paused static\n",
        "static was paused already\n",
        "resumed static\n",
        "static was not paused\n",
    ]
    ask(app, "pause", "static")
    assert row(app, "static")["paused"] is True
    assert documents(run(app, "status", "--json"))["paused"] == ["static"]


# Backfilling


def test_slots_of_the_past_are_dispatched_after_a_yes(queued):
    # O5
    app, messages = queued
    add(app, "mine", "--task", "t", "--cron", "0 * * * *")
    result = ask(app, "backfill", "mine", *DAY, answer="y\n")
    assert result.exit_code == 0
    first, last = "2026-03-01T00:00:00+00:00", "2026-03-01T05:00:00+00:00"
    assert f"Dispatch 6 slots of mine, from {first} to {last}?" in result.stderr
    assert result.stdout == "6 slots of mine dispatched\n"
    slots = [message["headers"]["singlebeat_slot"] for message in messages()]
    assert (len(slots), slots[0], slots[-1]) == (6, first, last)


@pytest.mark.parametrize(
    ("arguments", "answer", "sent", "code"),
    [
        (("--dry-run",), None, 0, 0),
        ((), "n\n", 0, 1),
        ((), None, 0, 1),
        (("--yes",), None, 6, 0),
        (("--yes", "--rate", "1000"), None, 6, 0),
    ],
)
def test_as_many_slots_are_dispatched_as_were_agreed_to(queued, arguments, answer, sent, code):
    # O5
    app, messages = queued
    add(app, "mine", "--task", "t", "--cron", "0 * * * *")
    result = ask(app, "backfill", "mine", *DAY, *arguments, answer=answer)
    assert (result.exit_code, len(messages())) == (code, sent)
    if "--dry-run" in arguments:
        assert result.stdout.splitlines()[0] == "would dispatch mine of 2026-03-01T00:00:00+00:00"
        assert result.stdout.splitlines()[-1] == "6 slots would be dispatched"


def test_one_slot_is_dispatched_without_a_question(queued):
    app, messages = queued
    add(app, "mine", "--task", "t", "--cron", "0 0 * * *")
    assert ask(app, "backfill", "mine", *DAY).stdout == "1 slot of mine dispatched\n"
    assert len(messages()) == 1


def test_a_backfill_keeps_to_the_rate(queued):
    app, _ = queued
    add(app, "mine", "--task", "t", "--cron", "0 * * * *")
    began = time.monotonic()
    ask(app, "backfill", "mine", *DAY, "--yes", "--rate", "20")
    assert time.monotonic() - began >= 0.25


# How they end


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["add", "x", "--every", "5"], 2, "--task"),
        (["add", "x", "--task", "t"], 2, "say when: one of --every"),
        (["add", "x", "--task", "t", "--every", "5", "--cron", "* * * * *"], 2, "say when: one of"),
        (["add", "x", "--task", "t", "--rrule", "FREQ=DAILY"], 2, "--rrule and --start"),
        (
            ["add", "x", "--task", "t", "--every", "5", "--start", "2026-01-01T00:00Z"],
            2,
            "--rrule and --start",
        ),
        (["add", "", "--task", "t", "--every", "5"], 2, "needs a name"),
        (["add", "x", "--task", "", "--every", "5"], 2, "no 'task'"),
        (["add", "x", "--task", "t", "--every", "soon"], 2, "soon"),
        (["add", "x", "--task", "t", "--every", "0"], 2, "not above 0"),
        (["add", "x", "--task", "t", "--every", "nan"], 2, "not above 0"),
        (["add", "x", "--task", "t", "--every", "inf"], 2, "longer than any interval"),
        (["add", "x", "--task", "t", "--every", "0.0001"], 2, "1 ms"),
        (["add", "x", "--task", "t", "--cron", "* * *"], 2, "five fields"),
        (["add", "x", "--task", "t", "--cron", "61 * * * *"], 2, "five fields"),
        (["add", "x", "--task", "t", "--cron", "* * * * noday"], 2, "five fields"),
        (["add", "x", "--task", "t", "--cron", "*/0 * * * *"], 2, "five fields"),
        (["add", "x", "--task", "t", "--cron", "0 0 30 2 *"], 2, "30"),
        (
            ["add", "x", "--task", "t", "--cron", "0 9 * * *", "--timezone", "Mars"],
            2,
            "'Mars' is not an IANA",
        ),
        (["add", "x", "--task", "t", "--rrule", "FREQ=x", "--start", "2026-01-01T00:00Z"], 2, "FREQ=WEEKLY"),
        (
            ["add", "x", "--task", "t", "--rrule", "FREQ=DAILY;COUNT=1", "--start", "2026-01-01T00:00Z"],
            2,
            "no slot to come",
        ),
        (["add", "x", "--task", "t", "--at", "2100-01-01T00:00"], 2, "such as 2100-01-01T00:00:00+00:00"),
        (["add", "x", "--task", "t", "--at", "tomorrow"], 2, "'tomorrow' is not ISO 8601"),
        (["add", "x", "--task", "t", "--at", "2026-01-01T00:00Z"], 2, "is over"),
        (["add", "x", "--task", "t", "--solar", "sunset"], 2, "EVENT,LAT,LON"),
        (["add", "x", "--task", "t", "--solar", "moonrise,1,1"], 2, "moonrise"),
        (["add", "x", "--task", "t", "--solar", "sunset,100,1"], 2, "100"),
        (["add", "x", "--task", "t", "--every", "5", "--args", "{}"], 2, "give a JSON list"),
        (["add", "x", "--task", "t", "--every", "5", "--args", "[1"], 2, "not JSON"),
        (["add", "x", "--task", "t", "--every", "5", "--args", "[NaN]"], 2, "cannot be kept as JSON"),
        (["add", "x", "--task", "t", "--every", "5", "--kwargs", "[]"], 2, "give a JSON object"),
        (["add", "x", "--task", "t", "--every", "5", "--options", "null"], 2, "give a JSON object"),
        (["add", "x", "--task", "t", "--every", "5", "--misfire", "never"], 2, "never"),
        (["add", "x", "--task", "t", "--every", "5", "--misfire-grace", "-1"], 2, "misfire_grace=-1.0"),
        (["add", "x", "--task", "t", "--every", "5", "--catch-up-limit", "-1"], 2, "catch_up_limit=-1"),
        (["add", "x", "--task", "t", "--every", "5", "--jitter", "inf"], 2, "jitter=inf"),
        (["add", "x", "--task", "t", "--every", "5", "--overlap", "maybe"], 2, "maybe"),
        (["add", "static", "--task", "t", "--every", "5"], 2, "the configuration has an entry"),
        (["remove", "static", "--yes"], 2, "remove it there"),
        (["next", "-n", "0"], 2, "0"),
        (["backfill", "static", "--from", "2026-03-01T00:00Z"], 2, "--to"),
        (["backfill", "static", "--from", "2026-03-01", "--to", "2026-03-02T00:00Z"], 2, "has no offset"),
        (["backfill", "static", "--from", "2026-03-02T00:00Z", "--to", "2026-03-01T00:00Z"], 2, "not after"),
        (["backfill", "static", "--from", "2026-03-01T00:00Z", "--to", "2100-03-02T00:00Z"], 2, "future"),
        (["backfill", "static", *DAY, "--rate", "0"], 2, "0"),
        (["pause", "statik"], 1, "did you mean 'static'"),
        (["resume", "statik"], 1, "did you mean 'static'"),
        (["run", "statik"], 1, "did you mean 'static'"),
        (["remove", "statik"], 1, "did you mean 'static'"),
        (["next", "statik"], 1, "did you mean 'static'"),
        (["backfill", "statik", *DAY], 1, "did you mean 'static'"),
        (["pause", "zzz"], 1, "see `schedule list`"),
        (["add", "x", "y", "--task", "t", "--every", "5"], 2, "unexpected extra argument"),
        (["add", "a\nb", "--task", "t", "--every", "5"], 2, "control characters"),
        (["add", "\udcff", "--task", "t", "--every", "5"], 2, "not UTF-8"),
        (["add", "x", "--task", "t", "--every", "-1"], 2, "not above 0"),
        (["add", "x", "--task", "t", "--cron", ""], 2, "it has 0 fields"),
        (["add", "x", "--task", "t", "--cron", "@daily"], 2, "it has 1 fields"),
        (["add", "x", "--task", "t", "--cron", "? * * * *"], 2, "five fields"),
        (["add", "x", "--task", "t", "--cron", "0 0 31 2,4,6 *"], 2, "0 0 31 2,4,6 *"),
        (["add", "x", "--task", "t", "--cron", "0 9 * * *", "--timezone", ""], 2, "is not an IANA"),
        (["add", "x", "--task", "t", "--cron", "0 9 * * *", "--timezone", "../UTC"], 2, "is not an IANA"),
        (["add", "x", "--task", "t", "--at", "9999-12-31T23:59:59-01:00"], 2, "the years 1900 to 9998"),
        (["add", "x", "--task", "t", "--at", "0001-01-01T00:00:00+01:00"], 2, "the years 1900 to 9998"),
        (["add", "x", "--task", "t", "--rrule", "FREQ=DAILY", "--start", "0001-01-01T00:00Z"], 2, "1900"),
        (["add", "x", "--task", "t", *RULE, "FREQ=DAILY;INTERVAL=0"], 2, "INTERVAL is below 1"),
        (["add", "x", "--task", "t", *RULE, "FREQ=DAILY;INTERVAL=99999999999"], 2, "give another schedule"),
        (["add", "x", "--task", "t", *RULE, "FREQ=SECONDLY;COUNT=99999999"], 2, "give UNTIL instead"),
        (["add", "x", "--task", "t", *RULE, "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"], 2, "names no day"),
        (["add", "x", "--task", "t", *RULE, "FREQ=SECONDLY;BYSETPOS=5"], 2, "BYSETPOS"),
        (["add", "x", "--task", "t", *RULE, "FREQ=DAILY;UNTIL=20200101T000000Z"], 2, "no slot to come"),
        (["add", "x", "--task", "t", *RULE, "EXDATE:2"], 2, "give the rule alone"),
        (["add", "x", "--task", "t", "--solar", "sunset,nan,0"], 2, "EVENT,LAT,LON"),
        (["add", "x", "--task", "t", "--solar", "sunset,90,0"], 2, "no slot to come"),
        (["add", "x", "--task", "t", "--every", "5", "--args", "[" * 10_000], 2, "not JSON"),
        (["add", "x", "--task", "t", "--every", "5", "--options", '{"quee": "x"}'], 2, "mean 'queue'"),
        (["add", "x", "--task", "t", "--every", "5", "--options", '{"headers": [1]}'], 2, "headers=a list"),
        (["add", "x", "--task", "t", "--every", "5", "--options", '{"expires": "soon"}'], 2, "'soon'"),
        (["add", "x", "--task", "t", "--every", "5", "--jitter", "nan"], 2, "jitter=nan"),
        (["run", "\udcff"], 1, "see `schedule list`"),
        (["remove", "\ud800", "--yes"], 1, "see `schedule list`"),
        (["next", "-n", "1000000000"], 2, "1<=x<=10000"),
        (["nonsense"], 2, "No such command"),
        (["backfill", "static", *DAY, "--rate", "nan"], 2, "rate=nan"),
        (["backfill", "static", *DAY, "--rate", "1e-300"], 2, "rate=1e-300"),
        (["backfill", "static", "--from", "0001-01-01T00:00+05:00", "--to", "2026-01-01T00:00Z"], 2, "1900"),
        (
            ["backfill", "often", "--from", "1970-01-01T00:00Z", "--to", "2026-01-01T00:00Z"],
            2,
            "shorter time",
        ),
    ],
    ids=lambda value: ascii(" ".join(value))[:100] if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_one_line_and_leaves_everything_as_it_was(queued, arguments, code, words):
    # O2, O3
    app, _ = queued
    app.conf.beat_schedule["often"] = {**REPORT, "schedule": crontab()}
    with redis.Redis.from_url(app.conf.broker_url) as client:
        before = {key: client.dump(key) for key in client.scan_iter()}
        result = ask(app, *arguments)
        assert {key: client.dump(key) for key in client.scan_iter()} == before
    assert (result.exit_code, result.stdout) == (code, "")
    (told,) = result.stderr.splitlines()
    assert words in told
    assert not result.exception or isinstance(result.exception, SystemExit)


def test_without_a_place_of_redbeats_nothing_can_be_imported(app):
    # O2, O3
    result = ask(app, "import-redbeat")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "redbeat_redis_url" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("scheduler", ["nowhere", "nowhere:Scheduler", "celery.beat:Schedular"])
def test_a_scheduler_that_cannot_be_imported_is_a_wrong_configuration(app, scheduler):
    # O2, O3
    app.conf.beat_scheduler = scheduler
    result = ask(app, "list")
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert f"beat_scheduler={scheduler!r}" in told
    assert "celery_singlebeat:SingleBeatScheduler" in told


def test_an_interrupted_backfill_says_how_far_it_came(queued, monkeypatch):
    # O2, O3
    app, messages = queued
    add(app, "mine", "--task", "t", "--cron", "0 * * * *")
    out = []

    def interrupt(seconds):
        out.append(seconds)
        if len(out) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("celery_singlebeat.beat.schedule.time.sleep", interrupt)
    result = ask(app, "backfill", "mine", *DAY, "--yes", "--rate", "5")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "Error: interrupted after 2 slots of 6; for the others give --from 2026-03-01T01:00:00.001000+00:00"
    ]
    sent = [message["headers"]["id"] for message in messages()]
    assert ask(app, "backfill", "mine", *DAY, "--yes").exit_code == 0
    assert [message["headers"]["id"] for message in messages()][2:4] == sent


def test_a_dynamic_entry_that_the_configuration_hides_is_removed_after_a_yes(app):
    # O5
    add(app, "mine", "--task", "t", "--every", "60")
    app.conf.beat_schedule["mine"] = REPORT
    assert ask(app, "remove", "mine", answer="n\n").exit_code == 1
    assert ask(app, "remove", "mine", answer="y\n").stdout == "removed mine\n"
    assert row(app, "mine")["source"] == "config"


def test_a_refused_argument_is_not_repeated(app):
    # O4
    for secret in ("[hidden", '["hidden", NaN]', '"hidden"'):
        result = ask(app, "add", "x", "--task", "t", "--every", "5", "--args", secret)
        assert result.exit_code == 2
        assert "hidden" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["next"],
        ["pause", "static"],
        ["resume", "static"],
        ["run", "static"],
        ["add", "x", "--task", "t", "--every", "5"],
        ["remove", "x", "--yes"],
        ["backfill", "static", *DAY],
        ["import-redbeat"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_redis_that_is_away_is_exit_code_3(arguments):
    # O2, O3, O4
    app = make_app("redis://:hidden-1@127.0.0.1:1/0", beat_schedule={"static": REPORT})
    result = ask(app, *arguments)
    assert (result.exit_code, result.stdout) == (3, "")
    (told,) = result.stderr.splitlines()
    assert "127.0.0.1:1" in told
    assert "hidden" not in told


@pytest.mark.parametrize("arguments", [["run", "static"], ["backfill", "static", *DAY, "--yes"]])
def test_a_broker_that_is_away_is_exit_code_3(arguments):
    # O2, O3, O4
    conf = {"singlebeat_redis_url": "memory://", "beat_schedule": {"static": REPORT}}
    app = make_app("amqp://u:hidden-1@127.0.0.1:1//", **conf)
    result = ask(app, *arguments)
    assert (result.exit_code, result.stdout) == (3, "")
    assert len(result.stderr.splitlines()) == 1
    assert "hidden" not in result.stderr


def test_a_message_that_cannot_be_made_is_wrong_configuration(app):
    # O2, O3
    app.conf.beat_schedule["odd"] = {**REPORT, "args": (object(),)}
    result = ask(app, "run", "odd")
    assert result.exit_code == 2
    (told,) = result.stderr.splitlines()
    assert "its message cannot be made" in told


# From RedBeat


@pytest.fixture
def moved(redis_url):
    """An app whose RedBeat has stored three entries, one of which cannot be taken over."""
    redbeat = pytest.importorskip("redbeat", reason="the tests import what celery-redbeat wrote")
    app = make_app(redis_url, redbeat_redis_url=redis_url, result_expires=None)
    for name, args in (("one", [1]), ("two", [2]), ("bad", [datetime.now(timezone.utc)])):
        redbeat.RedBeatSchedulerEntry(name, "proj.work", schedule(60), args=args, app=app).save()
    return app


def names(app):
    return [entry["name"] for entry in documents(ask(app, "list", "--json"))]


def test_redbeats_entries_are_taken_over_after_a_yes_and_each_is_told(moved):
    # O5
    result = ask(moved, "import-redbeat", answer="y\n")
    assert result.exit_code == 1  # one of them could not be taken over
    assert "Add or change 2 entries?" in result.stderr
    bad, *others = result.stdout.splitlines()
    assert bad.startswith("bad: refused: its args cannot be kept as JSON")
    assert others == ["one: added", "two: added", "2 added, 0 changed, 0 same, 0 static, 1 refused"]
    assert names(moved) == ["one", "two"]
    assert "one: same" in ask(moved, "import-redbeat").stdout.splitlines()  # nothing to ask about


@pytest.mark.parametrize(
    ("arguments", "answer", "left"),
    [(("--dry-run",), None, []), ((), "n\n", []), ((), None, []), (("--yes",), None, ["one", "two"])],
)
def test_nothing_is_taken_over_that_was_not_agreed_to(moved, arguments, answer, left):
    # O5
    result = ask(moved, "import-redbeat", *arguments, answer=answer)
    assert result.exit_code == 1
    assert names(moved) == left
    if "--dry-run" in arguments:
        assert "one: would be added" in result.stdout.splitlines()
        assert result.stdout.splitlines()[-1].startswith("dry run: 2 added")


def test_a_redis_of_redbeats_that_is_away_is_exit_code_3(app):
    # O2, O3, O4
    app.conf.redbeat_redis_url = "redis://:hidden-1@127.0.0.1:1/0"
    result = ask(app, "import-redbeat")
    assert (result.exit_code, result.stdout) == (3, "")
    (told,) = result.stderr.splitlines()
    assert "RedBeat keeps its entries does not answer" in told
    assert "127.0.0.1:1" in told
    assert "hidden" not in told


def test_a_redbeat_that_still_leads_is_warned_about(moved, redis_client):
    assert "RedBeat holds its lock" not in ask(moved, "import-redbeat", "--dry-run").stderr
    redis_client.set("redbeat::lock", "token")
    assert "RedBeat holds its lock" in ask(moved, "import-redbeat", "--dry-run").stderr
