"""Whether the beats of this app on this host can do their work, judged by what they told the store.

A beat reports every second from a thread of its own, and takes its report away when it stops on purpose.
So there is nothing to ask of a beat, of a worker or of the broker:

* A beat that was heard lately is well while its loop turns. Its report says how long ago the loop wanted
  to be back; beyond the bound at which the beat itself gives up its lease, it is wedged.
* A beat whose messages wait in the outbox is well while the broker takes them. Beyond the same bound it is
  not; it leads for as long again, and then lets another try.
* A beat that was not heard lately has ended, or it is paused, cut off from the store, or stuck in a way
  that stopped its reports as well. The first is nothing to worry about once another has its place. The
  others are, and they do not get better with time.
* Which of the two it is, the operating system knows, for processes that it lets us see: a pid exists, and
  began when the report says, or the beat is gone. A killed beat is therefore forgotten at once, also when
  its pid was given to another program; a paused one never is.
* A beat in another pid namespace (a container that was restarted, and kept its host name) cannot be seen.
  It counts as gone once a beat of this host began after it was last heard: its successor.
* No beat at all is not well.

The age of a report is the store's own time minus the store's own time, so no clock of a host matters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from celery_singlebeat.store.ports import NodeReport, Overview

#: Seconds without a report after which a beat is silent, beside the time that one answer of the store may
#: take: five reports were missed, or four and one answer.
SILENCE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How late is too late, in seconds: for a turn of the loop or an answer of the broker; for a report."""

    tick: float
    silence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One beat. `problem` is one line, or "" if it is well."""

    report: NodeReport
    problem: str


@dataclass(frozen=True, slots=True)
class Health:
    """The beats that were judged, and what is wrong: one line for each problem, none if all is well."""

    findings: tuple[Finding, ...]
    problems: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        """Whether every beat can lead or follow, and there is one."""
        return not self.problems


#: Whether the process of a report lives; None: it cannot be seen from here.
Sight = Callable[[NodeReport], bool | None]


def examine(overview: Overview, *, host: str, bounds: Bounds, sight: Sight) -> Health:
    """Judge every beat of `host`."""
    reports = [report for report in overview.nodes if report.host == host]
    findings = []
    for report in reports:
        silent = _age(report, overview.time) > bounds.silence
        if not (silent and _is_gone(report, reports, sight)):
            findings.append(Finding(report=report, problem=_problem(report, overview.time, bounds)))
    if findings:
        told = (f"{finding.report.node} {finding.problem}" for finding in findings if finding.problem)
        return Health(tuple(findings), tuple(told))
    if not reports:
        return Health((), (f"no beat of this app has reported from host {host}",))
    last = max(reports, key=lambda report: report.seen or _NEVER)
    age = _age(last, overview.time)
    problem = f"no beat runs on host {host}: the last one, {last.node}, was killed, and heard {age:.0f} s ago"
    return Health((), (problem,))


def examine_node(overview: Overview, *, node: str, bounds: Bounds) -> Health:
    """Judge one beat by its name, whatever its host; one that has ended is not well."""
    for report in overview.nodes:
        if report.node == node:
            problem = _problem(report, overview.time, bounds)
            problems = (f"{node} {problem}",) if problem else ()
            return Health((Finding(report=report, problem=problem),), problems)
    return Health((), (f"no beat named {node} has reported to the store",))


def heard_lately(reports: Iterable[NodeReport], now: datetime, seconds: float) -> list[NodeReport]:
    """The reports that are at most so many seconds old, by the store's time `now`."""
    return [report for report in reports if _age(report, now) <= seconds]


def birth(pid: int) -> str:
    """What tells a process from all others that have its pid: its pid namespace, and when it began.

    "" where the system does not say.
    """
    found = _stat(pid)
    return f"{_namespace()} {found[1]}" if found else ""


def sight(report: NodeReport) -> bool | None:
    """Whether the process of a report of this host lives, as far as this process can see."""
    namespace, _, began = report.birth.partition(" ")
    if namespace != _namespace():
        return None
    found = _stat(report.pid)
    if found is None:  # there is none, or it is not shown to us
        return _exists(report.pid)
    state, began_at = found
    return state not in _ENDED and began_at == began


#: States of a process that only waits for its parent to take note.
_ENDED = "ZX"
#: Fields of /proc/PID/stat (proc(5)), counted after the name: the state, and ticks from boot to its start.
_STATE, _BEGAN = 0, 19


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str] | None:
    """State and beginning of a process, as /proc has them."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name of the program stands in parentheses, and may contain spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    return (fields[_STATE], fields[_BEGAN]) if len(fields) > _BEGAN else None


def _exists(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _problem(report: NodeReport, now: datetime, bounds: Bounds) -> str:
    age = _age(report, now)
    if age > bounds.silence:
        return (
            f"was not heard for {age:.0f} s: pid {report.pid} is paused, cut off from the store, stuck, "
            "or was killed"
        )
    if report.tick_age > bounds.tick:
        return f"is wedged: its loop has not turned for {report.tick_age:.0f} s"
    if report.stuck > bounds.tick:
        return f"cannot publish: the broker has taken no message for {report.stuck:.0f} s"
    return ""


def _is_gone(report: NodeReport, others: Iterable[NodeReport], sight: Sight) -> bool:
    """Whether a silent beat has ended: the system says so, or a successor has its place."""
    lives = sight(report)
    if lives is not None:
        return not lives
    last_heard = report.seen or _NEVER
    return any((other.seen or _NEVER) - timedelta(seconds=other.up) > last_heard for other in others)


def _age(report: NodeReport, now: datetime) -> float:
    return (now - (report.seen or _NEVER)).total_seconds()


#: When a report that nobody can read was last sent: long ago, and far enough from the first year.
_NEVER = datetime(1970, 1, 1, tzinfo=timezone.utc)
