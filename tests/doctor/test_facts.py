"""What an app's configuration, its tasks and its beats are read as."""

import json
import uuid

import pytest
from celery import Celery, Task
from kombu import Exchange, Queue
from kombu.transport import TRANSPORT_ALIASES

from celery_singlebeat import SettingsError, SingleBeatTask
from celery_singlebeat.doctor import examine
from celery_singlebeat.doctor.beats import read_beats
from celery_singlebeat.doctor.broker import read_broker
from celery_singlebeat.doctor.tasks import read_countdowns, read_tasks
from celery_singlebeat.policy.diagnosis import Verdict
from celery_singlebeat.policy.diagnosis.facts import Server
from celery_singlebeat.store.ports import Candidate, Claim, Keep, NodeReport
from celery_singlebeat.wiring import wire


def make_app(broker="memory://", **conf):
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(conf)
    app.conf.singlebeat_prefix = f"doctor:{uuid.uuid4()}"
    return app


# The broker

STORE = Server(subject="store", place="cache:6379", problem="refused")
BROKER = Server(subject="broker", place="other:6379")
URL = "redis://:secret-1@cache:6379/0"


@pytest.mark.parametrize(
    ("conf", "seconds"),
    [
        ({}, 3600.0),
        ({"broker_transport_options": {"visibility_timeout": 60}}, 60.0),
        ({"result_backend_transport_options": {"visibility_timeout": 60}}, 3600.0),
        ({"visibility_timeout": 60}, 3600.0),
    ],
)
def test_a_redis_broker_redelivers_after_what_its_transport_options_say(conf, seconds):
    found = read_broker(wire(make_app(URL, **conf)), [STORE])
    assert (found.kind, found.place, found.problem) == ("redis", "cache:6379, db 0", "refused")
    assert (found.redelivers_after, found.redelivery, found.assumed) == (seconds, "visibility_timeout", False)
    assert found.holds_waiting


@pytest.mark.parametrize(
    ("conf", "stray"),
    [
        ({"broker_transport_options": {"visibility_timeout": 60}}, ()),
        ({"visibility_timeout": 60}, ("the configuration itself",)),
        (
            {"result_backend_transport_options": {"visibility_timeout": 60}},
            ("result_backend_transport_options",),
        ),
        ({"broker_transport_options": {"visibility_timeout": 60}, "visibility_timeout": 60}, ()),
    ],
)
def test_a_visibility_timeout_that_has_no_effect_is_seen(conf, stray):
    assert read_broker(wire(make_app(URL, **conf)), [STORE]).stray == stray


def test_a_redis_broker_beside_the_store_has_its_own_answer():
    app = make_app(URL, singlebeat_redis_url="redis://store:6379/0")
    assert read_broker(wire(app), [STORE, BROKER]).problem == ""


def test_another_broker_is_asked(rabbitmq_url):
    found = read_broker(wire(make_app(rabbitmq_url, singlebeat_redis_url="memory://")), [])
    assert (found.kind, found.problem) == ("amqp", "")
    assert (found.redelivers_after, found.redelivery, found.assumed) == (1800.0, "consumer_timeout", True)


def test_another_broker_that_is_away_has_a_problem():
    app = make_app("amqp://u:secret-1@127.0.0.1:1//", singlebeat_redis_url="memory://")
    found = read_broker(wire(app), [])
    assert "refused" in found.problem
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("queues", "conf", "expected"),
    [
        ([{}], {}, (1800.0, True, True)),
        ([{"x-queue-type": "quorum"}], {"task_default_exchange_type": "direct"}, (1800.0, True, True)),
        ([{"x-consumer-timeout": 7_200_000}], {}, (7200.0, False, True)),
        ([{"x-consumer-timeout": 7_200_000}, {}], {}, (1800.0, True, True)),
        ([{"x-consumer-timeout": 60_000}, {}], {}, (60.0, False, True)),
        ([{"x-queue-type": "quorum"}], {}, (1800.0, True, False)),
        ([{"x-queue-type": "quorum"}], {"worker_detect_quorum_queues": False}, (1800.0, True, True)),
        ([{}], {"task_default_queue_type": "quorum"}, (1800.0, True, False)),
    ],
)
def test_the_queues_say_how_long_rabbitmq_waits(queues, conf, expected):
    exchange = Exchange("jobs", type=conf.get("task_default_exchange_type", "topic"))
    conf = {"worker_detect_quorum_queues": True, **conf}
    app = make_app("amqp://127.0.0.1:1//", singlebeat_redis_url="memory://", **conf)
    app.conf.task_queues = [
        Queue(f"q{number}", exchange, queue_arguments=about) for number, about in enumerate(queues)
    ]
    found = read_broker(wire(app), [])
    assert (found.redelivers_after, found.assumed, found.holds_waiting) == expected


