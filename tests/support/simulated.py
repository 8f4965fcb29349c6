"""Whole schedulers on a clock that is moved: days of beat in seconds, with everything but the time real.

The app's `now`, which the schedules of Celery and of others ask, shows that clock, and so does the wiring's.
A tick says how long it wants to sleep, and the clock is moved by that, and by a millisecond for the work.
Three numbers of ours differ meanwhile: the longest sleep of a leader and the lease last for ever, and no
drift between its clock and the store's, which are one here, is allowed for. Slots are judged as at defaults.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from unittest import mock

from celery import Celery, beat, signals

from celery_singlebeat import SingleBeatScheduler
from celery_singlebeat.policy.slots import MissedRules
from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.wiring import wire

#: Longer than any simulated time.
FOR_EVER = 1e9
_numbers = itertools.count()


class SimulatedApp(Celery):
    """An app that asks a clock of ours for the time; its entries' tasks bear the names of the entries."""

    clock: FakeClock

    def now(self) -> datetime:
        return self.clock.now().astimezone(self.timezone)


def simulated_app(clock: FakeClock, entries: Mapping[str, Any], **settings: Any) -> SimulatedApp:
    app = SimulatedApp("simulated", broker="memory://", set_as_current=False)
    app.clock = clock
    schedule = {
        name: dict(fields) if isinstance(fields, Mapping) else {"schedule": fields}
        for name, fields in entries.items()
    }
    app.conf.update(
        beat_schedule={name: {"task": name, **fields} for name, fields in schedule.items()},
        task_ignore_result=True,
        result_expires=None,
        **settings,
    )
    return app


@contextmanager
def messages(clock: FakeClock) -> Iterator[list[tuple[str, datetime, dict[str, Any]]]]:
    """What Celery publishes meanwhile: the name of the task, the time on the clock, and the headers."""
    found: list[tuple[str, datetime, dict[str, Any]]] = []

    def hear(sender: str, headers: dict[str, Any], **_: Any) -> None:
        found.append((sender, clock.now(), headers))

    signals.before_task_publish.connect(hear, weak=False)
    try:
        yield found
    finally:
        signals.before_task_publish.disconnect(hear)


def run(scheduler: beat.Scheduler, clock: FakeClock, until: datetime) -> None:
    """Tick until the clock shows `until`."""
    while clock.now() < until:
        wait = max(0.0, scheduler.tick() or 0.0) + 0.001
        clock.advance(min(wait, max(0.0, (until - clock.now()).total_seconds())))
    scheduler.tick()


class Fleet:
    """Replicas of our scheduler in one process, over one store in memory and one clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._prefix = f"simulated {next(_numbers)}"

    @contextmanager
    def leader(self, entries: Mapping[str, Any], **settings: Any) -> Iterator[Any]:
        """A replica with these entries, once it leads; it ends as after SIGTERM."""
        with (
            self.replica(entries, **settings) as scheduler,
            mock.patch("celery_singlebeat.beat.machine.LEADER_NAP", FOR_EVER),
            mock.patch("celery_singlebeat.policy.clocks.DRIFT", 0.0),
        ):
            wait_until(
                lambda: scheduler.tick() and scheduler._machine.dispatcher.is_adopted, 20, "nobody leads"
            )
            yield scheduler

    @contextmanager
    def replica(self, entries: Mapping[str, Any], **settings: Any) -> Iterator[Any]:
        """A replica with these entries, that may lead or stand by."""
        app = simulated_app(
            self.clock,
            entries,
            singlebeat_prefix=self._prefix,
            singlebeat_lease_ttl=FOR_EVER,
            singlebeat_renew_every=0.01,
            beat_max_loop_interval=300,
            **settings,
        )
        wire(app).clock = self.clock
        with mock.patch("celery_singlebeat.beat.mixin.MissedRules", _rules_as_at_defaults):
            scheduler = SingleBeatScheduler(app)
        try:
            yield scheduler
        finally:
            scheduler.close()


def _rules_as_at_defaults(**rules: Any) -> MissedRules:
    return MissedRules(**{**rules, "failover": MissedRules().failover})
