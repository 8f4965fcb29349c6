"""Real beats under real signals: who leads, and what is in the queue."""

import signal
import time

import pytest

from celery_singlebeat.testing.processes import wait_until

PERIOD = 0.2


@pytest.fixture
def three(fleet):
    for _ in range(3):
        fleet.start(wait=False)
    fleet.wait_for_leader()
    fleet.wait_for_reports()
    fleet.wait_for_slots(2)
    return fleet


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGTERM"])
def test_a_leader_that_ends_is_replaced_and_no_slot_is_lost_or_doubled(three, fault):  # G1, G4
    old, epoch = three.leader(), three.epoch()
    old.kill(signal=fault)
    new = three.wait_for_leader(after=epoch, timeout=10)
    assert new is not old
    three.wait_for_slots(len(three.slots()) + 5)
    three.assert_one_stream(PERIOD)


def test_a_paused_leader_is_replaced_and_sends_nothing_when_it_wakes(three):  # G1, B1, B2
    old, epoch = three.leader(), three.epoch()
    old.pause()
    three.wait_for_leader(after=epoch, timeout=10)
    # longer than its lease
    wait_until(lambda: three.client.pttl(three.key("lease")) > 0 and len(three.slots()) >= 20, 20, three.logs)
    old.unpause()
    three.wait_for_slots(len(three.slots()) + 5)
    three.assert_one_stream(PERIOD)
    by_epoch = {headers["singlebeat_epoch"] for headers in three.headers()}
    epochs = [headers["singlebeat_epoch"] for headers in three.headers()]
    assert epochs == sorted(epochs)
    assert len(by_epoch) == 2
    wait_until(lambda: "not leading any more" in old.logs(), 10, old.logs)
    assert old.container.status == "running"


def test_a_terminated_leader_exits_cleanly_and_frees_the_lease(three):  # B6
    old, epoch = three.leader(), three.epoch()
    assert old.terminate() == 0
    assert three.wait_for_leader(after=epoch)
    assert "Traceback" not in old.logs()


@pytest.mark.parametrize("round_", range(6))
def test_sigterm_at_any_moment_even_twice_ends_a_beat_cleanly(fleet, round_):  # B6
    beat = fleet.start()
    fleet.wait_for_leader()
    fleet.wait_for_slots(1)
    time.sleep(0.033 * round_)  # the load of this test is the moment at which the signal arrives
    beat.kill(signal="SIGTERM")
    if round_ % 2:
        beat.kill(signal="SIGTERM")
    process = beat.container._container.process
    # A second signal may find the interpreter on its way out, with Celery's handler or without it: that
    # is 120 or -15. What counts is that the farewell was complete.
    codes = {0, 120, -signal.SIGTERM} if round_ % 2 else {0}
    assert process.wait(timeout=5) in codes, beat.logs()
    assert fleet.client.get(fleet.key("lease")) is None
    assert "beat raised exception" not in beat.logs()
    fleet.assert_one_stream(PERIOD)


def test_a_leader_whose_connections_are_killed_again_and_again_goes_on(three):  # G9
    def kill_all():
        for kind in ("normal", "pubsub"):
            three.client.client_kill_filter(_type=kind, skipme=True)

    for _ in range(8):
        goal = len(three.slots()) + 2
        kill_all()
        three.wait_for_slots(goal)
    three.assert_one_stream(PERIOD)
    assert all(beat.container.status == "running" for beat in three.beats)
    assert "Traceback" not in three.logs()


def test_a_leader_that_is_deposed_in_the_store_stands_by(three):  # B2, L4
    old, epoch = three.leader(), three.epoch()
    three.client.set(three.key("lease"), f"{epoch + 1}:somebody", px=600)
    three.wait_for_leader(after=epoch + 1)
    three.wait_for_slots(len(three.slots()) + 5)
    three.assert_one_stream(PERIOD)
    wait_until(lambda: "(deposed)" in old.logs(), 10, old.logs)


def test_the_lease_never_lacks_an_expiry(three):
    for _ in range(50):
        ttl = three.client.pttl(three.key("lease"))
        assert ttl == -2 or 0 < ttl <= 3000, ttl


def test_a_standby_writes_nothing_but_its_own_report(fleet):  # B5
    leader = fleet.start()
    fleet.wait_for_slots(1)
    fleet.client.acl_setuser(
        "standby", enabled=True, passwords=["+s"], commands=["+@all"], keys=["*"], channels=["*"]
    )
    fleet.start(env={"BROKER_URL": f"redis://standby:s@127.0.0.1:{fleet.server.port}/0"})
    fleet.wait_for_reports()
    with fleet.client.monitor() as monitor:
        commands = monitor.listen()
        heard, caller = [], ""
        goal = len(fleet.slots()) + 10
        while len(fleet.slots()) < goal:
            for command in (next(commands) for _ in range(50)):
                if command["client_type"] != "lua":  # a script's commands follow the call of the script
                    caller = f"{command['client_address']}:{command['client_port']}"
                heard.append((caller, command["command"].split(" ")))
    standby = {client["addr"] for client in fleet.client.client_list() if client["user"] == "standby"}
    kinds = fleet.client.command()
    written = {
        (words[0].lower(), words[1] if len(words) > 1 else "")
        for caller, words in heard
        if caller in standby and {"write", "pubsub"} & set(kinds.get(words[0].lower(), {}).get("flags", ()))
    }
    asked = {words[0] for caller, words in heard if caller in standby}
    assert {"EVALSHA", "HGET"} & asked
    assert written <= {("hset", fleet.key("nodes")), ("pubsub", "NUMSUB"), ("hdel", fleet.key("nodes"))}, (
        written
    )
    assert ("hset", fleet.key("nodes")) in written
    assert fleet.leader() is leader
