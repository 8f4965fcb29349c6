"""Real workers on a private Redis, with tasks that do nothing."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.fleets import children
from celery_singlebeat.testing.processes import ManagedProcess
from celery_singlebeat.testing.servers import EmbeddedRedis

APP = """
import os
from celery import Celery
from celery_singlebeat import SingleBeatTask

app = Celery("bench", broker=os.environ["BROKER"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
    singlebeat_dedupe_ttl=2.0,
)


@app.task(name="plain")
def plain(number):
    pass


@app.task(name="late", acks_late=True, reject_on_worker_lost=True)
def late(number):
    pass


@app.task(name="locked", base=SingleBeatTask, lock_on=("number",))
def locked(number):
    pass
"""


@contextmanager
def working(server: EmbeddedRedis, *options: str, number: int = 2) -> Iterator[list[ManagedProcess]]:
    """Some workers with these options, killed at the end."""
    argv = [sys.executable, "-m", "celery", "-A", "bench_app", "worker", "-c", "1", "-l", "WARNING", *options]
    argv += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench_app.py").write_text(APP)
        workers = [
            ManagedProcess(
                [*argv, "-n", f"bench{n}@%h"], cwd=Path(folder), env={"BROKER": server.url()}
            ).start()
            for n in range(number)
        ]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.kill()


def processes(workers: Sequence[ManagedProcess]) -> list[int]:
    """Their process ids, and those of their children."""
    return [pid for worker in workers for pid in (worker.pid, *children(worker.pid))]
