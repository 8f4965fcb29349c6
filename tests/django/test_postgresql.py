"""Over PostgreSQL, where others hold rows for long, end sessions and forbid writing."""

import pytest

pytestmark = pytest.mark.process

TABLE = "django_celery_beat_periodictask"
PRELUDE = f"""
from contextlib import contextmanager
from django.core.management import call_command
from django.db import connection
call_command("migrate", verbosity=0)
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks
from tests.support.shop import app
from tests.support.shop_beat import Beat, rows
import psycopg

TABLE = {TABLE!r}
second = IntervalSchedule.objects.create(every=1, period="seconds")
PeriodicTask.objects.all().delete()

def add(name, **fields):
    return PeriodicTask.objects.create(name=name, task="shop.job", interval=second, **fields)

def other():
    return psycopg.connect(host="127.0.0.1", port=connection.settings_dict["PORT"], user="singlebeat",
                           dbname="postgres")

def runs(name):
    return rows()[name].total_run_count

add("a")
beat = Beat(app).lead()
beat.tick_until(lambda: runs("a") >= 1)
"""

HELD = """
with other() as another:
    another.execute(f"UPDATE {TABLE} SET description = 'edited for long' WHERE name = 'a'")
    add("b")
    add("once", one_off=True)
    beat.tick_until(lambda: runs("b") >= 2 and not rows()["once"].enabled)
    assert runs("a") <= 2
beat.tick_until(lambda: runs("a") >= 3)
"""

FORBIDDEN = """
add("b", enabled=False)
beat.tick_until(lambda: "b" in beat.scheduler.schedule)
with other() as another:
    another.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
connection.close()
with other() as another:
    another.execute("SET TRANSACTION READ WRITE")
    another.execute(f"UPDATE {TABLE} SET enabled = true")
    another.execute("UPDATE django_celery_beat_periodictasks SET last_update = now()")
beat.tick_until(lambda: beat.names() == ["a", "b"])
with other() as another:
    another.execute("SET TRANSACTION READ WRITE")
    another.execute("ALTER DATABASE postgres SET default_transaction_read_only = off")
connection.close()
beat.tick_until(lambda: runs("b") >= 1)
"""

ENDED = """
with other() as another:
    another.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
connection.close()
seen = runs("a")
beat.tick_until(lambda: runs("a") >= seen + 2)
with other() as another:
    another.execute(f"ALTER TABLE {TABLE} RENAME TO away")
line = beat.line()
mark = line.mark
beat.tick_until(lambda: (line.mark - mark).total_seconds() >= 2)
with other() as another:
    another.execute(f"ALTER TABLE away RENAME TO {TABLE}")
beat.tick_until(lambda: runs("a") >= seen + 4)
"""

CASES = {
    "rows that somebody edits for long are written later, all others are followed": HELD,
    "a database that may not be written is read all the same": FORBIDDEN,
    "sessions that end and a table that is moved away stop nothing": ENDED,
}


@pytest.mark.parametrize("case", CASES)
def test_over_postgresql(python, postgres_server, case):  # D2
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "singlebeat",
        "HOST": "127.0.0.1",
        "PORT": postgres_server.port,
        "CONN_MAX_AGE": None,
    }
    done = python(
        f"{PRELUDE}{CASES[case]}\nbeat.scheduler.close()",
        DATABASES={"default": database},
        CELERY_BEAT_MAX_LOOP_INTERVAL=0.05,
    )
    assert done.returncode == 0, done.stderr
