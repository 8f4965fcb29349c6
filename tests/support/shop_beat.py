"""A scheduler over the tests' database that ticks when it is told to."""

from tests.support import shop_database  # isort: split

from django_celery_beat import models

from celery_singlebeat.django import SingleBeatDatabaseScheduler
from celery_singlebeat.testing.processes import wait_until

__all__ = ["Beat", "models", "rows", "shop_database"]


def rows():
    """The table as it is now, by name."""
    return {row.name: row for row in models.PeriodicTask.objects.all()}


class Beat:
    """A scheduler, and ways to let it tick until something is so."""

    def __init__(self, app):
        self.scheduler = SingleBeatDatabaseScheduler(app)

    @property
    def machine(self):
        return self.scheduler._machine

    def tick_until(self, predicate, message="it did not come to pass", timeout=10):
        return wait_until(lambda: self.scheduler.tick() and predicate(), timeout, message)

    def lead(self):
        self.tick_until(lambda: self.machine is not None and self.machine.dispatcher.is_adopted)
        return self

    def names(self):
        """Entries that are switched on."""
        return sorted(line.name for line in self.machine.agenda if line.rules.enabled)

    def line(self, name="a"):
        return self.machine.agenda.line(name)
