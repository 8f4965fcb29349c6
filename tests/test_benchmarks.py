"""The harness of `make bench` runs, and tells what it measured. Its numbers are judged by itself."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks import changes, failover, report, waves
from benchmarks.__main__ import QUICK, run
from benchmarks.failover import Record, judge
from benchmarks.figures import percentile
from benchmarks.fleets import Arrival
from benchmarks.rest import STANDING_BY, Idle, Load, Steadiness
from benchmarks.takeover import Takeovers
from celery_singlebeat.testing.servers import ServerNotFoundError, find_redis_server
from tests.support.missing import miss

for peer in ("redbeat", "celery_leased_beat", "multibeat"):
    pytest.importorskip(peer, reason="the benchmarks compare with other schedulers")

TINY = replace(QUICK, entries=20, crowd=4, dispatches=20)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=160, color_system=None)


def rows(table):
    return list(table.columns[0].cells)


@pytest.mark.redis
@pytest.mark.process
@pytest.mark.slow
def test_a_tiny_run_measures_every_contender_and_a_crowd(console, tmp_path):
    try:
        find_redis_server()
    except ServerNotFoundError as error:
        miss(error)
    path = tmp_path / "found.json"
    code = run(TINY, ["dispatch", "crowd"], console, path)
    found = json.loads(path.read_text())
    assert {fault: len(times) for fault, times in found["crowd"]["takeover"].items()} == {
        "SIGKILL": 1,
        "SIGSTOP": 1,
    }
    assert (found["crowd"]["lost"], found["crowd"]["twice"]) == (0, 0)
    assert list(found["dispatch"]) == list(waves.CONTENDERS)
    assert all(len(rates) == 1 and rates[0] > 0 for rates in found["dispatch"].values())
    assert code in {0, 1}  # whether the bounds hold depends on what else this machine does
    text = console.file.getvalue()
    assert all(title in text for title in waves.TITLES.values())
    assert "4 replicas, SIGKILL: another leads within 250 ms" in text
    assert "dispatch rate at least" not in text  # so few entries are not judged
    assert "\x1b" not in text


@pytest.mark.redis
@pytest.mark.process
def test_changes_are_timed_one_by_one():
    try:
        find_redis_server()
    except ServerNotFoundError as error:
        miss(error)
    found = changes.measure(3)
    assert len(found.seen) == 3
    assert min(found.seen) >= changes.PERIOD
    assert found.too_many == 0


@pytest.mark.redis
@pytest.mark.process
@pytest.mark.slow
def test_a_tiny_run_compares_locks_and_finds_nothing_that_grows(console, tmp_path):
    try:
        find_redis_server()
    except ServerNotFoundError as error:
        miss(error)
    path = tmp_path / "found.json"
    run(TINY, ["locks"], console, path)
    found = json.loads(path.read_text())["locks"]
    assert {each["contender"] for each in found["pairs"]} == {"singlebeat", "redis-py"}
    assert all(each["rate"] > 0 and each["requests"] >= 1.9 for each in found["pairs"])
    flat = found["flat"]
    assert flat["keys"][1] <= flat["keys"][0]
    assert flat["files"][1] <= flat["files"][0]
    assert flat["threads"][1] <= flat["threads"][0] + 2  # a worker's first renewal starts its heartbeat


def test_a_requirement_that_is_not_met_is_the_exit_code(console, monkeypatch):
    grown = Steadiness(100, 10.0, (1000, 1000), (10, 11))
    monkeypatch.setattr("benchmarks.rest.steady", lambda **_: grown)
    assert run(TINY, ["steady"], console) == 1
    assert "FAIL" in console.file.getvalue()
    flat = Steadiness(100, 10.0, (1000, 1000), (10, 10))
    monkeypatch.setattr("benchmarks.rest.steady", lambda **_: flat)
    assert run(TINY, ["steady"], console) == 0


def test_a_ratio_is_taken_within_each_round_and_bounds_are_judged_on_its_median():
    rates = {waves.PLAIN: [100.0, 200.0, 100.0], waves.OURS: [80.0, 100.0, 70.0], waves.REDBEAT: [20.0] * 3}
    of_plain, of_redbeat = report.dispatch_checks(rates)
    assert waves.ratios(rates, waves.OURS, waves.PLAIN).median == pytest.approx(0.7)
    assert of_plain.holds
    assert of_redbeat.holds
    rates[waves.OURS] = [69.0, 138.0, 69.0]
    assert [check.holds for check in report.dispatch_checks(rates)] == [False, False]


def test_slots_lost_and_twice_are_read_from_the_slots_that_messages_name():
    slots = [f"2026-01-01T00:00:0{second}+00:00" for second in (0, 1, 1, 4)]
    record = Record("ours")
    judge([Arrival(float(number), slot) for number, slot in enumerate(slots)], 1.0, record)
    assert (record.messages, record.lost, record.twice) == (4, 2, 1)


def test_without_slots_they_are_read_from_the_gaps():
    record = Record("theirs")
    judge([Arrival(at, None) for at in (0.0, 1.01, 1.3, 4.4, 5.4)], 1.0, record)
    assert (record.messages, record.lost, record.twice) == (5, 2, 1)


def test_the_failover_table_has_each_fault_of_each_contender_and_redbeat_at_its_defaults():
    records = {
        kind.name: Record(kind.title, {"SIGKILL": [0.1], "SIGSTOP": [0.3]}, {"SIGKILL": [0.2]}, 10)
        for kind in failover.FLEETS
    }
    table = report.failover_table(records, failover.FAULTS)
    assert rows(table)[::3] == [*(kind.title for kind in failover.FLEETS), report.REDBEAT_DEFAULTS]
    assert all(check.holds for check in report.failover_checks(records))
    records["singlebeat"].lost = 1
    assert not report.failover_checks(records)[0].holds


def test_a_takeover_is_judged_by_its_worst_round():
    found = Takeovers("3 replicas", {"SIGSTOP": [0.3] * 49 + [0.5]}, {"SIGKILL": [0.1] * 49 + [0.25]}, 9)
    found.lateness["SIGKILL"], found.takeover["SIGSTOP"] = [9.0], [9.0]  # not promised
    assert all(check.holds for check in report.takeover_checks(found))
    found.takeover["SIGKILL"][7] = 0.251
    found.lateness["SIGSTOP"][7] = 0.501
    found.elections = 1
    assert [check.holds for check in report.takeover_checks(found)] == [True, False, False, False]
    assert rows(report.takeover_table(found)) == ["SIGKILL", "SIGSTOP"]


def test_a_percentile_is_a_value_that_was_measured():
    values = [float(number) for number in range(1, 201)]
    assert [percentile(values, percent) for percent in (50, 99, 100)] == [100, 198, 200]
    assert percentile([7.0], 50) == 7


def test_idle_and_steady_tables_have_their_rows():
    loads = {
        kind.name: Idle(kind.title, Load(2, 10, 0.001), {3: Load(11, 60, 0.002), 50: Load(99, 600, 0.029)})
        for kind in STANDING_BY
    }
    assert len(rows(report.idle_table(loads))) == 3 * len(STANDING_BY)
    assert [check.holds for check in report.idle_checks(loads)] == [True]
    loads["singlebeat"].standbys[50] = Load(99, 600, 0.03)
    assert [check.holds for check in report.idle_checks(loads)] == [False]
    steady = Steadiness(100, 10.0, (1000, 1100), (10, 10))
    assert len(rows(report.steady_table(steady))) == 2
    assert [check.holds for check in report.steady_checks(steady)] == [False, True]
