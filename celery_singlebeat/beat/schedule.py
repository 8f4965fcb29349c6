"""The schedule, as any process of the app may read and change it.

Reading needs the app's configuration and the store, and no running beat. Changes are in force as soon as
the method returns: the store takes no slot of an entry that its leader has not read anew since.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_singlebeat.beat import records
from celery_singlebeat.beat.calls import call_of
from celery_singlebeat.beat.lines import Line
from celery_singlebeat.beat.mixin import SingleBeatMixin
from celery_singlebeat.beat.scheduler import SingleBeatScheduler
from celery_singlebeat.beat.timetables import Live
from celery_singlebeat.errors import EntryError, EntryNotFound
from celery_singlebeat.moments import iso, whole
from celery_singlebeat.schedules import clocked
from celery_singlebeat.store.ports import BeatStore, Memory
from celery_singlebeat.wiring import wire

Shown = dict[str, Any]
Entries = list[Shown]
Slots = list[datetime]
TaskIds = list[str]


@dataclass(frozen=True, slots=True)
class _Outline:
    """The schedule at one moment: all its lines, or the one that was asked for, and what the store
    remembers of them. `names` are those of all entries.
    """

    now: datetime
    lines: Mapping[str, Line]
    parked: Mapping[str, str]
    names: frozenset[str]
    static: frozenset[str]
    paused: frozenset[str]
    memory: Memory

    def demand(self, name: str) -> None:
        """Raise `EntryNotFound` unless there is such an entry, whether it can work or not."""
        if name not in self.names:
            nearest = difflib.get_close_matches(name, self.names, n=1)
            raise EntryNotFound(name, nearest[0] if nearest else "")

    def line(self, name: str) -> Line:
        self.demand(name)
        if name in self.parked:
            raise EntryError(name, self.parked[name])
        return self.lines[name]


class Schedule:
    """The schedule of an app.

    Raises `SettingsError` when the app's settings cannot work. Each method connects for itself, and raises
    `StoreUnavailable` when Redis does not answer, `EntryError` for an entry that cannot work and
    `EntryNotFound` for a name that is not in the schedule.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._wiring = wire(app)

    # -- changes --------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        task: str,
        schedule: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **entry_keys: Any,
    ) -> str:
        """Add a dynamic entry, or change the one of this name: "added", "changed" or "same".

        `schedule`: seconds, a timedelta, crontab, solar, or `rrule` and `clocked` of
        `celery_singlebeat.schedules`. `entry_keys`: whatever an entry of `beat_schedule` may have. Its slots
        start now; a change of anything but the schedule moves none.
        """
        fields = {"task": task, "schedule": schedule, "args": args, "kwargs": kwargs or {}, **entry_keys}
        return self.add_all({name: fields})[name]

    def add_all(self, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """`add` for many, given as `beat_schedule` has them; if one of them cannot work, none is added."""
        scheduler = self._scheduler()
        static = scheduler.outline()
        written = {}
        for name, fields in entries.items():
            if not name or not isinstance(name, str):
                raise EntryError(str(name), "an entry needs a name")
            if name in static[0] or name in static[1]:
                raise EntryError(name, "the configuration has an entry of this name; change it there")
            rule, text = records.write(name, fields)
            scheduler.dynamic_line(name, text, since=self._wiring.clock.now())
            asked = fields["schedule"]
            if isinstance(asked, clocked) and asked.at <= self._wiring.clock.now():
                raise EntryError(name, f"its time {iso(asked.at)} is over; give one to come")
            written[name] = (rule, text)
        with self._store() as store:
            return store.schedule.put(written)

    def remove(self, name: str) -> None:
        """Remove a dynamic entry."""
        with self._store() as store:
            if store.schedule.remove(name):
                return
            outline = self._outline(store, name)
        if name in outline.static:
            raise EntryError(name, "it is in the configuration; remove it there, or pause it")
        outline.demand(name)

    def pause(self, name: str) -> bool:
        """Dispatch no slot of this entry until `resume`; False if it was paused already."""
        with self._store() as store:
            self._outline(store, name).demand(name)
            return store.schedule.pause(name)

    def resume(self, name: str) -> bool:
        """Go on with the next slot; those in between were skipped. False if it was not paused.

        It also forgets a run that must not be overlapped and whose end nobody told.
        """
        with self._store() as store:
            self._outline(store, name).demand(name)
            return store.schedule.resume(name)

    # -- dispatch by hand -----------------------------------------------------------------------

    def run(self, name: str) -> str:
        """Dispatch the entry now, whatever its schedule says, and move none of its slots; the task id."""
        with self._store() as store:
            line = self._outline(store, name).line(name)
            return self._dispatch(store, line, [whole(self._wiring.clock.now())], "run")[0]

    def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        dry_run: bool = False,
        rate: float | None = None,
    ) -> Slots:
        """Dispatch the slots from `start` on, before `end`, oldest first; which they are.

        At most `rate` in a second. The same slot has the same task id each time it is backfilled, and
        another one than its dispatch by schedule.
        """
        now = self._wiring.clock.now()
        for moment in (start, end):
            if moment.tzinfo is None:
                raise EntryError(name, f"{moment.isoformat()} has no offset; give one, such as +00:00")
        if end <= start:
            raise EntryError(name, f"the end {iso(end)} is not after the start {iso(start)}")
        if end > now:
            raise EntryError(name, f"the end {iso(end)} lies in the future; those slots are still to come")
        if rate is not None and rate <= 0:
            raise EntryError(name, f"rate={rate:g} is not above 0 a second")
        with self._store() as store:
            outline = self._outline(store, name)
            line = outline.line(name)
            slots = list(_slots(line, start, end, anchor=_anchor(line, outline) or start))
            if not dry_run:
                self._dispatch(store, line, slots, "backfill", rate)
        return slots

    # -- reading --------------------------------------------------------------------------------

    def list(self) -> Entries:
        """Every entry, by name: {"name", "task", "schedule", "next", "last", "runs", "enabled", "paused",
        "source"}. Moments are ISO 8601 in UTC or None; `last` is the newest slot with a verdict.
        """
        with self._store() as store:
            outline = self._outline(store)
        return [_shown(line, outline) for _, line in sorted(outline.lines.items())]

    def next(self, number: int = 1, name: str | None = None) -> Entries:
        """The coming slots of one entry, or of all, soonest first: {"name", "slot", "paused"}.

        A schedule that decides at the moment it is asked names none.
        """
        with self._store() as store:
            outline = self._outline(store, name)
        lines = [outline.line(name)] if name is not None else list(outline.lines.values())
        coming = [(slot, line.name) for line in lines for slot in _coming(line, outline, number)]
        return [
            {"name": name, "slot": iso(slot), "paused": name in outline.paused}
            for slot, name in sorted(coming)[:number]
        ]

    # -- inside ---------------------------------------------------------------------------------

    @contextmanager
    def _store(self) -> Iterator[BeatStore]:
        with closing(self._wiring.beat_store()) as store:
            yield store

    def _scheduler(self) -> SingleBeatMixin:
        """The app's scheduler, which is not started; a plain one if it has another kind."""
        chosen: Any = self._app.conf.beat_scheduler
        if isinstance(chosen, str):
            found: Any = load_extension_class_names("celery.beat_schedulers")
            aliases = dict(found)
            chosen = symbol_by_name(chosen, aliases=aliases)
        if not issubclass(chosen, SingleBeatMixin) or issubclass(chosen, PersistentScheduler):
            chosen = SingleBeatScheduler
        scheduler: SingleBeatMixin = chosen(self._app, lazy=True)
        return scheduler

    def _outline(self, store: BeatStore, only: str | None = None) -> _Outline:
        scheduler = self._scheduler()
        lines, parked = scheduler.outline()
        static = frozenset((*lines, *parked))
        changes = store.schedule.changes()
        for name, record in changes.records.items():
            if record is None or name in static or only not in {None, name}:
                continue
            try:
                lines[name] = scheduler.dynamic_line(name, record.text, since=record.since)
            except EntryError as error:
                parked[name] = error.problem
        pauses = changes.pauses.items()
        return _Outline(
            now=store.overview().time,
            lines=lines,
            parked=parked,
            names=frozenset((*static, *changes.records)),
            static=static,
            paused=frozenset(name for name, pause in pauses if pause is not None and pause.until is None),
            memory=store.remember(None if only is None else [only]),
        )

    def _dispatch(
        self,
        store: BeatStore,
        line: Line,
        slots: Sequence[datetime],
        trigger: str,
        rate: float | None = None,
    ) -> TaskIds:
        leader = store.overview().leader
        ids = []
        with self._app.connection_for_write() as connection, self._app.amqp.Producer(connection) as producer:
            for number, slot in enumerate(slots):
                if number and rate:
                    time.sleep(1 / rate)
                entry, call_id = call_of(
                    line,
                    slot,
                    prefix=self._wiring.settings.prefix,
                    epoch=leader.epoch if leader is not None else 0,
                    trigger=trigger,
                )
                self._scheduler().apply_async(entry, producer=producer, advance=False)
                ids.append(call_id)
        return ids


