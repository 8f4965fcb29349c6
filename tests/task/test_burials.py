"""Failing calls while workers and the broker are killed; the long form is `python -m tests.burials`."""

import pytest

from tests.burials import run

pytestmark = [pytest.mark.process, pytest.mark.redis, pytest.mark.fault, pytest.mark.slow]


@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def test_each_failing_call_ends_once_whatever_is_killed(broker):  # G7
    verdict = run(broker=broker, calls=24, kills=1, restarts=1, every=1.0)
    assert verdict.is_clean, verdict
    assert (verdict.succeeded, verdict.buried) == (6, 18)
