"""What commands print and how they end, without a process of their own."""

import json
import time
import uuid
from datetime import datetime, timedelta, timezone

import click
import pytest
from celery import Celery, _state
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_singlebeat.cli import singlebeat
from celery_singlebeat.cli.answers import without_secrets
from celery_singlebeat.cli.dlq import since
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.store.letter_ports import Burial, Parcel
from celery_singlebeat.store.lock_ports import Caller
from celery_singlebeat.store.ports import Push
from celery_singlebeat.wiring import wire

DIED = "2026-03-02T12:00:00+00:00"


def make_app(broker="memory://", **conf):
    app = Celery("commands", broker=broker, set_as_current=False)
    app.conf.update(conf)
    app.conf.singlebeat_prefix = f"commands:{uuid.uuid4()}"
    return app


@pytest.fixture
def app():
    return make_app()


@pytest.fixture
def redis_app(redis_url):
    return make_app(redis_url)


def run(app, *arguments, answer=None, no_color=False, **env):
    obj = CLIContext(app=app, no_color=no_color, workdir=None)
    return CliRunner().invoke(singlebeat, arguments, obj=obj, input=answer, env=env)


def lock(app, key="report:{1}"):
    caller = Caller(task="proj.report", task_id="call-1", host="h", pid=7)
    wire(app).lock_store().acquire(key, "token", ttl=60, caller=caller, poison_limit=5)
    return key


def bury(app, task_id="call-1", *, task="proj.fail", reason="max_retries", died=DIED):
    header = dead_letters.letter(
        reason=reason,
        exception="ValueError",
        message="no use",
        traceback="Traceback ...",
        history=[dead_letters.record(attempt=0, failed_at=died, exception="ValueError")],
        died_at=died,
        queue="celery",
        exchange="",
        routing_key="celery",
        priority=None,
        entry=None,
        slot=None,
        replays=0,
    )
    parcel = Parcel(
        body=json.dumps([[1], {}, {}]),
        content_type="application/json",
        content_encoding="utf-8",
        headers={"id": task_id, "task": task, dead_letters.LETTER: header},
        properties={"correlation_id": task_id},
    )
    burial = Burial(parcel=parcel, task=task, task_id=task_id, reason=reason, attempt=0, replays=0)
    assert wire(app).letter_store("dead_letters").bury(burial)


def documents(result):
    """The one JSON document that stdout consists of."""
    return json.loads(result.stdout)


# What reading commands print


def test_status_has_exactly_the_promised_shape(app):
    # O1
    assert documents(run(app, "status", "--json")) == {
        "leader": None,
        "standbys": [],
        "entries": 0,
        "paused": [],
        "faulty": [],
        "overdue": [],
        "other_schedules": [],
        "locks": 0,
        "dead_letters": 0,
        "dispatched": 0,
        "refused": 0,
        "missed": 0,
        "elections": 0,
    }


def test_status_counts_locks_and_dead_letters(redis_app):
    lock(redis_app, "a")
    lock(redis_app, "b*[")
    bury(redis_app)
    found = documents(run(redis_app, "status", "--json"))
    assert (found["locks"], found["dead_letters"]) == (2, 1)


def test_a_lock_is_listed_and_shown(app):
    key = lock(app)
    (listed,) = documents(run(app, "locks", "list", "--json"))
    shown = documents(run(app, "locks", "show", key, "--json"))
    for found in (listed, shown):
        assert found["key"] == key
        assert found["holder"] == {"task_id": "call-1", "host": "h", "pid": 7}
    assert "report:{1}" in run(app, "locks", "list").stdout
    assert "call-1" in run(app, "locks", "show", key).stdout


def test_a_dead_letter_is_listed_shown_and_counted(redis_app):
    bury(redis_app)
    (listed,) = documents(run(redis_app, "dlq", "list", "--json"))
    assert listed == documents(run(redis_app, "dlq", "show", "call-1", "--json"))
    assert (listed["id"], listed["args"], listed["reason"]) == ("call-1", [1], "max_retries")
    assert documents(run(redis_app, "dlq", "count", "--json")) == {"count": 1}
    assert run(redis_app, "dlq", "count").stdout == "1\n"
    assert "proj.fail" in run(redis_app, "dlq", "list").stdout
    assert "no use" in run(redis_app, "dlq", "show", "call-1").stdout


