"""Every query to django-celery-beat's tables. Each raises Django's `DatabaseError` or `InterfaceError`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import close_old_connections, connections, router, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Cast
from django.db.utils import InterfaceError, OperationalError

from celery_singlebeat.django.rows import column

#: How many rows one statement updates.
BATCH = 100


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

    def rows(self) -> list[Any]:
        """All rows, the disabled ones too: an entry that is switched on begins then."""
        related = ("interval", "crontab", "solar", "clocked")
        return list(self._model._default_manager.select_related(*related).order_by("pk"))  # noqa: SLF001

    # -- writing --------------------------------------------------------------------------------

    def note(self, runs: Mapping[int, tuple[int, datetime]]) -> None:
        """Write counts and moments of the newest runs, by primary key; none of them ever goes back, so that
        a late writer does no harm.
        """
        pending = iter(runs.items())
        while batch := dict(islice(pending, BATCH)):
            counts = [
                When(pk=pk, total_run_count__lt=count, then=Value(count)) for pk, (count, _) in batch.items()
            ]
            moments = [
                When(
                    Q(pk=pk) & (Q(last_run_at__isnull=True) | Q(last_run_at__lt=column(at))),
                    then=Value(column(at)),
                )
                for pk, (_, at) in batch.items()
            ]
            self._writable().filter(pk__in=batch).update(
                last_run_at=self._case("last_run_at", moments),
                total_run_count=self._case("total_run_count", counts),
            )

    def switch_off(self, keys: Collection[int]) -> None:
        """Disable rows that have nothing left to run, and let every node know."""
        with transaction.atomic(using=self._alias):
            if self._writable().filter(pk__in=keys, enabled=True).update(enabled=False):
                self._changes.update_changed()

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

    def _writable(self) -> Any:
        return self._model._default_manager.using(self._alias)  # noqa: SLF001 - Django's public interface

    def _case(self, name: str, cases: list[When]) -> Any:
        field = self._model._meta.get_field(name)  # noqa: SLF001 - Django's public interface
        found = Case(*cases, default=F(name), output_field=field)
        if connections[self._alias].features.requires_casted_case_in_updates:
            return Cast(found, output_field=field)
        return found
