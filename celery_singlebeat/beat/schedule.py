"""The schedule, as any process of the app may read and change it.

Reading needs the app's configuration and the store, and no running beat. Changes are in force as soon as
the method returns: the store takes no slot of an entry that its leader has not read anew since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler, SchedulingError
from celery.utils.imports import load_extension_class_names, symbol_by_name
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_singlebeat.beat import records
from celery_singlebeat.beat.calls import call_of
from celery_singlebeat.beat.lines import Line
from celery_singlebeat.beat.mixin import SingleBeatMixin
from celery_singlebeat.beat.outlines import Outline, Shown
from celery_singlebeat.beat.redbeat import BUILT_IN, take
from celery_singlebeat.beat.scheduler import SingleBeatScheduler
from celery_singlebeat.errors import EntryError, EntryNotFound, SettingsError
from celery_singlebeat.moments import MILLISECOND, iso, reachable, whole
from celery_singlebeat.schedules import clocked
from celery_singlebeat.store.ports import BeatStore
from celery_singlebeat.store.schedule_ports import Record
from celery_singlebeat.wiring import wire

#: The most slots of one backfill, and its least number of slots in a second.
MOST_SLOTS, _SLOWEST = 100_000, 0.001
#: By how much two clocks may differ.
ASTRAY = timedelta(hours=1)

Entries = list[Shown]
Slots = list[datetime]
TaskIds = list[str]


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
        static = _names(scheduler)
        written = {name: self._written(name, fields, scheduler, static) for name, fields in entries.items()}
        since = _near(
            {name: fields["schedule"] for name, fields in entries.items()}, self._wiring.clock.now()
        )
        with self._store() as store:
            return store.schedule.put(written, since)

    def import_redbeat(self, *, dry_run: bool = False) -> Entries:
        """Take over the entries that celery-redbeat keeps in Redis, and when each ran last; write nothing
        there. What became of each, by name: {"name", "outcome", "reason"}.

        "added", "changed", "same", "static": the configuration has it; "refused": for the reason that is
        given. Each slot after an entry's last run is still to come, so none is repeated and none is lost.
        """
        scheduler, now = self._scheduler(), self._wiring.clock.now()
        static = _names(scheduler)
        outcomes: dict[str, tuple[str, str]] = {}
        written, since = {}, {}
        redbeat = self._wiring.redbeat_store()
        for stored in redbeat.entries():
            name = stored.name
            if stored.is_static or name in static or name == BUILT_IN:
                outcomes[name] = ("static", "it comes from the configuration, and stays there")
                continue
            try:
                taken = take(name, stored.definition, stored.meta, zone=self._app.timezone)
                last = taken.last_run_at
                start = whole(last) if last is not None and last <= now else None
                written[name] = self._written(name, taken.fields, scheduler, static, since=start)
                if start is not None:
                    since[name] = start
            except EntryError as error:
                outcomes[name] = ("refused", error.problem)
        with self._store() as store:
            if dry_run:
                found = _foreseen(store.schedule.changes().records, written, since)
            else:
                found = store.schedule.put(written, since)
        outcomes.update({name: (outcome, "") for name, outcome in found.items()})
        return [
            {"name": name, "outcome": outcome, "reason": reason or None}
            for name, (outcome, reason) in sorted(outcomes.items())
        ]

    def redbeat_leads(self) -> bool:
        """Whether a RedBeat beat holds its lock, or did lately: it would run what is imported, too."""
        return self._wiring.redbeat_store().leads()

    def remove(self, name: str) -> None:
        """Remove a dynamic entry, and its pause unless the configuration has an entry of this name, too."""
        with self._store() as store:
            is_static = name in _names(self._scheduler())
            if store.schedule.remove(name, keep_pause=is_static):
                return
            self._outline(store, name).demand(name)
        if is_static:
            raise EntryError(name, "it is in the configuration; remove it there, or pause it")
        raise EntryNotFound(name)  # somebody has just added it

    def pause(self, name: str) -> bool:
        """Dispatch no slot of this entry until `resume`; False if it was paused already."""
        with self._store() as store:
            outline = self._outline(store, name)
            outline.demand(name)
            done = store.schedule.pause(name, is_dynamic=name not in outline.static)
        if done is None:
            raise EntryNotFound(name)  # somebody else has removed it
        return done

    def resume(self, name: str) -> bool:
        """Go on with the next slot; those in between were skipped. False if it was not paused.

        It also forgets a run that must not be overlapped and whose end nobody told, and the pause of an entry
        that the configuration has no more.
        """
        with self._store() as store:
            outline = self._outline(store, name)
            if name not in outline.paused:
                outline.demand(name)
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
        tell: Callable[[datetime], None] = lambda _: None,
    ) -> Slots:
        """Dispatch the slots from `start` on, before `end`, oldest first; which they are.

        `MOST_SLOTS` at most, and `rate` in a second; `tell` hears of each slot that is out. The same slot has
        the same task id each time it is backfilled, and another one than its dispatch by schedule.
        """
        now = self._wiring.clock.now()
        for moment in (start, end):
            if moment.tzinfo is None:
                raise EntryError(name, f"{moment.isoformat()} has no offset; give one, such as +00:00")
            try:
                reachable(moment)
            except ValueError as error:
                raise EntryError(name, str(error)) from None
        if end <= start:
            raise EntryError(name, f"the end {iso(end)} is not after the start {iso(start)}")
        if end > now:
            raise EntryError(name, f"the end {iso(end)} lies in the future; those slots are still to come")
        if rate is not None and not _SLOWEST <= rate < float("inf"):
            raise EntryError(name, f"rate={rate:g} is no number of slots in a second; give one such as 5")
        with self._store() as store:
            outline = self._outline(store, name)
            line = outline.line(name)
            slots = list(islice(outline.slots(line, start, end), MOST_SLOTS + 1))
            if len(slots) > MOST_SLOTS:
                problem = f"from {iso(start)} to {iso(end)} it has more than {MOST_SLOTS} slots"
                raise EntryError(name, f"{problem}; give a shorter time, and the rest after it")
            if not dry_run:
                self._dispatch(store, line, slots, "backfill", rate=rate, tell=tell)
        return slots

    # -- reading --------------------------------------------------------------------------------

    def list(self) -> Entries:
        """Every entry, by name: {"name", "task", "schedule", "next", "last", "runs", "enabled", "paused",
        "source"}. Moments are ISO 8601 in UTC or None; `last` is the newest slot with a verdict.
        """
        with self._store() as store:
            outline = self._outline(store)
        return outline.shown()

    def is_dynamic(self, name: str) -> bool:
        """Whether there is a dynamic entry of this name, even if one of the configuration hides it."""
        with self._store() as store:
            outline = self._outline(store, name)
        outline.demand(name)
        return name in outline.dynamic

    def next(self, number: int = 1, name: str | None = None) -> Entries:
        """The coming slots of one entry, or of all, soonest first: {"name", "slot", "paused"}.

        A schedule that decides at the moment it is asked names none.
        """
        with self._store() as store:
            outline = self._outline(store, name)
        if name is None:
            coming = list(islice(outline.all_coming(), number))
        else:
            coming = [(slot, name) for slot in outline.coming(outline.line(name), number)]
        return [
            {"name": entry, "slot": iso(slot), "paused": entry in outline.paused} for slot, entry in coming
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
            try:
                chosen = symbol_by_name(chosen, aliases=aliases)
            except (ImportError, AttributeError) as error:
                raise SettingsError(
                    f"beat_scheduler={chosen!r} cannot be imported ({error}); "
                    "give the path of a class, such as 'celery_singlebeat:SingleBeatScheduler'"
                ) from error
        if not issubclass(chosen, SingleBeatMixin) or issubclass(chosen, PersistentScheduler):
            chosen = SingleBeatScheduler
        scheduler: SingleBeatMixin = chosen(self._app, lazy=True)
        return scheduler

    def _written(
        self,
        name: str,
        fields: Mapping[str, Any],
        scheduler: SingleBeatMixin,
        static: Collection[str],
        since: datetime | None = None,
    ) -> tuple[str, str]:
        """The rule and the text of an entry that can work; raises `EntryError`."""
        now = self._wiring.clock.now()
        rule, text = records.write(name, fields)
        if name in static:
            raise EntryError(name, "the configuration has an entry of this name; change it there")
        start = since or now
        line = scheduler.dynamic_line(name, text, since=start)
        asked = fields["schedule"]
        if isinstance(asked, clocked) and asked.at <= now:
            raise EntryError(name, f"its time {iso(asked.at)} is over; give one to come")
        try:
            first = line.timetable.after(start, anchor=start)
        except Exception as error:  # it has never been asked before
            problem = f"{line.entry.schedule} cannot be worked out ({type(error).__name__}: {error})"
            raise EntryError(name, f"{problem}; give another schedule") from None
        if first is None:
            raise EntryError(name, f"{line.entry.schedule} has no slot to come; give a schedule that has")
        return rule, text

    def _outline(self, store: BeatStore, only: str | None = None) -> Outline:
        scheduler = self._scheduler()
        lines, parked = scheduler.outline()
        static = frozenset((*lines, *parked))
        changes = store.schedule.changes() if only is None else store.schedule.of(only)
        if only is not None and only not in static and not changes.records:
            changes = store.schedule.changes()  # it may be near to the name of another
        for name, record in changes.records.items():
            if record is None or name in static or only not in {None, name}:
                continue
            try:
                lines[name] = scheduler.dynamic_line(name, record.text, since=record.since)
            except EntryError as error:
                parked[name] = error.problem
        damaged = changes.unreadable
        for name in damaged:
            if name not in static:
                parked[name] = "its stored form cannot be read; add it again"
        pauses = changes.pauses.items()
        return Outline(
            now=store.overview().time,
            lines=lines,
            parked=parked,
            static=static,
            dynamic=frozenset((*(name for name, record in changes.records.items() if record), *damaged)),
            paused=frozenset(name for name, pause in pauses if pause is not None and pause.until is None),
            memory=store.remember(None if only is None else [only] if only in lines else []),
        )

    def _dispatch(
        self,
        store: BeatStore,
        line: Line,
        slots: Sequence[datetime],
        trigger: str,
        *,
        rate: float | None = None,
        tell: Callable[[datetime], None] = lambda _: None,
    ) -> TaskIds:
        leader, scheduler = store.overview().leader, self._scheduler()
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
                try:
                    scheduler.apply_async(entry, producer=producer, advance=False)
                except SchedulingError as error:
                    raise _cause(line, error, connection) from error
                ids.append(call_id)
                tell(slot)
        return ids


def _names(scheduler: SingleBeatMixin) -> frozenset[str]:
    """The names of the static entries, whether they can work or not."""
    lines, parked = scheduler.outline()
    return frozenset((*lines, *parked))


def _near(asked: Mapping[str, Any], now: datetime) -> dict[str, datetime]:
    """From when near times count: one that is to come by the caller's clock is not lost if that of Redis is
    ahead.
    """
    times = {name: once.at for name, once in asked.items() if isinstance(once, clocked)}
    return {name: at - MILLISECOND for name, at in times.items() if at < now + ASTRAY}


def _foreseen(
    records: Mapping[str, Record | None],
    written: Mapping[str, tuple[str, str]],
    since: Mapping[str, datetime],
) -> dict[str, str]:
    """What would become of entries if they were put into the store."""
    found = {}
    for name, (_, text) in written.items():
        known = records.get(name)
        same = known is not None and known.text == text and known.since >= since.get(name, known.since)
        found[name] = "same" if same else "added" if known is None else "changed"
    return found


def _cause(line: Line, error: SchedulingError, connection: Connection) -> Exception:
    """What Celery has wrapped, if it says something of the broker; otherwise the entry has no message."""
    cause, broker = error.__context__, (*connection.connection_errors, *connection.channel_errors)
    if isinstance(cause, Exception) and isinstance(cause, (OperationalError, *broker)):
        return cause
    return EntryError(line.name, f"its message cannot be made: {type(cause).__name__}: {cause}")
