import json
from collections import Counter
from datetime import datetime, timedelta

import pytest

from celery_singlebeat.testing.processes import wait_until

PREFIX = "fleet"


class Fleet:
    """Replicas of beat on one Redis, seen from outside: by the store's record and the queue's messages."""

    def __init__(self, server, start_beat):
        self.server = server
        self.start_beat = start_beat
        self.client = server.client(decode_responses=True)
        self.beats = []

    def start(self, *arguments, **options):
        beat = self.start_beat(*arguments, **options)
        self.beats.append(beat)
        return beat

    def key(self, name):
        return f"{PREFIX}:{{sb}}:{name}"

    def epoch(self):
        lease = self.client.get(self.key("lease"))
        return int(lease.partition(":")[0]) if lease else 0

    def leader(self):
        """The node that leads by the store's record, or None."""
        lease, about = self.client.get(self.key("lease")), self.client.hgetall(self.key("leader"))
        if not lease or about.get("token") != lease:
            return None
        return next((beat for beat in self.beats if str(beat.pid) == about["pid"]), None)

    def wait_for_leader(self, *, after=0, timeout=15):
        return wait_until(lambda: self.epoch() > after and self.leader(), timeout, self.logs)

    def wait_for_reports(self, timeout=15):
        """Until every running replica has reported: the standbys are ready."""

        def reported():
            pids = {json.loads(report)["pid"] for report in self.client.hvals(self.key("nodes"))}
            return all(beat.pid in pids for beat in self.beats if beat.container.status == "running")

        wait_until(reported, timeout, self.logs)

    def headers(self, queue="celery"):
        """Headers of the messages in a queue, oldest first."""
        return [json.loads(message)["headers"] for message in reversed(self.client.lrange(queue, 0, -1))]

    def slots(self, entry="tick"):
        found = (h for h in self.headers() if h.get("singlebeat_entry") == entry)
        return [datetime.fromisoformat(headers["singlebeat_slot"]) for headers in found]

    def wait_for_slots(self, number, entry="tick", timeout=20):
        return wait_until(lambda: len(found := self.slots(entry)) >= number and found, timeout, self.logs)

    def assert_one_stream(self, period, entry="tick"):
        """Every slot from the first to the last, once, in order."""
        slots = self.slots(entry)
        twice = [slot.isoformat() for slot, count in Counter(slots).items() if count > 1]
        assert not twice, twice
        assert slots == sorted(slots)
        expected, moment = [], slots[0]
        while moment <= slots[-1]:
            expected.append(moment)
            moment += timedelta(seconds=period)
        missing = [slot.isoformat() for slot in expected if slot not in set(slots)]
        assert not missing, missing
        return slots

    def logs(self):
        return "\n".join(f"--- {beat.pid}\n{beat.logs()}" for beat in self.beats)


@pytest.fixture
def celery_settings():
    """One entry every fifth of a second. Override `entries` or this for another schedule."""
    return {
        "singlebeat_prefix": PREFIX,
        "singlebeat_lease_ttl": 3,
        "result_expires": None,
        "task_ignore_result": True,
        "beat_schedule": {"tick": {"task": "tests.tick", "schedule": 0.2}},
    }


@pytest.fixture
def fleet(celery_brokers_and_backends, start_beat):
    """An empty fleet; its server is the broker that pytest-celery has started for this test."""
    brokers, _ = celery_brokers_and_backends
    found = Fleet(brokers[0].container._container.server, start_beat)
    yield found
    found.client.close()
