"""A task that cannot work is refused when it registers, with one line that says why."""

import sys

import pytest
from celery import Celery

from celery_singlebeat import SettingsError, SingleBeatTask
from celery_singlebeat.settings import Settings
from celery_singlebeat.task.rules import read_rules
from celery_singlebeat.task.workers import check_settings


@pytest.fixture
def app():
    with Celery("registration", set_as_current=False) as app:
        yield app


def register(app, **options):
    @app.task(base=SingleBeatTask, name="proj.sync", shared=False, **options)
    def sync(a, b=2):
        return a

    app.finalize()
    return app.tasks["proj.sync"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lock_on": ("tenant",)}, ["lock_on", "'tenant'", "a, b"]),
        ({"lock_on": "a"}, ["lock_on='a'", "a list of names"]),
        ({"lock_key": "tenant:{tenant}"}, ["lock_key", "'tenant'", "a, b"]),
        ({"lock_key": "tenant:{}"}, ["lock_key", "without a name"]),
        ({"lock_key": "tenant:{a"}, ["lock_key", "tenant:{a"]),
        ({"lock_key": ""}, ["lock_key=''"]),
        ({"lock_key": 7}, ["lock_key=7"]),
        ({"lock_key": lambda x, y: "k"}, ["lock_key takes x, y", "a, b"]),
        ({"lock_key": "k", "lock_on": ("a",)}, ["lock_on and lock_key"]),
        ({"lock_ttl": 0}, ["lock_ttl=0", "above 0"]),
        ({"lock_ttl": -1}, ["lock_ttl=-1"]),
        ({"lock_ttl": 0.1}, ["lock_ttl=0.1", "renewed every third", "0.5 or more"]),
        ({"lock_ttl": "30"}, ["lock_ttl='30'", "a number"]),
        ({"on_conflict": "skp"}, ["on_conflict='skp'", "'skip'"]),
        ({"retry_store": "disk"}, ["retry_store='disk'", "'eta', 'redis'"]),
        ({"retry_for": -1}, ["retry_for=-1"]),
        ({"retry_backoff_min": 700}, ["retry_backoff_min=700", "retry_backoff_max=600"]),
        ({"lock_backend": "etcd"}, ["lock_backend='etcd'", "'redis'", "'redis+postgresql'"]),
        ({"on_lock_error": "ignore"}, ["on_lock_error='ignore'"]),
        ({"on_lock_lost": "stop"}, ["on_lock_lost='stop'"]),
        ({"exclusive": "yes"}, ["exclusive='yes'", "True or False"]),
        ({"hold_during_retry": 1}, ["hold_during_retry=1"]),
        ({"conflict_countdown": 0}, ["conflict_countdown=0"]),
        ({"conflict_timeout": -5}, ["conflict_timeout=-5"]),
        ({"dedupe_ttl": -1}, ["dedupe_ttl=-1"]),
        ({"retry_jitter": "half"}, ["retry_jitter='half'", "'full'"]),
        ({"retry_backoff": -1}, ["retry_backoff=-1"]),
        ({"retry_backoff": 3600}, ["retry_backoff=3600", "retry_backoff_max=600"]),
        ({"max_retries": -1}, ["max_retries=-1"]),
        ({"autoretry_for": ("ValueError",)}, ["autoretry_for", "exception classes"]),
        ({"poison_limit": 0}, ["poison_limit=0"]),
        ({"dead_letter_queue": ""}, ["dead_letter_queue=''", "None for none"]),
    ],
)
def test_a_bad_attribute_is_refused_with_one_line_that_names_it(app, options, words):
    with pytest.raises(SettingsError) as caught:
        register(app, **options)
    text = str(caught.value)
    assert text.startswith("task proj.sync: ")
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lock_on": ()},
        {"lock_on": ["a"]},
        {"lock_key": "constant"},
        {"lock_key": lambda arguments: "k"},
        {"retry_jitter": True},
        {"retry_jitter": False},
        {"retry_backoff": True},
        {"retry_backoff": False},
        {"retry_backoff": 0.25},
        {"max_retries": None},
        {"max_retries": 0},
        {"autoretry_for": ()},
        {"autoretry_for": [ValueError]},
        {"dead_letter_queue": None},
        {"dead_letter_queue": "mine"},
        {"dedupe_ttl": 0},
        {"conflict_timeout": 0},
        {"exclusive": False},
        {"on_conflict": "queue"},
        {"on_conflict": "replace"},
        {"lock_backend": "redis"},
        {"lock_backend": "redlock"},
    ],
)
def test_a_sensible_attribute_is_taken(app, options):
    assert register(app, **options).name == "proj.sync"


