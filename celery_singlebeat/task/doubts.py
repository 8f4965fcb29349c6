"""Attributes and settings that are allowed, and cannot mean what they say together: one line for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery

from celery_singlebeat.policy.backoff import Jitter, ceiling
from celery_singlebeat.task.rules import TaskRules
from celery_singlebeat.task.workplace import at_work
from celery_singlebeat.wiring import beside

#: Kombu's own, in seconds.
VISIBILITY_TIMEOUT = 3600.0
_MOST_NAMES = 5


def doubts_of(app: Celery) -> list[str]:
    """What is doubtful in this app's tasks; raises `SettingsError` for what cannot work at all."""
    place = at_work(app)
    tasks = {
        name: (task, task._rules(place))  # noqa: SLF001 - our own base class
        for name, task in sorted(app.tasks.items())
        if hasattr(task, "_rules")
    }
    found = [
        f"task {name}: {doubt}"
        for name, (task, rules) in tasks.items()
        for doubt in contradictions(task, rules)
    ]
    found += _waits(app, {name: (task, rules) for name, (task, rules) in tasks.items()})
    graves = {rules.dead_letter_queue for _, rules in tasks.values()} - {None}
    consumed = set(app.amqp.queues.consume_from)
    found += [
        f"this worker consumes from {queue}: a call that fails there is buried there again, and so runs "
        "for ever; leave that queue out of -Q"
        for queue in sorted(beside(str(grave)) for grave in graves)
        if queue in consumed
    ]
    return found


def contradictions(task: Any, rules: TaskRules) -> Iterator[str]:
    """What this one task says that has no effect beside what else it says."""
    yield from _of_retries(task, rules)
    for refused in rules.dont_autoretry_for:
        if not any(issubclass(refused, kind) or issubclass(kind, refused) for kind in rules.autoretry_for):
            yield f"dont_autoretry_for has {refused.__name__}, which autoretry_for has not"
    if rules.conflict_timeout is not None and rules.on_conflict != "retry":
        yield f"conflict_timeout counts with on_conflict='retry' alone, and it is {rules.on_conflict!r}"
    elif rules.conflict_timeout is not None and rules.conflict_timeout < rules.conflict_countdown:
        yield (
            f"conflict_timeout={rules.conflict_timeout:g} is below conflict_countdown="
            f"{rules.conflict_countdown:g}, so the second try gives up; lower the countdown"
        )
    if _says(task, "poison_limit") and not (task.acks_late and task.reject_on_worker_lost):
        yield "poison_limit has no effect without acks_late and reject_on_worker_lost"


def _of_retries(task: Any, rules: TaskRules) -> Iterator[str]:
    backoff, given = rules.backoff, task.retry_kwargs or {}
    if rules.retry_for is not None and task.max_retries == 0:
        yield f"retry_for={rules.retry_for:g} has no effect with max_retries=0; raise max_retries"
    elif rules.retry_for is not None and backoff is not None:
        parts = {Jitter.NONE: 1.0, Jitter.EQUAL: 0.5}
        shortest = max(backoff.floor, ceiling(1, backoff) * parts.get(backoff.jitter, 0.0))
        if shortest > rules.retry_for:
            yield f"retry_for={rules.retry_for:g} is over before the first wait is, {shortest:g} s; raise it"
    if backoff is None:
        for name in ("retry_jitter", "retry_backoff_max", "retry_backoff_min"):
            if _says(task, name):
                yield f"{name} has no effect without retry_backoff; every wait is default_retry_delay"
    elif _says(task, "retry_backoff") and ("countdown" in given or "eta" in given):
        yield "retry_kwargs say when to try again, so retry_backoff has no effect on automatic retries"


def _waits(app: Celery, tasks: dict[str, tuple[Any, TaskRules]]) -> Iterator[str]:
    """Waits that outlast the time after which a Redis broker delivers a message again."""
    if app.connection_for_write().transport.driver_type != "redis":
        return
    limit = (app.conf.broker_transport_options or {}).get("visibility_timeout", VISIBILITY_TIMEOUT)
    by_wait: dict[float, list[str]] = {}
    for name, (task, rules) in tasks.items():
        if rules.retry_store == "eta" and task.max_retries != 0:
            wait = float(task.default_retry_delay) if rules.backoff is None else rules.backoff.cap
            if wait >= limit:
                by_wait.setdefault(wait, []).append(name)
    for wait, names in sorted(by_wait.items()):
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        yield (
            f"a call of {shown} may wait {wait:g} s for its next attempt (retry_backoff_max), and until then "
            f"the broker delivers it again every {limit:g} s (visibility_timeout): set retry_store='redis', "
            "or a longer visibility_timeout"
        )


def _says(task: Any, name: str) -> bool:
    """Whether the task or a class of the user's says something of its own."""
    from celery_singlebeat.task.base import SingleBeatTask  # noqa: PLC0415 - that module imports workers

    for kind in type(task).__mro__:
        if kind is SingleBeatTask:
            return False
        if name in vars(kind):
            return True
    return False
