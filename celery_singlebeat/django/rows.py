"""From a row of the table to an entry and its rules, and from a configured entry to a row. No queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.beat import ScheduleEntry
from celery.schedules import crontab, maybe_schedule
from django.conf import settings
from django.utils import timezone as django_time
from django_celery_beat.models import MICROSECONDS, IntervalSchedule
from django_celery_beat.schedulers import ModelEntry
from django_celery_beat.tzcrontab import TzAwareCrontab
from django_celery_beat.utils import make_aware
from kombu.utils.json import loads

from celery_singlebeat.errors import EntryError
from celery_singlebeat.policy.entries import EntryRules, check_schedule

#: Columns that an entry of CELERY_BEAT_SCHEDULE may give beside the keys of Celery and of this package.
COLUMNS = frozenset({"one_off", "start_time", "expires", "description"})
#: Options of an entry that have a column.
OPTIONS = frozenset({"queue", "exchange", "routing_key", "priority", "headers", "expire_seconds"})


class RowEntry(ModelEntry):  # type: ignore[misc] # django-celery-beat has no types
    """The entry of one row. When it runs is in its rules, and it writes nothing."""

    is_due = ScheduleEntry.is_due

    def _disable(self, model: Any) -> None:
        raise EntryError(model.name, "its row cannot be read")

    @classmethod
    def to_model_schedule(cls, asked: Any) -> tuple[Any, str]:
        """The row of a schedule, saved; the column counts whole numbers only."""
        asked = maybe_schedule(asked)
        period = getattr(asked, "run_every", None)
        if isinstance(period, timedelta) and period.microseconds:
            every = {"every": period // timedelta(microseconds=1), "period": MICROSECONDS}
            found = IntervalSchedule.objects.filter(**every).first()
            return found or IntervalSchedule.objects.create(**every), "interval"
        saved: tuple[Any, str] = super().to_model_schedule(asked)
        return saved


@dataclass(frozen=True, slots=True)
class Rows:
    """What has changed in the table: entries, their rules, the rows that cannot work, and the names of those
    that are no more.
    """

    entries: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, EntryRules] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()


def read_rows(
    models: list[Any], app: Any, kind: type[Any], rules: Mapping[str, EntryRules], default: EntryRules
) -> Rows:
    """Every row by itself: one that cannot be read is a fault of its own."""
    rows = Rows()
    for model in models:
        try:
            entry, own = _read(model, app, kind, rules.get(model.name, default))
        except EntryError as error:
            rows.faults[model.name] = error.problem
        except Exception as error:  # what a row holds is the user's
            rows.faults[model.name] = f"its row cannot be read: {type(error).__name__}: {error}"
        else:
            rows.entries[model.name] = entry
            rows.rules[model.name] = own
    return rows


def _read(model: Any, app: Any, kind: type[Any], rules: EntryRules) -> tuple[Any, EntryRules]:
    if model.scheduler is None:
        raise EntryError(model.name, "it has no schedule; choose one of interval, crontab, solar and clocked")
    for column, shape, word in (("args", list, "list"), ("kwargs", dict, "dict"), ("headers", dict, "dict")):
        _check_json(model, column, shape, word)
    entry, zone = kind(model, app=app), None
    asked = entry.schedule
    if isinstance(asked, TzAwareCrontab):
        # The same calendar, but for an `is_due` of its own that only moves zones.
        zone = asked.tz
        entry.schedule = crontab(
            model.crontab.minute,
            model.crontab.hour,
            model.crontab.day_of_week,
            model.crontab.day_of_month,
            model.crontab.month_of_year,
            app=app,
        )
    elif model.interval:
        check_schedule(model.name, asked.run_every)
    elif model.clocked:
        asked.clocked_time = moment(model.clocked.clocked_time)
    end = moment(model.expires) if model.expires else None
    over = end is not None and end <= datetime.now(timezone.utc)
    return entry, replace(
        rules,
        enabled=bool(model.enabled) and not over,
        timezone=zone,
        start=moment(model.start_time) if model.start_time else None,
        end=end,
        once=bool(model.one_off),
    )


def _check_json(model: Any, column: str, shape: type[Any], word: str) -> None:
    text = getattr(model, column)
    try:
        good = not text or isinstance(loads(text), shape)
    except ValueError:
        good = False
    if not good:
        raise EntryError(model.name, f"its {column} are no JSON {word}: {text!r}")


def moment(value: datetime) -> datetime:
    """A column's moment in UTC; without USE_TZ it is in Django's TIME_ZONE."""
    aware: datetime = make_aware(value)
    return aware.astimezone(timezone.utc)


def column(value: datetime) -> datetime:
    """A moment as a column takes it."""
    naive: datetime = value if settings.USE_TZ else django_time.make_naive(value)
    return naive
