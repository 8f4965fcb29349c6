"""A leader that lives and does not work: replaced, unwell by its own word, and silent when it wakes.

Each node looks into a folder where it has to stop: a file `WHERE NODE` stops that node there until it goes.
"""

import json
from collections import Counter
from contextlib import ExitStack

import pytest
from kombu import Connection

from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis, ServerNotFoundError
from tests.support.missing import miss
from tests.support.projects import Project
from tests.support.proxy import FaultProxy

SOURCE = """
import logging
import os
import time
from pathlib import Path

from celery import Celery, signals
from celery.schedules import schedule

NODE = os.environ.get("NODE", "")


def stop(where):
    while (Path("stops") / f"{where} {NODE}").exists():
        time.sleep(0.01)


class Live(schedule):
    # a user's own schedule: what it does when it is asked is its own affair
    def is_due(self, last_run_at):
        stop("schedule")
        return super().is_due(last_run_at)


class Blocking(logging.Handler):
    def emit(self, record):
        stop("log")


@signals.after_setup_logger.connect
def log(logger, **_):
    logger.addHandler(Blocking())


app = Celery("wedged", broker=os.environ["PROJ_BROKER"])
app.conf.update(
    beat_scheduler="celery_singlebeat:SingleBeatScheduler",
    singlebeat_redis_url=os.environ["STORE"],
    singlebeat_prefix="wedged",
    singlebeat_lease_ttl=2,
    task_ignore_result=True,
    result_expires=None,
    beat_schedule={
        name: {"task": "job", "schedule": kind(float(os.environ["PERIOD"]))}
        for name, kind in (("plain", schedule), ("live", Live))
        if name in os.environ["ENTRIES"]
    },
)
if NODE:
    app.conf.singlebeat_node = NODE
"""


class Nodes:
    """Beats with names, and what the store and the queue say of them."""

    def __init__(self, folder, store, *, entries, period=0.2, brokers=None):
        self.brokers = brokers or {}
        self.client = store.client(decode_responses=True)
        env = {"STORE": store.url(), "ENTRIES": entries, "PERIOD": str(period)}
        self.project = Project(folder, store.url(), source=SOURCE, env=env)
        self.stops = folder / "stops"
        self.stops.mkdir()
        self.beats = {}
        for name in ("a", "b"):
            broker = {"PROJ_BROKER": self.brokers[name]} if self.brokers else {}
            self.beats[name] = self.project.beat(NODE=name, **broker)
            wait_until(self.dispatched, 20, self.logs)
        wait_until(lambda: self.client.hlen("wedged:{sb}:nodes") == 2, 20, self.logs)

    def end(self):
        self.project.end()
        self.client.close()

    def leader(self):
        lease = self.client.get("wedged:{sb}:lease")
        about = self.client.hgetall("wedged:{sb}:leader")
        return about["node"] if lease and about.get("token") == lease else None

    def elections(self):
        """The number of elections for each reason."""
        counters = self.client.hgetall("wedged:{sb}:counters").items()
        return {name.partition(":")[2]: int(n) for name, n in counters if name.startswith("elections:")}

    def dispatched(self):
        return int(self.client.hget("wedged:{sb}:counters", "dispatched") or 0)

    def headers(self):
        """Headers of the messages in the queue, oldest first."""
        if not self.brokers:
            return [json.loads(text)["headers"] for text in reversed(self.client.lrange("celery", 0, -1))]
        found = []
        with Connection(self.project.env["PROJ_BROKER"]) as connection:
            while message := connection.default_channel.basic_get("celery", no_ack=True):
                found.append(message.headers)
        return found

    def stop(self, where, node):
        (self.stops / f"{where} {node}").touch()

    def go_on(self, where, node):
        (self.stops / f"{where} {node}").unlink()

    def is_healthy(self, node):
        done = self.project.singlebeat("health", "--node", node)
        assert done.returncode in {0, 1}, done.stderr
        return done.returncode == 0

    def wait_for_dispatches(self, more):
        goal = self.dispatched() + more
        wait_until(lambda: self.dispatched() >= goal, 20, self.logs)

    def wait_for_another_leader(self, old):
        return wait_until(lambda: (new := self.leader()) not in (None, old) and new, 20, self.logs)

    def assert_that_the_wedged_one_sent_nothing_more(self):
        headers = self.headers()
        slots = Counter((one["singlebeat_entry"], one["singlebeat_slot"]) for one in headers)
        assert [slot for slot, count in slots.items() if count > 1] == []
        epochs = [one["singlebeat_epoch"] for one in headers]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) == 2

    def logs(self):
        return "\n".join(f"--- {name}\n{beat.logs()}" for name, beat in self.beats.items())


