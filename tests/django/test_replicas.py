"""Real replicas of `celery beat -S singlebeat-django` over one database and one Redis."""

import json
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from django_celery_beat.models import ClockedSchedule

from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from tests.support.projects import REPOSITORY
from tests.support.shop_beat import rows
from tests.support.shop_database import SETTINGS

pytestmark = pytest.mark.process


class Replicas:
    """Beats, seen by the store's record, the queue's messages and the rows."""

    def __init__(self, url, client, folder):
        self.client = client
        self.trap = folder / "trap"  # while it lies there, the next process that has dispatched dies
        self.env = {
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PYTHONPATH": str(REPOSITORY),
            "SHOP_BROKER": url,
            "SHOP_FATAL": str(self.trap),
        }
        self.folder = folder
        self.beats = []

    def start(self, number=1):
        words = ["-m", "celery", "-A", "tests.support.shop", "beat", "-S", "singlebeat-django"]
        for _ in range(number):
            beat = ManagedProcess(
                [sys.executable, *words, "--pidfile=", "-l", "INFO"],
                cwd=self.folder,
                env=self.env,
                name="beat",
            )
            self.beats.append(beat.start())
        wait_until(lambda: len(self.nodes()) == len(self.running()), 30, self.logs)

    def running(self):
        return [beat for beat in self.beats if beat.poll() is None]

    def nodes(self):
        """Pids of the running replicas that have reported their schedule."""
        pids = {json.loads(report)["pid"] for report in self.client.hvals("fleet:{sb}:nodes")}
        return pids & {beat.pid for beat in self.running()}

    def leader(self):
        """The running replica that leads, once it does."""

        def led():
            lease, about = self.client.get("fleet:{sb}:lease"), self.client.hgetall("fleet:{sb}:leader")
            if lease and about.get("token") == lease:
                return next((beat for beat in self.running() if str(beat.pid) == about["pid"]), None)
            return None

        return wait_until(led, 20, self.logs)

    def slots(self, entry):
        messages = [json.loads(text)["headers"] for text in reversed(self.client.lrange("celery", 0, -1))]
        return [
            datetime.fromisoformat(headers["singlebeat_slot"])
            for headers in messages
            if headers["singlebeat_entry"] == entry
        ]

    def runs(self, entry):
        return int(self.client.hget("fleet:{sb}:runs", entry) or 0)

    def kill_after_the_next_dispatch(self):
        """Returns what it was that has died."""
        leader = self.leader()
        self.trap.touch()
        return leader

    def logs(self):
        return "\n".join(f"--- {beat.pid}\n{beat.logs()}" for beat in self.beats)


@pytest.fixture
def replicas(redis_url, redis_client, database, tmp_path):
    found = Replicas(redis_url, redis_client, tmp_path)
    yield found
    for beat in found.beats:
        beat.kill()


def assert_one_stream(slots, period):
    assert [slot for slot, count in Counter(slots).items() if count > 1] == []
    gaps = {later - slot for slot, later in pairwise(slots)}
    assert gaps == {timedelta(seconds=period)}


def test_a_leader_killed_between_dispatch_and_history_repeats_nothing_and_loses_nothing(
    replicas, add
):  # D1 D4
    replicas.start(3)
    first = replicas.kill_after_the_next_dispatch()
    soon = datetime.now(timezone.utc) + timedelta(seconds=2)
    add("once", clocked=ClockedSchedule.objects.create(clocked_time=soon), one_off=True)
    wait_until(lambda: first.poll() is not None, 20, replicas.logs)
    assert len(replicas.slots("once")) == 1
    assert (rows()["once"].total_run_count, rows()["once"].enabled) == (0, True)

    wait_until(lambda: not rows()["once"].enabled, 20, replicas.logs)
    assert rows()["once"].total_run_count == 1
    assert len(replicas.slots("once")) == 1

    add("tick", every=1)
    wait_until(lambda: len(replicas.slots("tick")) >= 1, 20, replicas.logs)
    second = replicas.kill_after_the_next_dispatch()
    wait_until(lambda: second.poll() is not None, 20, replicas.logs)
    sent = len(replicas.slots("tick"))
    assert rows()["tick"].total_run_count < sent
    wait_until(lambda: len(replicas.slots("tick")) >= sent + 3, 20, replicas.logs)
    assert_one_stream(replicas.slots("tick"), 1)
    assert len(replicas.slots("once")) == 1

    tick = rows()["tick"]
    tick.enabled = False
    tick.save()
    wait_until(lambda: rows()["tick"].total_run_count == replicas.runs("tick"), 20, replicas.logs)
    assert replicas.runs("tick") == len(replicas.slots("tick"))


def test_replicas_share_one_table_and_follow_it(replicas, add):
    add("tick", every=0.5)
    add("off", every=0.5, enabled=False)
    replicas.start(2)
    wait_until(lambda: len(replicas.slots("tick")) >= 2, 20, replicas.logs)
    leader = replicas.leader()
    off = rows()["off"]
    off.enabled = True
    off.save()
    wait_until(lambda: replicas.slots("off"), 10, replicas.logs)
    tick = rows()["tick"]
    tick.args = "[1]"
    tick.save()
    assert leader.terminate(20) == 0
    after = len(replicas.slots("tick"))
    wait_until(lambda: len(replicas.slots("tick")) >= after + 3, 20, replicas.logs)
    assert replicas.leader() is not leader
    assert_one_stream(replicas.slots("tick"), 0.5)
    assert_one_stream(replicas.slots("off"), 0.5)
