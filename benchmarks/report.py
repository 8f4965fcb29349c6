"""Tables of what was measured, and the checks on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks import failover, waves
from benchmarks.failover import Record
from benchmarks.figures import Check, Spread
from benchmarks.rest import Load, Steadiness

#: What the dispatch rate has to be, as ratios: of plain batches, and of RedBeat.
LEAST_OF_PLAIN, LEAST_OF_REDBEAT = 0.7, 4.0
#: Fewer entries are dispatched before anything is warm: their rates are shown and not judged.
FEWEST_ENTRIES = 1000
#: How much a leader's resident memory may grow over the steady run.
MOST_GROWTH = 0.05
#: RedBeat's own default waits: DEFAULT_MAX_INTERVAL is 300 s, and the lock's timeout five times that.
REDBEAT_DEFAULTS = "RedBeat, defaults (not measured)"
REDBEAT_POLL, REDBEAT_LOCK = 300, 1500


def dispatch_table(
    rates: Mapping[str, Sequence[float]], costs: Mapping[str, Sequence[float]], entries: int
) -> Table:
    table = _table(f"Dispatch: {entries:,} entries due at once. Medians (range)", "contender", "rounds")
    for heading in ("messages/s (range)", "of plain", "of RedBeat", "CPU ms/1,000"):
        table.add_column(heading, justify="right")
    for name, values in rates.items():
        columns = []
        for other in (waves.PLAIN, waves.REDBEAT):
            ratio = waves.ratios(rates, name, other) if other in rates else None
            columns.append(ratio.show("x", 2) if ratio else "-")
        table.add_row(
            waves.TITLES[name],
            str(len(values)),
            Spread.of(values).show(),
            *columns,
            f"{Spread.of(costs[name]).median:.0f}",
        )
    return table


def dispatch_checks(rates: Mapping[str, Sequence[float]]) -> list[Check]:
    checks = []
    bounds = ((waves.PLAIN, LEAST_OF_PLAIN), (waves.REDBEAT, LEAST_OF_REDBEAT))
    for other, least in bounds:
        ratio = waves.ratios(rates, waves.OURS, other)
        requirement = f"dispatch rate at least {least:g} x {waves.TITLES[other]}"
        checks.append(Check(requirement, ratio.show("x", 2), ratio.median >= least))
    return checks


def failover_table(records: Mapping[str, Record], faults: Sequence[str]) -> Table:
    table = _table("Failover: one entry every second, two replicas. Median (maximum), seconds", "contender")
    table.add_column("fault")
    for heading in ("next slot late by", "another leads after", "slots lost", "slots twice", "messages"):
        table.add_column(heading, justify="right")
    for record in records.values():
        for number, fault in enumerate(faults):
            ends = number == len(faults) - 1
            counts = [str(value) if ends else "" for value in (record.lost, record.twice, record.messages)]
            table.add_row(
                record.title if number == 0 else "",
                fault,
                _late(record.lateness.get(fault)),
                _late(record.takeover.get(fault)),
                *counts,
                end_section=ends,
            )
    worst = f"up to {REDBEAT_LOCK + REDBEAT_POLL:,}"
    table.add_row(REDBEAT_DEFAULTS, "SIGKILL, SIGSTOP", worst, worst, "-", "-", "-")
    table.add_row("", "SIGTERM", f"up to {REDBEAT_POLL}", f"up to {REDBEAT_POLL}", "-", "-", "-")
    table.caption = (
        "Lost and twice are counted over all faults of a contender. "
        f"A frozen process thaws after {failover.FROZEN:g} s."
    )
    return table


def failover_checks(records: Mapping[str, Record]) -> list[Check]:
    ours = records["singlebeat"]
    measured = f"{ours.lost} lost, {ours.twice} twice of {ours.messages}"
    checks = [Check("no slot lost or sent twice in failovers", measured, not ours.lost and not ours.twice)]
    promises = (
        ("SIGKILL", ours.takeover, 0.25, "a killed leader is replaced"),
        ("SIGTERM", ours.takeover, 0.05, "a terminated leader is replaced"),
        ("SIGSTOP", ours.lateness, 0.5, "a slot that is due while the leader is frozen is sent"),
    )
    for fault, times, most, promise in promises:
        if fault in times:
            spread = Spread.of(times[fault])
            shown = f"{spread.median:.3f} s (at most {spread.high:.3f})"
            checks.append(Check(f"{promise} within {most * 1000:.0f} ms", shown, spread.median <= most))
    return checks


def idle_table(loads: Mapping[str, tuple[Load, Load]]) -> Table:
    table = _table("Idle: what one process costs Redis per second, nothing due", "contender")
    table.add_column("role")
    for heading in ("requests/s", "commands/s, inside scripts too"):
        table.add_column(heading, justify="right")
    titles = {kind.name: kind.title for kind in failover.FLEETS}
    for name, pair in loads.items():
        for role, load in zip(("leader", "standby"), pair, strict=True):
            table.add_row(
                titles[name] if role == "leader" else "", role, *map(_rate, (load.requests, load.commands))
            )
    return table


def steady_table(steady: Steadiness) -> Table:
    title = f"Steady: {steady.dispatches:,} dispatches through one leader, {steady.rate:,.0f} a second"
    table = _table(title, "")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    megabytes = [size / 2**20 for size in steady.resident]
    change = f"{steady.resident[1] / steady.resident[0] - 1:+.1%}"
    table.add_row("resident memory of beat", *(f"{size:.1f} MiB" for size in megabytes), change)
    table.add_row("keys in Redis", *map(str, steady.keys), f"{steady.keys[1] - steady.keys[0]:+d}")
    return table


def steady_checks(steady: Steadiness) -> list[Check]:
    growth = steady.resident[1] / steady.resident[0] - 1
    return [
        Check(f"memory of beat grows by at most {MOST_GROWTH:.0%}", f"{growth:+.1%}", growth <= MOST_GROWTH),
        Check(
            "keys in Redis stay as many", f"{steady.keys[0]}, {steady.keys[1]}", len(set(steady.keys)) == 1
        ),
    ]


def checks_table(checks: Sequence[Check]) -> Table:
    table = _table("Requirements", "requirement")
    table.add_column("measured", justify="right")
    table.add_column("verdict")
    for check in checks:
        verdict = "[bold green]PASS" if check.holds else "[bold red]FAIL"
        table.add_row(check.requirement, check.measured, verdict)
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", min_width=len(title))
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _late(seconds: Sequence[float] | None) -> str:
    if not seconds:
        return "-"
    spread = Spread.of(seconds)
    return f"{spread.median:.3f} ({spread.high:.3f})"


def _rate(value: float) -> str:
    return f"{value:.1f}"
