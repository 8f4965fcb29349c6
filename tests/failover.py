"""Replicas under fire: the leader is killed, terminated or frozen every few seconds, in turn.

    python -m tests.failover --duration 120 --broker redis
    python -m tests.failover --duration 120 --broker rabbitmq

Three `celery beat` processes run one entry that is due every second. Every ten seconds the leader gets
SIGKILL, SIGTERM or SIGSTOP (longer than its lease) in turn, and comes back later. What counts is read
from the messages: each slot must have exactly one on Redis as broker; on RabbitMQ, where a message may
come twice, no task id may be executed twice. Prints a table; exit code 0 only if nothing came twice and
nothing is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import redis

from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRabbitMQ, EmbeddedRedis

APP = """
import os, time
import redis
from celery import Celery
from celery_singlebeat import SingleBeatTask

app = Celery("failover", broker=os.environ["BROKER"])
app.conf.update(
    beat_scheduler="celery_singlebeat:SingleBeatScheduler",
    singlebeat_redis_url=os.environ["STORE"],
    beat_schedule={"every second": {"task": "failover.tick", "schedule": float(os.environ["PERIOD"])}},
    task_ignore_result=True,
    result_expires=None,
    singlebeat_lease_ttl=float(os.environ["LEASE"]),
    broker_connection_retry_on_startup=True,
)
store = redis.Redis.from_url(os.environ["STORE"], decode_responses=True)


@app.task(base=SingleBeatTask, bind=True, name="failover.tick")
def tick(self):
    store.rpush("executions", f"{self.request.id} {self.slot.isoformat()}")
"""


@dataclass(slots=True)
class Verdict:
    """What the messages say after a run. Seconds."""

    broker: str
    due: int = 0
    dispatched: int = 0
    twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    executed_twice: list[str] = field(default_factory=list)
    failovers: dict[str, list[float]] = field(default_factory=dict)
    latenesses: list[float] = field(default_factory=list)
    elections: int = 0

    @property
    def is_clean(self) -> bool:
        return bool(self.due) and not self.twice and not self.lost and not self.executed_twice

    def __str__(self) -> str:
        lines = [
            f"broker              {self.broker}",
            f"slots due           {self.due}",
            f"slots dispatched    {self.dispatched}",
            f"slots twice         {len(self.twice)} {self.twice[:3] or ''}",
            f"slots lost          {len(self.lost)} {self.lost[:3] or ''}",
            f"ids executed twice  {len(self.executed_twice)} {self.executed_twice[:3] or ''}",
            f"elections           {self.elections}",
        ]
        for name, times in sorted(self.failovers.items()):
            shown = ", ".join(f"{seconds * 1000:.0f}" for seconds in sorted(times))
            lines.append(f"next leader after {name:8s} {shown} ms")
        return "\n".join(lines)


class Fleet:
    """Beat replicas, and who of them leads by the store's own record."""

    def __init__(self, folder: Path, env: dict[str, str], client: redis.Redis, replicas: int) -> None:
        self._folder = folder
        self._env = env
        self._client = client
        self._numbers = itertools.count(1)
        self.beats: list[ManagedProcess] = []
        for _ in range(replicas):
            self.add()

    def add(self) -> None:
        name = f"beat{next(self._numbers)}"
        argv = [sys.executable, "-m", "celery", "-A", "failover_app", "beat", "-l", "INFO", "--pidfile="]
        beat = ManagedProcess(argv, cwd=self._folder, env=self._env, name=name)
        beat.start()
        self.beats.append(beat)

    def epoch(self) -> int:
        lease: Any = self._client.get("singlebeat:failover:{sb}:lease")
        return int(lease.partition(":")[0]) if lease else 0

    def leader(self) -> ManagedProcess | None:
        lease: Any = self._client.get("singlebeat:failover:{sb}:lease")
        about: Any = self._client.hgetall("singlebeat:failover:{sb}:leader")
        if lease is None or about.get("token") != lease:
            return None
        return next((beat for beat in self.beats if str(beat.pid) == about["pid"]), None)

    def ready(self) -> bool:
        """Whether every replica reports, and one leads."""
        nodes: Any = self._client.hgetall("singlebeat:failover:{sb}:nodes")
        pids = {json.loads(report)["pid"] for report in nodes.values()}
        return self.leader() is not None and all(beat.pid in pids for beat in self.beats)

    def stop(self) -> None:
        for beat in self.beats:
            beat.resume()
            beat.kill(signal.SIGKILL)


