"""pytest-celery's fixtures over local processes, shown with Celery's own beat: there every replica sends."""

from __future__ import annotations

import os
import signal

import pytest
from pytest_celery import CeleryTestSetup, RabbitMQTestBroker, RedisTestBroker

from celery_singlebeat.testing.processes import wait_until
from tests.support.tasks import multiply

TICKING = {
    "beat_schedule": {"tick": {"task": "tests.tick", "schedule": 0.1}},
    "beat_max_loop_interval": 0.1,
}


@pytest.fixture
def beat_scheduler() -> str:
    return "celery.beat:PersistentScheduler"


@pytest.fixture
def queue_length(celery_setup_app):
    """How many messages wait in the default queue of the Redis broker."""

    def count() -> int:
        with celery_setup_app.connection_for_read() as connection:
            return connection.default_channel.client.llen("celery")

    return count


def test_a_worker_answers_over_redis(celery_setup: CeleryTestSetup):
    assert celery_setup.ready(ping=True, control=True, docker=True)
    assert isinstance(celery_setup.broker, RedisTestBroker)
    assert multiply.delay(6, 7).get(timeout=10) == 42
    assert celery_setup.worker.hostname() in celery_setup.app.control.ping(timeout=1)[0]
    celery_setup.worker.assert_log_exists("tests.multiply")


def test_a_worker_and_its_broker_can_be_killed_and_restarted(celery_setup: CeleryTestSetup):
    celery_setup.worker.kill()
    assert celery_setup.worker.container.status == "exited"
    result = multiply.delay(2, 3)
    celery_setup.broker.restart()
    celery_setup.worker.restart()
    assert result.get(timeout=10) == 6


@pytest.mark.parametrize(("worker_pool", "worker_concurrency"), [("solo", 1)])
def test_a_second_worker_with_a_pool_of_its_own(celery_setup: CeleryTestSetup, start_worker):
    second = start_worker("--prefetch-multiplier=1")
    celery_setup.worker.kill()
    assert multiply.delay(3, 3).get(timeout=10) == 9
    second.assert_log_exists("tests.multiply")


@pytest.mark.slow
@pytest.mark.brokers("rabbitmq")
def test_a_worker_answers_over_rabbitmq(celery_setup: CeleryTestSetup):
    assert isinstance(celery_setup.broker, RabbitMQTestBroker)
    assert multiply.delay(6, 7).get(timeout=10) == 42


@pytest.mark.parametrize("celery_settings", [TICKING], ids=["ticking"])
@pytest.mark.parametrize("beat_replicas", [2])
def test_replicas_of_beat_can_be_killed_paused_and_terminated(celery_beat_cluster, queue_length):
    first, second = celery_beat_cluster
    wait_until(lambda: queue_length() >= 4, message=celery_beat_cluster.logs)

    celery_beat_cluster.kill(0)
    assert first.container.status == "exited"
    celery_beat_cluster.pause(1)
    assert second.container.status == "paused"
    silent = queue_length()
    with pytest.raises(AssertionError, match="waited"):
        wait_until(lambda: queue_length() > silent, timeout=0.5)

    celery_beat_cluster.unpause(1)
    wait_until(lambda: queue_length() > silent, message=celery_beat_cluster.logs)
    celery_beat_cluster.terminate(
        1
    )  # how Celery's own beat exits when a signal meets a destructor is its affair
    assert second.container.status == "exited"

    silent = queue_length()
    first.restart()
    wait_until(lambda: queue_length() > silent, message=celery_beat_cluster.logs)
    first.pause()
    first.kill()
    assert first.container.status == "exited"


@pytest.mark.parametrize("celery_settings", [TICKING], ids=["ticking"])
def test_a_worker_executes_what_a_beat_sends(celery_setup: CeleryTestSetup, start_beat):
    beat = start_beat()
    results = celery_setup.backend.container.client
    wait_until(lambda: results.llen("ticks") >= 2, message=beat.logs)
    beat.kill(signal.SIGTERM)
    assert beat.container._container.process.wait() == 0


@pytest.mark.skipif(bool(os.environ.get("SINGLEBEAT_TESTS_DOCKER")), reason="Docker was asked for")
def test_docker_is_out_of_reach(request: pytest.FixtureRequest):
    with pytest.raises(pytest.fail.Exception, match="SINGLEBEAT_TESTS_DOCKER"):
        request.getfixturevalue("docker_client")
