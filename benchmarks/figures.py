"""Numbers of several rounds, and requirements on them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of some rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def show(self, unit: str = "", digits: int = 0) -> str:
        return f"{self.median:,.{digits}f}{unit} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many of a hundred do not exceed, by nearest rank."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True)
class Check:
    """A requirement, what was measured, and whether it holds."""

    requirement: str
    measured: str
    holds: bool
