"""Which queue a message came from, by its exchange and routing key, also after a delay in the broker."""

import celery
import pytest
from celery import Celery, signals
from celery.app.task import Context
from kombu import Exchange, Queue, binding
from kombu.exceptions import OperationalError

from celery_singlebeat import SingleBeatTask
from celery_singlebeat.task.origins import queue_of, undelayed
from celery_singlebeat.task.sending import send_later
from celery_singlebeat.task.workplace import in_place

SHOP = Exchange("shop", type="topic")
DELAY = "0." * 25 + "1.0.1."


@pytest.fixture
def app():
    app = Celery("origins", broker="memory://", set_as_current=False)
    app.conf.task_queues = [
        Queue("all", SHOP, routing_key="#"),
        Queue("mail", SHOP, routing_key="send.mail"),
        Queue("feeds", SHOP, routing_key="feed.*"),
        Queue("news", Exchange("news", type="fanout")),
        Queue("both", bindings=[binding(SHOP, "one"), binding(Exchange("other", type="direct"), "two")]),
    ]
    app.select_queues(["mail", "feeds", "news", "both"])
    return app


@pytest.mark.parametrize(
    ("exchange", "routing_key", "queue"),
    [
        ("", "mail", "mail"),
        ("", "send.mail", "send.mail"),
        ("shop", "send.mail", "mail"),
        ("shop", "feed.import", "feeds"),
        ("shop", "anything.else", "all"),
        ("shop", "one", "both"),
        ("other", "two", "both"),
        ("news", "", "news"),
        ("nobodys", "send.mail", "send.mail"),
    ],
)
def test_the_bindings_of_the_queues_tell_where_a_message_came_from(app, exchange, routing_key, queue):
    assert queue_of(app, exchange, routing_key) == queue


@pytest.mark.parametrize(
    ("exchange", "routing_key", "expected"),
    [
        ("celery_delayed_delivery", f"{DELAY}send.mail", ("", "mail")),
        ("mine_celery_delayed_delivery", f"{DELAY}feed.import", ("", "feeds")),
        ("celery_delayed_delivery", f"{DELAY}{DELAY}send.mail", ("", "mail")),
        ("shop", "send.mail", ("shop", "send.mail")),
        ("", f"{DELAY}send.mail", ("", f"{DELAY}send.mail")),
        (None, None, (None, None)),
    ],
)
def test_a_message_that_waited_in_the_broker_has_the_address_that_it_had_before(
    app, exchange, routing_key, expected
):
    found = undelayed(app, {"exchange": exchange, "routing_key": routing_key, "priority": 3})
    assert (found["exchange"], found["routing_key"], found["priority"]) == (*expected, 3)


def test_a_delayed_message_of_an_unknown_queue_loses_its_delay_alone():
    app = Celery("origins", broker="memory://", set_as_current=False)
    delayed = {"exchange": "celery_delayed_delivery", "routing_key": f"{DELAY}of.others"}
    assert undelayed(app, delayed) == {**delayed, "routing_key": "of.others"}


DELAYED = "celery_delayed_27"


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="older Celery has no native delayed delivery")
@pytest.mark.parametrize(
    ("exchange", "routing_key", "expected"),
    [
        ("shop", "send.mail", (DELAYED, "send.mail")),
        ("shop", "feed.import", (DELAYED, "feed.*")),
        ("", "feeds", (DELAYED, "feed.*")),
        ("other", "two", ("other", "two")),  # direct exchanges have no native delay
        ("news", "", (DELAYED, "celery")),  # no delay without a routing key: the default of Celery
    ],
)
def test_a_delayed_call_is_sent_to_the_queue_that_it_came_from(app, exchange, routing_key, expected):
    app.conf.update(broker_url="pyamqp://127.0.0.1:1//", task_publish_retry=False)
    app.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    app.amqp.queues["all"].queue_arguments = {"x-queue-type": "quorum"}

    @app.task(base=SingleBeatTask, name="late", shared=False)
    def task():
        pass

    place = in_place(app)
    info = {"exchange": exchange, "routing_key": routing_key}
    request = Context(id="1", args=(), kwargs={}, retries=0, headers={}, delivery_info=info)
    seen = []

    def look(exchange, routing_key, **_):
        seen.append((getattr(exchange, "name", exchange), routing_key.removeprefix(DELAY)))

    signals.before_task_publish.connect(look, sender="late")
    try:
        with pytest.raises(OperationalError):  # there is no broker
            send_later(task.signature_from_request(request), task._rules(place), place, wait=5)
    finally:
        signals.before_task_publish.disconnect(look, sender="late")
    assert seen == [expected]
