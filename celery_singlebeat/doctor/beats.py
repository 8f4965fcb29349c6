"""Facts about the beats, from what they told the store."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

from celery_singlebeat.beat.leadership import LATELY, speakers, standbys
from celery_singlebeat.health import SILENCE, Bounds, Health, examine, heard_lately, sight
from celery_singlebeat.moments import from_millis
from celery_singlebeat.policy.diagnosis.facts import Beats
from celery_singlebeat.store.ports import NodeReport, Overview
from celery_singlebeat.wiring import Wiring


def read_beats(wiring: Wiring) -> Beats:
    """What the store knows of this app's beats; raises `StoreUnavailable`."""
    with closing(wiring.beat_store()) as store:
        overview = store.overview()
        records = store.outbox() if overview.outbox else []
    leader = overview.leader
    bounds = Bounds(tick=wiring.settings.lease_ttl, silence=SILENCE + wiring.patience)
    talking = speakers(overview)
    silent: list[str] = []
    wedged: list[str] = []
    for health in _by_host(overview, bounds):
        for finding in health.findings:
            if finding.problem:
                is_heard = bool(heard_lately([finding.report], overview.time, bounds.silence))
                (wedged if is_heard else silent).append(f"{finding.report.node} {finding.problem}")
    return Beats(
        leader=None if leader is None else f"{leader.node} (host {leader.host}, pid {leader.pid})",
        heard=len(heard_lately(overview.nodes, overview.time, LATELY)),
        standbys=len(standbys(overview, lease_ttl=wiring.settings.lease_ttl)),
        silent=tuple(silent),
        wedged=tuple(wedged),
        entries=max((report.entries for report in talking), default=0),
        faulty={name: text for report in talking for name, text in report.faulty.items()},
        overdue=tuple(sorted({name for report in talking for name in report.overdue})),
        outbox=overview.outbox,
        outbox_age=_age(records, overview.time),
        trimmed=overview.counters.get("dead_letters_trimmed", 0),
    )


def _by_host(overview: Overview, bounds: Bounds) -> Iterator[Health]:
    """The health of each host's beats; whether a process lives can be seen on this host alone."""
    here = socket.gethostname()
    for host in sorted({report.host for report in overview.nodes}):
        yield examine(overview, host=host, bounds=bounds, sight=sight if host == here else _unseen)


def _unseen(_report: NodeReport) -> None:
    return None


def _age(records: list[tuple[str, str]], now: datetime) -> float:
    """How long ago the oldest slot in the outbox was due; a record's id begins with its slot."""
    slots = [int(text) for text in (record.partition(" ")[0] for record, _ in records) if text.isdigit()]
    return max(0.0, (now - from_millis(min(slots))).total_seconds()) if slots else 0.0
