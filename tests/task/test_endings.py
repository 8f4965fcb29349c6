"""However a call ends, its lock is free in time, its result says so, and its side effects happen once."""

from pathlib import Path

import pytest

from benchmarks.endings import ENDINGS, Stage
from benchmarks.endings_app import TTL
from celery_singlebeat.testing.servers import EmbeddedRedis, ServerNotFoundError
from tests.support.missing import miss

pytestmark = [pytest.mark.process, pytest.mark.redis, pytest.mark.fault]

#: State, runs of the body that started, runs that finished.
ONCE = ("SUCCESS", 1, 1)
AGAIN = ("SUCCESS", 2, 1)
REVOKED = ("REVOKED", 1, 0)
NEVER_RAN = ("REVOKED", 0, 0)
FAILED = ("FAILURE", 1, 0)
EXPECTED = {
    "success": ONCE,
    "failure": FAILED,
    "retry, then success": AGAIN,
    "Ignore": ("PENDING", 1, 0),
    "Reject with requeue, then success": AGAIN,
    "revoked before its start": NEVER_RAN,
    "expired before its start": NEVER_RAN,
    "revoked with terminate (SIGTERM)": REVOKED,
    "revoked with terminate (SIGKILL)": REVOKED,
    "soft time limit of 1 s": FAILED,
    "hard time limit of 1 s": FAILED,
    "SystemExit in the body": AGAIN,
    "child killed (SIGKILL)": AGAIN,
    "warm shutdown (SIGTERM)": ONCE,
    "warm shutdown (SIGINT)": ONCE,
    "cold shutdown (SIGINT twice)": AGAIN,
    "cold shutdown (SIGQUIT)": AGAIN,
    "soft shutdown (SIGQUIT)": ONCE,
    "worker killed (SIGKILL)": AGAIN,
}
#: A call that comes back takes its lock again; Celery may need five seconds to see that a child died.
SLACK = 6.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    try:
        server = EmbeddedRedis()
    except ServerNotFoundError as error:
        miss(error)
    with server, Stage("singlebeat", server, Path(tmp_path_factory.mktemp("endings"))) as stage:
        yield stage


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.title)
def test_however_a_call_ends_its_lock_is_free_and_its_effects_happen_once(stage, ending):  # G6, T1, P2
    row = stage.play(ending)
    assert row.freed is not None
    assert row.freed < TTL + SLACK
    if ending.title == "Reject":  # whose state depends on the version of Celery
        assert (row.started, row.finished) == (1, 0)
    else:
        assert (row.state, row.started, row.finished) == EXPECTED[ending.title]
