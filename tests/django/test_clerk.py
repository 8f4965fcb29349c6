"""What reaches the database, when, from whom; and what a database does not stop that is away."""

import time
from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import crontab
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django_celery_beat.models import PeriodicTask

from celery_singlebeat.django import SingleBeatDatabaseScheduler
from celery_singlebeat.django.clerk import REST
from celery_singlebeat.errors import SettingsError, StoreUnavailable
from celery_singlebeat.testing.processes import wait_until
from tests.support.shop_beat import rows

HOUR = timedelta(hours=1)

pytestmark = pytest.mark.slow


def now():
    return datetime.now(timezone.utc)


def make_due(beat, name="a"):
    line = beat.line(name)
    line.last = line.anchor = beat.machine.elector.due_now() - HOUR - timedelta(seconds=1)
    beat.machine.agenda.put(line)


# History


def test_the_next_leader_mends_the_history_of_one_that_could_not_write_it(start, add, sent, away):  # D1
    add("a", every=3600, total_run_count=5)
    add("b", every=3600)
    first = start().lead()
    with away():
        make_due(first)
        first.tick_until(lambda: sent == ["a"])
        mark = first.line().mark
        first.scheduler.close()
    assert rows()["a"].total_run_count == 5
    second = start().lead()
    second.tick_until(lambda: rows()["a"].total_run_count == 6)
    assert rows()["a"].last_run_at == mark
    assert rows()["b"].last_run_at is None
    assert sent == ["a"]


def test_a_run_whose_history_was_never_written_is_not_repeated(start, add, sent, away):  # D1
    row = add("a", every=3600, last_run_at=now() - 2 * HOUR)  # by its history it is due at once, on any node
    first = start().lead()
    with away():
        make_due(first)
        first.tick_until(lambda: sent)
        first.scheduler.close()
    assert rows()["a"].last_run_at == row.last_run_at
    second = start().lead()
    second.tick_until(lambda: rows()["a"].total_run_count)
    assert sent == ["a"]
    assert rows()["a"].last_run_at > row.last_run_at


def test_the_next_leader_switches_off_what_ran_once(start, add, sent, away):  # D4
    add("a", every=0.5, one_off=True)
    first = start().lead()
    with away():
        first.tick_until(lambda: sent == ["a"])
        first.scheduler.close()
    assert rows()["a"].enabled
    second = start().lead()
    second.tick_until(lambda: not rows()["a"].enabled)
    second.tick_until(lambda: second.names() == [])
    assert sent == ["a"]
    assert rows()["a"].total_run_count == 1


def test_a_count_goes_on_from_the_one_of_the_row(start, add, sent):
    add("a", every=0.1, total_run_count=41)
    beat = start().lead()
    beat.tick_until(lambda: rows()["a"].total_run_count >= 43)


def test_a_late_writer_turns_no_history_back(start, add):
    row = add("a", every=3600, total_run_count=7, last_run_at=now())
    table = start().scheduler._table
    table.note({row.pk: (6, now() - HOUR)})
    again = rows()["a"]
    assert (again.total_run_count, again.last_run_at) == (7, row.last_run_at)
    later = now()
    table.note({row.pk: (8, later)})
    again = rows()["a"]
    assert (again.total_run_count, again.last_run_at) == (8, later)


def test_many_runs_are_written_in_few_statements(start, add, django_statements):
    same = add(every=3600).interval
    PeriodicTask.objects.bulk_create(
        PeriodicTask(name=f"e{number}", task="shop.job", interval=same) for number in range(249)
    )
    with django_statements() as statements:
        start().scheduler._table.note({row.pk: (1, now()) for row in rows().values()})
    assert len([text for text in statements if text.startswith("UPDATE")]) == 3
    assert {row.total_run_count for row in rows().values()} == {1}


@pytest.fixture
def django_statements(database):
    class Statements(CaptureQueriesContext):
        def __iter__(self):
            return iter(query["sql"] for query in self.captured_queries)

        def __len__(self):
            return len(self.captured_queries)

    return lambda: Statements(connection)


def test_writing_a_history_makes_nobody_read_the_table_again(start, add, sent):
    add("a", every=0.1)
    beat = start().lead()
    beat.tick_until(lambda: rows()["a"].total_run_count >= 2)
    read_at = beat.scheduler._clerk._read_at
    beat.tick_until(lambda: rows()["a"].total_run_count >= 5)
    assert beat.scheduler._clerk._read_at == read_at


