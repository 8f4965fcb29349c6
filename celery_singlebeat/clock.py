"""The only module that asks what time it is."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol

from celery_singlebeat.moments import Monotonic


class Clock(Protocol):
    """The two clocks of one process."""

    def now(self) -> datetime:
        """Wall time: aware, UTC."""
        ...

    def monotonic(self) -> Monotonic:
        """Seconds that never step."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall time: aware, UTC."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> Monotonic:
        """Seconds that never step."""
        return Monotonic(time.monotonic())
