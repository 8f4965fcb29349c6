"""Tables of what was measured, and the checks on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks import waves
from benchmarks.failover import Record
from benchmarks.figures import Check, Spread, percentile
from benchmarks.rest import Idle, Steadiness
from benchmarks.takeover import MANY, Takeovers

#: What the dispatch rate has to be, as ratios: of plain batches, and of RedBeat.
LEAST_OF_PLAIN, LEAST_OF_REDBEAT = 0.7, 4.0
#: Fewer entries are dispatched before anything is warm: their rates are shown and not judged.
FEWEST_ENTRIES = 1000
#: How much a leader's resident memory may grow over the steady run.
MOST_GROWTH = 0.05
#: Share of a core that Redis may spend on the standbys of fifty replicas.
MOST_CPU = 0.03
#: What G4 promises, in seconds: until another leads, and how late the slot is that was due meanwhile.
LEADS_WITHIN = {"SIGKILL": 0.25, "SIGTERM": 0.05}
LATE_AT_MOST = {"SIGSTOP": 0.5, "cut": 0.5}
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
        "Lost and twice are counted over all faults of a contender. Those of ours are read from the "
        "slots that messages name, the others from gaps."
    )
    return table


def failover_checks(records: Mapping[str, Record]) -> list[Check]:
    ours = records["singlebeat"]
    measured = f"{ours.lost} lost, {ours.twice} twice of {ours.messages}"
    checks = [Check("no slot lost or sent twice in failovers", measured, not ours.lost and not ours.twice)]
    for fault, most in LEADS_WITHIN.items():
        if fault in ours.takeover:
            checks.append(_median_check(f"{fault}: another leads", ours.takeover[fault], most))
    for fault, most in LATE_AT_MOST.items():
        if fault in ours.lateness:
            checks.append(_median_check(f"{fault}: a due slot is sent", ours.lateness[fault], most))
    return checks


def _median_check(what: str, times: Sequence[float], most: float) -> Check:
    spread = Spread.of(times)
    shown = f"{spread.median:.3f} s (at most {spread.high:.3f})"
    return Check(f"{what} within {most * 1000:.0f} ms (median)", shown, spread.median <= most)


def takeover_table(found: Takeovers) -> Table:
    rounds = max(map(len, found.takeover.values()))
    title = f"Takeover: defaults, {found.title}, {rounds} rounds of each. Median, p99, maximum, ms"
    table = _table(title, "fault", "another leads after", "a due slot is late by")
    for fault, times in found.takeover.items():
        table.add_row(fault, _milliseconds(times), _milliseconds(found.lateness[fault]))
    table.caption = (
        f"{found.messages} slots: {found.lost} lost, {found.twice} twice. {found.elections} elections."
    )
    return table


def takeover_checks(found: Takeovers) -> list[Check]:
    counted = f"{found.lost} lost, {found.twice} twice of {found.messages}"
    checks = [
        Check(f"{found.title}: no slot lost or sent twice", counted, not found.lost and not found.twice),
        Check(
            f"{found.title}: no leader replaced without a fault",
            f"{found.elections} elections, {found.due} due",
            found.elections == found.due,
        ),
    ]
    promises = (
        ("another leads within", LEADS_WITHIN, found.takeover),
        ("a due slot late by at most", LATE_AT_MOST, found.lateness),
    )
    for words, bounds, times in promises:
        for fault, most in bounds.items():
            if fault in times:
                name = f"{found.title}, {fault}: {words} {most * 1000:.0f} ms"
                checks.append(Check(name, f"{max(times[fault]) * 1000:.0f} ms", max(times[fault]) <= most))
    return checks


def idle_table(loads: Mapping[str, Idle]) -> Table:
    table = _table("Idle: what processes cost Redis while nothing is due", "contender", "processes")
    for heading in ("requests/s", "commands/s, inside scripts too", "Redis CPU, % of a core"):
        table.add_column(heading, justify="right")
    for found in loads.values():
        rows = [
            ("leader", found.leader),
            *((f"{size - 1} standbys", load) for size, load in found.standbys.items()),
        ]
        for number, (processes, load) in enumerate(rows):
            table.add_row(
                found.title if number == 0 else "",
                processes,
                f"{load.requests:.1f}",
                f"{load.commands:.1f}",
                f"{load.cpu:.2%}"[:-1],
                end_section=number == len(rows) - 1,
            )
    return table


def idle_checks(loads: Mapping[str, Idle]) -> list[Check]:
    load = loads["singlebeat"].standbys.get(MANY)
    if load is None:
        return []
    requirement = f"{MANY - 1} standbys take Redis less than {MOST_CPU:.0%} of a core"
    return [Check(requirement, f"{load.cpu:.2%}", load.cpu < MOST_CPU)]


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


def _milliseconds(seconds: Sequence[float]) -> str:
    three = (percentile(seconds, 50), percentile(seconds, 99), max(seconds))
    return ", ".join(f"{value * 1000:.0f}" for value in three)
