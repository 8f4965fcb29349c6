"""Dead letters at scale, and what the base class costs beside plain tasks, in one run.

    python -m benchmarks.letters                 100,000 letters, 10,000 replayed, 2,000 calls of each kind
    python -m benchmarks.letters --quick         a tenth of that, to see that it runs

A Redis of its own serves as broker, store and result backend. Exit code 1 if a requirement is not met: a list
of 20 letters takes a second or longer, a letter is sent twice or not at all, or a call with the base class
costs more than two round trips to Redis beyond a plain one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from celery_singlebeat import DeadLetters
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis

ROOT = Path(__file__).resolve().parents[1]
DIED = datetime(2026, 3, 2, tzinfo=timezone.utc)
APP = """
import os
from celery import Celery
from celery_singlebeat import SingleBeatTask

app = Celery("letters", broker=os.environ["BROKER"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task(name="plain")
def plain(number):
    pass


@app.task(name="late", acks_late=True, reject_on_worker_lost=True)
def late(number):
    pass


@app.task(name="guarded", base=SingleBeatTask)
def guarded(number):
    pass
"""


def fill(client: redis.Redis, number: int) -> None:
    """Bury so many calls, of which one in a thousand is another task's."""
    for start in range(0, number, 1000):
        client.lpush("dead_letters", *(_letter(n) for n in range(start, min(number, start + 1000))))


def _letter(number: int) -> str:
    letter = dead_letters.letter(
        reason="max_retries",
        exception="ValueError",
        message="card 4711 has expired",
        traceback="Traceback (most recent call last):\n" + "  File ..., line 1, in charge\n" * 10,
        history=[
            dead_letters.record(attempt=n + 1, failed_at=DIED.isoformat(), exception="ValueError", host="h")
            for n in range(5)
        ],
        died_at=(DIED + timedelta(seconds=number)).isoformat(),
        queue="replayed",
        exchange="",
        routing_key="replayed",
        priority=None,
        entry=None,
        slot=None,
        replays=0,
    )
    task = "shop.rare" if number % 1000 == 999 else "shop.charge"
    message = {
        "body": "W1tdLCB7fSwge31d",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": f"call{number}", "task": task, dead_letters.LETTER: letter},
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
            "delivery_info": {"exchange": "", "routing_key": "dead_letters"},
        },
    }
    return json.dumps(message)


def reading(server: EmbeddedRedis, number: int) -> dict[str, float]:
    """Seconds for some ways to read so many letters."""
    app = Celery("letters", broker=server.url(), set_as_current=False)
    letters = DeadLetters(app)
    with server.client() as client:
        client.flushall()
        fill(client, number)
    took: dict[str, float] = {}
    ways: dict[str, Any] = {
        "list, limit 20": lambda: letters.list(limit=20),
        "list of a rare task, limit 20": lambda: letters.list(task="shop.rare", limit=20),
        "count": letters.count,
        "read all, one by one": lambda: sum(1 for _ in letters.each()),
    }
    for name, way in ways.items():
        began = time.perf_counter()
        way()
        took[name] = time.perf_counter() - began
    began = time.perf_counter()
    argv = _command(server, "dlq", "list", "--limit", "20", "--json")
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    took["dlq list --limit 20, the whole command"] = time.perf_counter() - began
    assert len(json.loads(listed.stdout)) == 20
    return took


def replaying(server: EmbeddedRedis, number: int) -> tuple[float, Counter[str]]:
    """Seconds for two `dlq replay --all` at the same moment, and how often each letter was sent."""
    with server.client(decode_responses=True) as client:
        client.flushall()
        fill(client, number)
        argv = _command(server, "dlq", "replay", "--all", "--yes")
        began = time.perf_counter()
        operators = [subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
        codes = [operator.wait(600) for operator in operators]
        took = time.perf_counter() - began
        assert codes == [0, 0], codes
        raws: Any = client.lrange("replayed", 0, -1)
    return took, Counter(json.loads(raw)["headers"]["id"] for raw in raws)


def throughput(server: EmbeddedRedis, number: int) -> dict[str, tuple[float, float]]:
    """For each kind of task: calls a second, and requests to Redis for each call, on one worker."""
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder, server.client() as client:
        client.flushall()
        (Path(folder) / "letters_app.py").write_text(APP, "utf-8")
        argv = [sys.executable, "-m", "celery", "-A", "letters_app", "worker", "-c", "2", "-l", "WARNING"]
        argv += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
        env = {"BROKER": server.url(), "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        worker = ManagedProcess(argv, cwd=Path(folder), env=env, log_path=Path(folder) / "log").start()
        try:
            app = Celery("letters", broker=server.url(), set_as_current=False)
            for name in ("plain", "late", "guarded"):
                app.send_task(name, (0,))  # the scripts are loaded, and the children warm
            _drained(client)
            for name in ("plain", "late", "guarded", "plain", "late", "guarded"):
                worker.pause()
                for call in range(number):
                    app.send_task(name, (call,))
                before: Any = client.info("stats")
                began = time.perf_counter()
                worker.resume()
                _drained(client)
                took = time.perf_counter() - began
                after: Any = client.info("stats")
                reads = (after["total_reads_processed"] - before["total_reads_processed"]) / number
                best = found.get(name, (0.0, float("inf")))
                found[name] = max(best[0], number / took), min(best[1], reads)
        finally:
            worker.terminate()
    return found


def _drained(client: redis.Redis) -> None:
    def done() -> bool:
        return not client.llen("celery") and not client.hlen("unacked")

    wait_until(done, 600, "the worker does not end", interval=0.05)


def _command(server: EmbeddedRedis, *words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-b", server.url(), "singlebeat", *words]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.letters", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    part = 10 if parser.parse_args().quick else 1
    with EmbeddedRedis() as server:
        read = reading(server, 100_000 // part)
        print(f"reading, {100_000 // part:,} letters:")
        for name, seconds in read.items():
            print(f"  {name:40} {seconds:8.3f} s")
        took, sent = replaying(server, 10_000 // part)
        twice = sum(count > 1 for count in sent.values())
        print(f"two replays of all {10_000 // part:,} letters at once: {took:.1f} s")
        print(f"  sent once {len(sent) - twice}, twice {twice}, not at all {10_000 // part - len(sent)}")
        calls = throughput(server, 2_000 // part)
        print("calls on one worker with two children, without results:")
        for name, (rate, reads) in calls.items():
            print(f"  {name:8} {rate:8.0f} calls/s {reads:6.2f} requests to Redis for each")
    extra = calls["guarded"][1] - calls["late"][1]
    print(f"  the base class costs {extra:.2f} round trips more than a plain task with acks_late")
    good = read["list, limit 20"] < 1 and len(sent) == 10_000 // part and not twice and extra < 2.05
    print("every requirement is met" if good else "a requirement is NOT met")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
