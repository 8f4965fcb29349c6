"""Tables of what locks cost, and the checks on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks.figures import Check
from benchmarks.locks import OURS, THEIRS, Contention, Flatness

#: Part of redis-py's pairs per second that ours have to reach.
LEAST = 1.0
#: Fewer pairs are made before anything is warm: their rates are shown and not judged.
FEWEST_PAIRS = 1_000
MOST_GROWTH = 0.05
#: Fewer tasks are over before a worker has loaded everything that it will.
FEWEST_TASKS = 10_000


def contention_table(found: Sequence[Contention], memory: Mapping[str, float]) -> Table:
    table = Table(title="Locks: pairs of acquire and release, 8 threads", title_justify="left")
    table.add_column("contenders")
    for heading in ("lock", "pairs/s", "p50 ms", "p99 ms", "requests per pair"):
        table.add_column(heading, justify="right")
    for each in found:
        where = "one key" if each.is_shared else "a key each"
        shown = (f"{each.rate:,.0f}", f"{each.p50:.2f}", f"{each.p99:.2f}", f"{each.requests:.1f}")
        table.add_row(f"{each.contenders:,} on {where}", each.contender, *shown)
    table.caption = ", ".join(f"{name}: {size:.0f} bytes for each held lock" for name, size in memory.items())
    return table


def contention_checks(found: Sequence[Contention]) -> list[Check]:
    """Each number of contenders by itself: few of them wait for replies, many for the processor."""
    rates = {(each.contenders, each.is_shared, each.contender): each.rate for each in found}
    checks = []
    for contenders, is_shared, contender in rates:
        if contender == OURS:
            where = "one key" if is_shared else "a key each"
            ratio = rates[contenders, is_shared, OURS] / rates[contenders, is_shared, THEIRS]
            requirement = f"locks, {contenders:,} on {where}: no slower than redis-py's"
            checks.append(Check(requirement, f"{ratio:.2f} x", ratio >= LEAST))
    return checks


def flatness_table(flat: Flatness) -> Table:
    title = f"Flat: {flat.tasks:,} locked tasks through 2 workers, {flat.rate * 60:,.0f} a minute"
    table = Table(title=title, title_justify="left", min_width=len(title))
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("open files", *map(str, flat.files))
    table.add_row("threads", *map(str, flat.threads))
    table.add_row("resident memory", *(f"{size / 2**20:.1f} MiB" for size in flat.resident))
    table.add_row("keys in Redis", *map(str, flat.keys))
    return table


def flatness_checks(flat: Flatness) -> list[Check]:
    growth = flat.resident[1] / flat.resident[0] - 1
    same = [
        Check(f"{what} of workers stay as many", f"{pair[0]}, {pair[1]}", pair[1] <= pair[0])
        for what, pair in (("open files", flat.files), ("threads", flat.threads))
    ]
    return [
        *same,
        Check(
            "locks and calls leave no keys", f"{flat.keys[0]}, {flat.keys[1]}", flat.keys[1] <= flat.keys[0]
        ),
        *(
            [
                Check(
                    f"memory of workers grows by at most {MOST_GROWTH:.0%}",
                    f"{growth:+.1%}",
                    growth <= MOST_GROWTH,
                )
            ]
            if flat.tasks >= FEWEST_TASKS
            else []
        ),
    ]
