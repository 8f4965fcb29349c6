"""Failing calls under fire: each ends exactly once, in its result or in the dead-letter queue.

    python -m tests.burials --calls 1000 --broker redis
    python -m tests.burials --calls 1000 --broker rabbitmq

Two workers run the calls. A quarter of them succeed at their second attempt, the others fail for good after
the third; half of them wait for their next attempt in Redis, half at the broker. Meanwhile a worker gets
SIGKILL every few seconds, or the broker is killed and comes back. What counts is read at the end from the
results and the letters.

Two things that docs/guarantees.md says are told apart. Over RabbitMQ a worker that is killed between
publishing a letter and acknowledging its message leaves a second letter: those are counted, and are never
more than the faults. Over Redis kombu takes a message out of its queue before it notes that it has it, so a
worker that is killed in that moment loses it, whatever its task is: the harm is done at another moment, when
each open call is in its queue, in hand, waiting or ended.

Prints a line for each fault and a table; exit code 0 only if nothing is lost and nothing ended twice.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kombu.exceptions import OperationalError

from celery_singlebeat import DeadLetters, StoreUnavailable
from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRabbitMQ, EmbeddedRedis
from tests.task.conftest import Crew

VISIBILITY = 4
WORKERS = 2
_CALL = re.compile(r'correlation_id\\*": \\*"([0-9a-f-]{36})')


@dataclass(slots=True)
class Verdict:
    """How the calls ended."""

    broker: str
    calls: int
    seconds: float = 0.0
    kills: int = 0
    restarts: int = 0
    in_time: int = 0
    succeeded: int = 0
    buried: int = 0
    lost: list[str] = field(default_factory=list)
    both: list[str] = field(default_factory=list)
    second_letters: list[str] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        allowed = self.kills + self.restarts if self.broker == "rabbitmq" else 0
        return not self.lost and not self.both and len(self.second_letters) <= allowed

    def __str__(self) -> str:
        lines = [
            f"{self.broker}: {self.calls} calls in {self.seconds:.0f} s",
            f"  workers killed            {self.kills}",
            f"  broker killed             {self.restarts}",
            f"  while calls were open     {self.in_time} of these",
            f"  succeeded                 {self.succeeded}",
            f"  buried                    {self.buried}",
            f"  lost                      {len(self.lost)} {self.lost[:5] or ''}",
            f"  succeeded and buried      {len(self.both)} {self.both[:5] or ''}",
            f"  buried a second time      {len(self.second_letters)} {self.second_letters[:5] or ''}",
            f"  bodies, by attempt        {dict(sorted(self.attempts.items()))}",
            "clean" if self.is_clean else "NOT CLEAN",
        ]
        return "\n".join(line.rstrip() for line in lines)


def run(
    *, broker: str, calls: int, kills: int, restarts: int, every: float, seed: int = 1, say: Any = print
) -> Verdict:
    """Send the calls, do the harm, wait until all have ended, and judge."""
    luck = random.Random(seed)
    verdict = Verdict(broker, calls)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_server = stack.enter_context(EmbeddedRedis("--appendfsync", "always", appendonly=True))
        server: Any = redis_server
        settings: dict[str, Any] = {
            "broker_transport_options": {"visibility_timeout": VISIBILITY, "unacked_mutex_expire": 1},
            "singlebeat_lock_ttl": 5,
        }
        url = ""
        if broker == "rabbitmq":
            server = stack.enter_context(EmbeddedRabbitMQ())
            url = server.url()
            settings = {
                "singlebeat_redis_url": redis_server.url(),
                "singlebeat_lock_ttl": 5,
                "broker_transport_options": {"confirm_publish": True},
            }
        crew = Crew(redis_server, folder, broker=url, **settings)
        stack.callback(crew.close)
        ids = [_send(crew, number) for number in range(calls)]
        workers = [crew.start() for _ in range(WORKERS)]
        crew.ready()
        began = time.monotonic()
        faults = ["kill"] * kills + ["restart"] * restarts
        luck.shuffle(faults)
        for fault in faults:
            time.sleep(luck.uniform(0.5, 1.5) * every)
            _freeze_in_good_order(crew, ids, workers)
            if fault == "kill":
                victim = luck.choice(workers)
                victim.kill(signal.SIGKILL)
                verdict.kills += 1
            else:
                server.kill()
                server.start()
                verdict.restarts += 1
            for worker in workers:
                if worker.running:
                    worker.resume()
                else:
                    worker.start()
            still_open = _open(crew, ids)
            verdict.in_time += still_open > 0
            say(f"{time.monotonic() - began:6.1f} s  {fault:8} {still_open} calls are open")
        patience = 60 + calls * 0.3
        wait_until(lambda: _open(crew, ids) == 0, patience, lambda: crew.logs()[-3000:], interval=1.0)
        verdict.seconds = time.monotonic() - began
        _judge(crew, ids, verdict)
    return verdict


def _send(crew: Crew, number: int) -> str:
    task = "storms_parked" if number % 2 else "storms"
    found: str = crew.send(task, f"call{number}", 1 if number % 4 == 0 else 99).id
    return found


def _freeze_in_good_order(crew: Crew, ids: list[str], workers: list[ManagedProcess]) -> None:
    """Freeze the workers when no message is between its queue and the note that it is in hand."""
    while True:
        for worker in workers:
            worker.pause()
        if crew.broker.startswith("amqp") or not _nowhere(crew, ids):
            return
        for worker in workers:
            worker.resume()
        time.sleep(0.05)


def _nowhere(crew: Crew, ids: list[str]) -> set[str]:
    """The open calls of which a Redis broker knows nothing."""
    texts = [*crew.redis.hvals("unacked"), *crew.waiting()]
    for step in ("", "\x06\x163", "\x06\x166", "\x06\x169"):
        texts += crew.redis.lrange(f"celery{step}", 0, -1)
    known = {found for text in texts for found in _CALL.findall(text)}
    return set(ids) - known - set(_succeeded(crew, ids)) - set(_letters(crew))


def _open(crew: Crew, ids: list[str]) -> int:
    """How many calls have neither a result nor a letter yet; all while nobody can be asked."""
    with suppress(Exception):  # the broker may be away: then nothing is known
        if not crew.broker.startswith("amqp"):
            crew.deliver_again()
        return len(set(ids) - set(_succeeded(crew, ids)) - set(_letters(crew)))
    return len(ids)


def _succeeded(crew: Crew, ids: list[str]) -> list[str]:
    raws: Any = crew.redis.mget([f"celery-task-meta-{task_id}" for task_id in ids])
    return [
        task_id
        for task_id, raw in zip(ids, raws, strict=True)
        if raw and json.loads(raw)["status"] == "SUCCESS"
    ]


def _letters(crew: Crew) -> Counter[str]:
    try:
        return Counter(letter["id"] for letter in DeadLetters(crew.app).each())
    except (StoreUnavailable, OperationalError):
        return Counter()


def _judge(crew: Crew, ids: list[str], verdict: Verdict) -> None:
    succeeded, letters = set(_succeeded(crew, ids)), _letters(crew)
    verdict.succeeded, verdict.buried = len(succeeded), len(letters)
    verdict.lost = [task_id for task_id in ids if task_id not in succeeded and task_id not in letters]
    verdict.both = [task_id for task_id in ids if task_id in succeeded and task_id in letters]
    verdict.second_letters = [task_id for task_id, number in letters.items() if number > 1]
    for number in range(len(ids)):
        verdict.attempts.update(int(text) for text in crew.events(f"call{number}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two faults, about")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    verdict = run(**vars(chosen))
    print(verdict)
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
