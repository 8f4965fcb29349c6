"""Real beats of a contender on a private Redis, who of them leads, and the messages that they send.

A beat is a `celery beat` process. Where dozens stand by, they are forked by one process that has imported
everything (`benchmarks.nursery`): each of them is a process with connections of its own all the same.
"""

from __future__ import annotations

import contextlib
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
from typing import Any, ClassVar, Protocol

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


class Beat(Protocol):
    """A process that runs beat."""

    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool: ...

    def resume(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float = 10.0) -> int: ...

    def logs(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Forked:
    """A beat that the nursery forked and reaps."""

    pid: int

    @property
    def running(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def wait(self, timeout: float = 10.0) -> int:
        wait_until(lambda: not self.running, timeout, f"process {self.pid} did not end")
        return 0

    def logs(self) -> str:
        return ""

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Fleet(ABC):
    """Replicas of beat with one schedule: `entries` entries, each due every `period` seconds."""

    name: ClassVar[str]
    title: ClassVar[str]
    scheduler: ClassVar[str]
    #: The setting that takes the server's address; "": the scheduler needs none.
    address: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}
    #: What the project's module has beside `APP`.
    preamble: ClassVar[str] = ""
    #: Whether the store tells who leads.
    elects: ClassVar[bool] = True
    #: Whether fractions of a second count: then its faults have the machine for themselves.
    swift: ClassVar[bool] = False
    #: Seconds that a frozen leader stays frozen, so that it outlasts its lease, a poll and a tick; and for
    #: how many nobody may lead.
    frozen: ClassVar[float] = 8.0
    patience: ClassVar[float] = 60.0

    def __init__(self, *, entries: int = 1, period: float = 1.0) -> None:
        self.entries = entries
        self.period = period
        self.beats: list[Beat] = []
        self.arrivals: list[Arrival] = []
        self._started = 0
        self._nurseries: list[ManagedProcess] = []
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.server = stack.enter_context(EmbeddedRedis("--maxclients", "1000"))
            self.client = stack.enter_context(self.server.client(decode_responses=True))
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (self.folder / "bench_app.py").write_text(self.preamble + APP)
            self.prepare()
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Make what the first beat has to find."""

    def stop(self) -> None:
        self._ended.set()
        for beat in self.beats:
            if beat.running:
                beat.resume()
            beat.kill()
        for nursery in self._nurseries:
            nursery.kill()

    # -- processes ------------------------------------------------------------------------------

    def environment(self, url: str) -> dict[str, str]:
        """What a beat needs that reaches the server at `url`."""
        settings = {**self.settings, **({self.address: url} if self.address else {})}
        return {
            "BROKER": url,
            "SETTINGS": json.dumps(settings),
            "ENTRIES": str(self.entries),
            "PERIOD": str(self.period),
            "PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, sys.path)]),
        }

    def make(self, url: str | None = None) -> ManagedProcess:
        self._started += 1
        name = f"{self.name}{self._started}"
        argv = [sys.executable, "-m", "celery", "-A", "bench_app", "beat", "-l", "WARNING", "--pidfile="]
        argv += ["-S", self.scheduler, "--schedule", str(self.folder / f"schedule{self._started}")]
        env = self.environment(url or self.server.url())
        return ManagedProcess(argv, cwd=self.folder, env=env, name=name)

    def add(self, url: str | None = None) -> Beat:
        """Start one more replica, and wait until it leads or stands by."""
        beat = self.make(url)
        self.beats.append(beat)
        beat.start()
        self.wait(self.settled, "the replicas do not settle", 60)
        return beat

    def fork(self, number: int) -> None:
        """Start so many more replicas from one nursery, and wait until all of them lead or stand by."""
        pids = self.folder / f"pids{len(self._nurseries)}"
        argv = [sys.executable, "-m", "benchmarks.nursery", self.scheduler, str(number), str(pids)]
        env = self.environment(self.server.url())
        nursery = ManagedProcess(argv, cwd=self.folder, env=env, name=f"{self.name}-nursery")
        self._nurseries.append(nursery)
        nursery.start()
        self.wait(lambda: pids.exists() or not nursery.running, "the nursery forks nobody", 60)
        self.wait(pids.exists, "the nursery has ended", 0)
        self.beats += [Forked(int(pid)) for pid in pids.read_text().split()]
        self.wait(self.settled, "the replicas do not settle", 120)

    def remove(self, beat: Beat) -> None:
        beat.kill()
        self.beats.remove(beat)

    def logs(self) -> str:
        return "\n".join(beat.logs() for beat in (*self.beats, *self._nurseries))

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
    def leader(self) -> Beat:
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

    def next_arrival(self, after: int, timeout: float | None = None) -> Arrival:
        """The first message beyond the first `after`."""
        self.wait(lambda: len(self.arrivals) > after, "no further message", timeout or self.patience)
        return self.arrivals[after]


class SingleBeatFleet(Fleet):
    name = "singlebeat"
    title = "celery-singlebeat, defaults"
    scheduler = "celery_singlebeat:SingleBeatScheduler"
    address = "singlebeat_redis_url"
    swift = True
    keys = Keys("singlebeat:bench")

    @override
    def settled(self) -> bool:
        """Also, whether whoever does not lead was heard lately, and stands by."""
        with self.client.pipeline() as pipe:
            pipe.time()
            pipe.get(self.keys.lease)
            pipe.hget(self.keys.leader, "pid")
            pipe.hgetall(self.keys.nodes)
            (seconds, micros), lease, leader, nodes = pipe.execute()
        now = seconds * 1000 + micros / 1000
        reports = map(json.loads, nodes.values())
        ready = {str(r["pid"]) for r in reports if now - r["seen"] < 2500 and r["role"] == "standby"}
        return lease is not None and {str(beat.pid) for beat in self.beats} <= ready | {leader}

    @override
    def reign(self) -> str | None:
        lease: Any = self.client.get(self.keys.lease)
        return None if lease is None else str(lease)

    @override
    def leader(self) -> Beat:
        pid: Any = self.client.hget(self.keys.leader, "pid")
        return next(beat for beat in self.beats if str(beat.pid) == pid)


def strike(beat: Beat, number: signal.Signals) -> None:
    """Send a signal and leave the rest to whoever watches the process."""
    os.kill(beat.pid, number)


def cpu(pid: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) * 1024
