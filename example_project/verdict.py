"""Judges by the ledger's rows whether anything was sent twice, and whether anything was lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Row = dict[str, Any]

#: How a call may end: done, skipped because of its lock, done by another copy of it, failed for good.
_ENDS = frozenset({"success", "conflict", "duplicate", "failure"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done to a leader, and what came of it. Durations are seconds."""

    name: str
    victim: str
    successor: str
    #: From the fault to the next leader.
    gap: float
    #: How late the first slot was that the next leader dispatched.
    lateness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """A call whose worker was killed in the middle of it. Durations are seconds."""

    victim: str
    rescuer: str
    #: From the kill until another worker began the call.
    gap: float
    #: How often the call was carried out to its end.
    completions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What became of the slots and the calls."""

    due: int
    dispatched: int
    twice: Sequence[str]
    lost: Sequence[str]
    executed_twice: Sequence[str]
    executed: int
    skipped: int
    retries: int

    @property
    def is_clean(self) -> bool:
        """Whether every slot that was due got its message once, and every call came to its end once."""
        return self.due > 0 and not (self.twice or self.lost or self.executed_twice)


@dataclass(slots=True)
class Verdict:
    """Everything that the last table shows."""

    count: Count
    faults: list[Fault] = field(default_factory=list)
    rescue: Rescue | None = None
    letters: list[Row] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether the demo showed what it promises."""
        return self.count.is_clean and self.rescue is not None and self.rescue.completions == 1


def slots_due(anchor: datetime, period: float, until: datetime) -> list[str]:
    """The slots of an interval that began at `anchor`, as messages name them."""
    step, slot, slots = timedelta(seconds=period), anchor, []
    while (slot := slot + step) <= until:
        slots.append(slot.isoformat())
    return slots


def count(
    rows: Iterable[Row], *, anchors: Mapping[str, datetime], periods: Mapping[str, float], until: datetime
) -> Count:
    """Judge by the calls that the workers received, and by how each of them ended."""
    messages: dict[tuple[str, str], list[Row]] = defaultdict(list)
    ends: dict[str, list[str]] = defaultdict(list)
    outcomes: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == "message" and row["slot"]:
            messages[row["entry"], row["slot"]].append(row)
        elif row["kind"] == "outcome":
            outcomes[row["outcome"]] += 1
            if row["outcome"] in _ENDS:
                ends[row["id"]].append(row["outcome"])
    due = [
        (entry, slot)
        for entry, anchor in anchors.items()
        for slot in slots_due(anchor, periods[entry], until)
    ]
    # A worker that was killed has calls which come a second time, marked as such; so do later attempts.
    fresh = {
        place: sum(not row["redelivered"] and not row["retries"] for row in received)
        for place, received in messages.items()
    }
    return Count(
        due=len(due),
        dispatched=sum(place in messages for place in due),
        twice=[_named(place) for place, number in fresh.items() if number > 1],
        lost=[_named(place) for place in due if not any(ends.get(row["id"]) for row in messages[place])],
        executed_twice=[call for call, how in ends.items() if how.count("success") > 1],
        executed=outcomes["success"],
        skipped=outcomes["conflict"],
        retries=outcomes["retry"],
    )


def _named(place: tuple[str, str]) -> str:
    entry, slot = place
    return f"{entry} {slot}"


def in_words(verdict: Verdict) -> RenderableType:
    """The last tables, and one sentence."""
    parts: list[RenderableType] = [_counts(verdict), Text(), _faults(verdict.faults)]
    if verdict.letters:
        parts += [Text(), _letter(verdict.letters[-1])]
    parts += [Text(), _sentence(verdict)]
    return Group(*parts)


def _counts(verdict: Verdict) -> Table:
    count, rescue = verdict.count, verdict.rescue
    table = _table("what happened", "how many")
    table.add_row("slots due (a slot: one entry of the schedule at one moment)", str(count.due))
    table.add_row("slots dispatched", str(count.dispatched))
    table.add_row("slots sent twice", _zero(count.twice))
    table.add_row("slots lost", _zero(count.lost))
    table.add_row("calls executed", str(count.executed))
    table.add_row("calls executed twice", _zero(count.executed_twice))
    table.add_row("runs skipped by the lock", str(count.skipped))
    table.add_row("retries", str(count.retries))
    table.add_row("dead letters", str(len(verdict.letters)))
    if rescue is not None:
        told = f"call of the killed {rescue.victim}: begun again by {rescue.rescuer} after {rescue.gap:.1f} s"
        table.add_row(f"{told}, completed", str(rescue.completions))
    return table


def _faults(faults: Sequence[Fault]) -> Table:
    table = _table("what was done to the leader", "next leader", "after", "its first slot was late by")
    for fault in faults:
        table.add_row(
            f"{fault.victim}: {fault.name}",
            fault.successor,
            f"{fault.gap * 1000:.0f} ms",
            f"{fault.lateness * 1000:.0f} ms",
        )
    return table


def _letter(letter: Row) -> Text:
    attempts = len(letter["attempts"])
    return Text(
        f"One dead letter: task {letter['task']}, reason {letter['reason']}, {attempts} attempts, "
        f"the last one ended with {letter['exception']}: {letter['message']}"
    )


def _sentence(verdict: Verdict) -> Text:
    if verdict.is_clean:
        return Text("Nothing was sent twice, and nothing was lost.", style="bold green")
    count = verdict.count
    wrong = [*count.twice, *count.lost, *count.executed_twice]
    reason = f"look at {', '.join(wrong[:5])}" if wrong else "the killed worker's call was not completed once"
    return Text(f"That is not what was promised: {reason}.", style="bold red")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        numeric = column in {"how many", "after"} or column.endswith("late by")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=number > 0, overflow="fold")
    return table


def _zero(found: Sequence[str]) -> Text:
    return Text(str(len(found)), style="bold red" if found else "green")