def test_letters_on_another_broker_are_counted_and_replayed_as_well(rabbitmq_url, redis_url):
    app = make_app(rabbitmq_url, singlebeat_redis_url=redis_url)
    assert documents(run(app, "status", "--json"))["dead_letters"] == 0
    bury(app)
    assert documents(run(app, "status", "--json"))["dead_letters"] == 1
    refused = run(app, "dlq", "replay", "call-1")  # R3
    assert (refused.exit_code, refused.stderr) == (
        1,
        "Error: dead letter call-1 was not replayed: the broker has no queue celery\n",
    )
    assert documents(run(app, "dlq", "count", "--json")) == {"count": 1}
    with app.connection_for_write() as connection:
        connection.channel().queue_declare(queue="celery", durable=True, auto_delete=False)
    assert run(app, "dlq", "replay", "call-1").exit_code == 0
    assert documents(run(app, "dlq", "count", "--json")) == {"count": 0}


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ([], ["old", "new"]),
        (["--task", "proj.fail"], ["old"]),
        (["--reason", "poison"], ["new"]),
        (["--since", "2026-03-02T12:30:00"], ["new"]),
        (["--since", "2026-03-02T13:30:00+01:00"], ["new"]),
        (["--limit", "1"], ["old"]),
        (["--task", "proj.fail", "--reason", "poison"], []),
        (["--before", "2026-03-02T12:30:00"], ["old"]),
        (["--exception", "ValueError"], ["old", "new"]),
        (["--exception", "KeyError"], []),
        (["--entry", "nightly"], []),
    ],
)
def test_dead_letters_are_filtered(redis_app, filters, ids):
    bury(redis_app, "old")
    bury(redis_app, "new", task="proj.other", reason="poison", died="2026-03-02T13:00:00+00:00")
    found = documents(run(redis_app, "dlq", "list", "--json", *filters))
    assert [letter["id"] for letter in found] == ids


@pytest.mark.parametrize("command", [["locks", "list"], ["dlq", "list"]])
def test_an_empty_list_is_an_empty_document_and_no_table(app, command):
    assert documents(run(app, *command, "--json")) == []
    result = run(app, *command)
    assert (result.exit_code, result.stdout) == (0, "")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"no_color": True}])
def test_a_table_that_nobody_looks_at_is_plain_and_unwrapped(app, options):
    # O6
    key = lock(app, "long:" + "x" * 300)
    result = run(app, "locks", "list", **options)
    assert "\x1b" not in result.stdout
    head, line = result.stdout.splitlines()
    assert key in line
    assert head == head.rstrip()


def test_a_moment_may_be_iso_8601_or_an_age():
    def read(text):
        return since(None, None, text)

    assert read("2026-03-02T12:00:00Z") == datetime(2026, 3, 2, 12, tzinfo=timezone.utc)
    assert read("2026-03-02") == datetime(2026, 3, 2, tzinfo=timezone.utc)
    before = datetime.now(timezone.utc)
    assert timedelta(minutes=89) < before - read("90m") <= timedelta(minutes=90)
    with pytest.raises(click.BadParameter):
        read("yesterday")


