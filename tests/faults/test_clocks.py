"""Real beats and a real Redis whose wall clocks are stepped by an hour, one at a time, while slots fall due.

A consumer with the true time takes each message as it comes: none may be early, none may come twice, and how
late they may be is what docs/calendars.md says.
"""

import json
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from itertools import pairwise

import pytest

from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import ServerNotFoundError
from tests.support.missing import miss
from tests.support.projects import SOURCE, Project
from tests.torture.site import Clocks, Server

pytestmark = [pytest.mark.process, pytest.mark.redis]

HOUR, PERIOD = 3600, 0.25
#: Seconds. A takeover takes 0.5 s (G4), on a machine that has time; what a step must not cause is an hour.
PROMPT = 5.0
CONF = {
    "beat_schedule": {"tick": {"task": "proj.tick", "schedule": PERIOD, "misfire": "all"}},
    "singlebeat_prefix": "clocks",
    "singlebeat_lease_ttl": 3,
    "singlebeat_catch_up_limit": 100_000,
    "result_expires": None,
    "task_ignore_result": True,
}
#: A schedule that decides itself when it is due, by the clock of its machine, and is not within these tests.
HOURLY = """

from celery.schedules import schedstate, schedule


class Decided(schedule):
    def is_due(self, last_run_at):
        return schedstate(super().is_due(last_run_at).is_due, 0.1)  # ask again soon


app.conf.beat_schedule["hourly"] = {"task": "proj.tick", "schedule": Decided(3600)}
"""


class Consumer(threading.Thread):
    """Takes messages and notes for each slot how late it came, in seconds of true time."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self._client = server.client(decode_responses=True)
        self._ends = False
        self.begin()

    def begin(self):
        """Forget what has come so far."""
        self.lateness = []
        self.slots = []
        self.others = []

    def run(self):
        while not self._ends:
            found = self._client.brpop("celery", timeout=0.2)
            if found is not None:
                headers = json.loads(found[1])["headers"]
                slot = datetime.fromisoformat(headers["singlebeat_slot"])
                if headers["singlebeat_entry"] != "tick":
                    self.others.append(headers["singlebeat_entry"])
                    continue
                self.lateness.append((datetime.now(timezone.utc) - slot).total_seconds())
                self.slots.append(slot)

    def end(self):
        self._ends = True
        self.join()
        self._client.close()


class Site:
    """Three beats, their server, a clock for each, and the consumer."""

    def __init__(self, folder, clocks, server):
        self.clocks = clocks
        self.server = server
        self.client = server.client(decode_responses=True)
        env = {"PROJ_CONF": json.dumps(CONF)}
        self.project = Project(folder, server.url(0), source=SOURCE + HOURLY, env=env)
        self.beats = {f"beat{number}": self.beat(f"beat{number}") for number in range(3)}
        self.consumer = Consumer(server)
        self.consumer.start()
        self.wait_for(8)
        wait_until(lambda: self.client.hlen("clocks:{sb}:nodes") == 3, 20, self.logs)

    def beat(self, name):
        return self.project.beat(**self.clocks.env(name))

    def leader(self):
        pid = self.client.hget("clocks:{sb}:leader", "pid")
        return next(name for name, beat in self.beats.items() if str(beat.pid) == pid)

    def standby(self):
        leader = self.leader()
        return next(name for name in self.beats if name != leader)

    def step(self, names, seconds):
        for name in names:
            self.clocks.step(name, seconds)

    def refused(self):
        return int(self.client.hget("clocks:{sb}:counters", "refused") or 0)

    def wait_for(self, number):
        goal = len(self.consumer.slots) + number
        wait_until(lambda: len(self.consumer.slots) >= goal, 30, self.logs)

    def assert_one_stream(self, *, latest=PROMPT):
        slots = list(self.consumer.slots)
        assert [slot for slot, count in Counter(slots).items() if count > 1] == []
        assert slots == sorted(slots)
        gaps = {round((after - before).total_seconds(), 3) for before, after in pairwise(slots)}
        assert gaps == {PERIOD}
        assert min(self.consumer.lateness) >= 0
        assert max(self.consumer.lateness) < latest
        assert self.consumer.others == []

    def logs(self):
        return "\n".join(beat.logs() for beat in self.beats.values())

    def end(self):
        self.consumer.end()
        self.project.end()
        self.client.close()


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clocks")
    clocks = Clocks(folder)
    if clocks.why_not:
        miss(clocks.why_not)
    server = Server(clocks.env("redis"))
    try:
        server.start()
    except ServerNotFoundError as error:
        miss(error)
    made = None
    try:
        made = Site(folder, clocks, server)
        yield made
    finally:
        if made is not None:
            made.end()
        server.stop()


@pytest.fixture
def site(everything):
    """All of them with true clocks, and a leader that is at work."""
    everything.consumer.begin()
    everything.wait_for(4)
    return everything


@pytest.mark.parametrize("hours", [1, -1])
def test_a_step_of_the_leaders_clock_sends_nothing_early_or_twice_or_late(site, hours):  # G5, C3
    leader = site.leader()
    site.clocks.step(leader, hours * HOUR)
    site.wait_for(8)
    if hours < 0:  # its slots were late by its own clock, so another leads
        assert site.leader() != leader
    site.clocks.step(leader, 0)
    site.wait_for(8)
    site.assert_one_stream()


@pytest.mark.parametrize("hours", [1, -1])
def test_a_step_of_a_standbys_clock_changes_nothing(site, hours):  # G5
    leader, standby = site.leader(), site.standby()
    site.clocks.step(standby, hours * HOUR)
    site.wait_for(8)
    site.clocks.step(standby, 0)
    site.wait_for(4)
    assert site.leader() == leader
    site.assert_one_stream()


def test_a_step_forward_of_redis_is_an_election_and_no_early_slot(site):  # G5
    site.clocks.step("redis", HOUR)
    site.wait_for(12)
    site.clocks.step("redis", 0)
    site.wait_for(12)
    site.assert_one_stream()


def test_a_step_forward_of_every_replica_changes_nothing(site):  # G5, C3
    leader = site.leader()
    site.step(site.beats, HOUR)
    site.wait_for(8)
    site.step(site.beats, 0)
    site.wait_for(4)
    assert site.leader() == leader
    site.assert_one_stream()


@pytest.mark.parametrize("who", ["redis", "every replica"])
def test_slots_wait_for_clocks_that_were_set_back_and_none_is_lost(site, who):  # G5, C3
    clocks = ["redis"] if who == "redis" else site.beats
    site.step(clocks, -HOUR)
    last = len(site.consumer.slots)
    refused = site.refused()
    waited = 2.5
    time.sleep(waited)  # the fault is that the clock stands back for so long
    assert len(site.consumer.slots) <= last + 2  # what was under way
    assert site.refused() - refused < 400  # a hundred in a second, until the step is known
    site.step(clocks, 0)
    site.wait_for(round(waited / PERIOD) + 8)
    site.assert_one_stream(latest=waited + PROMPT)