def test_a_store_that_is_away_delays_the_history_only(start, add, sent):
    add("a", every=3600)
    beat = start().lead()
    clerk = beat.scheduler._clerk
    remember, silent = clerk._store.remember, [True]

    def asked(*args):
        if silent:
            raise StoreUnavailable("remember")
        return remember(*args)

    clerk._store = type("Silent", (), {"remember": staticmethod(asked), "close": lambda self: None})()
    make_due(beat)
    beat.tick_until(lambda: sent == ["a"])
    add("b", every=3600)
    beat.tick_until(lambda: beat.names() == ["a", "b"])  # it looks all the same
    assert rows()["a"].total_run_count == 0
    silent.clear()
    beat.tick_until(lambda: rows()["a"].total_run_count == 1)


def test_a_table_that_cannot_be_written_is_read_all_the_same(start, add, sent, caplog):
    add("a", every=0.1)
    beat = start().lead()

    def refuse(runs):
        raise OperationalError("the disk is full")

    beat.scheduler._table.note = refuse
    beat.tick_until(lambda: "the database cannot be written" in caplog.text)
    add("b", every=3600)
    beat.tick_until(lambda: beat.names() == ["a", "b"])
    del beat.scheduler._table.note
    beat.tick_until(lambda: rows()["a"].total_run_count)
    assert "the disk is full" in caplog.text


def test_a_table_that_takes_long_is_looked_at_less_often(start, add):
    add("a", every=3600)
    beat = start()
    table, seconds = beat.scheduler._table, 0.1
    mark = table.mark
    table.mark = lambda: time.sleep(seconds) or mark()
    clerk = beat.lead().scheduler._clerk
    beat.tick_until(lambda: clerk._look_at - clerk.seen_at >= REST * seconds)


# A new leader


def test_a_new_leader_looks_before_it_begins(start, add, app, sent):
    add("a", every=3600)
    app.conf.beat_max_loop_interval = 3600  # of its own it would not look again in this test
    first = start().lead()
    standby = start()
    standby.tick_until(lambda: standby.machine and standby.machine.agenda.line("a"))
    row = rows()["a"]
    row.enabled = False
    row.save()
    first.scheduler.close()
    make_due(standby)
    standby.lead()
    assert standby.names() == []
    assert sent == []


def test_a_new_leader_begins_without_a_database_that_is_away(start, add, sent, away):  # D2
    add("a", every=0.1)
    first, standby = start().lead(), start()
    standby.tick_until(lambda: standby.machine and standby.machine.agenda.line("a"))
    with away():
        first.scheduler.close()
        standby.tick_until(lambda: sent, timeout=3)


# A database that is away


def test_a_leader_goes_on_while_the_database_is_away(start, add, sent, away, caplog):  # D2
    add("a", every=0.1)
    beat = start().lead()
    beat.tick_until(lambda: sent)
    with away():
        beat.tick_until(lambda: "the database cannot be read" in caplog.text)
        count = len(sent)
        beat.tick_until(lambda: len(sent) >= count + 3)
    beat.tick_until(lambda: "the database works again" in caplog.text or caplog.records)
    beat.tick_until(lambda: rows()["a"].total_run_count >= count + 3)
    add("b", every=3600)
    beat.tick_until(lambda: beat.names() == ["a", "b"])
    assert caplog.text.count("the database cannot be read") == 1


def test_a_beat_that_has_never_seen_the_table_does_not_lead(start, add, away, app, caplog):
    add("a", every=0.1)
    with away():
        beat = start()
        wait_until(lambda: beat.scheduler.tick() and "the database cannot be read" in caplog.text)
        assert beat.machine is None
    beat.lead()
    assert beat.names() == ["a"]


def test_it_is_made_lazily_without_the_database_and_shows_its_rows(app, add, away):
    add("off", every=60, enabled=False)
    add("a", every=60)
    with away():
        scheduler = SingleBeatDatabaseScheduler(app, lazy=True)
        assert "dispatch" in scheduler.info
        scheduler.close()
    scheduler = SingleBeatDatabaseScheduler(app, lazy=True)
    assert sorted(scheduler.schedule) == ["a", "off"]
    assert scheduler._rules["off"].enabled is False
    lines, parked = scheduler.outline()  # what the commands show
    assert ({name: line.rules.enabled for name, line in lines.items()}, parked) == (
        {"a": True, "off": False},
        {},
    )


# Entries of the configuration


