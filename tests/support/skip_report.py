"""A pytest plugin: the last lines of a run name what was skipped, why, and what brings it.

A skip that nobody reads is a test that nobody runs, and pytest's own list of skips scrolls away.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.missing import PREFIX, REMEDY, require_all


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if require_all() and exitstatus == pytest.ExitCode.OK and _skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = _skipped(config)
    if reporter is None or not skipped:
        return
    for reason, count in Counter(skipped).most_common():
        tests = "1 test" if count == 1 else f"{count} tests"
        reporter.write_line(f"Skipped {tests}: {reason.removeprefix(PREFIX)}", yellow=True)
    if any(reason.startswith(PREFIX) for reason in skipped):
        reporter.write_line(f"What is missing comes with: {REMEDY}", yellow=True, bold=True)
    if require_all():
        reporter.write_line(
            "SINGLEBEAT_REQUIRE_ALL is set, so a skipped test fails the run.", red=True, bold=True
        )


def _skipped(config: pytest.Config) -> list[str]:
    """Return the reason of each skipped test. A worker of pytest-xdist has none: it does not report."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter is not None else []
    reasons = [r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr) for r in reports]
    return [reason.removeprefix("Skipped: ") for reason in reasons]
