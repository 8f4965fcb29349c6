"""The whole story, short: leaders killed, terminated and frozen in turn, over both kinds of broker."""

import pytest

from tests import failover


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.redis
def test_nothing_is_sent_twice_or_lost_over_redis():  # G1
    verdict = failover.run(broker="redis", duration=28, every=7, lease=3)
    assert verdict.is_clean, verdict
    assert verdict.due >= 25
    assert set(verdict.failovers) == {"SIGKILL", "SIGTERM", "SIGSTOP"}


@pytest.mark.slow
@pytest.mark.process
def test_nothing_is_executed_twice_or_lost_over_rabbitmq(rabbitmq_server):  # G2
    verdict = failover.run(broker="rabbitmq", duration=28, every=7, lease=3)
    assert verdict.is_clean, verdict
    assert verdict.due >= 25