# How they end


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["statsu"], 2, "statsu"),
        (["status", "--jsn"], 2, "--jsn"),
        (["status", "extra"], 2, "extra"),
        (["resign", "--timeout", "soon"], 2, "soon"),
        (["dlq", "nonsense"], 2, "nonsense"),
        (["dlq", "list", "--since", "yesterday"], 2, "yesterday"),
        (["dlq", "list", "--reason", "bad-luck"], 2, "bad-luck"),
        (["dlq", "replay"], 2, "say which"),
        (["dlq", "replay", "--all", "call-1"], 2, "say which"),
        (["dlq", "replay", "--limit", "3"], 2, "say which"),
        (["locks", "show"], 2, "KEY"),
        (["dlq", "purge", "call-1", "--task", "t"], 2, "say which"),
        (["dlq", "purge", "call-9", "--yes"], 1, "have no dead letter"),
        (["dlq", "show", "call-9"], 1, "call-9"),
        (["dlq", "replay", "call-9"], 1, "call-9"),
        (["locks", "show", "nothing"], 1, "nothing"),
        (["locks", "release", "nothing", "--yes"], 1, "nothing"),
        (["resign"], 1, "nobody leads"),
        (["health"], 1, "no beat"),
        (["health", "--node", "a"], 1, "no beat named a"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(app, arguments, code, line):
    # O2, O3
    result = run(app, *arguments)
    assert result.exit_code == code
    (told,) = result.stderr.splitlines()
    assert line in told


@pytest.mark.parametrize(
    ("app", "code", "line"),
    [
        (make_app(singlebeat_lease_ttll=3), 2, "singlebeat_lease_ttl"),
        (make_app(singlebeat_lease_ttl="soon"), 2, "give a number"),
        (make_app("amqp://u:hidden-1@127.0.0.1:1//"), 2, "singlebeat_redis_url"),
        (make_app("redis://:hidden-1@127.0.0.1:1/0"), 3, "127.0.0.1:1"),
        (make_app(singlebeat_redis_url="sentinel://:hidden-1@127.0.0.1:1/0"), 2, "master"),
        (make_app("amqp://u:hidden-1@127.0.0.1:1//", singlebeat_redis_url="memory://"), 3, "broker"),
    ],
    ids=["misspelt", "no number", "no store", "no Redis", "no master", "no broker"],
)
def test_settings_are_wrong_usage_and_a_missing_server_is_not(app, code, line):
    # O2, O3, O4
    result = run(app, "status", "--json")
    assert result.exit_code == code
    (told,) = result.stderr.splitlines()
    assert line in told
    assert "hidden" not in result.output


def test_an_unknown_number_of_dead_letters_is_null(app):
    app.conf.update(broker_url="amqp://127.0.0.1:1//", singlebeat_redis_url="memory://")
    result = run(app, "status", "--json")
    assert documents(result)["dead_letters"] is None
    assert result.exit_code == 3


@pytest.mark.parametrize(
    ("conf", "text", "shown"),
    [
        ({"broker_url": "redis://:p%40ss@h/0"}, "redis://:p%40ss@h/0: p@ss", "redis://:***@h/0: ***"),
        ({"broker_url": "sentinel://:abcd@a;sentinel://:efgh@b"}, "abcd efgh", "*** ***"),
        ({"broker_read_url": ["amqp://u:abcd@h"]}, "u:abcd", "u:***"),
        ({"singlebeat_redis_options": {"password": "abcd"}}, "abcd", "***"),
        ({"broker_transport_options": {"sentinel_kwargs": {"password": "abcd"}}}, "abcd", "***"),
    ],
)
def test_a_password_in_somebody_elses_text_is_not_shown(app, conf, text, shown):
    # O4
    app.conf.update(conf)
    assert without_secrets(text, app) == shown


# What changing commands do


def test_a_lock_is_taken_away_after_a_yes(app):
    # O5
    key = lock(app)
    result = run(app, "locks", "release", key, answer="y\n")
    assert result.exit_code == 0
    assert result.stdout == f"released {key}, which proj.report[call-1] on host h, pid 7 held\n"
    assert documents(run(app, "locks", "list", "--json")) == []


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_a_lock_stays(app, answer):
    # O5
    key = lock(app)
    result = run(app, "locks", "release", key, answer=answer)
    assert result.exit_code == 1
    assert len(documents(run(app, "locks", "list", "--json"))) == 1


def test_letters_named_by_id_are_replayed_and_the_missing_one_is_told(redis_app, redis_client):
    # O5
    bury(redis_app, "one")
    bury(redis_app, "two")
    result = run(redis_app, "dlq", "replay", "one", "none", "two")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "replayed one (proj.fail) to queue celery",
        "replayed two (proj.fail) to queue celery",
        "2 dead letters replayed",
    ]
    assert result.stderr == "Error: no dead letter has the id none\n"
    assert redis_client.llen("celery") == 2
    assert documents(run(redis_app, "dlq", "count", "--json")) == {"count": 0}


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--all", "--yes"], 0),
        (["--reason", "poison", "--yes"], 2),
        (["--all", "--limit", "2", "--yes", "--rate", "1000"], 1),
        (["--all", "--dry-run"], 3),
        (["one", "--dry-run"], 3),
    ],
)
def test_as_many_letters_are_replayed_as_were_chosen(redis_app, redis_client, arguments, left):
    bury(redis_app, "one")
    bury(redis_app, "two")
    bury(redis_app, "three", reason="poison")
    result = run(redis_app, "dlq", "replay", *arguments)
    assert result.exit_code == 0
    assert redis_client.llen("celery") == 3 - left
    assert documents(run(redis_app, "dlq", "count", "--json")) == {"count": left}


