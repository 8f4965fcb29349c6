"""One JSON object a line, with the fields of events and without the arguments of tasks."""

import json
import logging
import sys
from datetime import datetime, timezone

import pytest
from celery import Celery, signals

from celery_singlebeat import json_logs, logs
from celery_singlebeat.errors import SettingsError
from celery_singlebeat.events import SlotDispatched
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.wiring import wire
from tests.support.projects import Project

SLOT = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)
SECRET = "argument-4711"


@pytest.fixture
def shown():
    """Log one record and return its line, read as JSON."""

    def show(logger, level, message, *args, **options):
        record = logging.getLogger(logger).makeRecord(
            logger, level, __file__, 1, message, args, options.pop("exc_info", None), **options
        )
        (line,) = json_logs._formatter().format(record).splitlines()
        return json.loads(line)

    return show


def test_a_line_has_time_level_logger_and_message(shown):
    found = shown("mine", logging.WARNING, "%s bottles", 9)
    assert (found["level"], found["logger"], found["message"]) == ("WARNING", "mine", "9 bottles")
    assert datetime.fromisoformat(found["time"]).utcoffset().total_seconds() == 0
    assert found.keys() == {"time", "level", "logger", "message"}


def test_an_event_brings_its_fields(shown):
    event = SlotDispatched(entry="tick", slot=SLOT, epoch=7, lateness=0.01, task_id="call-1")
    found = shown(
        "celery_singlebeat", logging.INFO, "x", extra={"event": logs.name(event), **logs.shown(event)}
    )
    assert (found["event"], found["entry"], found["epoch"]) == ("slot_dispatched", "tick", 7)
    assert found["slot"] == "2026-03-02T12:00:00+00:00"


def test_the_users_own_fields_are_kept_and_ours_are_not_overwritten(shown):
    found = shown("mine", logging.INFO, "x", extra={"order": 17, "level": "high", "data": [1]})
    assert (found["order"], found["data"], found["level"]) == (17, [1], "INFO")


def test_a_traceback_stays_in_its_line(shown):
    try:
        raise ValueError("no\nuse")
    except ValueError:
        found = shown("mine", logging.ERROR, "failed", exc_info=sys.exc_info())
    assert "ValueError: no\nuse" in found["exc_info"]


@pytest.mark.parametrize(
    ("logger", "message", "args", "kept"),
    [
        ("celery.pool", "TaskPool: Apply %s (args:%s kwargs:%s)", ("target", SECRET, SECRET), "target"),
        (
            "celery.worker.consumer.consumer",
            "Received unregistered task of type %s.\n\nThe full contents of the message body was:\n%s",
            ("proj.gone", SECRET),
            "proj.gone",
        ),
        (
            "celery.worker.strategy",
            "Task %(name)s received",
            ({"name": "proj.tick", "args": SECRET},),
            "proj.tick",
        ),
    ],
)
def test_celerys_own_messages_lose_the_arguments_of_tasks(shown, logger, message, args, kept):
    found = shown(logger, logging.INFO, message, *args, extra={"data": {"args": SECRET}})
    assert kept in found["message"]
    assert SECRET not in json.dumps(found)


def test_without_the_library_the_setting_is_refused(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("pythonjsonlogger")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pythonjsonlogger", None)
    app = Celery("logs", broker="memory://", set_as_current=False)
    app.conf.singlebeat_log_format = "json"
    with pytest.raises(SettingsError, match=r"pip install 'celery-singlebeat\[json\]'"):
        wire(app)


def test_text_changes_nothing():
    before = list(signals.after_setup_logger.receivers)
    wire(Celery("logs", broker="memory://", set_as_current=False))
    assert signals.after_setup_logger.receivers == before


def read(text):
    """The whole lines of a log as JSON, after the banner; each of them has to be JSON.

    To be read while the process runs: when a worker is told to stop, Celery prints lines of its own.
    """
    lines = text[: text.rfind("\n")].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(("{", "[20")))
    return [json.loads(line) for line in lines[start:] if line.strip()]


@pytest.mark.process
@pytest.mark.redis
def test_beat_and_worker_write_json_from_the_first_line(redis_url, tmp_path):
    project = Project(tmp_path, redis_url, env={"PROJ_CONF": '{"singlebeat_log_format": "json"}'})
    try:
        beat, worker = project.beat("--loglevel=DEBUG"), project.worker("--loglevel=DEBUG")
        project.python("-c", f"from proj import fail; fail.delay({SECRET!r})")
        wait_until(lambda: "leadership_acquired" in beat.logs(), 30, beat.logs)
        wait_until(lambda: "succeeded" in worker.logs() and "no use" in worker.logs(), 30, worker.logs)
        for process in (beat, worker):
            events = read(process.logs())
            assert all({"time", "level", "logger", "message"} <= event.keys() for event in events)
        assert SECRET not in worker.logs() + beat.logs()
        (acquired,) = [event for event in read(beat.logs()) if event.get("event") == "leadership_acquired"]
        assert acquired["epoch"] > 0
    finally:
        project.end()
