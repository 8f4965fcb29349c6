"""A broker that is not the store, and that goes away: records wait, slots are not late, nothing is lost."""

import os
import sys
from collections import Counter
from datetime import datetime, timedelta

import pytest
from kombu import Connection

from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from tests.support.nodes import REPOSITORY
from tests.support.proxy import FaultProxy

APP = """
import os
from celery import Celery

app = Celery("outbox", broker=os.environ["BROKER"])
app.conf.update(
    beat_scheduler="celery_singlebeat:SingleBeatScheduler",
    beat_schedule={"tick": {"task": "tick", "schedule": 0.25}},
    singlebeat_redis_url=os.environ["STORE"],
    singlebeat_prefix="outbox",
    singlebeat_lease_ttl=4,
    task_ignore_result=True,
    result_expires=None,
)
"""

PERIOD = timedelta(seconds=0.25)


class Outbox:
    """One beat; its broker is RabbitMQ behind a proxy, its store another server."""

    def __init__(self, beat, proxy, broker_url, client):
        self.beat = beat
        self.proxy = proxy
        self.broker_url = broker_url
        self.client = client

    def claimed(self):
        """How many slots the store has given away."""
        return int(self.client.hget("outbox:{sb}:counters", "dispatched") or 0)

    def waiting(self):
        return self.client.hlen("outbox:{sb}:outbox")

    def received(self):
        """Every message in the queue: (task id, slot)."""
        found = []
        with Connection(self.broker_url) as connection:
            channel = connection.default_channel
            while message := channel.basic_get("celery", no_ack=True):
                found.append((message.headers["id"], message.headers["singlebeat_slot"]))
        return found


@pytest.fixture
def outbox(rabbitmq_url, redis_url, redis_client, tmp_path):
    (tmp_path / "outbox_app.py").write_text(APP)
    port = int(rabbitmq_url.partition("@")[2].partition(":")[2].partition("/")[0])
    with FaultProxy(port) as proxy:
        beat = ManagedProcess(
            [sys.executable, "-m", "celery", "-A", "outbox_app", "beat", "-l", "INFO", "--pidfile="],
            cwd=tmp_path,
            env={
                "BROKER": rabbitmq_url.replace(f":{port}/", f":{proxy.port}/"),
                "STORE": redis_url,
                "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)]),
            },
            name="beat",
        ).start()
        yield Outbox(beat, proxy, rabbitmq_url, redis_client)
        beat.kill()


def assert_complete(outbox):
    """Nothing waits any more; every claimed slot has its messages, each under one id."""
    claimed = outbox.claimed()
    wait_until(lambda: outbox.waiting() == 0, 30, outbox.beat.logs)
    received = outbox.received()
    slots = sorted({datetime.fromisoformat(slot) for _, slot in received})
    assert len(slots) >= claimed
    expected = [slots[0] + number * PERIOD for number in range(len(slots))]
    assert slots == expected
    assert all(len({one for one, other in received if other == slot}) == 1 for _, slot in received)
    return received


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
def test_a_broker_that_goes_away_leaves_records_and_no_late_slots(outbox, fault):  # R1, R2, G2
    wait_until(lambda: outbox.claimed() >= 4 and not outbox.waiting(), 20, outbox.beat.logs)
    if fault == "refuse":
        outbox.proxy.refuse()
        outbox.proxy.reset()
    else:
        outbox.proxy.blackhole()
    goal = outbox.claimed() + 12
    wait_until(lambda: outbox.claimed() >= goal, 10, outbox.beat.logs)  # 3 s of slots, claimed in time
    assert outbox.waiting() >= 8
    outbox.proxy.heal()
    received = assert_complete(outbox)
    if fault == "refuse":
        assert max(Counter(slot for _, slot in received).values()) <= 2
    assert outbox.beat.running
    assert outbox.client.hget("outbox:{sb}:counters", "elections") == "1"


@pytest.mark.slow
@pytest.mark.process
def test_a_leader_that_is_killed_before_it_published_leaves_its_records_to_the_next(outbox):  # R3, G2
    wait_until(lambda: outbox.claimed() >= 4 and not outbox.waiting(), 20, outbox.beat.logs)
    outbox.proxy.blackhole()
    wait_until(lambda: outbox.waiting() >= 4, 10, outbox.beat.logs)
    outbox.beat.kill()
    outbox.proxy.heal()
    outbox.beat.start()
    wait_until(lambda: outbox.claimed() >= 16, 20, outbox.beat.logs)
    assert_complete(outbox)
