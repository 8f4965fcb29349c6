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
_WARNING = (events.SlotSkipped, events.SlotRefused, events.StoreLost, events.PublishFailed)
_QUIET = (events.SlotDispatched, events.LockAcquired)


def write(event: events.Event) -> None:
    """Log one event. A broken log handler is logging's problem, never the caller's."""
    level = logging.INFO
    if isinstance(event, _ERROR):
        level = logging.ERROR
    elif isinstance(event, _WARNING) or isinstance(event, events.LeadershipLost):
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
    match event:
        case events.LeadershipAcquired(node=node, epoch=epoch, reason=reason):
            return f"leading as {node}, epoch {epoch} ({reason})"
        case events.LeadershipLost(node=node, epoch=epoch, reason=reason):
            return f"not leading any more: {node}, epoch {epoch} ({reason}); standing by"
        case events.SlotDispatched(entry=entry, slot=slot, lateness=lateness):
            return f"entry {entry!r}: slot {iso(slot)} dispatched, {lateness * 1000:.0f} ms late"
        case events.SlotSkipped(entry=entry, slot=slot, reason=reason):
            return f"entry {entry!r}: slot {iso(slot)} does not run ({reason})"
        case events.SlotRefused(entry=entry, slot=slot, reason=reason):
            return f"entry {entry!r}: slot {iso(slot)} refused ({reason})"
        case events.EntryParked(entry=entry, problem=problem):
            return f"entry {entry!r} is parked: {problem}"
        case events.StoreLost(problem=problem, seconds=seconds):
            since = f" for {seconds:.0f} s" if seconds >= 1 else ""
            return f"the store does not answer{since}, nothing is dispatched: {problem}"
        case events.StoreFound(seconds=seconds):
            return f"the store answers again, after {seconds:.1f} s"
        case events.PublishFailed(waiting=waiting, problem=problem):
            return f"{waiting} messages wait in the outbox, the broker does not take them: {problem}"
        case events.LockAcquired(task=task, task_id=task_id, key=key, fence=fence):
            return f"{task}[{task_id}] holds lock {key} (fence {fence})"
        case events.LockConflicted(task=task, task_id=task_id, key=key, holder=holder, policy=policy):
            who = ", ".join(f"{field} {value}" for field, value in holder.items())
            return f"{task}[{task_id}] does not run ({policy}): lock {key} is held by {who or 'another call'}"
        case events.LockWasLost(task=task, task_id=task_id, key=key, fence=fence):
            return f"{task}[{task_id}] lost lock {key} (fence {fence}) while it ran"
        case events.RetryScheduled(task=task, task_id=task_id, attempt=attempt, wait=wait, exception=problem):
            return f"{task}[{task_id}] attempt {attempt} failed ({problem}), next in {wait:.2f} s"
        case events.TaskBuried(task=task, task_id=task_id, reason=reason, queue=queue):
            return f"{task}[{task_id}] failed for good ({reason}), dead letter in queue {queue}"
        case events.TaskReplayed(task=task, task_id=task_id, queue=queue, replays=replays):
            return f"{task}[{task_id}] replayed to queue {queue} (replay {replays})"
