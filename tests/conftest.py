"""Fixtures of the whole suite: private servers, pytest-celery's setup, replicas of beat.

How to ask for what:

* `redis_url`, `redis_client`: a flushed database of the session's Redis. `redis_proxy`: it, with faults.
* `postgres_server`: the session's PostgreSQL.
* `celery_setup`: pytest-celery's worker, broker and backend. Settings: override `celery_settings`.
* `celery_beat_cluster`: `beat_replicas` replicas (3). `start_beat()` adds one, `start_worker()` a worker.
* `@pytest.mark.brokers("redis", "rabbitmq")`: run once over each broker. Without it: Redis.

A test gets its markers `redis`, `rabbitmq`, `postgresql` and `process` from the fixtures that it asks for.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from pytest_celery import CELERY_RABBITMQ_BROKER, CELERY_REDIS_BACKEND, CELERY_REDIS_BROKER, CeleryTestWorker

from celery_singlebeat.testing.postgres import EmbeddedPostgres
from celery_singlebeat.testing.servers import (
    EmbeddedRabbitMQ,
    EmbeddedRedis,
    ServerNotFoundError,
    find_tls_redis_server,
    free_port,
)
from tests.support import tasks
from tests.support.missing import miss
from tests.support.nodes import CeleryBeatCluster, CeleryTestBeat, ProcessBeat, ProcessWorker, celery_process
from tests.support.proxy import FaultProxy

DOCKER = os.environ.get("SINGLEBEAT_TESTS_DOCKER", "") not in {"", "0"}

pytest_plugins = ["tests.support.skip_report", *([] if DOCKER else ["tests.support.cluster"])]

_BROKERS = {"redis": CELERY_REDIS_BROKER, "rabbitmq": CELERY_RABBITMQ_BROKER}
_DATABASES = 64
_database_numbers = itertools.cycle(range(1, _DATABASES))
_vhost_names = (f"plain{number}" for number in itertools.count(1))

# Which fixture means which marker. A test need not repeat what its arguments say.
_MARKERS = {
    "redis": {"redis_server", "tls_redis_server", "celery_redis_broker", "celery_broker", "celery_backend"},
    "rabbitmq": {"rabbitmq_server", "celery_rabbitmq_broker"},
    "postgresql": {"postgres_server"},
    "process": {"celery_setup", "celery_worker", "start_worker", "start_beat"},
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "brokers(*names): run once over each broker, redis or rabbitmq")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "celery_broker" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("brokers")
        names = marker.args if marker is not None else ("redis",)
        metafunc.parametrize("celery_broker", [_BROKERS[name] for name in names], ids=names, indirect=True)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        if (callspec := getattr(item, "callspec", None)) is not None:
            asked.add(callspec.params.get("celery_broker"))
        for marker, fixtures in _MARKERS.items():
            if asked & fixtures:
                item.add_marker(marker)


# Servers


@pytest.fixture(scope="session")
def redis_server():
    """The session's private Redis or Valkey. Kill or freeze it: the next test finds it running."""
    try:
        server = EmbeddedRedis("--databases", str(_DATABASES))
    except ServerNotFoundError as error:
        miss(error)
    with server:
        yield server


@pytest.fixture
def redis_db(redis_server: EmbeddedRedis) -> int:
    """The number of a database of `redis_server` that no test before this one used lately, flushed."""
    _revive(redis_server)
    number = next(_database_numbers)
    with redis_server.client(db=number) as client:
        client.flushdb()
    return number


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis, redis_db: int) -> str:
    """The address of the test's own database."""
    return redis_server.url(redis_db)


@pytest.fixture
def redis_client(redis_server: EmbeddedRedis, redis_db: int):
    """A client of the test's own database that decodes replies and retries nothing."""
    with redis_server.client(db=redis_db, decode_responses=True) as client:
        yield client


@pytest.fixture
def redis_proxy(redis_server: EmbeddedRedis):
    """A proxy with faults in front of `redis_server`."""
    _revive(redis_server)
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


class TLSRedis(NamedTuple):
    """A Redis that speaks TLS on one port (and plain on the server's own)."""

    url: str
    ca_path: Path
    server: EmbeddedRedis


@pytest.fixture(scope="session")
def tls_redis_server(tmp_path_factory):
    """The session's Redis with TLS, with a certificate for localhost and 127.0.0.1."""
    try:
        binary = find_tls_redis_server()
    except ServerNotFoundError as error:
        miss(error)
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    port = free_port()
    options = {
        "--tls-port": port,
        "--tls-cert-file": folder / "cert.pem",
        "--tls-key-file": folder / "key.pem",
        "--tls-ca-cert-file": folder / "ca.pem",
        "--tls-auth-clients": "no",
    }
    arguments = [str(part) for option in options.items() for part in option]
    with EmbeddedRedis(*arguments, binary=binary) as server:
        yield TLSRedis(f"rediss://localhost:{port}/0", folder / "ca.pem", server)


@pytest.fixture(scope="session")
def rabbitmq_server():
    """The session's private RabbitMQ."""
    try:
        server = EmbeddedRabbitMQ()
    except ServerNotFoundError as error:
        miss(error)
    with server:
        yield server


