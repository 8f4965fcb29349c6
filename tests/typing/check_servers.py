"""What a type checker sees of the servers and processes for tests. Checked by mypy, never run."""

from __future__ import annotations

import redis
from typing_extensions import assert_type

from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRabbitMQ, EmbeddedRedis


def servers() -> None:
    with EmbeddedRedis("--maxmemory", "10mb", appendonly=True) as server:
        assert_type(server, EmbeddedRedis)
        assert_type(server.restart(keep_data=False), EmbeddedRedis)
        assert_type(server.url(2), str)
        assert_type(server.client(db=2), redis.Redis)
        assert_type(server.process, ManagedProcess)
    with EmbeddedRabbitMQ(port=5673) as broker:
        assert_type(broker, EmbeddedRabbitMQ)
        assert_type(broker.add_vhost("other"), str)


def processes() -> None:
    with ManagedProcess(["true"], env={"GONE": None}) as process:
        assert_type(process.wait(), int)
        assert_type(process.poll(), int | None)


def deadlines(answers: list[str]) -> None:
    assert_type(wait_until(answers.pop, timeout=1.0, message=lambda: "nothing to pop"), str)
