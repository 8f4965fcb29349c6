"""One task on each contender's base class, with its default options: what `benchmarks.endings` ends.

`wait`, `requeue`, `exit` and `kill` do so in their first run alone, so that whatever comes back ends well.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Ignore, Reject

TTL = 2.0


def make_app(kind: str, url: str) -> Celery:
    """The app of one contender: "singlebeat", "once" or "singleton"."""
    app = Celery("endings", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        task_default_queue=kind,
        broker_transport_options={"visibility_timeout": 3600, "queue_order_strategy": "sorted"},
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=1,
        singlebeat_prefix="endings",
        singlebeat_lock_ttl=TTL,
        singleton_backend_url=url,
        ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": url}},
    )
    effects = redis.Redis.from_url(url, decode_responses=True)

    def body(self: Any, name: str, how: str) -> None:
        first = effects.incr(f"started:{name}") == 1
        effects.set(f"pid:{name}", os.getpid())
        if how == "failure":
            raise ValueError(how)
        if how == "retry" and self.request.retries == 0:
            raise self.retry(countdown=0.3)
        if how == "ignore":
            raise Ignore
        if how == "reject":
            raise Reject(how, requeue=False)
        if how == "requeue" and first:
            raise Reject(how, requeue=True)
        if how == "exit" and first:
            sys.exit(3)
        if how == "kill" and first:
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while how == "wait" and first and time.monotonic() < deadline and not effects.exists(f"go:{name}"):
            time.sleep(0.01)
        effects.incr(f"finished:{name}")

    app.task(bind=True, name="endings.body", shared=False, **_base(kind))(body)
    return app


def _base(kind: str) -> dict[str, Any]:
    if kind == "singlebeat":
        from celery_singlebeat import SingleBeatTask  # noqa: PLC0415

        return {"base": SingleBeatTask, "lock_on": ("name",), "autoretry_for": (), "max_retries": 3}
    if kind == "once":
        from celery_once import QueueOnce  # noqa: PLC0415

        return {"base": QueueOnce, "once": {"keys": ["name"]}}
    from celery_singleton import Singleton  # noqa: PLC0415

    return {"base": Singleton, "unique_on": ["name"]}


if "ENDINGS_KIND" in os.environ:
    app = make_app(os.environ["ENDINGS_KIND"], os.environ["ENDINGS_URL"])
    if "ENDINGS_SOFT" in os.environ:
        app.conf.worker_soft_shutdown_timeout = float(os.environ["ENDINGS_SOFT"])
