"""Facts about the registered tasks and about countdowns in the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_singlebeat.policy import backoff
from celery_singlebeat.policy.backoff import Backoff
from celery_singlebeat.policy.diagnosis.facts import Countdown, TaskFacts
from celery_singlebeat.settings import Settings
from celery_singlebeat.task.base import SingleBeatTask
from celery_singlebeat.task.doubts import contradictions
from celery_singlebeat.task.rules import TaskRules, read_rules

_CELERYS_OWN = "celery."
#: `retry_backoff_max` where a plain task says nothing, in seconds.
_CELERYS_CAP = 600.0


def read_tasks(app: Celery, settings: Settings) -> tuple[TaskFacts, ...]:
    """Every task of this app but Celery's own; raises `SettingsError` for one that cannot work."""
    tasks = sorted(app.tasks.items())
    return tuple(_read(app, task, settings) for name, task in tasks if not name.startswith(_CELERYS_OWN))


def read_countdowns(app: Celery) -> tuple[Countdown, ...]:
    """The countdowns in the options of schedule entries. What cannot be read is the beat's to tell."""
    schedule: Any = app.conf.beat_schedule
    found = []
    for name, entry in schedule.items() if isinstance(schedule, Mapping) else ():
        options = entry.get("options") if isinstance(entry, Mapping) else None
        if isinstance(options, Mapping) and (wait := _seconds(options.get("countdown"))):
            found.append(Countdown(entry=str(name), task=str(entry.get("task")), seconds=wait))
    return tuple(found)


def _read(app: Celery, task: Any, settings: Settings) -> TaskFacts:
    about: dict[str, Any] = {
        "name": task.name,
        "acks_late": bool(task.acks_late),
        "reject_on_worker_lost": bool(task.reject_on_worker_lost),
        "time_limit": _seconds(task.time_limit or app.conf.task_time_limit),
        "soft_time_limit": _seconds(task.soft_time_limit or app.conf.task_soft_time_limit),
    }
    if not isinstance(task, SingleBeatTask):
        return TaskFacts(**about, longest_wait=_plain_wait(task))
    rules = read_rules(task, settings)
    return TaskFacts(
        **about,
        is_ours=True,
        longest_wait=_own_wait(task, rules),
        exclusive=rules.exclusive,
        lock_ttl=rules.lock_ttl,
        dedupe_ttl=rules.dedupe_ttl,
        doubts=tuple(contradictions(task, rules)),
    )


def _own_wait(task: Any, rules: TaskRules) -> float:
    """The longest of what a call waits for at the broker. While the store is away it waits there always."""
    waits = [rules.conflict_countdown] if rules.on_lock_error == "retry" else []
    if rules.retry_store == "eta":
        if rules.on_conflict not in ("skip", "fail"):
            waits.append(rules.conflict_wait)
        if rules.backoff is not None:
            waits.append(backoff.longest(task.max_retries, rules.backoff))
        elif task.max_retries != 0:
            waits.append(float(task.default_retry_delay))
    return max(waits, default=0.0)


def _plain_wait(task: Any) -> float:
    """Celery's own backoff doubles from `retry_backoff` on; without it every wait is the same."""
    base = getattr(task, "retry_backoff", False)
    base = 1.0 if base is True else _seconds(base)
    retries = task.max_retries
    if retries == 0:
        return 0.0
    if not base:
        return _seconds(task.default_retry_delay) or 0.0
    cap = _seconds(getattr(task, "retry_backoff_max", None)) or _CELERYS_CAP
    return backoff.longest(retries, Backoff(base=base, cap=cap))


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
