"""What does not grow: memory, threads, descriptors and keys, over ten thousand dispatches."""

import os

import pytest

from celery_singlebeat.testing.processes import wait_until

ENTRIES = 400


@pytest.fixture
def celery_settings(celery_settings):
    entries = {f"e{number}": {"task": "tests.tick", "schedule": 0.2} for number in range(ENTRIES)}
    # with a result backend: stock beat subscribes to the result of each message that it sends
    return {**celery_settings, "beat_schedule": entries, "task_ignore_result": False}


def facts(beat, client):
    folder = f"/proc/{beat.pid}"
    with open(f"{folder}/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "keys": client.dbsize(),
        "memory": resident,
        "threads": len(os.listdir(f"{folder}/task")),
        "descriptors": len(os.listdir(f"{folder}/fd")),
    }


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_ten_thousand_dispatches_leave_nothing_behind(fleet, celery_setup_app):
    beat = fleet.start()

    def dispatched(number):
        return int(fleet.client.hget(fleet.key("counters"), "dispatched") or 0) >= number

    wait_until(lambda: dispatched(5_000), 60, fleet.logs)
    fleet.client.ltrim("celery", 0, 0)
    before = facts(beat, fleet.client)
    wait_until(lambda: dispatched(15_000), 60, fleet.logs)
    fleet.client.ltrim("celery", 0, 0)
    after = facts(beat, fleet.client)
    assert after["keys"] == before["keys"]
    assert after["threads"] == before["threads"]
    assert after["descriptors"] <= before["descriptors"] + 1
    assert after["memory"] - before["memory"] < 4_000_000, (before, after)
