"""Dead letters at scale.

    python -m benchmarks.letters                    100,000 letters, 10,000 replayed
    python -m benchmarks.letters --broker rabbitmq  the same on RabbitMQ
    python -m benchmarks.letters --quick            a tenth of that, to see that it runs

A Redis of its own serves as broker and store; with `--broker rabbitmq` it is the store alone. Exit code 1 if
a list of 20 letters takes a second or longer, or a letter is sent twice or not at all.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Connection, Queue

from celery_singlebeat import DeadLetters
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.testing.servers import EmbeddedRabbitMQ, EmbeddedRedis

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "celery", "-A", "letters_app", "singlebeat", "dlq"]
DIED = datetime(2026, 3, 2, tzinfo=timezone.utc)
APP = """
import os
from celery import Celery

app = Celery("letters", broker=os.environ["BROKER"])
app.conf.singlebeat_redis_url = os.environ["STORE"]
"""


class OnRedis:
    """Letters in the Redis that is the store as well."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.url = server.url()
        self._server = server

    def fill(self, number: int) -> None:
        """Bury so many calls, of which one in a thousand is another task's."""
        with self._server.client() as client:
            client.flushall()
            for start in range(0, number, 1000):
                letters = [_letter(n) for n in range(start, min(number, start + 1000))]
                client.lpush("dead_letters", *map(json.dumps, letters))

    def sent(self) -> Counter[str]:
        """How often each letter was replayed."""
        with self._server.client(decode_responses=True) as client:
            raws: Any = client.lrange("replayed", 0, -1)
        return Counter(json.loads(raw)["headers"]["id"] for raw in raws)


class OnRabbitMQ:
    """Letters in a classic queue of RabbitMQ."""

    def __init__(self, server: EmbeddedRabbitMQ) -> None:
        self.url = server.url()

    def fill(self, number: int) -> None:
        """Bury so many calls, of which one in a thousand is another task's."""
        with Connection(self.url) as connection:
            channel = connection.channel()
            for queue in ("dead_letters", "replayed"):
                channel.queue_declare(queue=queue, durable=True, auto_delete=False)
                channel.queue_purge(queue)
            producer = connection.Producer()
            for letter in map(_letter, range(number)):
                producer.publish(
                    base64.b64decode(letter["body"]),
                    routing_key="dead_letters",
                    content_type=letter["content-type"],
                    content_encoding=letter["content-encoding"],
                    headers=letter["headers"],
                )

    def sent(self) -> Counter[str]:
        """How often each letter was replayed."""
        found: Counter[str] = Counter()
        with Connection(self.url) as connection:
            queue = Queue("replayed", channel=connection.channel())
            while (message := queue.get(no_ack=True)) is not None:
                found[message.headers["id"]] += 1
        return found


def _letter(number: int) -> dict[str, Any]:
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
    return {
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


def reading(broker: OnRedis | OnRabbitMQ, number: int) -> dict[str, float]:
    """Seconds for some ways to read so many letters."""
    broker.fill(number)
    app = Celery("letters", broker=broker.url, set_as_current=False)
    app.conf.singlebeat_redis_url = os.environ["STORE"]
    letters = DeadLetters(app)
    took: dict[str, float] = {}
    ways: dict[str, Any] = {
        "list, limit 20": lambda: letters.list(limit=20),
        "list of a rare task, limit 20": lambda: letters.list(task="shop.rare", limit=20),
        "count": letters.count,
        "read all, one by one": lambda: sum(1 for _ in letters.each()),
        "list, limit 20, after all were read": lambda: letters.list(limit=20),
    }
    for name, way in ways.items():
        began = time.perf_counter()
        way()
        took[name] = time.perf_counter() - began
    began = time.perf_counter()
    argv = [*COMMAND, "list", "--limit", "20", "--json"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    took["dlq list --limit 20, the whole command"] = time.perf_counter() - began
    assert len(json.loads(listed.stdout)) == 20
    return took


def replaying(broker: OnRedis | OnRabbitMQ, number: int) -> tuple[float, Counter[str]]:
    """Seconds for two `dlq replay --all` at the same moment, and how often each letter was sent."""
    broker.fill(number)
    argv = [*COMMAND, "replay", "--all", "--yes"]
    began = time.perf_counter()
    operators = [subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
    codes = [operator.wait(600) for operator in operators]
    took = time.perf_counter() - began
    assert codes == [0, 0], codes
    return took, broker.sent()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.letters", description=__doc__)
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    chosen = parser.parse_args()
    part = 10 if chosen.quick else 1
    many, some = 100_000 // part, 10_000 // part
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedRedis())
        broker: OnRedis | OnRabbitMQ = OnRedis(server)
        if chosen.broker == "rabbitmq":
            broker = OnRabbitMQ(stack.enter_context(EmbeddedRabbitMQ()))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        (Path(folder) / "letters_app.py").write_text(APP, "utf-8")
        os.environ |= {
            "BROKER": broker.url,
            "STORE": server.url(),
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        }
        read = reading(broker, many)
        print(f"reading, {many:,} letters on {chosen.broker}:")
        for name, seconds in read.items():
            print(f"  {name:40} {seconds:8.3f} s")
        took, sent = replaying(broker, some)
        twice = sum(count > 1 for count in sent.values())
        print(f"two replays of all {some:,} letters at once: {took:.1f} s")
        print(f"  sent once {len(sent) - twice}, twice {twice}, not at all {some - len(sent)}")
        good = len(sent) == some and not twice
        good = good and all(seconds < 1 for name, seconds in read.items() if name.startswith("list, "))
    print("every requirement is met" if good else "a requirement is NOT met")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
