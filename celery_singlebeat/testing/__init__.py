"""For your tests and ours: a clock you move, a store in memory, faults on demand, real servers.

`FakeClock` and `MemoryBeatStore` need nothing; `FaultyStore` fails the way networks fail. The modules
`servers` and `processes` start real Redis, RabbitMQ and Celery processes on loopback, without root.

In a test suite, `pytest_plugins = ["celery_singlebeat.testing.plugin"]` brings the fixtures
`singlebeat_clock` and `singlebeat_store`.
"""

from __future__ import annotations

from celery_singlebeat.store.memory_beat import MemoryBeatStore
from celery_singlebeat.testing.clock import FakeClock
from celery_singlebeat.testing.faults import FaultyStore

__all__ = ["FakeClock", "FaultyStore", "MemoryBeatStore"]
