"""pytest-celery's fixtures with local processes in place of containers, and replicas of beat beside them.

Not loaded when SINGLEBEAT_TESTS_DOCKER=1: brokers, backends and workers are then the stock containers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from celery_singlebeat.testing.servers import EmbeddedRabbitMQ, EmbeddedRedis, ServerNotFoundError
from tests.support.missing import miss
from tests.support.nodes import (
    ProcessRabbitMQ,
    ProcessRedis,
    ProcessWorker,
    ServerContainer,
    celery_process,
)

_vhosts = (f"test{number}" for number in itertools.count(1))


@pytest.fixture(scope="session")
def docker_client():
    """Fail whatever reaches for Docker: a stock fixture that nobody replaced."""
    pytest.fail(
        "a Docker-backed fixture of pytest-celery was requested (set SINGLEBEAT_TESTS_DOCKER=1 to allow it)"
    )


@pytest.fixture
def default_redis_broker_cls():
    return ProcessRedis


@pytest.fixture
def default_redis_backend_cls():
    return ProcessRedis


@pytest.fixture
def default_rabbitmq_broker_cls():
    return ProcessRabbitMQ


@pytest.fixture
def default_redis_broker(default_redis_broker_cls, default_redis_broker_command):
    yield from _redis(default_redis_broker_cls, default_redis_broker_command)


@pytest.fixture
def default_redis_backend(default_redis_backend_cls, default_redis_backend_command):
    yield from _redis(default_redis_backend_cls, default_redis_backend_command)


@pytest.fixture
def default_rabbitmq_broker(default_rabbitmq_broker_cls, rabbitmq_server: EmbeddedRabbitMQ):
    """A fresh virtual host of the session's RabbitMQ: starting one for each test would take five seconds."""
    vhost = next(_vhosts)
    rabbitmq_server.add_vhost(vhost)
    return default_rabbitmq_broker_cls(ServerContainer(rabbitmq_server), vhost)


@pytest.fixture
def default_worker_container_cls():
    return ProcessWorker


@pytest.fixture(scope="session")
def default_worker_container_session_cls():
    return ProcessWorker


@pytest.fixture
def default_worker_env(default_worker_container_cls, celery_worker_cluster_config):
    """The addresses only: the stock environment has paths of a container."""
    env = default_worker_container_cls.initial_env(celery_worker_cluster_config)
    return {key: value for key, value in env.items() if key != "PYTHONPATH"}


@pytest.fixture
def default_worker_container(
    default_worker_container_cls,
    default_worker_command,
    default_worker_env,
    default_worker_initial_content,
    tmp_path_factory,
):
    container = celery_process(
        default_worker_command,
        tmp_path_factory.mktemp("worker"),
        "worker",
        default_worker_env,
        default_worker_initial_content,
    )
    try:
        worker = default_worker_container_cls(container)
        worker.ready()
        yield worker
    finally:
        container.process.kill()  # a warm shutdown takes a second or two, and is not what a teardown tests


def _redis(container_cls: type[ProcessRedis], command: list[str]) -> Iterator[ProcessRedis]:
    """Run the stock command's arguments, so that a test may override `default_redis_broker_command`."""
    try:
        server = EmbeddedRedis(*command[1:])
    except ServerNotFoundError as error:
        miss(error)
    with server:
        yield container_cls(ServerContainer(server))
