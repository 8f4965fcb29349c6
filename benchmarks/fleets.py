"""Real `celery beat` processes of each contender on a private Redis, and who of them leads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import redis
from typing_extensions import Self, override

from celery_singlebeat.store.keys import Keys
from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis

APP = """
import json, os
from celery import Celery

app = Celery("bench", broker=os.environ["BROKER"])
app.conf.update(
    task_ignore_result=True,
    result_expires=None,
    broker_connection_retry_on_startup=True,
    beat_schedule={
        f"entry {number:05d}": {"task": "bench.job", "schedule": float(os.environ["PERIOD"])}
        for number in range(int(os.environ["ENTRIES"]))
    },
    **json.loads(os.environ["SETTINGS"]),
)


@app.task(name="bench.job")
def job():
    pass
"""
QUEUE = "celery"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message: when it was taken from the queue (wall clock), and the slot that it names, if any."""

    at: float
    slot: str | None


class Fleet(ABC):
    """Replicas of beat with one schedule: `entries` entries, each due every `period` seconds."""

    name: ClassVar[str]
    title: ClassVar[str]
    scheduler: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}
    #: Whether the store tells who leads.
    elects: ClassVar[bool] = True

    def __init__(self, *, entries: int = 1, period: float = 1.0) -> None:
        self.entries = entries
        self.period = period
        self.beats: list[ManagedProcess] = []
        self.arrivals: list[Arrival] = []
        self._started = 0
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.server = stack.enter_context(EmbeddedRedis())
            self.client = stack.enter_context(self.server.client(decode_responses=True))
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (self.folder / "bench_app.py").write_text(APP)
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def stop(self) -> None:
        self._ended.set()
        for beat in self.beats:
            if beat.running:
                beat.resume()
            beat.kill()

    # -- processes ------------------------------------------------------------------------------

    def make(self) -> ManagedProcess:
        self._started += 1
        name = f"{self.name}{self._started}"
        argv = [sys.executable, "-m", "celery", "-A", "bench_app", "beat", "-l", "WARNING", "--pidfile="]
        argv += ["-S", self.scheduler, "--schedule", str(self.folder / "schedule")]
        settings = {**self.settings, f"{self.name}_redis_url": self.server.url()}
        env = {
            "BROKER": self.server.url(),
            "SETTINGS": json.dumps(settings),
            "ENTRIES": str(self.entries),
            "PERIOD": str(self.period),
            "PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, sys.path)]),
        }
        return ManagedProcess(argv, cwd=self.folder, env=env, name=name)

    def add(self) -> ManagedProcess:
        """Start one more replica, and wait until it leads or stands by."""
        beat = self.make()
        self.beats.append(beat)
        beat.start()
        self.wait(self.settled, "the replicas do not settle")
        return beat

    def remove(self, beat: ManagedProcess) -> None:
        beat.kill()
        self.beats.remove(beat)

    def logs(self) -> str:
        return "\n".join(beat.logs() for beat in self.beats)

    def wait(self, predicate: Callable[[], Any], message: str, timeout: float = 30.0) -> Any:
        interval = 0.002
        return wait_until(predicate, timeout, lambda: f"{self.name}: {message}\n{self.logs()}", interval)

    @abstractmethod
    def settled(self) -> bool:
        """Whether each replica leads or stands by."""

    @abstractmethod
    def reign(self) -> str | None:
        """What is another for each leader, or None while nobody leads."""

    @abstractmethod
    def leader(self) -> ManagedProcess:
        """The process that leads."""

    # -- messages -------------------------------------------------------------------------------

    def consume(self) -> None:
        """Take each message from the queue as it comes, in a thread."""
        threading.Thread(target=self._consume, name=f"{self.name}-consumer", daemon=True).start()

    def _consume(self) -> None:
        with self.server.client(decode_responses=True) as client:
            while not self._ended.is_set():
                try:
                    taken: Any = client.brpop([QUEUE], timeout=1)
                except redis.RedisError:
                    return  # the server has been stopped
                if taken is not None:
                    now = time.time()
                    headers = json.loads(taken[1])["headers"]
                    self.arrivals.append(Arrival(now, headers.get("singlebeat_slot")))

    def next_arrival(self, after: int, timeout: float = 60.0) -> Arrival:
        """The first message beyond the first `after`."""
        self.wait(lambda: len(self.arrivals) > after, "no further message", timeout)
        return self.arrivals[after]


class SingleBeatFleet(Fleet):
    name = "singlebeat"
    title = "celery-singlebeat, defaults"
    scheduler = "celery_singlebeat:SingleBeatScheduler"
    keys = Keys("singlebeat:bench")

    @override
    def settled(self) -> bool:
        nodes: Any = self.client.hgetall(self.keys.nodes)
        known = {json.loads(report)["pid"] for report in nodes.values()}
        return self.reign() is not None and all(beat.pid in known for beat in self.beats)

    @override
    def reign(self) -> str | None:
        lease: Any = self.client.get(self.keys.lease)
        return None if lease is None else str(lease)

    @override
    def leader(self) -> ManagedProcess:
        pid: Any = self.client.hget(self.keys.leader, "pid")
        return next(beat for beat in self.beats if str(beat.pid) == pid)


class RedBeatFleet(Fleet):
    """RedBeat with the shortest waits that keep its own proportion: a lock for five loops of a second."""

    name = "redbeat"
    title = "RedBeat, loop 1 s, lock 5 s"
    scheduler = "redbeat.RedBeatScheduler"
    settings: ClassVar[dict[str, Any]] = {"beat_max_loop_interval": 1, "redbeat_lock_timeout": 5}

    @override
    def settled(self) -> bool:
        # a standby waits in lock.acquire: whatever else it does, SET was its last command
        clients: Any = self.client.client_list()
        waiting = sum(client["cmd"] == "set" for client in clients)
        return self.reign() is not None and waiting >= len(self.beats) - 1

    @override
    def reign(self) -> str | None:
        lock: Any = self.client.get("redbeat::lock")
        return None if lock is None else str(lock)

    @override
    def leader(self) -> ManagedProcess:
        return self.beats[0]  # there are two: the one that was not there yet is the standby


class StockFleet(Fleet):
    """One stock beat under a supervisor that starts it again as soon as it has ended."""

    name = "stock"
    title = "stock beat, restarted at once"
    scheduler = "celery.beat:PersistentScheduler"
    elects = False

    @override
    def add(self) -> ManagedProcess:
        beat = self.make()
        self.beats.append(beat)
        beat.start()
        threading.Thread(target=self._supervise, args=(beat,), name="supervisor", daemon=True).start()
        return beat

    def _supervise(self, beat: ManagedProcess) -> None:
        while not self._ended.is_set():
            if beat.poll() is not None:
                beat.start()
            time.sleep(0.005)

    @override
    def stop(self) -> None:
        self._ended.set()
        time.sleep(0.05)  # the supervisor has seen it
        super().stop()

    @override
    def settled(self) -> bool:
        return self.beats[0].running

    @override
    def reign(self) -> str | None:
        return None

    @override
    def leader(self) -> ManagedProcess:
        return self.beats[0]


def strike(beat: ManagedProcess, number: signal.Signals) -> None:
    """Send a signal and leave the rest to whoever watches the process."""
    os.kill(beat.pid, number)


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) * 1024
