"""How long a failed call waits, and whether it is tried again at all.

B1  The wait before attempt n + 1 is at most base * 2 ** (n - 1), and never above the cap: 1, 2, 4, 8 ...
B2  Policy draws no luck: `luck` in [0, 1) comes from the caller, so that every wait can be tested.
B3  Full jitter lies in [0, ceiling), equal jitter in [ceiling / 2, ceiling), decorrelated jitter in
    [base, 3 * last wait) below the cap; without jitter the wait is the ceiling.
B4  A call has its first attempt and `max_retries` more; None: without end.

The jitters are those of Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_LONGEST_EXPONENT = 60


class Jitter(str, Enum):
    """How chance enters the wait."""

    FULL = "full"
    EQUAL = "equal"
    DECORRELATED = "decorrelated"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds before the second attempt, the cap in seconds, and the jitter."""

    base: float = 1.0
    cap: float = 600.0
    jitter: Jitter = Jitter.FULL


def ceiling(attempt: int, backoff: Backoff) -> float:
    """The longest wait after attempt `attempt` (1 is the first) in seconds (B1)."""
    doublings = min(max(attempt, 1) - 1, _LONGEST_EXPONENT)
    return float(min(backoff.cap, backoff.base * 2**doublings))


def wait(attempt: int, *, backoff: Backoff, luck: float, last: float | None = None) -> float:
    """Seconds between attempt `attempt`, which failed, and the next; `last` is the wait before it (B3)."""
    top = ceiling(attempt, backoff)
    if backoff.jitter is Jitter.FULL:
        return luck * top
    if backoff.jitter is Jitter.EQUAL:
        return top / 2 + luck * top / 2
    if backoff.jitter is Jitter.DECORRELATED:
        low = min(backoff.base, backoff.cap)
        high = max(low, 3 * (last or low))
        return min(backoff.cap, low + luck * (high - low))
    return top


def longest(max_retries: int | None, backoff: Backoff) -> float:
    """The longest wait that a call with so many retries can meet, in seconds; 0 if it has none."""
    if max_retries is None:
        return backoff.cap
    if max_retries <= 0:
        return 0.0
    if backoff.jitter is Jitter.DECORRELATED:
        return min(backoff.cap, backoff.base * 3.0 ** min(max_retries, _LONGEST_EXPONENT))
    return ceiling(max_retries, backoff)


def may_retry(retries: int, max_retries: int | None) -> bool:
    """Whether a call that was retried `retries` times may be retried once more (B4)."""
    return max_retries is None or retries < max_retries
