"""What the attributes of a task class say, checked once and then unchangeable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery_singlebeat.errors import SettingsError
from celery_singlebeat.policy.backoff import Backoff, Jitter
from celery_singlebeat.settings import LEAST_LOCK_TTL, MORE_LOCK_TTL, Settings
from celery_singlebeat.store.backend_ports import demand_driver
from celery_singlebeat.store.lock_ports import Turn
from celery_singlebeat.task.keys import KeyRule, parameters_of


class FromSetting:
    """Stands for the app's setting where `None` means something else."""

    def __repr__(self) -> str:
        return "<the setting>"


FROM_SETTING = FromSetting()

_CHOICES: dict[str, tuple[str, ...]] = {
    "on_conflict": ("skip", "retry", "fail", "queue", "replace"),
    "on_lock_error": ("retry", "fail", "run"),
    "on_lock_lost": ("continue", "abort"),
    "lock_backend": ("redis", "redlock", "postgresql", "redis+postgresql"),
    "retry_store": ("eta", "redis"),
}
_TURNS = {"queue": Turn.QUEUE, "replace": Turn.REPLACE}
_REPLACE_WAIT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRules:
    """The attributes of one task, with the app's settings where they say nothing. Durations are seconds."""

    key: KeyRule
    exclusive: bool
    lock_ttl: float
    lock_backend: str
    on_conflict: str
    conflict_countdown: float
    conflict_timeout: float | None
    hold_during_retry: bool
    on_lock_error: str
    on_lock_lost: str
    dedupe_ttl: float
    autoretry_for: tuple[type[BaseException], ...]
    dont_autoretry_for: tuple[type[BaseException], ...]
    backoff: Backoff | None
    retry_for: float | None
    retry_store: str
    poison_limit: int
    dead_letter_queue: str | None

    @property
    def turn(self) -> Turn:
        """What its calls want when their key is held."""
        return _TURNS.get(self.on_conflict, Turn.NONE)

    @property
    def conflict_wait(self) -> float:
        """Seconds until a call whose key is held asks again. A holder that is to be replaced ends soon."""
        if self.on_conflict == "replace":
            return min(self.conflict_countdown, _REPLACE_WAIT)
        return self.conflict_countdown

    @property
    def aborts(self) -> bool:
        """Whether an execution that lost its lock ends without a result."""
        return self.on_lock_lost == "abort"

    def is_retryable(self, error: BaseException) -> bool:
        """Whether a failure with this exception is tried again."""
        return isinstance(error, self.autoretry_for) and not isinstance(error, self.dont_autoretry_for)


def read_rules(task: Any, settings: Settings) -> TaskRules:
    """The rules of a task or task class; raises `SettingsError` with one line for what cannot work."""
    reader = _Reader(task)
    task_class = task if isinstance(task, type) else type(task)
    return TaskRules(
        key=KeyRule(
            reader.name,
            parameters_of(task_class),
            lock_on=task.lock_on,
            lock_key=_unbound(task_class, "lock_key"),
        ),
        exclusive=reader.flag("exclusive"),
        lock_ttl=reader.ttl("lock_ttl", settings.lock_ttl),
        lock_backend=reader.backend(settings.lock_backend),
        on_conflict=reader.choice("on_conflict"),
        conflict_countdown=reader.number("conflict_countdown", above=True),
        conflict_timeout=reader.number_or_none("conflict_timeout"),
        hold_during_retry=reader.flag("hold_during_retry"),
        on_lock_error=reader.choice("on_lock_error"),
        on_lock_lost=reader.choice("on_lock_lost"),
        dedupe_ttl=reader.number("dedupe_ttl", settings.dedupe_ttl),
        autoretry_for=reader.exceptions("autoretry_for"),
        dont_autoretry_for=reader.exceptions("dont_autoretry_for"),
        backoff=reader.backoff(),
        retry_for=reader.number_or_none("retry_for"),
        retry_store=reader.choice("retry_store", settings.retry_store),
        poison_limit=reader.whole("poison_limit", settings.poison_limit, least=1),
        dead_letter_queue=reader.queue(settings.dead_letter_queue),
    )


