"""Each guard of the scripts and of the trust window is there for a test that fails without it."""

import pytest

from celery_singlebeat.testing.programs import ServerNotFoundError, find_postgres
from tests.mutants import MUTANTS, verdict
from tests.support.missing import miss


def _marked(mutant):
    marks = [pytest.mark.postgresql] if mutant.server is find_postgres else []
    return pytest.param(mutant, marks=marks, id=mutant.name)


@pytest.mark.redis
@pytest.mark.process
@pytest.mark.parametrize("mutant", [_marked(mutant) for mutant in MUTANTS])
def test_a_mutant_is_killed(mutant):
    try:
        found = verdict(mutant)
    except ServerNotFoundError as error:
        miss(error)
    assert found == "killed"
