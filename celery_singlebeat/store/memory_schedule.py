"""The dynamic schedule of the reference store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_singlebeat.policy.pauses import Pause
from celery_singlebeat.store.schedule_ports import Changes, Record


@dataclass(slots=True)
class KeptSchedule:
    """What a server would keep of it."""

    records: dict[str, tuple[str, Record]] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)
    running: dict[str, tuple[datetime, str]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    def since(self, cursor: str) -> set[str]:
        """Names that changed after this place."""
        return set(self.changes[int(cursor) :]) if cursor else set()


class MemoryScheduleStore:
    """`ScheduleStore` in memory. A cursor is how many changes there were."""

    def __init__(
        self,
        kept: Callable[[], KeptSchedule],
        now: Callable[[], datetime],
        tell: Callable[[str], int],
        guard: AbstractContextManager[Any],
    ) -> None:
        self._guard = guard
        self._kept = kept
        self._now = now
        self._tell = tell

    def changes(self, cursor: str = "") -> Changes:
        with self._guard:
            kept = self._kept()
            newest = str(len(kept.changes))
            if not cursor or int(cursor) > len(kept.changes):
                records = {name: record for name, (_, record) in kept.records.items()}
                return Changes(newest, is_everything=True, records=records, pauses=dict(kept.pauses))
            names = kept.since(cursor)
            return Changes(
                newest,
                records={name: kept.records[name][1] if name in kept.records else None for name in names},
                pauses={name: kept.pauses.get(name) for name in names},
            )

    def of(self, entry: str) -> Changes:
        with self._guard:
            kept = self._kept()
            return Changes(
                "",
                records={entry: kept.records[entry][1]} if entry in kept.records else {},
                pauses={entry: kept.pauses[entry]} if entry in kept.pauses else {},
            )

    def put(
        self, entries: Mapping[str, tuple[str, str]], since: Mapping[str, datetime] | None = None
    ) -> dict[str, str]:
        with self._guard:
            found = {}
            for name, (rule, text) in entries.items():
                known, asked = self._kept().records.get(name), (since or {}).get(name)
                start = asked or self._now()
                if known is not None and known[0] == rule:
                    start = max(known[1].since, asked or known[1].since)
                record = (rule, Record(start, text))
                found[name] = "added" if known is None else "same" if known == record else "changed"
                if known != record:
                    self._kept().records[name] = record
                    self._changed(name)
            return found

    def remove(self, entry: str, *, keep_pause: bool = False) -> bool:
        with self._guard:
            kept = self._kept()
            if kept.records.pop(entry, None) is None:
                return False
            if not keep_pause:
                kept.pauses.pop(entry, None)
            kept.running.pop(entry, None)
            self._changed(entry)
            return True

    def pause(self, entry: str, *, is_dynamic: bool = False) -> bool | None:
        with self._guard:
            if is_dynamic and entry not in self._kept().records:
                return None
            known = self._kept().pauses.get(entry)
            if known is not None and known.until is None:
                return False
            self._kept().pauses[entry] = Pause(self._now())
            self._changed(entry)
            return True

    def resume(self, entry: str) -> bool:
        with self._guard:
            known = self._kept().pauses.get(entry)
            if known is None or known.until is not None:
                return False
            self._kept().pauses[entry] = Pause(known.since, self._now())
            self._kept().running.pop(entry, None)
            self._changed(entry)
            return True

    def finish(self, entry: str, task_id: str) -> bool:
        with self._guard:
            running = self._kept().running
            if running.get(entry, (None, ""))[1] != task_id:
                return False
            del running[entry]
            return True

    def _changed(self, name: str) -> None:
        self._kept().changes.append(name)
        self._tell("changed")
