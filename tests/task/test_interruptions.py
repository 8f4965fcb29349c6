"""What strikes an execution beside its body leaves no lock behind that is renewed for ever."""

import sys
import threading

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_singlebeat import SingleBeatTask, was_skipped
from celery_singlebeat.task import execution
from celery_singlebeat.testing.processes import wait_until

TTL = 0.5


@pytest.fixture
def deliver():
    """A function that has a call delivered, as a worker does."""
    with Celery("struck", broker="memory://", set_as_current=False) as app:
        app.conf.update(singlebeat_redis_url="memory://", singlebeat_lock_ttl=TTL)

        @app.task(base=SingleBeatTask, name="ends", lock_on=["key"], shared=False)
        def ends(key, task_id):
            return task_id

        def deliver(key, task_id):
            ends.push_request(id=task_id, called_directly=False, is_eager=False, retries=0, headers={})
            try:
                return ends.run(key, task_id)
            finally:
                ends.pop_request()

        yield deliver


def free(deliver, key):
    """Wait until another call gets this key, while the heartbeat renews what it has."""
    numbers = iter(range(1000))
    wait_until(lambda: not was_skipped(deliver(key, f"other{next(numbers)}")), 4 * TTL)


@pytest.mark.parametrize("place", ["_run", "_give_back"])
def test_a_time_limit_before_or_after_the_body_leaves_no_lock(deliver, place):  # T1
    def strike(frame, _event, _argument):
        if frame.f_code is getattr(execution, place).__code__:
            sys.settrace(None)
            raise SoftTimeLimitExceeded

    sys.settrace(strike)
    try:
        with pytest.raises(SoftTimeLimitExceeded):
            deliver("key", "struck")
    finally:
        sys.settrace(None)
    free(deliver, "key")


def test_a_process_that_gets_no_thread_to_renew_with_leaves_no_lock(deliver, monkeypatch):  # T1
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    deliver("before", "any")  # whatever else there is has its threads
    heartbeat = execution.heartbeat()
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        context.setattr(heartbeat, "_thread", None)
        with pytest.raises(RuntimeError):
            deliver("key", "struck")
    free(deliver, "key")
