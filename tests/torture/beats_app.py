"""The app of the storm: what its beats dispatch, and what its worker executes when the broker is RabbitMQ."""

from __future__ import annotations

import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.schedules import crontab
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from celery_singlebeat import SingleBeatTask
from tests.torture.timetable import PREFIX

#: More than a storm can miss, so that "all" skips nothing.
CATCH_UP_LIMIT = 100_000

#: KEYS: the marker of this execution, the list. Safe to send again.
_RECORD = """
if redis.call('SET', KEYS[1], 1, 'NX', 'EX', 120) then redis.call('LPUSH', KEYS[2], ARGV[1]) end
"""


def _schedule() -> dict[str, dict[str, Any]]:
    found = json.loads(Path(os.environ["TORTURE_SCHEDULE"]).read_text())
    return {
        name: {
            "task": "torture.tick",
            "schedule": entry["every"] / 1000
            if "every" in entry
            else crontab(minute=f"*/{entry['align'] // 60_000}"),
            "args": (name,),
            "misfire": entry["misfire"],
            "catch_up_limit": CATCH_UP_LIMIT,
            "options": {"queue": entry["queue"]},
        }
        for name, entry in found.items()
    }


app = Celery("torture", broker=os.environ["TORTURE_BROKER"])
app.conf.update(
    beat_scheduler="celery_singlebeat:SingleBeatScheduler",
    beat_schedule=_schedule(),
    singlebeat_redis_url=os.environ["TORTURE_STORE"],
    singlebeat_prefix=PREFIX,
    singlebeat_lease_ttl=float(os.environ["TORTURE_LEASE"]),
    task_ignore_result=True,
    result_expires=None,
    timezone="UTC",
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=20,
)
logging.getLogger("celery.beat").setLevel(logging.WARNING)  # a line for each message is too much

_store = redis.Redis.from_url(
    os.environ["TORTURE_STORE"],
    socket_timeout=1,
    socket_connect_timeout=1,
    retry=Retry(ConstantBackoff(0.1), 300),
)


@app.task(base=SingleBeatTask, bind=True, name="torture.tick", exclusive=False)
def tick(self: Any, name: str) -> None:
    """Append this execution to a list of the store, once however often the store has to be asked."""
    # Copies of one call refuse each other; two slots of one entry are two calls and may follow closely.
    headers = {key: value for key, value in (self.request.headers or {}).items() if key.startswith("single")}
    record = {"headers": {**headers, "id": self.request.id}}
    _store.eval(_RECORD, 2, f"execution:{uuid.uuid4()}", "executions", json.dumps(record))