@pytest.fixture
def rabbitmq_url(rabbitmq_server: EmbeddedRabbitMQ) -> str:
    """The address of a virtual host of the test's own."""
    _revive(rabbitmq_server)
    return rabbitmq_server.add_vhost(next(_vhost_names))


@pytest.fixture(scope="session")
def postgres_server():
    """The session's private PostgreSQL."""
    try:
        server = EmbeddedPostgres()
    except ServerNotFoundError as error:
        miss(error)
    with server:
        yield server


def _revive(server: EmbeddedRedis | EmbeddedRabbitMQ) -> None:
    """Undo what an earlier test did to the session's server."""
    if server.running:
        server.resume()
    else:
        server.start()


# pytest-celery's setup. Its own parameters are sets, in another order in each worker of pytest-xdist.


@pytest.fixture
def celery_broker(request):
    """The broker that `pytest_generate_tests` chose."""
    broker = request.getfixturevalue(request.param)
    yield broker
    broker.teardown()


@pytest.fixture(params=[pytest.param(CELERY_REDIS_BACKEND, id="redis")])
def celery_backend(request):
    backend = request.getfixturevalue(request.param)
    yield backend
    backend.teardown()


@pytest.fixture
def celery_settings() -> dict[str, Any]:
    """Celery's settings for test, worker and beats. Values must survive `repr`, as a crontab does not."""
    return {}


@pytest.fixture
def celery_setup_app(celery_setup_app, celery_setup_config, celery_settings):
    """The stock app, with the settings as changes: pytest-celery hands on nothing else."""
    celery_setup_app.conf.update({**celery_setup_config, **celery_settings})
    return celery_setup_app


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    return default_worker_tasks | {tasks}


def _beside_containers(env: dict[str, str]) -> dict[str, str]:
    """Leave out what holds inside a container only: a local process uses the test's own addresses."""
    return {
        k: v for k, v in env.items() if k not in {"CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "PYTHONPATH"}
    }


@pytest.fixture
def worker_pool() -> str:
    """The pool of the workers: prefork, solo or threads."""
    return "prefork"


@pytest.fixture
def worker_concurrency() -> int:
    """How many calls a worker executes at once."""
    return 2


@pytest.fixture
def default_worker_command(default_worker_container_cls, worker_pool: str, worker_concurrency: int):
    return default_worker_container_cls.command("-P", worker_pool, "-c", str(worker_concurrency))


@pytest.fixture
def celery_brokers_and_backends(celery_broker_cluster, celery_backend_cluster):
    """Both clusters by name: pytest-celery looks them up late, and takes memory:// if nobody asked."""
    return celery_broker_cluster, celery_backend_cluster


@pytest.fixture
def start_worker(
    celery_brokers_and_backends,
    default_worker_command,
    default_worker_env,
    default_worker_initial_content,
    celery_setup_app,
    tmp_path_factory,
):
    """Start one more worker as a node of pytest-celery: `start_worker(*arguments, env=None)`."""
    containers = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> CeleryTestWorker:
        container = celery_process(
            [*default_worker_command, *arguments],
            tmp_path_factory.mktemp("worker"),
            "worker",
            {**_beside_containers(default_worker_env), **(env or {})},
            default_worker_initial_content,
        )
        containers.append(container)
        worker = CeleryTestWorker(ProcessWorker(container), celery_setup_app)
        worker.ready()
        return worker

    yield start
    for container in containers:
        container.process.kill()


# Beat


@pytest.fixture
def beat_replicas() -> int:
    """How many replicas `celery_beat_cluster` has."""
    return 3


@pytest.fixture
def beat_scheduler() -> str:
    """What the replicas get as `-S`."""
    return "celery_singlebeat:SingleBeatScheduler"


@pytest.fixture
def beat_arguments() -> tuple[str, ...]:
    """Further arguments of `celery beat`."""
    return ()


@pytest.fixture
def start_beat(
    celery_brokers_and_backends,
    beat_scheduler,
    beat_arguments,
    default_worker_env,
    default_worker_initial_content,
    celery_setup_app,
    tmp_path_factory,
):
    """Start one more replica of beat: `start_beat(*arguments, env=None, wait=True)`."""
    containers = []

    def start(*arguments: str, env: dict[str, str] | None = None, wait: bool = True) -> CeleryTestBeat:
        container = celery_process(
            ProcessBeat.command("-S", beat_scheduler, *beat_arguments, *arguments),
            tmp_path_factory.mktemp("beat"),
            "beat",
            {**_beside_containers(default_worker_env), **(env or {})},
            default_worker_initial_content,
        )
        containers.append(container)
        node = CeleryTestBeat(ProcessBeat(container), celery_setup_app)
        if wait:
            node.ready()
        return node

    yield start
    for container in containers:
        container.process.kill()


@pytest.fixture
def celery_beat_cluster(start_beat, beat_replicas: int):
    """Replicas of beat that have all said that they start. `celery_setup` puts a worker beside them."""
    cluster = CeleryBeatCluster(*(start_beat(wait=False) for _ in range(beat_replicas)))
    assert cluster.ready()
    yield cluster
    cluster.teardown()
