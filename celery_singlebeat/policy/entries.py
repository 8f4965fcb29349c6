"""The keys that an entry of the schedule may have beyond Celery's own.

E1  A bad key or value concerns its entry alone; its message names the entry, the value and the
    nearest known key.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_singlebeat.errors import EntryError
from celery_singlebeat.policy.slots import Misfire, MissedRules

#: Keys that celery.beat.ScheduleEntry takes from a user.
CELERY_KEYS = frozenset(
    {"task", "schedule", "args", "kwargs", "options", "relative", "last_run_at", "total_run_count"}
)
#: Keys that this package adds.
OWN_KEYS = frozenset(
    {"misfire", "misfire_grace", "catch_up_limit", "overlap", "jitter", "enabled", "timezone"}
)
#: Categories of Unicode: control characters, ends of lines and of paragraphs.
_UNPRINTABLE = frozenset({"Cc", "Zl", "Zp"})
#: What an entry may say of a run that still goes on when the next slot is due.
OVERLAPS = ("allow", "skip", "queue")
#: Slots are whole milliseconds, so no interval is shorter. Seconds.
SHORTEST = 0.001
#: Options of apply_async that people put one level too high.
_OPTION_KEYS = frozenset(
    {"queue", "expires", "priority", "headers", "exchange", "routing_key", "time_limit", "eta"}
    | {"soft_time_limit", "countdown", "serializer", "compression", "task_id", "ignore_result"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRules:
    """What one entry asks for, beside its task and schedule.

    Its slots lie at or after `start` and before `end`; with `once` it has no more than the first of them.
    """

    missed: MissedRules
    enabled: bool = True
    timezone: ZoneInfo | None = None
    start: datetime | None = None
    end: datetime | None = None
    once: bool = False
    #: Seconds over which the messages of its slots are spread.
    jitter: float = 0.0
    #: What to do with a slot while the run before goes on: "allow", "skip" or "queue".
    overlap: str = "allow"


def split(name: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys for Celery and the keys of this package; raises `EntryError` for any other."""
    known = CELERY_KEYS | OWN_KEYS
    for key in fields:
        if key in known or key in ("name", "app"):
            continue
        if key in _OPTION_KEYS:
            problem = f"{key}={fields[key]!r} belongs into its 'options', as {{'options': {{{key!r}: ...}}}}"
        else:
            close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
            problem = f"unknown key {key!r} (value {fields[key]!r}); {hint}"
        raise EntryError(name, problem)
    if not fields.get("task"):
        raise EntryError(name, "it has no 'task'; give the name of a task")
    theirs = {key: value for key, value in fields.items() if key in CELERY_KEYS}
    ours = {key: value for key, value in fields.items() if key in OWN_KEYS}
    return theirs, ours


def check_name(name: object) -> None:
    """Raise `EntryError` unless this can be the name of an entry."""
    if not isinstance(name, str):
        raise EntryError(repr(name), f"its name is a {type(name).__name__}; give text")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise EntryError(name, "its name is not UTF-8; give another one") from None


def check_new_name(name: object) -> None:
    """`check_name` for an entry that somebody adds: it has to fit into one line."""
    if not name:
        raise EntryError(str(name), "an entry needs a name")
    check_name(name)
    if any(unicodedata.category(letter) in _UNPRINTABLE for letter in str(name)):
        raise EntryError(str(name), "its name has control characters; give plain text")


def check_call(name: str, task: object, options: object) -> None:
    """Raise `EntryError` unless a call can be made of this at all."""
    if not isinstance(task, str):
        given = getattr(task, "name", None)
        remedy = f", {given!r}" if isinstance(given, str) else ""
        raise EntryError(name, f"its task is a {type(task).__name__}; give the name of a task{remedy}")
    headers = options.get("headers") if isinstance(options, Mapping) else None
    for key, value in (("options", options), ("headers", headers)):
        if not isinstance(value or {}, Mapping):
            raise EntryError(name, f"{key}={value!r} is a {type(value).__name__}; give a dict")


def check_schedule(name: str, schedule: object) -> None:
    """Raise `EntryError` unless this can be a schedule: seconds, a timedelta or a schedule object."""
    if schedule is None:
        raise EntryError(name, "it has no 'schedule'; give seconds, a timedelta or crontab(...)")
    if isinstance(schedule, (bool, str)):
        raise EntryError(
            name,
            f"schedule={schedule!r} is a {type(schedule).__name__}; "
            "give seconds as a number, a timedelta or crontab(...)",
        )
    seconds = schedule.total_seconds() if isinstance(schedule, timedelta) else schedule
    if isinstance(seconds, (int, float)):
        if not seconds > 0:
            raise EntryError(name, f"schedule={schedule!r} is not above 0 seconds")
        if seconds < SHORTEST:
            raise EntryError(name, f"schedule={schedule!r} is below the resolution of 1 ms")
    elif not hasattr(schedule, "is_due") and not hasattr(schedule, "slot_after"):
        raise EntryError(
            name, f"schedule={schedule!r} has no is_due(); give seconds, a timedelta or a schedule object"
        )


def read_rules(name: str, ours: Mapping[str, Any], defaults: MissedRules) -> EntryRules:
    """The rules of one entry from this package's keys; raises `EntryError` for a bad value."""
    missed = defaults
    if "misfire" in ours:
        try:
            missed = replace(missed, misfire=Misfire(ours["misfire"]))
        except ValueError:
            raise EntryError(name, f"misfire={ours['misfire']!r}; give 'latest', 'all' or 'skip'") from None
    if "misfire_grace" in ours:
        missed = replace(missed, grace=_grace(name, ours["misfire_grace"]))
    if "catch_up_limit" in ours:
        missed = replace(missed, limit=int(_number(name, "catch_up_limit", ours["catch_up_limit"])))
    overlap = ours.get("overlap", "allow")
    if not isinstance(overlap, str) or overlap not in OVERLAPS:
        raise EntryError(name, f"overlap={overlap!r}; give 'allow', 'skip' or 'queue'")
    if overlap == "queue":
        if ours.get("misfire", "latest") != "latest":
            raise EntryError(
                name,
                f"misfire={ours['misfire']!r} with overlap='queue', which keeps the newest slot only; "
                "leave misfire out",
            )
        missed = replace(missed, misfire=Misfire.LATEST, failover=0.0)
    enabled = ours.get("enabled", True)
    if not isinstance(enabled, bool):
        raise EntryError(name, f"enabled={enabled!r}; give True or False")
    return EntryRules(
        missed=missed,
        enabled=enabled,
        timezone=_zone(name, ours.get("timezone")),
        jitter=_number(name, "jitter", ours.get("jitter", 0)),
        overlap=overlap,
    )


def _finite(value: object) -> float:
    """A number as a user may give it, as text too; NaN for anything else."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _grace(name: str, value: object) -> float | None:
    grace = None if value is None else _finite(value)
    if grace is not None and not grace > 0:
        remedy = "give seconds above 0, since no slot is on time to the microsecond, or None for no bound"
        raise EntryError(name, f"misfire_grace={value!r}; {remedy}")
    return grace


def _number(name: str, key: str, value: object) -> float:
    number = _finite(value)
    if not number >= 0:
        raise EntryError(name, f"{key}={value!r}; give a number, 0 or larger")
    return number


def _zone(name: str, value: object) -> ZoneInfo | None:
    if value is None:
        return None
    try:
        return ZoneInfo(str(value))
    except (KeyError, ValueError, OSError):
        raise EntryError(
            name, f"timezone={value!r} is not an IANA zone; give a name such as 'Europe/Berlin'"
        ) from None
