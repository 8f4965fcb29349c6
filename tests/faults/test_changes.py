"""The schedule changed by commands while real beats lead, and are killed."""

from datetime import datetime, timedelta, timezone

import pytest

from tests.cli.test_commands import run


def now():
    return datetime.now(timezone.utc)


@pytest.fixture
def command(fleet, celery_setup_app):
    """Run a command of `singlebeat schedule` on the fleet's app."""

    def ask(*arguments):
        result = run(celery_setup_app, "schedule", *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    return ask


def test_a_change_reaches_a_running_leader_and_a_pause_outlives_it(fleet, command):  # Y1, Y2
    for _ in range(2):
        fleet.start(wait=False)
    old = fleet.wait_for_leader()
    fleet.wait_for_reports()
    fleet.wait_for_slots(2)

    assert command("add", "mine", "--task", "tests.mine", "--every", "0.1").startswith("added mine")
    added = now()
    fleet.wait_for_slots(1, "mine")
    assert now() - added <= timedelta(seconds=1)

    fleet.wait_for_slots(5, "mine")
    command("pause", "mine")
    paused = fleet.slots("mine")
    epoch = fleet.epoch()
    old.kill()
    assert fleet.wait_for_leader(after=epoch) is not old
    fleet.wait_for_slots(len(fleet.slots()) + 5)  # the new leader dispatches the other entry
    assert fleet.slots("mine") == paused

    command("resume", "mine")
    resumed = now()
    fleet.wait_for_slots(len(paused) + 5, "mine")
    following = fleet.slots("mine")[len(paused)]
    assert resumed - timedelta(seconds=0.1) < following < resumed + timedelta(seconds=1)
    assert int(fleet.client.hget(fleet.key("counters"), "missed")) >= 5
    fleet.assert_one_stream(0.2)
    command("remove", "mine", "--yes")
    gone = fleet.slots("mine")
    fleet.wait_for_slots(len(fleet.slots()) + 5)
    assert fleet.slots("mine") == gone