def test_many_letters_are_asked_about(redis_app):
    # O5
    bury(redis_app, "one")
    bury(redis_app, "two")
    result = run(redis_app, "dlq", "replay", "--all", answer="n\n")
    assert result.exit_code == 1
    assert "Replay 2 dead letters?" in result.stderr
    assert documents(run(redis_app, "dlq", "count", "--json")) == {"count": 2}


def test_replays_keep_to_the_rate(redis_app):
    for number in range(3):
        bury(redis_app, str(number))
    began = time.monotonic()
    run(redis_app, "dlq", "replay", "--all", "--yes", "--rate", "10")
    assert time.monotonic() - began >= 0.2


def test_letters_are_exported_as_json_lines(redis_app):
    bury(redis_app, "one")
    bury(redis_app, "two", reason="poison")
    lines = run(redis_app, "dlq", "export").stdout.splitlines()
    assert [json.loads(line) for line in lines] == documents(run(redis_app, "dlq", "list", "--json"))
    (poison,) = run(redis_app, "dlq", "export", "--reason", "poison").stdout.splitlines()
    assert json.loads(poison)["id"] == "two"


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--yes"], 0),
        (["--reason", "poison", "--yes"], 2),
        (["--limit", "1", "--yes"], 2),
        (["one", "two", "--yes"], 1),
        (["--dry-run"], 3),
        (["one", "--dry-run"], 3),
    ],
)
def test_as_many_letters_are_thrown_away_as_were_chosen(redis_app, arguments, left):
    for task_id, reason in (("one", "max_retries"), ("two", "max_retries"), ("three", "poison")):
        bury(redis_app, task_id, reason=reason)
    result = run(redis_app, "dlq", "purge", *arguments)
    assert result.exit_code == 0, result.output
    assert documents(run(redis_app, "dlq", "count", "--json")) == {"count": left}
    verb = "would be thrown away" if "--dry-run" in arguments else "thrown away"
    assert result.stdout.splitlines()[-1].endswith(verb)


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_no_letter_is_thrown_away(redis_app, answer):
    # O5
    bury(redis_app, "one")
    bury(redis_app, "two")
    result = run(redis_app, "dlq", "purge", answer=answer)
    assert result.exit_code == 1
    assert "Throw away 2 dead letters for good?" in result.stderr
    assert documents(run(redis_app, "dlq", "count", "--json")) == {"count": 2}


def test_letters_are_replayed_to_another_queue(redis_app, redis_client):
    bury(redis_app, "one")
    result = run(redis_app, "dlq", "replay", "one", "--queue", "quarantine")
    assert result.stdout.splitlines()[0] == "replayed one (proj.fail) to queue quarantine"
    assert redis_client.llen("quarantine") == 1


def test_status_says_how_many_calls_wait_in_redis(redis_app, monkeypatch):
    monkeypatch.setattr(_state, "_on_app_finalizers", set())  # shared tasks of other tests' apps
    assert "waiting" not in run(make_app(redis_app.conf.broker_url), "status").stdout
    app = make_app(redis_app.conf.broker_url, singlebeat_retry_store="redis")
    wire(app).waiting_store().park([Push("celery", "message")], 60)
    (line,) = [line for line in run(app, "status").stdout.splitlines() if line.startswith("waiting")]
    assert line.split() == ["waiting", "1"]
    assert "waiting" not in documents(run(app, "status", "--json"))
