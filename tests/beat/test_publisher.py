"""The outbox over a real RabbitMQ: what the broker is given, and what it refuses."""

import itertools

import pytest
from celery import Celery
from kombu import Connection

from celery_singlebeat import SingleBeatScheduler
from celery_singlebeat.testing.processes import wait_until

pytestmark = pytest.mark.rabbitmq

_names = (f"published{number}" for number in itertools.count(1))


@pytest.fixture
def publish(rabbitmq_url):
    """Dispatch entries until a condition holds of the messages in the queue, which it is given."""
    made = []

    def start(condition, **options):
        name = next(_names)
        app = Celery(name, broker=rabbitmq_url, set_as_current=False)
        app.conf.update(
            task_default_queue=name,
            beat_schedule={
                entry: {"task": entry, "schedule": 0.1, "options": found} for entry, found in options.items()
            },
            result_expires=None,
            task_ignore_result=True,
            singlebeat_redis_url="memory://",
            singlebeat_prefix=name,
        )
        scheduler = SingleBeatScheduler(app)
        made.append(scheduler)
        messages = []
        with Connection(rabbitmq_url) as connection:
            channel = connection.default_channel
            channel.queue_declare(name, durable=True, auto_delete=False)

            def turn():
                scheduler.tick()
                message = channel.basic_get(name, no_ack=True)
                messages.extend([message] if message else [])
                return condition(messages)

            wait_until(turn, 20, lambda: [message.headers["task"] for message in messages])
            channel.queue_delete(name)
        return messages, scheduler

    yield start
    for scheduler in made:
        scheduler.close()


def test_a_message_that_expires_goes_out_of_the_outbox_and_says_when(publish):
    messages, _ = publish(bool, work={"expires": 9.5})
    assert messages[0].properties["expiration"] == "9500"


def test_a_message_that_the_broker_refuses_keeps_no_other_back(publish):  # R5
    refused = {"exchange": "nowhere", "routing_key": "x"}
    messages, scheduler = publish(lambda found: len(found) > 20, lost=refused, work={})
    assert {message.headers["task"] for message in messages} == {"work"}
    assert scheduler._machine._publisher.stuck_for() < 1
    waiting = {key.split(" ", 1)[1] for key, _ in scheduler._machine._store.outbox()}
    assert "lost" in waiting
