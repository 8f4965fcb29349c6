"""Measure, print, and judge: `python -m benchmarks`. Exit code 1 if a requirement is not met."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import endings, failover, locks, locks_report, report, rest, takeover, throughput, waves
from benchmarks.figures import Check
from celery_singlebeat.testing.servers import EmbeddedRedis

PARTS = ("dispatch", "failover", "takeover", "crowd", "idle", "steady", "locks", "throughput", "endings")
#: Whose versions are printed.
PACKAGES = (
    "celery",
    "kombu",
    "redis",
    "hiredis",
    "celery-redbeat",
    "celery-leased-beat",
    "celery-multibeat-scheduler",
    "celery-once",
    "celery-singleton",
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    entries: int
    waves: int
    faults: tuple[str, ...]
    rounds: int
    #: Whether the peers' defaults are measured too; that takes minutes.
    defaults: bool
    #: Rounds of each fault of ours alone: with three replicas, and with so many.
    takeovers: int
    crowd: int
    idle: float
    sizes: tuple[int, ...]
    dispatches: int
    #: Contenders for a lock, pairs that they make at least, and locked tasks.
    contenders: tuple[int, ...] = (1, 100)
    pairs: int = 300
    tasks: int = 500
    #: Calls of each kind in a round of throughput.
    calls: int = 300


FULL = Size(
    2000,
    7,
    failover.FAULTS,
    3,
    True,
    10,
    takeover.MANY,
    8.0,
    (takeover.REPLICAS, takeover.MANY),
    10_000,
    (1, 100, 1_000, 5_000),
    2_000,
    100_000,
    10_000,
)
#: The peers need seconds for a frozen leader, so the quick run freezes none of theirs.
QUICK = Size(300, 1, ("SIGKILL", "SIGTERM"), 1, False, 1, 6, 1.0, (takeover.REPLICAS,), 1000)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone; may be repeated")
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"of each fault (default {FULL.rounds}, and {FULL.takeovers} of ours alone)",
    )
    parser.add_argument("--waves", type=int, help=f"of each contender's dispatch (default {FULL.waves})")
    parser.add_argument("--entries", type=int, help=f"due at once (default {FULL.entries})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    chosen = parser.parse_args(argv)
    size = QUICK if chosen.quick else FULL
    size = replace(
        size,
        entries=chosen.entries or size.entries,
        waves=chosen.waves or size.waves,
        rounds=chosen.rounds or size.rounds,
        takeovers=chosen.rounds or size.takeovers,
    )
    console = Console()
    if not console.is_terminal:
        console = Console(width=140, color_system=None)
    return run(size, chosen.only or PARTS, console, chosen.json)


def run(size: Size, parts: Sequence[str], console: Console, path: Path | None = None) -> int:
    """Measure the parts, print a table for each and one of the requirements; the exit code."""
    about = {name: _installed(name) for name in PACKAGES}
    about = {"python": platform.python_version(), "celery-singlebeat": _version(), **about}
    console.print(", ".join(f"{name} {version}" for name, version in about.items()))
    found: dict[str, Any] = {"versions": about, "size": asdict(size)}
    checks: list[Check] = []
    if "dispatch" in parts:
        with EmbeddedRedis() as server:
            rates, costs = waves.measure(server, entries=size.entries, rounds=size.waves)
        found["dispatch"], found["dispatch_cpu_ms_per_1000"] = rates, costs
        if size.entries >= report.FEWEST_ENTRIES:
            checks += report.dispatch_checks(rates)
        console.print(report.dispatch_table(rates, costs, size.entries))
    if "failover" in parts:
        records = failover.measure(rounds=size.rounds, faults=size.faults, defaults=size.defaults)
        found["failover"] = {name: asdict(record) for name, record in records.items()}
        checks += report.failover_checks(records)
        console.print(report.failover_table(records, size.faults))
    for part in ("takeover", "crowd"):
        if part in parts:
            taken = (
                takeover.measure(rounds=size.takeovers)
                if part == "takeover"
                else takeover.crowd(rounds=size.takeovers, replicas=size.crowd)
            )
            found[part] = asdict(taken)
            checks += report.takeover_checks(taken)
            console.print(report.takeover_table(taken))
    if "idle" in parts:
        loads = rest.idle(seconds=size.idle, sizes=size.sizes)
        found["idle"] = {name: asdict(load) for name, load in loads.items()}
        checks += report.idle_checks(loads)
        console.print(report.idle_table(loads))
    if "steady" in parts:
        steady = rest.steady(dispatches=size.dispatches)
        found["steady"] = asdict(steady)
        checks += report.steady_checks(steady)
        console.print(report.steady_table(steady))
    checks += _locks(size, parts, console, found)
    found["checks"] = [asdict(check) for check in checks]
    if checks:
        console.print(report.checks_table(checks))
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if all(check.holds for check in checks) else 1


def _locks(size: Size, parts: Sequence[str], console: Console, found: dict[str, Any]) -> list[Check]:
    """What concerns task locks, not beat."""
    checks: list[Check] = []
    if "locks" in parts:
        pairs = locks.contention(size.contenders, pairs=size.pairs)
        memory = locks.memory_per_lock(size.pairs)
        flat = locks.flatness(tasks=size.tasks)
        found["locks"] = {"pairs": [asdict(each) for each in pairs], "memory": memory, "flat": asdict(flat)}
        if size.pairs >= locks_report.FEWEST_PAIRS:
            checks += locks_report.contention_checks(pairs)
        checks += locks_report.flatness_checks(flat)
        console.print(locks_report.contention_table(pairs, memory))
        console.print(locks_report.flatness_table(flat))
    if "throughput" in parts:
        rates = throughput.throughput(calls=size.calls)
        found["throughput"] = [asdict(each) for each in rates]
        if size.calls >= throughput.FEWEST_CALLS:
            checks += throughput.checks(rates)
        console.print(throughput.table(rates))
    if "endings" in parts:
        rows = endings.measure(endings=endings.ENDINGS if size.tasks >= FULL.tasks else endings.ENDINGS[:2])
        found["endings"] = {name: [asdict(row) for row in each] for name, each in rows.items()}
        console.print(endings.table(rows))
    return checks


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _version() -> str:
    from celery_singlebeat import __version__  # noqa: PLC0415 - the package is loaded where it is measured

    return __version__


if __name__ == "__main__":
    sys.exit(main())
