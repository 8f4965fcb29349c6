"""Attributes that cannot mean what they say together are told, one line for each."""

import pytest
from celery import Celery

from celery_singlebeat import SingleBeatTask
from celery_singlebeat.task.doubts import doubts_of


def doubts(broker="memory://", transport=None, **options):
    app = Celery("doubts", broker=broker, set_as_current=False)
    app.conf.update(broker_transport_options=transport or {}, singlebeat_redis_url="redis://127.0.0.1/0")

    @app.task(base=SingleBeatTask, name="t", shared=False, **options)
    def t():
        pass

    return doubts_of(alone(app))


def alone(app):
    """The app without the tasks that other modules share with every app of this process."""
    for name in [name for name in app.tasks if name != "t"]:
        del app.tasks[name]
    return app


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry_for": 60, "max_retries": 0}, ["retry_for=60", "max_retries=0"]),
        ({"retry_for": 1, "retry_backoff": 5, "retry_jitter": "none"}, ["retry_for=1", "5 s"]),
        ({"retry_for": 1, "retry_backoff": 5, "retry_jitter": "equal"}, ["retry_for=1", "2.5 s"]),
        ({"retry_for": 1, "retry_backoff_min": 2}, ["retry_for=1", "2 s"]),
        ({"autoretry_for": (ValueError,), "dont_autoretry_for": (KeyError,)}, ["KeyError", "autoretry_for"]),
        ({"conflict_timeout": 9}, ["conflict_timeout", "'skip'"]),
        ({"on_conflict": "retry", "conflict_timeout": 2}, ["conflict_timeout=2", "conflict_countdown=5"]),
        ({"poison_limit": 3, "acks_late": False}, ["poison_limit", "acks_late"]),
        ({"retry_backoff": 0, "retry_jitter": "equal"}, ["retry_jitter", "default_retry_delay"]),
        ({"retry_backoff": 2, "retry_kwargs": {"countdown": 1}}, ["retry_kwargs", "retry_backoff"]),
    ],
)
def test_attributes_that_cannot_mean_what_they_say_are_told(options, words):
    (doubt,) = doubts(**options)
    assert doubt.startswith("task t: ")
    assert "\n" not in doubt
    for word in words:
        assert word in doubt


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retry_for": 3600, "max_retries": None},
        {"autoretry_for": (Exception,), "dont_autoretry_for": (KeyError,)},
        {"autoretry_for": (KeyError,), "dont_autoretry_for": (LookupError,)},
        {"on_conflict": "retry", "conflict_timeout": 60},
        {"retry_backoff": 0},
        {"retry_backoff": 2},
    ],
)
def test_attributes_that_make_sense_are_not_doubted(options):
    assert doubts(**options) == []


REDIS = "redis://127.0.0.1/0"


def test_a_wait_that_outlasts_the_visibility_timeout_is_told():
    (doubt,) = doubts(REDIS, {"visibility_timeout": 3}, retry_backoff=8)
    for words in ("t may wait 600 s", "every 3 s", "visibility_timeout", "retry_store='redis'"):
        assert words in doubt


@pytest.mark.parametrize(
    ("broker", "transport", "options"),
    [
        (REDIS, {"visibility_timeout": 3}, {"retry_store": "redis"}),
        (REDIS, {"visibility_timeout": 3}, {"max_retries": 0}),
        (REDIS, {"visibility_timeout": 900}, {}),
        (REDIS, {}, {}),
        ("amqp://127.0.0.1//", {"visibility_timeout": 3}, {}),
    ],
)
def test_a_wait_that_the_broker_bears_is_not_doubted(broker, transport, options):
    assert doubts(broker, transport, **options) == []


def test_a_worker_on_the_queue_beside_the_dead_letters_is_doubted():
    app = Celery("doubts", broker="memory://", set_as_current=False)
    app.conf.update(singlebeat_redis_url=REDIS)

    @app.task(base=SingleBeatTask, name="t", shared=False)
    def t():
        pass

    app.select_queues(["dead_letters.failed"])
    (doubt,) = doubts_of(alone(app))
    assert "dead_letters.failed" in doubt
