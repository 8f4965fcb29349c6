"""Each guard of the scripts and of the trust window is there for a test that fails without it."""

import pytest

from tests.mutants import MUTANTS, verdict


@pytest.mark.redis
@pytest.mark.process
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant):
    assert verdict(mutant) == "killed"
