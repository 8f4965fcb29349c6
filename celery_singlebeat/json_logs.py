"""`singlebeat_log_format = "json"`: one JSON object a line, for beat and worker.

Each object has `time` (ISO 8601 in UTC), `level`, `logger` and `message`, then the `extra` fields of the
record: those of an event (`event`, `node`, `entry`, `slot`, `epoch`...), or the user's own. `task` and
`task_id` name the task that is executing; an exception's traceback is in `exc_info`.

Arguments of tasks are in no field. Celery attaches them to its own records and writes them into a few of
its messages; both are left out here.

Whoever configures logging for himself (Celery's signal `setup_logging`) is left alone.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

from celery import Celery, signals
from celery._state import get_current_task

from celery_singlebeat.errors import SettingsError
from celery_singlebeat.moments import iso

_UID = "singlebeat json logs"
#: What Celery attaches to its records: name, id and arguments of a call.
_CELERYS_OWN = "data"
#: What every record has, and formatters add.
_EVERY_RECORDS = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
#: Where the arguments of tasks begin in messages of Celery's: in the debug line of a pool, and in those
#: about messages that no worker can use.
_ARGUMENTS = (" (args:", "\n\nThe full contents of the message", "\n\nbody:", " headers:")


def use(log_format: str, app: Celery) -> None:
    """Let Celery's handlers write JSON if `log_format` is "json", from now on or from when they are made.

    Raises `SettingsError` if python-json-logger is not installed.
    """
    if log_format != "json":
        return
    formatter = _formatter()

    def dress(logger: logging.Logger, **_: Any) -> None:
        for handler in logger.handlers:
            handler.setFormatter(formatter)

    signals.after_setup_logger.connect(dress, weak=False, dispatch_uid=_UID)
    signals.after_setup_task_logger.connect(dress, weak=False, dispatch_uid=_UID)
    if app.log.already_setup and not signals.setup_logging.receivers:
        # The settings were read late, as by `celery beat --quiet`, which builds no scheduler for a banner.
        dress(logging.getLogger())
        dress(logging.getLogger("celery.task"))


def _formatter() -> logging.Formatter:
    try:
        from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415 - an extra, for this setting only
    except ImportError:
        raise SettingsError(
            "singlebeat_log_format='json' needs python-json-logger: pip install 'celery-singlebeat[json]'"
        ) from None

    class EventFormatter(JsonFormatter):
        def add_fields(
            self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
        ) -> None:
            log_data |= {
                "time": iso(datetime.fromtimestamp(record.created, timezone.utc)),
                "level": record.levelname,
                "logger": record.name,
                "message": _without_arguments(record),
            }
            for name, value in {**message_dict, **_extra(record)}.items():
                log_data.setdefault(name, value)

    return EventFormatter()


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    extra = {
        name: value
        for name, value in vars(record).items()
        if name not in _EVERY_RECORDS and not name.startswith("_")
    }
    if record.name == "celery" or record.name.startswith("celery."):
        extra.pop(_CELERYS_OWN, None)
    task: Any = get_current_task()  # None outside of tasks
    if task is not None and task.request.id:
        extra.setdefault("task", task.name)
        extra.setdefault("task_id", task.request.id)
    return extra


def _without_arguments(record: logging.LogRecord) -> str:
    template = str(record.msg)
    found = [place for place in map(template.find, _ARGUMENTS) if place >= 0]
    if not found or not record.name.startswith("celery.") or not isinstance(record.args, tuple):
        return record.getMessage()
    kept = template[: min(found)].strip()
    return kept % record.args[: kept.count("%") - 2 * kept.count("%%")]