@pytest.mark.parametrize("transport", ["unknown", "not-installed"])
def test_a_broker_that_nobody_knows_is_a_wrong_setting(transport, monkeypatch):
    monkeypatch.setitem(TRANSPORT_ALIASES, "not-installed", "no_such_module:Transport")
    app = make_app(f"{transport}://u:secret-1@loft", singlebeat_redis_url="memory://")
    with pytest.raises(SettingsError, match="broker_url") as caught:
        examine(app)
    assert "secret" not in str(caught.value)


# Tasks


def facts_of(app, name="t"):
    return next(task for task in read_tasks(app, wire(app).settings) if task.name == name)


def job():
    """The body of a task."""


def declare(app, base=SingleBeatTask, **attributes):
    app.task(name="t", base=base, shared=False, **attributes)(job)
    return facts_of(app)


def test_what_a_task_of_ours_says_is_read():
    found = declare(
        make_app(task_soft_time_limit=50, singlebeat_lock_ttl=9),
        time_limit=60,
        on_conflict="retry",
        conflict_countdown=7,
        conflict_timeout=90,
        dedupe_ttl=11,
    )
    assert (found.is_ours, found.acks_late, found.reject_on_worker_lost) == (True, True, True)
    assert (found.time_limit, found.soft_time_limit) == (60.0, 50.0)
    assert (found.exclusive, found.lock_ttl) == (True, 9.0)
    assert (found.dedupe_ttl, found.doubts) == (11.0, ())


def test_what_a_task_says_against_itself_is_a_doubt():
    (doubt,) = declare(make_app(), on_conflict="retry", conflict_countdown=5, conflict_timeout=4).doubts
    assert "conflict_timeout=4" in doubt


def test_a_plain_task_is_no_task_of_ours():
    found = declare(make_app(task_acks_late=True), Task)
    assert (found.is_ours, found.acks_late, found.exclusive, found.lock_ttl) == (False, True, False, None)
    assert (found.time_limit, found.soft_time_limit) == (None, None)


@pytest.mark.parametrize(
    ("base", "attributes", "seconds"),
    [
        (SingleBeatTask, {}, 16.0),
        (SingleBeatTask, {"max_retries": 0}, 5.0),
        (SingleBeatTask, {"max_retries": None}, 600.0),
        (SingleBeatTask, {"max_retries": None, "retry_backoff_max": 7200}, 7200.0),
        (SingleBeatTask, {"max_retries": 3, "retry_jitter": "decorrelated"}, 27.0),
        (SingleBeatTask, {"retry_backoff": 0}, 180.0),
        (SingleBeatTask, {"max_retries": None, "retry_store": "redis", "on_lock_error": "fail"}, 0.0),
        (SingleBeatTask, {"on_conflict": "retry", "conflict_countdown": 99, "on_lock_error": "run"}, 99.0),
        (SingleBeatTask, {"retry_store": "redis"}, 5.0),
        (SingleBeatTask, {"retry_backoff": 0, "max_retries": 0, "on_lock_error": "fail"}, 0.0),
        (SingleBeatTask, {"retry_backoff": 0, "default_retry_delay": 7200}, 7200.0),
        (SingleBeatTask, {"conflict_countdown": 4000}, 4000.0),
        (SingleBeatTask, {"conflict_countdown": 4000, "on_lock_error": "fail"}, 16.0),
        (
            SingleBeatTask,
            {"conflict_countdown": 4000, "on_lock_error": "run", "on_conflict": "retry"},
            4000.0,
        ),
        (SingleBeatTask, {"conflict_countdown": 99, "on_lock_error": "run", "on_conflict": "fail"}, 16.0),
        (Task, {}, 180.0),
        (Task, {"default_retry_delay": 7200}, 7200.0),
        (Task, {"max_retries": 0}, 0.0),
        (Task, {"retry_backoff": True}, 4.0),
        (Task, {"retry_backoff": 100, "max_retries": None}, 600.0),
        (Task, {"retry_backoff": 100, "retry_backoff_max": 7200, "max_retries": 10}, 7200.0),
    ],
)
def test_the_longest_wait_of_a_task_is_worked_out(base, attributes, seconds):
    assert declare(make_app(), base, **attributes).longest_wait == seconds


