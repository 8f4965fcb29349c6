"""Redis that is away, restarted, slow, or answers into the void."""

import pytest

from celery_singlebeat.testing.processes import wait_until
from tests.support.proxy import FaultProxy

PERIOD = 0.2


@pytest.fixture
def proxied(fleet):
    """Two replicas behind a proxy of their own each."""
    with FaultProxy(fleet.server.port) as first, FaultProxy(fleet.server.port) as second:
        fleet.proxies = {}
        for proxy in (first, second):
            beat = fleet.start(env={"BROKER_URL": proxy.url(0)})
            fleet.proxies[beat.pid] = proxy
        fleet.wait_for_leader()
        fleet.wait_for_reports()
        fleet.wait_for_slots(2)
        yield fleet


def test_a_leader_that_is_cut_off_is_replaced_and_rejoins(proxied):  # G1, G9
    old, epoch = proxied.leader(), proxied.epoch()
    proxied.proxies[old.pid].blackhole()
    new = proxied.wait_for_leader(after=epoch, timeout=10)
    assert new is not old
    proxied.wait_for_slots(len(proxied.slots()) + 5)
    proxied.proxies[old.pid].heal()
    proxied.wait_for_slots(len(proxied.slots()) + 5)
    proxied.assert_one_stream(PERIOD)
    new_epoch = proxied.epoch()
    new.kill()
    assert proxied.wait_for_leader(after=new_epoch, timeout=15) is old


def test_a_lost_reply_to_an_emission_doubles_nothing(proxied):  # M3, B3
    leader = proxied.leader()
    proxy = proxied.proxies[leader.pid]
    for _ in range(5):
        cuts = proxy.cuts
        goal = len(proxied.slots()) + 2
        proxy.cut_after(1, match=b"tests.tick")
        wait_until(lambda cuts=cuts: proxy.cuts > cuts, 10, proxied.logs)
        proxied.wait_for_slots(goal)
    proxied.assert_one_stream(PERIOD)


def test_requests_that_arrive_late_are_refused(proxied):  # B1
    old, epoch = proxied.leader(), proxied.epoch()
    proxied.proxies[old.pid].hold(requests=True)
    proxied.wait_for_leader(after=epoch, timeout=10)
    proxied.wait_for_slots(len(proxied.slots()) + 5)
    proxied.proxies[old.pid].heal()
    proxied.wait_for_slots(len(proxied.slots()) + 5)
    proxied.assert_one_stream(PERIOD)


def test_a_restart_of_redis_with_its_data_is_survived(fleet):  # G9
    fleet.client.config_set("appendonly", "yes")
    for _ in range(2):
        fleet.start(wait=False)
    fleet.wait_for_slots(3)
    pids = [beat.pid for beat in fleet.beats]
    fleet.server.kill()
    fleet.server.start()
    fleet.client.ping()
    fleet.wait_for_slots(len(fleet.slots()) + 10)
    fleet.assert_one_stream(PERIOD)
    assert [beat.pid for beat in fleet.beats if beat.container.status == "running"] == pids


def test_a_restart_of_redis_without_its_data_is_survived(fleet):  # G9
    for _ in range(2):
        fleet.start(wait=False)
    fleet.wait_for_slots(3)
    before = fleet.epoch()
    fleet.server.restart(keep_data=False)
    wait_until(lambda: fleet.server.client().ping(), 10, "no server")
    fleet.wait_for_slots(5)
    fleet.assert_one_stream(PERIOD)
    assert fleet.epoch() > before
    assert all(beat.container.status == "running" for beat in fleet.beats)


def test_a_frozen_redis_is_survived(fleet):  # G9
    for _ in range(2):
        fleet.start(wait=False)
    fleet.wait_for_slots(3)
    fleet.server.pause()
    wait_until(lambda: "does not answer" in fleet.logs(), 15, fleet.logs)
    fleet.server.resume()
    fleet.wait_for_slots(len(fleet.slots()) + 10)
    fleet.assert_one_stream(PERIOD)


def test_a_beat_ends_on_sigterm_while_redis_does_not_answer(fleet):  # B6, G9
    beat = fleet.start()
    fleet.wait_for_leader()
    fleet.wait_for_slots(2)
    fleet.server.pause()
    wait_until(lambda: "does not answer" in fleet.logs(), 15, fleet.logs)
    beat.kill(signal="SIGTERM")
    code = beat.container._container.process.wait(timeout=5)
    fleet.server.resume()
    assert code == 0, beat.logs()


def test_a_redis_that_is_a_replica_for_a_while_is_survived(fleet):  # G9
    for _ in range(2):
        fleet.start(wait=False)
    fleet.wait_for_slots(3)
    fleet.client.replicaof("127.0.0.1", 1)
    wait_until(lambda: "does not answer" in fleet.logs(), 15, fleet.logs)
    fleet.client.replicaof("NO", "ONE")
    fleet.wait_for_slots(len(fleet.slots()) + 10)
    fleet.assert_one_stream(PERIOD)
    assert all(beat.container.status == "running" for beat in fleet.beats)


def test_beats_that_start_before_redis_wait_for_it(fleet):  # G9
    fleet.server.stop()
    for _ in range(2):
        fleet.start()
    wait_until(lambda: fleet.logs().count("does not answer") >= 2, 15, fleet.logs)
    assert all(beat.container.status == "running" for beat in fleet.beats)
    fleet.server.start()
    fleet.wait_for_slots(5)
    fleet.assert_one_stream(PERIOD)
    for beat in fleet.beats:
        assert beat.logs().count("does not answer") == 1
        assert "Traceback" not in beat.logs()


def test_a_wrong_password_names_the_setting_and_not_the_password(fleet):
    url = f"redis://:s3cret@127.0.0.1:{fleet.server.port}/0"
    fleet.client.config_set("requirepass", "another")
    fleet.client.execute_command("AUTH", "another")
    beat = fleet.start(env={"BROKER_URL": url})
    line = wait_until(
        lambda: next((line for line in beat.logs().splitlines() if "does not answer" in line), None),
        15,
        beat.logs,
    )
    assert "broker_url" in line
    assert "s3cret" not in beat.logs()
    assert fleet.client.llen("celery") == 0
