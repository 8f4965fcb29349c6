"""The class behind `beat_scheduler = "celery_singlebeat.django:SingleBeatDatabaseScheduler"`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import crontab, maybe_schedule, schedule, solar
from celery.utils.time import maybe_iso8601
from django_celery_beat.clockedschedule import clocked
from django_celery_beat.schedulers import DatabaseScheduler
from django_celery_beat.tzcrontab import TzAwareCrontab
from typing_extensions import override

from celery_singlebeat.beat.lines import Line
from celery_singlebeat.beat.machine import SOON, STANDBY_NAP, Machine
from celery_singlebeat.beat.mixin import SingleBeatMixin
from celery_singlebeat.django.clerk import Clerk
from celery_singlebeat.django.rows import COLUMNS, OPTIONS, RowEntry, Rows, read_rows
from celery_singlebeat.django.table import Table
from celery_singlebeat.errors import EntryError, NotLeader
from celery_singlebeat.policy.entries import EntryRules
from celery_singlebeat.policy.leases import Grant

logger = logging.getLogger(__name__)

#: Seconds between two looks for changed rows, unless `beat_max_loop_interval` says otherwise.
LOOK = 1.0
#: Seconds that a new leader waits for its first look. A database that is away must not stop it.
PATIENCE = 0.2


class SingleBeatDatabaseScheduler(SingleBeatMixin, DatabaseScheduler):  # type: ignore[misc] # has no types
    """django-celery-beat's tables for every replica: at most one of them dispatches."""

    Entry: Any = RowEntry

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._configured: dict[str, dict[str, Any]] = {}
        self._configured_rules: dict[str, EntryRules] = {}
        self._unfit: dict[str, str] = {}  # configured entries that cannot work, whatever their rows say
        self._schedule: dict[str, Any] | None = None
        self._clerk: Clerk | None = None
        self._begun: Grant | None = None
        self._asked: Grant | None = None
        self._asked_at = self._seen_at = float("-inf")
        self._table = Table(self.Model, self.Changes)
        super().__init__(*args, **kwargs)
        self._period = float(kwargs.get("max_interval") or self.app.conf.beat_max_loop_interval or LOOK)
        self.max_interval: Any = self._period

    # -- the schedule ---------------------------------------------------------------------------

    @property
    @override
    def schedule(self) -> dict[str, Any]:  # type: ignore[override] # the rows are it; nobody sets another
        """All rows as entries. Asked before the first tick, as by a command, it reads the database."""
        if self._schedule is None:
            return self._install(self._entries_of(self._table.rows()))
        return self._schedule

    @override
    def setup_schedule(self) -> None:
        self.install_default_entries({})
        self.update_from_dict(self.app.conf.beat_schedule)

    @override
    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        """Keep configured entries in mind; the leader writes them into the table (D3)."""
        self._configured.update(self._sound(dict_))
        self._configured_rules = dict(self._rules)
        self._unfit = dict(self._faults)

    @override
    def _read_entry(self, name: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], EntryRules]:
        columns = {key: value for key, value in fields.items() if key in COLUMNS}
        theirs, rules = super()._read_entry(
            name, {key: value for key, value in fields.items() if key not in columns}
        )
        asked = maybe_schedule(theirs["schedule"])
        if not isinstance(asked, (crontab, schedule, solar, clocked)):
            raise EntryError(
                name,
                f"schedule={asked!r} has no place in the database; "
                "give an interval, a crontab, a solar or a clocked schedule",
            )
        if isinstance(asked, crontab):
            asked = _as_row(asked, rules.timezone or asked.tz)
        options = dict(theirs.get("options") or {})
        expires = options.pop("expires", None)
        if isinstance(expires, str):
            expires = maybe_iso8601(expires)
        if isinstance(expires, datetime):
            columns["expires"] = expires
        elif expires is not None:
            options["expire_seconds"] = int(_seconds(expires))
        homeless = sorted(options.keys() - OPTIONS)
        if homeless:
            logger.warning(
                "entry %r: its options %s have no column in the database and are left out; "
                "set them on the task itself",
                name,
                ", ".join(homeless),
            )
        if "enabled" in fields:
            columns["enabled"] = rules.enabled
        kept: dict[str, Any] = {key: theirs[key] for key in ("task", "args", "kwargs") if key in theirs}
        return {**kept, "schedule": asked, "options": options, **columns}, rules

    def _entries_of(self, models: list[Any]) -> Rows:
        return read_rows(models, self.app, self.Entry, self._configured_rules, self._defaults)

    def _install(self, rows: Rows) -> dict[str, Any]:
        self._schedule, self._rules, self._faults = {}, {}, {}
        self._take(rows)
        return self._schedule

    def _take(self, rows: Rows) -> dict[str, Any]:
        """Note what has changed; returns the entries that have."""
        schedule = self.schedule
        for name in (*rows.gone, *rows.entries, *rows.faults):
            self._faults.pop(name, None)
            schedule.pop(name, None)
        fit = {name: entry for name, entry in rows.entries.items() if name not in self._unfit}
        schedule.update(fit)
        self._rules.update(rows.rules)
        self._faults.update({**rows.faults, **self._unfit})
        return fit

    @override
    def _follow(self, machine: Machine) -> None:
        clerk = self._clerk
        if self._changed:
            self._changed = False
            self._fill(machine, self.schedule)
        while clerk is not None and (rows := clerk.take()) is not None:
            lines, parked = self._lines(self._take(rows))
            machine.amend(lines.values(), rows.gone, parked)
            if self._epoch() is not None:
                return  # other entries may be due

    # -- the loop -------------------------------------------------------------------------------

    @override
    def tick(self, *args: Any, **kwargs: Any) -> float:
        if self._closed:
            return STANDBY_NAP
        clerk = self._clerk
        if clerk is None:
            clerk = self._clerk = self._hire()
        self._seen_at = clerk.seen_at  # before its rows are taken
        if self._schedule is None:
            rows = clerk.take()
            if rows is None:
                return STANDBY_NAP  # it must not lead before it knows what is to be run
            self._install(rows)
        nap = super().tick(*args, **kwargs)
        return min(nap, SOON) if clerk.has_more else nap

    def _hire(self) -> Clerk:
        clerk = Clerk(
            self._table,
            self._wiring.beat_store(),
            read=self._entries_of,
            epoch=self._epoch,
            publish=self._publish,
            period=self._period,
        )
        clerk.start()
        return clerk

    def _publish(self) -> dict[str, str]:
        faults = self._table.publish(self.app, self.Entry, self._configured)
        self._unfit = {**self._unfit, **faults}
        return faults

    def _epoch(self) -> int | None:
        """The epoch under which this node leads and has taken the schedule over; any thread may ask."""
        machine = self._machine
        if machine is None or not machine.dispatcher.is_adopted:
            return None
        try:
            return machine.elector.term().grant.epoch
        except NotLeader:
            return None

    @override
    def _may_begin(self, grant: Grant) -> bool:
        """After a look that began under this grant: the leader before may have gone by newer rows."""
        clerk, now = self._clerk, self._wiring.clock.monotonic()
        if grant == self._begun or clerk is None:
            return True
        if grant != self._asked:
            self._asked, self._asked_at = grant, now
            clerk.wake(urgent=True)
        if self._seen_at < self._asked_at and now - self._asked_at < PATIENCE:
            return False
        self._begun = grant
        clerk.wake()  # now there is something to be written
        return True

    @override
    def _note(self, line: Line) -> None:
        if self._clerk is not None:
            self._clerk.note(line.name)

    @override
    def _pass_over(self, line: Line) -> None:
        if self._clerk is not None and line.rules.once:
            self._clerk.note_spent(line.name)

    # -- the end --------------------------------------------------------------------------------

    @override
    def close(self) -> None:
        super().close()
        if self._in_tick:
            return  # in a signal handler that interrupted the tick; Celery calls again
        clerk, self._clerk = self._clerk, None
        if clerk is not None:
            clerk.stop()


def _as_row(asked: Any, zone: Any) -> TzAwareCrontab:
    """The same crontab as a row of that zone holds it: its fields are text."""
    names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    fields = [getattr(asked, f"_orig_{name}") for name in names]
    texts = [field if isinstance(field, (str, int)) else ",".join(map(str, field)) for field in fields]
    return TzAwareCrontab(*texts, tz=zone)


def _seconds(value: Any) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
