"""The verdict in words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.torture.checker import Verdict
from tests.torture.history import excerpt

#: Violations that are shown with the history around them.
_MOST_SHOWN = 5


def lines(verdict: Verdict, path: Path) -> list[str]:
    """Everything that a reader has to know, worst last."""
    run = verdict.run
    setting = f"{run['replicas']} replicas, {run['broker']} as broker, lease {run['lease']:g} s"
    found = [f"{setting}, {verdict.length:.0f} s of history"]
    counts = f"messages {verdict.messages}, slots {verdict.slots}, leaders {verdict.epochs}"
    counts += f" ({verdict.idle_epochs} sent nothing), longest silence {verdict.silence:.1f} s"
    found.append(f'{counts}, skipped by "latest" {verdict.skipped}, rules replaced {verdict.dropped}')
    faults = [f"{name} {number}" for name, number in verdict.faults.most_common()]
    found.append(f"faults: {', '.join(faults) or 'none'}")
    if run.get("why_no_clocks"):
        found.append(f"not tried: {run['why_no_clocks']}")
    found += _lateness(verdict)
    if verdict.losses:
        found.append(
            f"data lost {len(verdict.losses)} times, {verdict.again} slots enqueued again, "
            f"{verdict.vanished} gone with a queue that nobody had read, all explained:"
        )
        found += [f"  {loss}" for loss in verdict.losses]
    counters = verdict.end.get("counters", {})
    found.append(
        "the store's totals: " + ", ".join(f"{name} {value}" for name, value in sorted(counters.items()))
    )
    if verdict.end.get("tracebacks"):
        found.append(f"tracebacks in logs: {verdict.end['tracebacks']}")
    found += _violations(verdict, path)
    return found


def _lateness(verdict: Verdict) -> list[str]:
    found = [f"  {'lateness (ms) during':22s} {'slots':>8s} {'p50':>8s} {'p99':>8s} {'most':>8s}"]
    order = sorted(verdict.lateness.items(), key=lambda item: (item[0] not in {"all", "calm"}, item[1].most))
    for name, spread in order:
        numbers = (spread.quantile(0.5), spread.quantile(0.99), spread.most)
        shown = " ".join(f"{1000 * number:8.0f}" for number in numbers)
        found.append(f"  {name:22s} {spread.number:8d} {shown}")
    return found


def _violations(verdict: Verdict, path: Path) -> list[str]:
    if not verdict.violations:
        return ["nothing came twice, nothing is lost, nothing was early"]
    kinds = Counter(violation.kind for violation in verdict.violations)
    found = ["VIOLATIONS: " + ", ".join(f"{kind} {number}" for kind, number in kinds.most_common())]
    for violation in verdict.violations[:_MOST_SHOWN]:
        where = f" of {violation.entry!r}" if violation.entry else ""
        found.append(f"- {violation.kind} at {violation.t:.3f} s{where}: {violation.text}")
        around = excerpt(path, violation.t - 2, violation.t + 2, entry=violation.entry)
        found += [f"    {line}" for line in around]
    return found
