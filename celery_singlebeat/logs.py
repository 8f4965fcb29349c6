"""Events as log records: one line for people, the fields of the event as `extra` for machines.

Arguments of tasks are not in any event, so they are in no line either.
"""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from datetime import datetime

from celery_singlebeat import events
from celery_singlebeat.moments import iso

logger = logging.getLogger("celery_singlebeat")

_ERROR = (events.EntryParked, events.LockWasLost, events.TaskBuried)
_WARNING = (
    events.LockBroken,
    events.SlotSkipped,
    events.SlotsSkipped,
    events.SlotRefused,
    events.StoreLost,
    events.ClocksDisagree,
    events.PublishFailed,
)
_OF_SLOTS = (events.SlotDispatched, events.SlotSkipped, events.SlotsSkipped, events.SlotRefused)
_QUIET = (events.SlotDispatched, events.LockAcquired)


def write(event: events.Event) -> None:
    """Log one event. A broken log handler is logging's problem, never the caller's."""
    level = logging.INFO
    if isinstance(event, _ERROR):
        level = logging.ERROR
    elif isinstance(event, (*_WARNING, events.LeadershipLost)):
        level = logging.WARNING
    elif isinstance(event, _QUIET):
        level = logging.DEBUG
    if isinstance(event, events.LeadershipLost) and event.reason in ("resigned", "closed"):
        level = logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "%s", line(event), extra={"event": name(event), **shown(event)})


def name(event: events.Event) -> str:
    """LeadershipAcquired -> leadership_acquired."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


def shown(event: events.Event) -> dict[str, object]:
    """The fields of an event as JSON shows them."""
    values = {item.name: getattr(event, item.name) for item in fields(event)}
    return {key: iso(value) if isinstance(value, datetime) else value for key, value in values.items()}


def line(event: events.Event) -> str:
    """One line for people."""
    values = {item.name: getattr(event, item.name) for item in fields(event)}
    if isinstance(event, _OF_SLOTS):
        values["slot"] = iso(event.slot)
    if isinstance(event, events.LockConflicted):
        values["holder"] = (
            ", ".join(f"{key} {value}" for key, value in event.holder.items()) or "another call"
        )
    return _LINES[type(event)].format_map(values)


_LINES: dict[type[events.Event], str] = {
    events.LeadershipAcquired: "leading as {node}, epoch {epoch} ({reason})",
    events.LeadershipLost: "not leading any more: {node}, epoch {epoch} ({reason}); standing by",
    events.SlotDispatched: "entry {entry!r}: slot {slot} dispatched, {lateness:.3f} s late",
    events.SlotSkipped: "entry {entry!r}: slot {slot} does not run ({reason})",
    events.SlotsSkipped: "entry {entry!r}: {count} more slots before {slot} do not run ({reason})",
    events.SlotRefused: "entry {entry!r}: slot {slot} refused ({reason})",
    events.EntryParked: "entry {entry!r} is parked: {problem}",
    events.StoreLost: "the store does not answer for {seconds:.0f} s, nothing is dispatched: {problem}",
    events.StoreFound: "the store answers again, after {seconds:.1f} s",
    events.ClocksDisagree: (
        "this machine's clock is {seconds:+.1f} s off the store's; slots wait for the later of the two"
    ),
    events.PublishFailed: "{waiting} messages wait in the outbox, the broker does not take them: {problem}",
    events.LockAcquired: "{task}[{task_id}] holds lock {key} (fence {fence})",
    events.LockConflicted: "{task}[{task_id}] does not run ({policy}): lock {key} is held by {holder}",
    events.LockWasLost: "{task}[{task_id}] lost lock {key} (fence {fence}) while it ran",
    events.CallReplaced: "{task}[{task_id}] ends: another call takes its place on lock {key}",
    events.LockBroken: "lock {key} (fence {fence}) was taken away from {task}[{task_id}] by an operator",
    events.RetryScheduled: "{task}[{task_id}] attempt {attempt} failed ({exception}), next in {wait:.2f} s",
    events.TaskBuried: "{task}[{task_id}] failed for good ({reason}), dead letter in queue {queue}",
    events.TaskReplayed: "{task}[{task_id}] replayed to queue {queue} (replay {replays})",
}