def _anchor(line: Line, outline: _Outline) -> datetime | None:
    known = outline.memory.entries.get(line.name)
    if line.since is not None:
        return line.since
    return known.anchor if known is not None and known.rule == line.rule else None


def _slots(line: Line, start: datetime, end: datetime, *, anchor: datetime) -> Iterator[datetime]:
    if isinstance(line.timetable, Live):
        raise EntryError(line.name, "its schedule decides when it is asked, so its slots cannot be named")
    slot = line.timetable.after(start - timedelta(milliseconds=1), anchor=anchor)
    while slot is not None and slot < end:
        if slot >= start:
            yield slot
        slot = line.timetable.after(slot, anchor=anchor)


def _coming(line: Line, outline: _Outline, number: int) -> list[datetime]:
    if isinstance(line.timetable, Live) or not line.rules.enabled:
        return []
    anchor = _anchor(line, outline) or outline.now
    mark = outline.memory.marks.get(line.name)
    slot: datetime | None = max(moment for moment in (outline.now, anchor, mark) if moment is not None)
    found: list[datetime] = []
    while slot is not None and len(found) < number:
        try:
            slot = line.timetable.after(slot, anchor=anchor)
        except Exception as error:
            raise EntryError(line.name, f"its schedule raises {type(error).__name__}: {error}") from error
        if slot is not None:
            found.append(slot)
    return found


def _shown(line: Line, outline: _Outline) -> Shown:
    coming = _coming(line, outline, 1)
    mark = outline.memory.marks.get(line.name)
    return {
        "name": line.name,
        "task": line.entry.task,
        "schedule": str(line.entry.schedule),
        "next": iso(coming[0]) if coming else None,
        "last": None if mark is None else iso(mark),
        "runs": outline.memory.runs.get(line.name, 0),
        "enabled": line.rules.enabled,
        "paused": line.name in outline.paused,
        "source": "config" if line.since is None else "dynamic",
    }
