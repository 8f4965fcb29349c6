import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest
from celery import Celery
from django.core.management import call_command
from django.db import connections

from celery_singlebeat import signals
from tests.support import shop_database
from tests.support.projects import REPOSITORY
from tests.support.shop_beat import Beat, models


@pytest.fixture(scope="session")
def migrated():
    """The folder of the database, with the tables of django-celery-beat."""
    call_command("migrate", verbosity=0)
    with connections["default"].cursor() as cursor:
        cursor.execute("PRAGMA journal_mode=WAL")
    yield shop_database.FOLDER
    connections.close_all()
    shutil.rmtree(shop_database.FOLDER.parent)


@pytest.fixture
def database(migrated):
    """The database, empty."""

    def clear():
        kinds = ("PeriodicTask", "PeriodicTasks", "IntervalSchedule")
        for kind in (*kinds, "CrontabSchedule", "ClockedSchedule", "SolarSchedule"):
            getattr(models, kind).objects.all().delete()

    clear()
    yield migrated
    clear()
    connections.close_all()


@pytest.fixture
def away(database):
    """Take the database away, and bring it back: `with away():`."""

    @contextmanager
    def gone():
        connections.close_all()
        elsewhere = database.with_name("elsewhere")
        database.rename(elsewhere)
        try:
            yield
        finally:
            elsewhere.rename(database)

    return gone


@pytest.fixture
def add(database):
    """Add a row: `add(name, every=seconds)`, or with `crontab`, `clocked` or another model's object."""

    def make(name="a", *, every=None, task="shop.job", **fields):
        if every is not None:
            period = {"every": round(every * 1_000_000), "period": models.MICROSECONDS}
            fields["interval"], _ = models.IntervalSchedule.objects.get_or_create(**period)
        return models.PeriodicTask.objects.create(name=name, task=task, **fields)

    return make


_numbers = iter(range(1, 1000))


@pytest.fixture
def app(database):
    number = next(_numbers)
    made = Celery(f"django{number}", broker="memory://", set_as_current=False)
    made.conf.update(result_expires=None, task_ignore_result=True, singlebeat_prefix=f"django{number}")
    made.conf.beat_max_loop_interval = 0.05
    return made


@pytest.fixture
def sent():
    """Names of the entries whose slots were dispatched, in order."""
    found = []

    def hear(entry, **_):
        found.append(entry)

    signals.slot_dispatched.connect(hear, weak=False)
    yield found
    signals.slot_dispatched.disconnect(hear)


@pytest.fixture
def start(app):
    """Make a scheduler that ticks when it is told to; closed at the end."""
    made = []

    def make():
        made.append(Beat(app))
        return made[-1]

    yield make
    for beat in made:
        beat.scheduler.close()


@pytest.fixture
def python(tmp_path):
    """Run code where Django is set up anew: `python(code, **settings)`."""

    def run(code, *, DJANGO_SETTINGS_MODULE=shop_database.SETTINGS, **settings):  # noqa: N803
        env = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "SHOP_DATABASE": str(tmp_path / "shop"),
            "SHOP_SETTINGS": json.dumps(settings),
            "DJANGO_SETTINGS_MODULE": DJANGO_SETTINGS_MODULE,
        }
        if not DJANGO_SETTINGS_MODULE:
            del env["DJANGO_SETTINGS_MODULE"]
        else:
            code = f"import django; django.setup()\n{code}"
        return subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return run
