"""From an entry that celery-redbeat stored to a dynamic entry of this package.

RedBeat's JSON marks what JSON has not with `__type__`: datetime, interval, crontab, weekday, rrule. It reads
a crontab in the app's zone, and a recurrence rule in the UTC offset that its start had when it was stored.
An entry's next run follows from its last one, whenever that was: so here its slots count from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule
from dateutil import rrule as dateutil

from celery_singlebeat.errors import EntryError
from celery_singlebeat.moments import reachable
from celery_singlebeat.schedules import rrule
from celery_singlebeat.zones import first_change, offset_at, wall_time

#: What Celery adds to the schedule by itself, and RedBeat stores as it stores entries of its users.
BUILT_IN = "celery.backend_cleanup"

#: What a rule that repeats each hour or more often reads in UTC here, and in the offset of its start there.
_OF_THE_DAY = ("bymonth", "bymonthday", "byyearday", "byeaster", "byweekno", "byweekday", "byhour")
_PARTS = ("interval", "wkst", "count", "bysetpos", *_OF_THE_DAY, "byminute", "bysecond")
#: For so long a zone must keep its offset to stand for it.
_STEADY = timedelta(days=3653)


@dataclass(frozen=True, slots=True)
class Taken:
    """An entry as `beat_schedule` has them, and when it ran last."""

    fields: dict[str, Any]
    last_run_at: datetime | None


def take(name: str, definition: str | None, meta: str | None, *, zone: tzinfo | None) -> Taken:
    """Read a stored entry; `zone` is the app's. Raises `EntryError` for one that cannot be taken over."""
    if not definition:
        raise EntryError(name, "it has no definition, and RedBeat does not run it either")

    def plain(found: dict[str, Any]) -> Any:
        return _from_json(found, zone)

    try:
        read = json.loads(definition, object_hook=plain)
        known = json.loads(meta, object_hook=plain) if meta else {}
        fields = {
            "task": read["task"],
            "schedule": read["schedule"],
            "args": list(read.get("args") or ()),
            "kwargs": dict(read.get("kwargs") or {}),
            "options": dict(read.get("options") or {}),
            "enabled": bool(read.get("enabled", True)),
        }
        last = known.get("last_run_at")
    except _Refused as error:
        raise EntryError(name, str(error)) from None
    except Exception as error:  # somebody may have written anything there
        problem = f"its stored form cannot be read ({type(error).__name__}: {error})"
        raise EntryError(name, problem) from None
    if isinstance(fields["schedule"], Mapping):
        kind = fields["schedule"].get("__type__")
        raise EntryError(name, f"its schedule is of the type {kind!r}, which RedBeat does not read either")
    if last is not None and (not isinstance(last, datetime) or last.tzinfo is None):
        raise EntryError(name, f"its last_run_at {last!r} is no moment")
    try:
        return Taken(fields, None if last is None else reachable(last))
    except ValueError as error:
        raise EntryError(name, f"its last_run_at {error}") from None


class _Refused(Exception):
    """A schedule has no equal here."""


def _from_json(found: dict[str, Any], zone: tzinfo | None) -> Any:
    kind = found.get("__type__")
    rest = {name: value for name, value in found.items() if name != "__type__"}
    if kind == "datetime":
        there = rest.pop("timezone", "UTC")
        of = ZoneInfo(there) if isinstance(there, str) else timezone(timedelta(seconds=there))
        return datetime(tzinfo=of, **rest)
    if kind == "interval":
        return schedule(run_every=rest["every"], relative=bool(rest["relative"]))
    if kind == "crontab":
        return crontab(**rest)
    if kind == "weekday":
        return dateutil.weekday(**rest)
    if kind == "rrule":
        return _rule(rest, zone)
    return found


def _rule(stored: Mapping[str, Any], zone: tzinfo | None) -> rrule:
    offset = timedelta(minutes=stored.get("dtstart_tz") or 0)
    there = timezone(offset)
    start = datetime.fromtimestamp(stored["dtstart"], tz=there)
    until = stored.get("until")
    parts = {name: stored[name] for name in _PARTS if stored.get(name) is not None}
    if until is not None:
        parts["until"] = datetime.fromtimestamp(until, tz=there).replace(tzinfo=None)
    frequency = stored["freq"]
    # dateutil writes a rule down as RFC 5545 has it, after the line with its start
    local = wall_time(start, there)
    text = str(dateutil.rrule(frequency, dtstart=local, **parts)).rpartition("RRULE:")[2]
    if frequency >= dateutil.HOURLY and offset and any(name in parts for name in _OF_THE_DAY):
        raise _Refused(
            f"its rule {text} picks hours or days in the offset {_shown(start)}; add it with a rule that "
            "picks them in UTC"
        )
    return rrule(text, local, _zone(start, offset, zone, text))


def _zone(start: datetime, offset: timedelta, zone: tzinfo | None, text: str) -> str:
    """The name of a zone that is always so far from UTC."""
    hours, rest = divmod(offset, timedelta(hours=1))
    if not rest:
        return f"Etc/GMT{-hours:+d}" if hours else "UTC"
    name = getattr(zone, "key", None)
    is_there = isinstance(name, str) and offset_at(start, zone) == offset
    if is_there and first_change(start, start + _STEADY, zone) is None:
        return str(name)
    raise _Refused(
        f"its rule {text} counts in the offset {_shown(start)} of its start, which no zone of whole hours "
        "has; add it with the zone that you mean"
    )


def _shown(start: datetime) -> str:
    return f"{start:%z}"
