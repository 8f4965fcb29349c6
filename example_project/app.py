"""The Celery app "example": every server runs the same `celery beat` and the same `celery worker`."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

#: What is due when. Seconds, as in any Celery app; `crontab(...)` works just as well.
SCHEDULE: dict[str, dict[str, Any]] = {
    "sales report": {"task": "example.send_report", "schedule": 1.0},
    "search index": {"task": "example.rebuild_index", "schedule": 2.0},
    "invoice sync": {"task": "example.sync_invoices", "schedule": 10.0},
    "card charge": {"task": "example.charge_card", "schedule": 15.0, "args": ("card 4711",)},
}

app = Celery("example", include=["example_project.tasks", "example_project.ledger"])
app.conf.update(
    broker_url=os.environ.get("EXAMPLE_BROKER_URL", "redis://localhost:6379/0"),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    beat_schedule=SCHEDULE,
    # This line is what makes it safe to run more than one beat.
    beat_scheduler="celery_singlebeat:SingleBeatScheduler",
    # Each slot counts, also those that fell while nothing could be dispatched.
    singlebeat_misfire="all",
)
