"""From a slot to the entry whose message Celery makes: its task id and headers."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from celery_singlebeat.beat.lines import Line
from celery_singlebeat.beat.timetables import twin
from celery_singlebeat.moments import iso
from celery_singlebeat.policy.slots import task_id


def call_of(line: Line, slot: datetime, *, prefix: str, epoch: int, trigger: str) -> tuple[Any, str]:
    """A copy of the line's entry for this slot, and the task id of its call.

    `trigger`: "schedule", "run" or "backfill". The same slot and trigger have the same id, but for a run:
    that is a call of its own each time.
    """
    options = dict(line.entry.options or {})
    if trigger == "run":
        call_id = str(uuid.uuid4())
    else:
        fixed = options.get("task_id") if trigger == "schedule" else None
        call_id = str(fixed or task_id(prefix, line.name, slot, trigger))
    options["task_id"] = call_id
    options["headers"] = {
        **(options.get("headers") or {}),
        "singlebeat_entry": line.name,
        "singlebeat_slot": iso(slot),
        "singlebeat_epoch": epoch,
        "singlebeat_trigger": trigger,
    }
    if trigger == "schedule" and line.rules.overlap != "allow":
        options["headers"]["singlebeat_overlap"] = line.rules.overlap
    return twin(line.entry, options=options), call_id
