"""Who is well, who is not, and who is only gone; decided from reports, and from processes that are real."""

import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest

from celery_singlebeat.health import Bounds, birth, examine, examine_node, sight
from celery_singlebeat.store.ports import NodeReport, Overview
from celery_singlebeat.testing.processes import wait_until

NOW = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)
BOUNDS = Bounds(tick=10, silence=7)
DAY = 86_400


def beat(node="a", *, heard=0.5, tick_age=0.0, stuck=0.0, up=100.0, host="here", pid=1, role="standby"):
    return NodeReport(
        node=node,
        host=host,
        pid=pid,
        role=role,
        tick_age=tick_age,
        stuck=stuck,
        up=up,
        seen=NOW - timedelta(seconds=heard),
    )


def judge(*reports, lives=None, host="here"):
    return examine(overview(*reports), host=host, bounds=BOUNDS, sight=lambda report: lives)


def overview(*reports):
    return Overview(time=NOW, leader=None, nodes=reports, counters={}, paused=(), outbox=0)


@pytest.mark.parametrize(
    ("reports", "lives", "problem"),
    [
        ([beat()], None, ""),
        ([beat(role="leader"), beat("b")], None, ""),
        ([beat(heard=6.9)], None, ""),
        ([beat(tick_age=9.9)], None, ""),
        ([beat(tick_age=10.1)], None, "a is wedged"),
        ([beat(tick_age=10.1), beat("b")], None, "a is wedged"),
        ([beat(role="leader", stuck=9.9)], None, ""),
        ([beat(role="leader", stuck=10.1), beat("b")], None, "a cannot publish"),
        ([beat(heard=8)], True, "a was not heard for 8 s"),
        ([beat(heard=8)], None, "a was not heard for 8 s"),
        ([beat(heard=8), beat("b")], True, "a was not heard for 8 s"),
        ([], None, "no beat of this app has reported from host here"),
        ([beat(host="there")], None, "no beat of this app has reported from host here"),
        ([beat(host="there", heard=DAY), beat()], None, ""),
    ],
)
def test_every_beat_of_the_host_has_to_be_heard_and_to_turn(reports, lives, problem):
    found = judge(*reports, lives=lives)
    assert found.is_well == (not problem)
    assert "; ".join(found.problems).startswith(problem)


def test_every_problem_is_one_line():
    found = judge(beat(tick_age=20), beat("b", heard=30), lives=True)
    assert len(found.problems) == 2
    assert all("\n" not in problem for problem in found.problems)


def test_a_beat_that_was_killed_is_forgotten_once_another_runs():
    found = judge(beat(heard=8), beat("b"), lives=False)
    assert found.is_well
    assert [finding.report.node for finding in found.findings] == ["b"]


def test_a_host_whose_only_beat_was_killed_is_not_well():
    found = judge(beat(heard=8), lives=False)
    assert found.problems == ("no beat runs on host here: the last one, a, was killed, and heard 8 s ago",)


@pytest.mark.parametrize("heard", [8, 3600, DAY])
def test_a_paused_beat_does_not_get_well_with_time(heard):
    assert not judge(beat(heard=heard), beat("b"), lives=True).is_well


def test_a_beat_that_cannot_be_seen_is_gone_once_its_successor_began_after_it_was_last_heard():
    """A container that was killed and started again has the same host name, and other processes."""
    assert judge(beat(heard=60), beat("b", up=50), lives=None).is_well


def test_a_beat_that_cannot_be_seen_is_missed_by_those_that_were_there_before():
    assert not judge(beat(heard=60), beat("b", up=70), lives=None).is_well


def test_a_beat_ahead_of_the_stores_clock_is_well():
    """The clock of Redis was put back: until the next report, the last one lies in the future."""
    assert judge(beat(heard=-3600)).is_well


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (beat(), ""),
        (beat(host="there"), ""),
        (beat(heard=8), "a was not heard for 8 s"),
        (beat(tick_age=11), "a is wedged"),
        (beat("b"), "no beat named a has reported"),
    ],
)
def test_one_beat_is_judged_wherever_it_runs(report, problem):
    found = examine_node(overview(report), node="a", bounds=BOUNDS)
    assert found.is_well == (not problem)
    assert "".join(found.problems).startswith(problem)


# What the system says of processes


@pytest.fixture
def child():
    """A process that does nothing, not yet reaped."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def report_of(pid, *, born=None):
    return NodeReport(
        node="a", host="here", pid=pid, role="standby", tick_age=0, birth=birth(pid) if born is None else born
    )


def test_a_living_process_is_seen(child):
    assert sight(report_of(child.pid)) is True


def test_a_paused_process_lives(child):
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    assert sight(report_of(child.pid)) is True


def test_a_killed_process_is_gone_before_and_after_its_parent_takes_note(child):
    report = report_of(child.pid)
    child.kill()
    wait_until(lambda: os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    assert sight(report) is False
    child.wait()
    assert sight(report) is False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say when a process began")
def test_another_process_with_the_same_pid_is_not_taken_for_the_beat(child):
    namespace, _, began = birth(child.pid).partition(" ")
    assert sight(report_of(child.pid, born=f"{namespace} {int(began) - 1}")) is False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no pid namespaces")
def test_a_process_of_another_container_cannot_be_seen(child):
    assert sight(report_of(child.pid, born="pid:[1] 17")) is None
