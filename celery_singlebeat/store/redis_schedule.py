"""The dynamic schedule in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from celery_singlebeat.moments import from_millis, millis
from celery_singlebeat.policy.pauses import Pause
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.schedule_ports import Changes, Record
from celery_singlebeat.store.scripts import Scripts, answers

#: How many entries one script takes.
BATCH = 500


class RedisScheduleStore:
    """`ScheduleStore` over the scripts of one client."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys

    def changes(self, cursor: str = "") -> Changes:
        keys = self._keys
        newest, everything, entries, pauses = self._scripts.run(
            "schedule_changes", [keys.schedule, keys.paused, keys.changes], [cursor]
        )
        unreadable: list[str] = []
        return Changes(
            cursor=newest,
            is_everything=bool(everything),
            records={name: _record(name, text, unreadable) for name, text in _pairs(entries)},
            pauses={name: _pause(text) for name, text in _pairs(pauses)},
            unreadable=tuple(unreadable),
        )

    def of(self, entry: str) -> Changes:
        client, keys = self._scripts.client, self._keys
        with answers("schedule entry"):
            pipe = client.pipeline(transaction=True)
            for key in (keys.schedule, keys.paused):
                pipe.hget(key, entry)
            text, pause = pipe.execute()
        unreadable: list[str] = []
        return Changes(
            cursor="",
            records={} if text is None else {entry: _record(entry, text, unreadable)},
            pauses={} if pause is None else {entry: _pause(pause)},
            unreadable=tuple(unreadable),
        )

    def put(
        self, entries: Mapping[str, tuple[str, str]], since: Mapping[str, datetime] | None = None
    ) -> dict[str, str]:
        keys, names = self._keys, list(entries)
        starts = {name: str(millis(moment)) for name, moment in (since or {}).items()}
        found: dict[str, str] = {}
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            args = [text for name in batch for text in (name, *entries[name], starts.get(name, ""))]
            outcomes = self._scripts.run("schedule_put", [keys.schedule, keys.changes], [keys.events, *args])
            found.update(zip(batch, outcomes, strict=True))
        return found

    def remove(self, entry: str, *, keep_pause: bool = False) -> bool:
        keys = self._keys
        touched = [keys.schedule, keys.paused, keys.running, keys.changes]
        return bool(self._scripts.run("schedule_remove", touched, [keys.events, entry, int(keep_pause)]))

    def pause(self, entry: str, *, is_dynamic: bool = False) -> bool | None:
        done = self._ask_for("pause", entry, is_dynamic=is_dynamic)
        return None if done < 0 else bool(done)

    def resume(self, entry: str) -> bool:
        return bool(self._ask_for("resume", entry))

    def finish(self, entry: str, task_id: str) -> bool:
        return bool(self._scripts.run("run_finish", [self._keys.running], [entry, task_id]))

    def _ask_for(self, wish: str, entry: str, *, is_dynamic: bool = False) -> int:
        keys = self._keys
        touched = [keys.paused, keys.running, keys.changes, keys.schedule]
        words = (keys.events, entry, wish, int(is_dynamic))
        answer: int = self._scripts.run("schedule_pause", touched, words)
        return answer


def _pairs(flat: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _record(name: str, text: str, unreadable: list[str]) -> Record | None:
    if not text:
        return None
    since, _, rest = text.partition(" ")
    try:
        return Record(from_millis(int(since)), rest.partition(" ")[2])
    except (ValueError, OverflowError):
        unreadable.append(name)
        return None


def _pause(text: str) -> Pause | None:
    since, _, until = text.partition(" ")
    try:
        return Pause(from_millis(int(since)), from_millis(int(until)) if until else None) if text else None
    except (ValueError, OverflowError):
        return None
