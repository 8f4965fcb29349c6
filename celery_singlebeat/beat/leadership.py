"""Who leads, who would, and what is wrong; and how one asks the leader to hand over.

What each beat says of itself is up to a second old, what the lease says is not. So the lease alone decides
who leads, and a beat that was heard lately and does not hold it stands by.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from celery import Celery

from celery_singlebeat.beat.heartbeat import REPORT_EVERY
from celery_singlebeat.errors import ResignRefused, StoreUnavailable
from celery_singlebeat.health import heard_lately
from celery_singlebeat.moments import iso, later
from celery_singlebeat.store.ports import BeatStore, Leader, NodeReport, Overview
from celery_singlebeat.wiring import wire

#: Seconds after which a beat that was not heard is not counted upon to take over. It is three reports:
#: one may be late, and one may wait for an answer of Redis, but a beat that cannot get a report through
#: in that time could not bid for the lease either.
LATELY = 3 * REPORT_EVERY
#: Seconds between two looks at the lease, and between two questions to a leader: a question is a published
#: message, and is lost if the leader is just connecting again.
LOOK_EVERY, ASK_EVERY = 0.05, 0.25


class Leadership:
    """The leadership of an app's beats, as any process of that app may see it.

    Raises `SettingsError` when the app's settings cannot work. Each method connects for itself, and raises
    `StoreUnavailable` when Redis does not answer.
    """

    def __init__(self, app: Celery) -> None:
        self._wiring = wire(app)

    def status(self) -> dict[str, Any]:
        """Everything that operators look at first, ready for JSON; moments are ISO 8601 in UTC.

        `entries`, `faulty` and `overdue` are the leader's word if it was heard lately, and otherwise what
        the standbys believe. `other_schedules` are the nodes whose static schedule is not the leader's.
        `dead_letters` is None if the broker cannot be asked.
        """
        with self._store() as store:
            overview = store.overview()
        talking = speakers(overview)
        counters = overview.counters
        return {
            "leader": None if overview.leader is None else _shown(overview.leader),
            "standbys": [
                {
                    "node": report.node,
                    "host": report.host,
                    "pid": report.pid,
                    "last_seen": None if report.seen is None else iso(report.seen),
                }
                for report in standbys(overview, lease_ttl=self._wiring.settings.lease_ttl)
            ],
            "entries": max((report.entries for report in talking), default=0),
            "paused": list(overview.paused),
            "faulty": sorted({name for report in talking for name in report.faulty}),
            "overdue": sorted({name for report in talking for name in report.overdue}),
            "other_schedules": _strangers(overview),
            "locks": len(self._wiring.lock_store().locks()),
            "dead_letters": self._dead_letters(),
            **{name: counters.get(name, 0) for name in ("dispatched", "refused", "missed", "elections")},
        }

    def resign(self, timeout: float = 30.0) -> dict[str, Any]:
        """Ask the leader to hand over, and return the new leader, as `status` shows it, once there is one.

        Raises `ResignRefused` at once if nobody leads or nobody stands by, and after `timeout` seconds if
        no other beat leads by then. The one that resigned bids again only after a while.
        """
        clock = self._wiring.clock
        deadline = later(clock.monotonic(), timeout)
        with self._store() as store:
            overview = store.overview()
            first = overview.leader
            if first is None:
                raise ResignRefused("", "nobody leads, so nobody can hand over")
            if not standbys(overview, lease_ttl=self._wiring.settings.lease_ttl):
                raise ResignRefused(
                    first.node,
                    f"no standby was heard in the last {LATELY:g} s; start another beat first",
                )
            ask_at = clock.monotonic()
            while clock.monotonic() < deadline:
                leader = store.overview().leader
                if leader is not None and _process(leader) != _process(first):
                    return _shown(leader)
                if leader is not None and clock.monotonic() >= ask_at:
                    store.ask_to_resign(leader.epoch)
                    ask_at = later(clock.monotonic(), ASK_EVERY)
                time.sleep(LOOK_EVERY)
        raise ResignRefused(first.node, f"no other beat leads after {timeout:g} s; see `status`")

    # -- inside ---------------------------------------------------------------------------------

    @contextmanager
    def _store(self) -> Iterator[BeatStore]:
        with closing(self._wiring.beat_store()) as store:
            yield store

    def _dead_letters(self) -> int | None:
        try:
            return sum(store.number() for store in self._wiring.letter_stores())
        except StoreUnavailable:
            return None


def standbys(overview: Overview, *, lease_ttl: float) -> list[NodeReport]:
    """Who could take over now: heard lately, its loop turns, and the lease is another's."""
    leader = overview.leader
    return [
        report
        for report in heard_lately(overview.nodes, overview.time, LATELY)
        if report.tick_age < lease_ttl and (leader is None or _process(report) != _process(leader))
    ]


def speakers(overview: Overview) -> list[NodeReport]:
    """Whose word on the schedule counts: the leader's alone, if it was heard lately."""
    heard = heard_lately(overview.nodes, overview.time, LATELY)
    leader = overview.leader
    return [report for report in heard if leader and _process(report) == _process(leader)] or heard


def _strangers(overview: Overview) -> list[str]:
    """Nodes with another static schedule than the leader, if that was heard lately."""
    heard, leader = heard_lately(overview.nodes, overview.time, LATELY), overview.leader
    schedules = {report.schedule for report in heard if leader and _process(report) == _process(leader)}
    return [report.node for report in heard if schedules and report.schedule not in schedules]


def _process(one: Leader | NodeReport) -> tuple[str, str, int]:
    """What tells two beats apart, also if somebody gave both the same name."""
    return (one.node, one.host, one.pid)


def _shown(leader: Leader) -> dict[str, Any]:
    return {
        "node": leader.node,
        "host": leader.host,
        "pid": leader.pid,
        "epoch": leader.epoch,
        "since": iso(leader.since),
        "lease_remaining": leader.lease_remaining,
    }
