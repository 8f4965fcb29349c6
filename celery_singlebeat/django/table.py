"""Every query to django-celery-beat's tables. Each raises Django's `DatabaseError` or `InterfaceError`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from django.db import close_old_connections, connections, router, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Cast
from django.db.utils import InterfaceError, OperationalError

from celery_singlebeat.django.rows import column

#: How many rows one statement updates, and how many it names.
BATCH, NAMED = 100, 500
#: The columns that lead to a row's schedule.
SCHEDULES = ("interval", "crontab", "solar", "clocked")
#: Columns that decide neither what a row runs nor when.
IDLE = frozenset({"last_run_at", "total_run_count", "date_changed", "description"})

T = TypeVar("T")


class Table:
    """The rows, the mark of their newest change, and what is written back."""

    def __init__(self, model: Any, changes: Any) -> None:
        self._model = model
        self._changes = changes

    # -- reading --------------------------------------------------------------------------------

    def mark(self) -> datetime | None:
        """When somebody last changed a row: django-celery-beat keeps it up to date. Any other value is
        another state, whoever's clock it came from.
        """
        found: datetime | None = self._changes.last_change()
        return found

    def states(self) -> dict[str, int]:
        """A hash of all that decides what a row runs and when, by its name. Of the disabled rows too: an
        entry that is switched on begins then.
        """
        fields = {field.name: field for field in _columns(self._model)}
        links = [fields[kind] for kind in SCHEDULES]
        asked = [self._schedules(field.related_model) for field in links]
        others = [fields[name] for name in sorted(fields.keys() - {"name", *SCHEDULES, *IDLE})]
        names = ("name", *(field.attname for field in (*links, *others)))
        found = {}
        for name, *values in self._all().values_list(*names):
            when = [table.get(key) for table, key in zip(asked, values, strict=False)]
            found[name] = hash((repr(values), *when))
        return found

    def rows(self, names: Collection[str] | None = None) -> list[Any]:
        """All rows, or those of these names."""
        rows = self._all().select_related(*SCHEDULES).order_by("pk")
        if names is None:
            return list(rows)
        return [row for batch in _batches(names, NAMED) for row in rows.filter(name__in=batch)]

    def counts(self) -> dict[str, int]:
        """How often each row has run, as far as it says."""
        return dict(self._all().values_list("name", "total_run_count"))

    # -- writing --------------------------------------------------------------------------------

    def note(self, runs: Mapping[int, tuple[int, datetime]]) -> set[int]:
        """Write counts and moments of the newest runs, by primary key, and return whose are written; none of
        them ever goes back, so that a late writer does no harm.
        """
        written: set[int] = set()
        for batch in _batches(runs, BATCH):
            with transaction.atomic(using=self._alias):
                free = self._free(batch)
                counts, moments = [], []
                for pk in free:
                    count, moment = runs[pk]
                    at = column(moment)
                    counts.append(When(pk=pk, total_run_count__lt=count, then=Value(count)))
                    is_older = Q(last_run_at__isnull=True) | Q(last_run_at__lt=at)
                    moments.append(When(Q(pk=pk) & is_older, then=Value(at)))
                if free:
                    self._writable().filter(pk__in=free).update(
                        last_run_at=self._case("last_run_at", moments),
                        total_run_count=self._case("total_run_count", counts),
                    )
            written.update(free)
        return written

    def switch_off(self, keys: Collection[int]) -> set[int]:
        """Disable rows that have nothing left to run, let every node know, and return which are off."""
        # Each step by itself: who holds nothing while it waits locks nobody out.
        with transaction.atomic(using=self._alias):
            free = self._free(keys)
            some = self._writable().filter(pk__in=free, enabled=True).update(enabled=False)
        if some:
            self._changes.update_changed()
        return set(free)

    def publish(self, app: Any, kind: Any, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Write configured entries into their rows; those that no row can hold, and why."""
        faults = {}
        for name, fields in entries.items():
            try:
                kind.from_entry(name, app=app, **fields)
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:  # what a configured entry holds is the user's
                faults[name] = f"it cannot be kept in the database: {type(error).__name__}: {error}"
        return faults

    # -- connections ----------------------------------------------------------------------------

    def freshen(self) -> None:
        """Drop connections that are too old or broken."""
        close_old_connections()

    def settle(self) -> None:
        """End what a database without autocommit has begun, so that the next look sees others' changes."""
        for alias in {self._alias, router.db_for_read(self._model)}:
            if not transaction.get_autocommit(using=alias):
                transaction.commit(using=alias)

    def close(self) -> None:
        """Close this thread's connections."""
        connections.close_all()

    # -- inside ---------------------------------------------------------------------------------

    @property
    def _alias(self) -> str:
        return str(router.db_for_write(self._model))

    def _all(self) -> Any:
        return self._model._default_manager.all()  # noqa: SLF001 - Django's public interface

    def _schedules(self, model: Any) -> dict[Any, int]:
        names = [field.attname for field in _columns(model)]
        rows = model._default_manager.values_list("pk", *names)  # noqa: SLF001 - Django's public interface
        return {key: hash(repr(values)) for key, *values in rows}

    def _free(self, keys: Iterable[int]) -> list[int]:
        """Those rows that no other transaction holds, for this one: who edits rows for long must not keep
        this node from reading the others.
        """
        if not connections[self._alias].features.has_select_for_update_skip_locked:
            return list(keys)
        free = self._writable().filter(pk__in=list(keys)).order_by("pk").select_for_update(skip_locked=True)
        return list(free.values_list("pk", flat=True))

    def _writable(self) -> Any:
        return self._model._default_manager.using(self._alias)  # noqa: SLF001 - Django's public interface

    def _case(self, name: str, cases: list[When]) -> Any:
        field = next(field for field in _columns(self._model) if field.name == name)
        found = Case(*cases, default=F(name), output_field=field)
        if connections[self._alias].features.requires_casted_case_in_updates:
            return Cast(found, output_field=field)
        return found


def _columns(model: Any) -> list[Any]:
    return list(model._meta.concrete_fields)  # noqa: SLF001 - Django's public interface


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    pending = iter(items)
    while batch := list(islice(pending, size)):
        yield batch