def test_the_leader_writes_configured_entries_and_default_ones(start, app, sent):
    app.conf.result_expires = 3600
    app.conf.beat_schedule = {
        "half": {"task": "shop.job", "schedule": 0.5, "args": (1,), "options": {"expires": 30, "queue": "q"}},
        "daily": {
            "task": "shop.job",
            "schedule": crontab(minute=0, hour=9),
            "timezone": "Asia/Tokyo",
            "misfire": "skip",
            "one_off": True,
            "enabled": False,
        },
    }
    beat = start().lead()
    beat.tick_until(lambda: "half" in sent)
    found = rows()
    assert set(found) == {"half", "daily", "celery.backend_cleanup"}
    assert (found["half"].args, found["half"].expire_seconds, found["half"].queue) == ("[1]", 30, "q")
    assert str(found["daily"].crontab.timezone) == "Asia/Tokyo"
    assert (found["daily"].one_off, found["daily"].enabled) == (True, False)
    assert beat.line("daily").rules.missed.misfire.value == "skip"
    assert found["celery.backend_cleanup"].expire_seconds == 12 * 3600


def test_lists_and_moments_of_configured_entries_are_kept_as_text(start, app):
    at = datetime(2099, 1, 1, 12, tzinfo=timezone.utc)
    app.conf.beat_schedule = {
        "lists": {
            "task": "shop.job",
            "schedule": crontab(minute=[0, 10], hour=range(8, 10), day_of_week={1}),
        },
        "until": {"task": "shop.job", "schedule": 60, "options": {"expires": at.isoformat()}},
    }
    beat = start().lead()
    beat.tick_until(lambda: {"lists", "until"} <= set(beat.names()))
    found = rows()
    kept = found["lists"].crontab
    assert (kept.minute, kept.hour, kept.day_of_week) == ("0,10", "8,9", "1")
    assert found["until"].expires == at


def test_a_bad_configured_entry_is_parked_and_an_option_without_a_column_is_told(start, app, caplog):  # G8
    app.conf.beat_schedule = {
        "typing error": {"task": "shop.job", "schedule": 60, "misfyre": "all"},
        "too long" * 50: {"task": "shop.job", "schedule": 60, "options": {"priority": "no number"}},
        "fine": {"task": "shop.job", "schedule": 60, "options": {"time_limit": 5}},
    }
    beat = start().lead()
    beat.tick_until(lambda: beat.names() == ["fine"])
    parked = beat.machine.agenda.parked
    assert "did you mean 'misfire'?" in parked["typing error"]
    assert "it cannot be kept in the database" in parked["too long" * 50]
    assert "its options time_limit have no column" in caplog.text


# Where Django keeps local time

LOCAL = """
from datetime import datetime, timedelta
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_celery_beat.models import ClockedSchedule, PeriodicTask
from tests.support.shop import app
from tests.support.shop_beat import Beat, rows
at = datetime.now() + timedelta(seconds=0.2)
PeriodicTask.objects.create(
    name="a", task="shop.job", one_off=True, clocked=ClockedSchedule.objects.create(clocked_time=at)
)
beat = Beat(app).lead()
beat.tick_until(lambda: not rows()["a"].enabled)
beat.scheduler.close()
print((rows()["a"].last_run_at - at).total_seconds())
"""


def test_without_use_tz_moments_are_local(python):
    done = python(
        LOCAL,
        USE_TZ=False,
        TIME_ZONE="Asia/Shanghai",
        CELERY_TIMEZONE="Asia/Shanghai",
        CELERY_ENABLE_UTC=False,
    )
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) < 10


# Where Django is missing


def test_without_an_installed_app_one_line_says_what_to_do(python):
    done = python("import celery_singlebeat.django as d; d.SingleBeatDatabaseScheduler", INSTALLED_APPS=[])
    assert "SettingsError: django_celery_beat is not among INSTALLED_APPS" in done.stderr.splitlines()[-1]
    assert SettingsError.exit_code == 2


def test_without_settings_one_line_says_what_to_do(python):
    code = "import celery_singlebeat.django as d; d.SingleBeatDatabaseScheduler"
    done = python(code, DJANGO_SETTINGS_MODULE="")
    assert "set DJANGO_SETTINGS_MODULE" in done.stderr.splitlines()[-1]


def test_without_the_extra_one_line_names_it(python):
    code = (
        "import sys; sys.modules['django_celery_beat'] = None;"
        "from celery.bin.celery import main;"
        "sys.argv = ['celery', '-b', 'memory://', 'beat', '-S', 'singlebeat-django']; main()"
    )
    done = python(code, DJANGO_SETTINGS_MODULE="")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "pip install" in line]
    assert len(lines) == 1
    assert "pip install 'celery-singlebeat[django]'" in lines[0]
    assert "Traceback" not in done.stderr
