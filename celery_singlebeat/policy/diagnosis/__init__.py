"""What is wrong with an installation, and what to do about it: facts in, findings out.

V1  What was not seen is not ok: it is unknown, or, where a server did not answer, not judged at all.
V2  Every finding says what was found; one that is not ok says what to do.
V3  A failure breaks a promise now or at the next fault; a warning costs something, or only may.
V4  Checks are independent: each looks at the facts alone, and one that has nothing to say says nothing.

A new check is a function over the facts, whose docstring says when it fails, and its line below; the
documentation takes its table of checks from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from celery_singlebeat.policy.diagnosis import beats, brokers, servers, tasks
from celery_singlebeat.policy.diagnosis.facts import Facts, Server
from celery_singlebeat.policy.diagnosis.findings import Finding, Verdict

__all__ = ["APP_CHECKS", "SERVER_CHECKS", "Diagnosis", "Facts", "Finding", "Server", "Verdict", "diagnose"]

#: What each server is asked, by name of the check. The first decides whether the others make sense.
SERVER_CHECKS: dict[str, Callable[[Server, Facts], Finding | None]] = {
    "reachability": servers.reachability,
    "version": servers.version,
    "cluster": servers.cluster,
    "latency": servers.latency,
    "clock": servers.clock,
    "scripts": servers.scripts,
    "subscriptions": servers.subscriptions,
    "crash-detector": servers.crash_detector,
    "maxmemory-policy": servers.eviction,
    "memory": servers.memory_use,
    "persistence": servers.persistence,
    "replication": servers.replication,
}
#: What is asked once.
APP_CHECKS: dict[str, Callable[[Facts], Finding | None]] = {
    "settings": beats.settings,
    "broker": brokers.reachability,
    "visibility-timeout": brokers.redelivery,
    "time-limits": brokers.time_limits,
    "backoff": brokers.waiting,
    "tasks": tasks.tasks,
    "lock-ttl": tasks.lock_ttl,
    "acknowledgement": tasks.acknowledgement,
    "leader": beats.leader,
    "beats": beats.reports,
    "entries": beats.entries,
    "outbox": beats.outbox,
    "dead-letters": beats.dead_letters,
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in the order of the checks; `unreachable` names the servers that did not answer."""

    findings: tuple[Finding, ...]
    unreachable: tuple[str, ...]

    def having(self, verdict: Verdict) -> list[Finding]:
        """The findings with this verdict."""
        return [finding for finding in self.findings if finding.verdict is verdict]

    @property
    def verdict(self) -> Verdict:
        """The worst one."""
        order = (Verdict.FAILURE, Verdict.WARNING, Verdict.UNKNOWN)
        return next((verdict for verdict in order if self.having(verdict)), Verdict.OK)


def diagnose(facts: Facts) -> Diagnosis:
    """Judge everything that is known."""
    findings = [_named(APP_CHECKS["settings"](facts), "settings")]
    for server in facts.servers:
        checks = ["reachability"] if server.problem else list(SERVER_CHECKS)
        findings += [_named(SERVER_CHECKS[name](server, facts), name, server.subject) for name in checks]
    findings += [_named(judge(facts), name) for name, judge in APP_CHECKS.items() if name != "settings"]
    unreachable = [server.subject for server in facts.servers if server.problem]
    if facts.broker.problem:
        unreachable.append("broker")
    return Diagnosis(tuple(_present(findings)), tuple(dict.fromkeys(unreachable)))


def _named(finding: Finding | None, check: str, subject: str = "") -> Finding | None:
    return None if finding is None else replace(finding, check=check, subject=subject)


def _present(findings: Iterable[Finding | None]) -> Iterable[Finding]:
    return (finding for finding in findings if finding is not None)
