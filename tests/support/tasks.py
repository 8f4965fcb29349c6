"""Tasks that the workers of the tests run. pytest-celery copies this module into each worker's folder."""

from __future__ import annotations

import time

from celery import shared_task


@shared_task(name="tests.multiply")
def multiply(x: int, y: int) -> int:
    return x * y


@shared_task(name="tests.tick", bind=True)
def tick(self, key: str = "ticks") -> None:
    """Append the moment to a list in the result backend's Redis."""
    self.app.backend.client.rpush(key, time.time())
