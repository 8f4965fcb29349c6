"""The same app with everything faster, so that a demo of a minute has time for it. Not for production."""

from __future__ import annotations

from typing import Any

from kombu.transport.redis import Channel

from example_project.app import app

__all__ = ["LEASE_TTL", "LOCK_TTL", "LOOKS_OFTEN", "VISIBILITY_TIMEOUT", "app", "look_for_calls"]

#: Seconds. A beat that is frozen for longer than this has lost its lease for certain.
LEASE_TTL = 3.0
#: Seconds until the lock of a killed worker frees itself.
LOCK_TTL = 3.0
#: Seconds until Redis's queue gives the calls of a killed worker to another one. In production this must
#: be longer than the longest task and the longest wait between two attempts: Celery's default is an hour.
VISIBILITY_TIMEOUT = 6
#: Whether this kombu can be told how often to look for such calls. An older one does every 100 seconds.
LOOKS_OFTEN = hasattr(Channel, "unacked_restore_interval")

app.conf.update(
    singlebeat_lease_ttl=LEASE_TTL,
    singlebeat_lock_ttl=LOCK_TTL,
    worker_prefetch_multiplier=1,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_TIMEOUT,
        # Look for such calls every second.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)


def look_for_calls() -> None:
    """Give the calls of killed workers to the others, as a worker does every 100 seconds."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        channel.qos.restore_visible(interval=1)
