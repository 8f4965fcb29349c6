"""A server that is missing skips its tests with a line that says so, or fails them where all is required."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.nodes import REPOSITORY

pytestmark = pytest.mark.process

#: One test for each server.
TESTS = [
    "test_stopping_leaves_nothing_behind",
    "test_rabbitmq_passes_a_message_also_after_a_restart",
    "test_a_postgresql_answers_comes_back_with_its_data_and_leaves_nothing_behind",
]
VARIABLES = [f"SINGLEBEAT_{server}_SERVER" for server in ("REDIS", "RABBITMQ", "POSTGRES")]
NOWHERE = dict.fromkeys(VARIABLES, "/nowhere/server")


def run(*arguments, **environment):
    """A run of pytest by itself; its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "SINGLEBEAT_REQUIRE_ALL": "", "COLUMNS": "200", **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_without_servers_ends_by_saying_what_was_skipped_and_what_brings_it():
    code, output = run(*(f"tests/support/test_servers.py::{test}" for test in TESTS), **NOWHERE)
    assert code == 0, output
    assert re.search(r"^3 skipped", output, re.MULTILINE)
    *skipped, remedy = output.splitlines()[-4:]
    assert sorted(skipped) == sorted(
        f"Skipped 1 test: ${variable} is '/nowhere/server', which is not a program" for variable in VARIABLES
    )
    assert remedy == "What is missing comes with: make servers"


def test_where_everything_is_required_a_missing_server_fails_its_tests():
    tests = [f"tests/support/test_servers.py::{test}" for test in TESTS]
    code, output = run(*tests, **NOWHERE, SINGLEBEAT_REQUIRE_ALL="1")
    assert code == 1, output
    assert re.search(r"^3 errors", output, re.MULTILINE)
    for variable in VARIABLES:
        assert (
            f"${variable} is '/nowhere/server', which is not a program "
            "(SINGLEBEAT_REQUIRE_ALL is set; `make servers` installs it)"
        ) in output


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 1)])
def test_where_everything_is_required_any_other_skip_fails_the_run(tmp_path, required, code):
    test = tmp_path / "test_skipping.py"
    test.write_text("import pytest\ndef test_skips():\n    pytest.skip('for no good reason')\n")
    options = ("-p", "tests.support.skip_report", "--rootdir", str(tmp_path), "-c", os.devnull)
    ended, output = run(*options, str(test), SINGLEBEAT_REQUIRE_ALL=required, PYTHONPATH=str(REPOSITORY))
    assert ended == code, output
    assert "Skipped 1 test: for no good reason" in output
    assert ("a skipped test fails the run" in output) is bool(required)
    assert "make servers" not in output