def run(
    *,
    broker: str,
    duration: float,
    replicas: int = 3,
    every: float = 10.0,
    period: float = 1.0,
    lease: float = 4.0,
    say: Callable[[str], None] = print,
) -> Verdict:
    """One run; `lease` is short so that a frozen leader outlasts it within one interval."""
    with ExitStack() as stack:
        store = stack.enter_context(EmbeddedRedis())
        url = store.url(0)
        if broker == "rabbitmq":
            url = stack.enter_context(EmbeddedRabbitMQ()).url()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "failover_app.py").write_text(APP)
        env = {
            "BROKER": url,
            "STORE": store.url(0),
            "PERIOD": str(period),
            "LEASE": str(lease),
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        }
        client = stack.enter_context(store.client(decode_responses=True))
        workers = []
        for number in (1, 2):
            argv = [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "failover_app",
                "worker",
                "-P",
                "solo",
                "-l",
                "INFO",
            ]
            argv += ["--without-gossip", "--without-mingle", "-n", f"worker{number}@localhost"]
            worker = ManagedProcess(argv, cwd=folder, env=env, name=f"worker{number}")
            worker.start()
            stack.callback(worker.kill, signal.SIGKILL)
            workers.append(worker)
        fleet = Fleet(folder, env, client, replicas)
        stack.callback(fleet.stop)
        wait_until(fleet.ready, 30, lambda: "\n".join(beat.logs() for beat in fleet.beats))
        verdict = Verdict(broker)
        _storm(fleet, verdict, duration=duration, every=every, lease=lease, say=say)
        _settle(client, period)
        _judge(client, verdict, period)
        verdict.elections = int(client.hget("singlebeat:failover:{sb}:counters", "elections") or 0)
        return verdict


def _storm(
    fleet: Fleet, verdict: Verdict, *, duration: float, every: float, lease: float, say: Callable[[str], None]
) -> None:
    end = time.monotonic() + duration
    for name in itertools.cycle(("SIGKILL", "SIGTERM", "SIGSTOP")):
        pause = min(every, end - time.monotonic())
        if pause < every:
            time.sleep(max(0.0, pause))  # the load is the passing of time itself
            return
        started = time.monotonic()
        victim = wait_until(fleet.leader, 10, "nobody leads")
        epoch = fleet.epoch()
        hit = time.monotonic()
        victim.kill(getattr(signal, name))
        wait_until(lambda epoch=epoch: fleet.epoch() > epoch, 15, "no next leader", interval=0.002)
        took = time.monotonic() - hit
        verdict.failovers.setdefault(name, []).append(took)
        say(f"{name} to pid {victim.pid}: next leader after {took * 1000:.0f} ms")
        if name == "SIGSTOP":
            time.sleep(lease * 1.2)  # frozen for longer than its lease
            victim.resume()
        else:
            victim.wait(10)
            fleet.beats.remove(victim)
            fleet.add()
        time.sleep(max(0.0, every - (time.monotonic() - started)))


def _settle(client: redis.Redis, period: float) -> None:
    """Wait until everything that was dispatched has been executed."""

    def done() -> bool:
        marks: Any = client.hget("singlebeat:failover:{sb}:marks", "every second")
        last: Any = client.lindex("executions", -1)
        if not marks or not last:
            return False
        slot = datetime.fromisoformat(last.split()[1])
        return abs(slot.timestamp() - int(marks) / 1000) <= 2 * period

    wait_until(done, 20, "the workers do not catch up")


def _judge(client: redis.Redis, verdict: Verdict, period: float) -> None:
    executions: Any = client.lrange("executions", 0, -1)
    ids = Counter(line.split()[0] for line in executions)
    slots = Counter(line.split()[1] for line in executions)
    verdict.executed_twice = [name for name, count in ids.items() if count > 1]
    verdict.twice = [slot for slot, count in slots.items() if count > 1]
    moments = sorted(datetime.fromisoformat(slot) for slot in slots)
    expected, moment = [], moments[0]
    while moment <= moments[-1]:
        expected.append(moment)
        moment += timedelta(seconds=period)
    verdict.due, verdict.dispatched = len(expected), len(executions)
    verdict.lost = [moment.isoformat() for moment in expected if moment.isoformat() not in slots]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--duration", type=float, default=120)
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--replicas", type=int, default=3)
    chosen = parser.parse_args()
    verdict = run(
        broker=chosen.broker, duration=chosen.duration, every=chosen.every, replicas=chosen.replicas
    )
    print(verdict)
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