def test_celerys_own_tasks_are_not_judged():
    app = make_app()
    assert not [task for task in read_tasks(app, wire(app).settings) if task.name.startswith("celery.")]
    assert "celery.chord" in app.tasks


def test_countdowns_in_the_schedule_are_read_and_oddities_are_the_beats_to_tell():
    schedule = {
        "later": {"task": "t", "schedule": 60, "options": {"countdown": 7200}},
        "soon": {"task": "t", "schedule": 60, "options": {"countdown": "soon"}},
        "bad options": {"task": "t", "schedule": 60, "options": 7},
        "bad": None,
    }
    (found,) = read_countdowns(make_app(beat_schedule=schedule))
    assert (found.entry, found.task, found.seconds) == ("later", "t", 7200.0)


# Beats


def report(app, node, *, host="h", **about):
    store = wire(app).beat_store()
    about = {"pid": 1, "role": "standby", "tick_age": 0.0, **about}
    store.report(NodeReport(node=node, host=host, **about), keep=60)


def lead(app, node="a"):
    store = wire(app).beat_store()
    return store, store.bid(node, ttl=60, candidate=Candidate(node=node, host="h", pid=1)).grant


def test_a_leader_and_its_standby_are_counted():
    app = make_app()
    lead(app)
    report(app, "a", role="leader", entries=3, faulty={"bad": "no task"}, overdue=("late",))
    report(app, "b", entries=9)
    found = read_beats(wire(app))
    assert found.leader == "a (host h, pid 1)"
    assert (found.heard, found.standbys, found.entries) == (2, 1, 3)
    assert (found.faulty, found.overdue) == ({"bad": "no task"}, ("late",))
    assert (found.silent, found.wedged, found.outbox) == ((), (), 0)


def test_without_beats_there_is_nothing_to_count():
    found = read_beats(wire(make_app()))
    assert (found.leader, found.heard, found.standbys, found.entries) == (None, 0, 0, 0)


def test_a_loop_that_does_not_turn_is_told_from_a_beat_that_is_silent(redis_url, redis_client):
    app = make_app(redis_url)
    report(app, "stuck", tick_age=99.0)
    report(app, "gone", host="elsewhere")
    wiring = wire(app)
    about = json.loads(redis_client.hget(wiring.keys.nodes, "gone"))
    about["seen"] -= 60_000
    redis_client.hset(wiring.keys.nodes, "gone", json.dumps(about))
    found = read_beats(wiring)
    assert [line.partition(":")[0] for line in found.wedged] == ["stuck is wedged"]
    assert [line.partition(":")[0] for line in found.silent] == ["gone was not heard for 60 s"]
    assert found.standbys == 0


def test_the_age_of_the_outbox_is_that_of_its_oldest_slot():
    app = make_app()
    store, grant = lead(app)
    now = store.overview().time
    claims = [
        Claim("b", now.replace(year=now.year - 1, day=1), (Keep("payload"),)),
        Claim("a", now, (Keep("payload"),)),
    ]
    store.emit(grant, claims)
    found = read_beats(wire(app))
    assert found.outbox == 2
    assert found.outbox_age > 300 * 86_400


# Together


def test_an_app_in_memory_is_examined_without_any_server():
    app = make_app()
    declare(app)
    found = examine(app)
    assert found.having(Verdict.FAILURE) == []
    assert {finding.check for finding in found.having(Verdict.WARNING)} == {"settings", "leader"}
    assert "outbox" in {finding.check for finding in found.findings}


@pytest.mark.parametrize(
    "conf",
    [
        {"singlebeat_lease_ttl": "soon"},
        {"singlebeat_dispatch": "atomic"},
        {"singlebeat_redis_url": "redis://a:1;redis://b:2"},
    ],
)
def test_settings_that_cannot_work_end_the_examination(conf):
    with pytest.raises(SettingsError):
        examine(make_app(**conf))


def test_a_task_that_cannot_work_ends_the_examination():
    app = make_app()
    app.task(name="t", base=SingleBeatTask, shared=False, retry_backoff=100)(job)
    app.tasks["t"].retry_backoff_max = 10
    with pytest.raises(SettingsError, match="retry_backoff"):
        examine(app)
