"""Pauses of entries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Pause:
    """No slot from `since` on, before `until`, is dispatched; None: until somebody says so."""

    since: datetime
    until: datetime | None = None

    def covers(self, slot: datetime) -> bool:
        """Whether the slot falls into the pause."""
        return self.since <= slot and (self.until is None or slot < self.until)
