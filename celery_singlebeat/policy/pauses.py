"""Pauses of entries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Pause:
    """While it lasts (`until` is None) no slot is dispatched; afterwards, the slots of its time are not."""

    since: datetime
    until: datetime | None = None

    def covers(self, slot: datetime) -> bool:
        """Whether the pause keeps a slot back that is due."""
        return self.until is None or self.since <= slot < self.until
