"""A call as the parent of a worker has it, without the worker."""

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.concurrency.base import BasePool

from celery_singlebeat import SingleBeatTask
from celery_singlebeat.task.request import SingleBeatRequest


@pytest.fixture
def call():
    """A call that began to run, with the acknowledgements of its message."""
    with Celery("calls", broker="memory://", set_as_current=False) as app:

        @app.task(base=SingleBeatTask, name="look", shared=False)
        def look():
            pass

        look.delay()
        acknowledged = []
        with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
            request = SingleBeatRequest(
                queue.get(timeout=1), app=app, task=look, on_ack=lambda *_: acknowledged.append(True)
            )
        request.time_start = 1.0
        yield SimpleNamespace(request=request, acknowledged=acknowledged)


@pytest.mark.parametrize("environment", ["default", "gevent"])
def test_a_body_that_its_pool_cannot_end_is_acknowledged_at_its_end(call, environment, monkeypatch):  # P5
    monkeypatch.setattr("kombu.utils.compat._environment", environment)
    call.request.cancel(BasePool(1))
    call.request.acknowledge()
    assert call.acknowledged == [True]