@pytest.fixture
def store():
    try:
        server = EmbeddedRedis()
    except ServerNotFoundError as error:
        miss(error)
    with server:
        yield server


@pytest.fixture
def nodes(store, tmp_path):
    with ExitStack() as stack:

        def start(**options):
            started = Nodes(tmp_path, store, **options)
            stack.callback(started.end)
            started.wait_for_dispatches(2)
            return started

        yield start


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.process
@pytest.mark.parametrize(
    ("where", "entries", "reason"),
    [
        ("schedule", "plain live", "overdue"),  # the tick loop hangs in a user's schedule
        ("schedule", "live", "free"),  # and no slot can be seen overdue: it gives the lease up itself
        ("log", "plain", "overdue"),  # tick loop and heartbeat hang in a log handler
    ],
)
def test_a_leader_that_hangs_is_replaced_and_silent_when_it_wakes(nodes, where, entries, reason):  # G1, B2
    nodes = nodes(entries=entries)
    old, reasons = nodes.leader(), Counter(nodes.elections())
    assert nodes.is_healthy(old)
    nodes.stop(where, old)
    new = nodes.wait_for_another_leader(old)
    assert nodes.elections() == reasons + Counter([reason]), nodes.logs()
    nodes.wait_for_dispatches(3)
    wait_until(lambda: not nodes.is_healthy(old), 20, nodes.logs)
    assert nodes.is_healthy(new)
    nodes.go_on(where, old)
    wait_until(lambda: nodes.is_healthy(old), 20, nodes.logs)
    nodes.wait_for_dispatches(3)
    assert nodes.leader() == new
    nodes.assert_that_the_wedged_one_sent_nothing_more()


@pytest.mark.slow
@pytest.mark.process
def test_a_leader_whose_broker_swallows_packets_is_replaced_and_unwell(nodes, rabbitmq_url):  # G2, R3, R4
    port = int(rabbitmq_url.partition("@")[2].partition(":")[2].partition("/")[0])
    with FaultProxy(port) as first, FaultProxy(port) as second:
        proxies = {"a": first, "b": second}
        brokers = {name: rabbitmq_url.replace(f":{port}/", f":{p.port}/") for name, p in proxies.items()}
        nodes = nodes(entries="plain", brokers=brokers)
        nodes.project.env["PROJ_BROKER"] = rabbitmq_url
        old = nodes.leader()
        assert nodes.is_healthy(old)
        proxies[old].blackhole()
        wait_until(lambda: not nodes.is_healthy(old), 20, nodes.logs)
        new = nodes.wait_for_another_leader(old)
        wait_until(lambda: nodes.client.hlen("wedged:{sb}:outbox") == 0, 20, nodes.logs)
        assert nodes.is_healthy(new)
        before = nodes.headers()
        proxies[old].heal()
        wait_until(lambda: nodes.is_healthy(old), 20, nodes.logs)
        nodes.wait_for_dispatches(3)
        wait_until(lambda: nodes.client.hlen("wedged:{sb}:outbox") == 0, 20, nodes.logs)
        assert nodes.leader() == new
        after = nodes.headers()
    epoch = max(one["singlebeat_epoch"] for one in before)
    assert {one["singlebeat_epoch"] for one in after} == {epoch}
    # A message whose confirmation was swallowed comes again, under its own id; no other slot comes twice.
    assert not {one["id"] for one in before} & {one["id"] for one in after}
    ids = {(one["singlebeat_slot"], one["id"]) for one in before + after}
    assert len({slot for slot, _ in ids}) == len(ids) >= len(before + after) - 1


@pytest.mark.redis
@pytest.mark.process
def test_where_scripts_may_not_ask_for_subscribers_the_other_detectors_carry_on(store, tmp_path):  # G1
    with store.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "+@all", "-pubsub")
    nodes = Nodes(tmp_path, store, entries="plain")
    try:
        nodes.wait_for_dispatches(2)
        old = nodes.leader()
        nodes.beats[old].kill()
        nodes.wait_for_another_leader(old)
        nodes.wait_for_dispatches(3)
        assert nodes.elections() == {"free": 1, "overdue": 1}
        nodes.assert_that_the_wedged_one_sent_nothing_more()
    finally:
        nodes.end()
