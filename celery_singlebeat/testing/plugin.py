"""Fixtures for projects that use celery-singlebeat; opt in with `pytest_plugins`."""

from __future__ import annotations

import pytest

from celery_singlebeat.store.memory_beat import MemoryBeatStore
from celery_singlebeat.testing.clock import FakeClock


@pytest.fixture
def singlebeat_clock() -> FakeClock:
    """A clock that stands still until it is told to move."""
    return FakeClock()


@pytest.fixture
def singlebeat_store(singlebeat_clock: FakeClock) -> MemoryBeatStore:
    """An empty store in memory, on that clock."""
    return MemoryBeatStore(singlebeat_clock)
