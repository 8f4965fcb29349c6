"""Dynamic entries as JSON, with a version, and back.

{"v": 1, "task": ..., "schedule": {...}, "args": [...], "kwargs": {...}, "options": {...}, "keys": {...}}

`schedule` has one key that says which kind it is: every, cron, solar, rrule or clocked. `keys` are this
package's own: misfire, overlap, jitter and so on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import crontab, maybe_schedule, schedule, solar

from celery_singlebeat.beat.call_options import check_options
from celery_singlebeat.errors import EntryError
from celery_singlebeat.moments import iso
from celery_singlebeat.policy.entries import CELERY_KEYS, check_call, check_new_name, check_schedule, split
from celery_singlebeat.schedules import clocked, rrule

VERSION = 1
_PARTS = {"task": str, "schedule": dict, "args": list, "kwargs": dict, "options": dict, "keys": dict}
_CRON = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def write(name: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """The rule's hash and the JSON of an entry; raises `EntryError` if it cannot be kept."""
    check_new_name(name)
    theirs, ours = split(name, fields)
    for key in ("last_run_at", "total_run_count"):
        if theirs.get(key) is not None:
            raise EntryError(name, f"{key} cannot be given: Redis knows what ran; leave it out")
    check_call(name, theirs["task"], {})  # what is wrong with its options may be a secret, see below
    check_schedule(name, theirs.get("schedule"))
    try:
        given = maybe_schedule(theirs["schedule"], relative=theirs.get("relative", False))
    except OverflowError:
        raise EntryError(
            name, f"schedule={theirs['schedule']!r} is longer than any interval can be"
        ) from None
    asked = _schedule_json(name, given)
    record = {
        "v": VERSION,
        "task": theirs["task"],
        "schedule": asked,
        "args": _kept(name, "args", theirs.get("args"), (list, tuple)),
        "kwargs": _kept(name, "kwargs", theirs.get("kwargs"), (Mapping,)),
        "options": _kept(name, "options", theirs.get("options"), (Mapping,)),
        "keys": ours,
    }
    check_options(name, record["options"])
    for key, value in ours.items():
        if not _is_plain(value):
            raise EntryError(name, f"{key}={value!r} cannot be kept as JSON; give text or a number")
    # What its slots follow from: under another rule the entry starts from now.
    rule = json.dumps([asked, ours.get("timezone"), ours.get("enabled", True)], sort_keys=True)
    return hashlib.sha256(rule.encode()).hexdigest()[:16], json.dumps(record, sort_keys=True)


def _kept(name: str, key: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """A part of the call as JSON knows it; raises `EntryError` without the values, which may be secrets."""
    what = "list" if list in kinds else "dict"
    if value is None:
        return [] if what == "list" else {}
    if not isinstance(value, kinds):
        raise EntryError(name, f"its {key} are a {type(value).__name__}; give a {what}")
    plain: Any = list(value) if what == "list" else dict(value)
    try:
        json.dumps(plain, allow_nan=False)
        has_odd_keys = _has_odd_keys(plain)
    except (TypeError, ValueError, RecursionError) as error:
        problem = "they are nested too deep" if isinstance(error, RecursionError) else error
        raise EntryError(
            name, f"its {key} cannot be kept as JSON: {problem}; give text, numbers, lists and dicts"
        ) from None
    if has_odd_keys:
        raise EntryError(name, f"its {key} have a dict with keys that are no text, which JSON has not")
    return plain


def _has_odd_keys(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(not isinstance(key, str) or _has_odd_keys(inner) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and any(map(_has_odd_keys, value))


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, str))
        or (isinstance(value, float) and math.isfinite(value))
    )


def read(name: str, text: str) -> dict[str, Any]:
    """The fields of an entry, as `beat_schedule` has them; raises `EntryError`."""
    try:
        record = json.loads(text)
        version = record["v"]
        if version == VERSION:
            return _fields(record)
    except Exception as error:  # somebody may have written anything there
        raise EntryError(
            name, f"its stored form cannot be read ({type(error).__name__}: {error}); add it again"
        ) from None
    raise EntryError(
        name, f"it is stored in form {version!r}, and this version reads form {VERSION}: update it"
    )


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    for key, kind in _PARTS.items():
        if not isinstance(record[key], kind):
            raise TypeError(f"{key} is a {type(record[key]).__name__}")
    return {
        "task": record["task"],
        "schedule": _schedule(record["schedule"]),
        "args": tuple(record["args"]),
        "kwargs": record["kwargs"],
        "options": record["options"],
        **{key: value for key, value in record["keys"].items() if key not in CELERY_KEYS},
    }


def _schedule_json(name: str, asked: Any) -> dict[str, Any]:
    kind = type(asked)
    if kind is schedule:
        every = {"every": asked.run_every / timedelta(seconds=1)}
        return {**every, "relative": True} if asked.relative else every
    if kind is crontab:
        if asked.nowfun is not None:
            raise EntryError(
                name, "its crontab has a nowfun, which cannot be stored; give its zone as timezone"
            )
        return {"cron": {field: _cron_text(getattr(asked, f"_orig_{field}")) for field in _CRON}}
    if kind is solar:
        return {"solar": asked.event, "lat": asked.lat, "lon": asked.lon}
    if kind is rrule:
        return {"rrule": asked.rule, "start": asked.start.isoformat(), "zone": asked.zone.key}
    if kind is clocked:
        return {"clocked": iso(asked.at)}
    raise EntryError(
        name,
        f"schedule={asked!r} is a {kind.__name__}, which cannot be stored; "
        "give seconds, a timedelta, crontab, solar, rrule or clocked, or put the entry into beat_schedule",
    )


def _cron_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else ",".join(map(str, value))


def _schedule(stored: Mapping[str, Any]) -> Any:
    if "every" in stored:
        return schedule(timedelta(seconds=stored["every"]), relative=bool(stored.get("relative")))
    if "cron" in stored:
        return crontab(**{field: stored["cron"][field] for field in _CRON})
    if "solar" in stored:
        return solar(stored["solar"], stored["lat"], stored["lon"])
    if "rrule" in stored:
        return rrule(stored["rrule"], datetime.fromisoformat(stored["start"]), stored["zone"])
    return clocked(datetime.fromisoformat(stored["clocked"]))