def _unbound(task_class: type, name: str) -> Any:
    """A class attribute as it was given: a function there is not a method."""
    for kind in task_class.__mro__:
        if name in vars(kind):
            value = vars(kind)[name]
            return value.__func__ if isinstance(value, staticmethod) else value
    return None


class _Reader:
    def __init__(self, task: Any) -> None:
        self._task = task
        self.name = str(task.name or getattr(task, "__name__", task))

    def refuse(self, name: str, value: object, remedy: str) -> SettingsError:
        return SettingsError(f"task {self.name}: {name}={value!r}; {remedy}")

    def flag(self, name: str) -> bool:
        value = getattr(self._task, name)
        if not isinstance(value, bool):
            raise self.refuse(name, value, "give True or False")
        return value

    def choice(self, name: str, setting: str | None = None) -> str:
        value = getattr(self._task, name)
        value = setting if value is None and setting is not None else value
        choices = _CHOICES[name]
        if value not in choices:
            raise self.refuse(name, value, f"give one of {', '.join(map(repr, choices))}")
        return str(value)

    def backend(self, setting: str) -> str:
        chosen = self.choice("lock_backend", setting)
        if "postgresql" in chosen:
            demand_driver(f"task {self.name}: lock_backend={chosen!r}")
        return chosen

    def number(self, name: str, setting: float | None = None, *, above: bool = False) -> float:
        value = getattr(self._task, name)
        value = setting if value is None and setting is not None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise self.refuse(name, value, "give a number of seconds")
        if not 0 <= value < float("inf") or (above and value == 0):
            raise self.refuse(name, value, "give a number above 0" if above else "give 0 or more")
        return float(value)

    def ttl(self, name: str, setting: float) -> float:
        value = self.number(name, setting, above=True)
        if value < LEAST_LOCK_TTL:
            raise self.refuse(name, value, MORE_LOCK_TTL)
        return value

    def number_or_none(self, name: str) -> float | None:
        return None if getattr(self._task, name) is None else self.number(name)

    def whole(self, name: str, setting: int, *, least: int) -> int:
        value = getattr(self._task, name)
        value = setting if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(name, value, f"give a whole number, {least} or more")
        return value

    def exceptions(self, name: str) -> tuple[type[BaseException], ...]:
        value = getattr(self._task, name)
        kinds = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise self.refuse(name, value, "give a tuple of exception classes")
        return kinds

    def backoff(self) -> Backoff | None:
        """None: no backoff, so that Celery's `default_retry_delay` counts."""
        jitter = self._jitter()
        retries = self._task.max_retries
        if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
            raise self.refuse("max_retries", retries, "give a whole number, 0 or more, or None for no end")
        cap = self.number("retry_backoff_max", above=True)
        floor = self.number("retry_backoff_min")
        if floor > cap:
            raise self.refuse("retry_backoff_min", floor, f"it is above retry_backoff_max={cap:g}; lower it")
        base = self._task.retry_backoff
        if base is None or base is False or base == 0:
            return None
        if base is True:
            return Backoff(base=1.0, cap=cap, floor=floor, jitter=jitter)
        base = self.number("retry_backoff", above=True)
        if base > cap:
            raise self.refuse(
                "retry_backoff",
                self._task.retry_backoff,
                f"it is above retry_backoff_max={cap:g}, so every wait would be that; raise the cap",
            )
        return Backoff(base=base, cap=cap, floor=floor, jitter=jitter)

    def _jitter(self) -> Jitter:
        value = self._task.retry_jitter
        if value is True or value is False or value is None:
            return Jitter.FULL if value else Jitter.NONE
        try:
            return Jitter(value)
        except ValueError:
            words = ", ".join(repr(item.value) for item in Jitter)
            raise self.refuse("retry_jitter", value, f"give one of {words}, True or False") from None

    def queue(self, setting: str | None) -> str | None:
        value = self._task.dead_letter_queue
        if isinstance(value, FromSetting):
            return setting
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.refuse("dead_letter_queue", value, "give the name of a queue, or None for none")
        return None if value is None else str(value)
