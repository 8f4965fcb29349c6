"""The harness of `make bench` runs, and tells what it measured. Its numbers are judged by itself."""

import io
import json

import pytest
from rich.console import Console

from benchmarks import failover, report, waves
from benchmarks.__main__ import Size, run
from benchmarks.failover import Record, judge
from benchmarks.fleets import Arrival
from benchmarks.rest import Load, Steadiness
from celery_singlebeat.testing.servers import ServerNotFoundError, find_redis_server
from tests.support.missing import miss

pytest.importorskip("redbeat", reason="the benchmarks compare with celery-redbeat")

TINY = Size(entries=20, waves=1, faults=("SIGKILL",), rounds=1, idle=0.5, dispatches=20)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=160, color_system=None)


def rows(table):
    return list(table.columns[0].cells)


@pytest.mark.redis
@pytest.mark.process
@pytest.mark.slow
def test_a_tiny_run_measures_every_contender_and_judges_nothing(console, tmp_path):
    try:
        find_redis_server()
    except ServerNotFoundError as error:
        miss(error)
    path = tmp_path / "found.json"
    code = run(TINY, ["dispatch"], console, path)
    found = json.loads(path.read_text())
    assert list(found["dispatch"]) == list(waves.CONTENDERS)
    assert all(len(rates) == 1 and rates[0] > 0 for rates in found["dispatch"].values())
    assert found["checks"] == []
    assert code == 0
    text = console.file.getvalue()
    assert all(title in text for title in waves.TITLES.values())
    assert "Requirements" not in text
    assert "\x1b" not in text


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


def test_idle_and_steady_tables_have_their_rows():
    pair = (Load(2.0, 10.0), Load(11.0, 60.0))
    assert len(rows(report.idle_table({"singlebeat": pair, "redbeat": pair}))) == 4
    steady = Steadiness(100, 10.0, (1000, 1100), (10, 10))
    assert len(rows(report.steady_table(steady))) == 2
    assert [check.holds for check in report.steady_checks(steady)] == [False, True]