@pytest.mark.parametrize("backend", ["postgresql", "redis+postgresql"])
def test_a_missing_driver_is_named_with_what_brings_it(app, monkeypatch, backend):
    monkeypatch.setitem(sys.modules, "psycopg.pq", None)
    with pytest.raises(SettingsError) as caught:
        register(app, lock_backend=backend)
    assert str(caught.value) == (
        f"task proj.sync: lock_backend={backend!r} needs psycopg 3: "
        "pip install 'celery-singlebeat[postgresql]'"
    )


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("redlock", "needs singlebeat_lock_urls: an odd number of independent Redis servers, 3 or more"),
        ("postgresql", "needs singlebeat_postgres_dsn"),
        ("redis+postgresql", "needs singlebeat_postgres_dsn"),
    ],
)
def test_a_worker_does_not_start_while_a_backend_lacks_its_servers(app, backend, words):
    pytest.importorskip("psycopg")
    register(app, lock_backend=backend)
    app.conf.broker_url = "redis://localhost"
    with pytest.raises(SystemExit) as caught:
        check_settings(app)
    text = str(caught.value)
    assert text.startswith(f"Error: task proj.sync: lock_backend={backend!r} {words}")
    assert "\n" not in text


@pytest.mark.parametrize("backend", ["postgresql", "redis+postgresql"])
def test_a_worker_whose_setting_needs_a_missing_driver_does_not_start(app, monkeypatch, backend):
    monkeypatch.setitem(sys.modules, "psycopg.pq", None)
    register(app)
    app.conf.update(
        broker_url="redis://localhost",
        singlebeat_lock_backend=backend,
        singlebeat_postgres_dsn="postgresql://u:s3cret@localhost/d",
    )
    with pytest.raises(SystemExit) as caught:
        check_settings(app)
    assert str(caught.value) == (
        f"Error: singlebeat_lock_backend={backend!r} needs psycopg 3: "
        "pip install 'celery-singlebeat[postgresql]'"
    )


def test_the_settings_of_the_app_are_the_defaults(app):
    task = register(app)
    settings = Settings(
        redis_url="memory://", lock_ttl=7, dedupe_ttl=8, poison_limit=9, dead_letter_queue="there"
    )
    rules = read_rules(task, settings)
    assert (rules.lock_ttl, rules.dedupe_ttl, rules.poison_limit) == (7, 8, 9)
    assert rules.dead_letter_queue == "there"


def test_an_attribute_goes_before_the_setting(app):
    task = register(app, lock_ttl=1, dedupe_ttl=0, poison_limit=2, dead_letter_queue=None)
    rules = read_rules(task, Settings(redis_url="memory://"))
    assert (rules.lock_ttl, rules.dedupe_ttl, rules.poison_limit) == (1, 0, 2)
    assert rules.dead_letter_queue is None


def test_the_defaults_are_the_documented_ones(app):
    task = register(app)
    names = ["exclusive", "lock_on", "lock_key", "on_conflict", "conflict_countdown", "conflict_timeout"]
    names += ["hold_during_retry", "on_lock_error", "on_lock_lost", "autoretry_for", "dont_autoretry_for"]
    names += ["max_retries", "retry_backoff", "retry_backoff_max", "retry_jitter"]
    assert [getattr(task, name) for name in names] == [
        *(True, None, None, "skip", 5, None),
        *(True, "retry", "continue", (Exception,), ()),
        *(5, 1.0, 600, "full"),
    ]
    assert task.acks_late
    assert task.reject_on_worker_lost


def test_a_task_may_be_declared_before_its_app_is_configured(app):
    task = register(app)
    app.conf.task_always_eager = True
    assert task.delay(1).get() == 1
