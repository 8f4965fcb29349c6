"""How long a failed call waits, and whether it is tried again at all.

B1  The wait before attempt n + 1 is at most base * 2 ** (n - 1), and never above the cap: 1, 2, 4, 8 ...
B2  Policy draws no luck: `luck` in [0, 1) comes from the caller, so that every wait can be tested.
B3  Full jitter lies in [floor, ceiling), equal jitter in [ceiling / 2, ceiling), decorrelated jitter in
    [base, 3 * last wait) below the cap; without jitter the wait is the ceiling. The floor is 0 unless the
    task has one, and no wait is below it.
B4  A call has its first attempt and `max_retries` more; None: without end.
B5  A call with a budget of seconds has no attempt that starts later than that after its first failure.
B6  A wait that the exception asks for (`retry_after`, or Retry-After of a response) comes before the jittered
    one, so that those who were told the same moment do not all come at it. The cap bounds the sum.

The jitters are those of Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any

_LONGEST_EXPONENT = 60


class Jitter(str, Enum):
    """How chance enters the wait."""

    FULL = "full"
    EQUAL = "equal"
    DECORRELATED = "decorrelated"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds before the second attempt, the longest and the shortest wait in seconds, and the jitter."""

    base: float = 1.0
    cap: float = 600.0
    floor: float = 0.0
    jitter: Jitter = Jitter.FULL


def ceiling(attempt: int, backoff: Backoff) -> float:
    """The longest wait after attempt `attempt` (1 is the first) in seconds (B1)."""
    doublings = min(max(attempt, 1) - 1, _LONGEST_EXPONENT)
    return float(min(backoff.cap, backoff.base * 2**doublings))


def wait(
    attempt: int, *, backoff: Backoff, luck: float, last: float | None = None, asked: float | None = None
) -> float:
    """Seconds between attempt `attempt`, which failed, and the next (B3).

    `last` is the wait before it, `asked` what its exception asks for (B6).
    """
    seconds = max(backoff.floor, _jittered(attempt, backoff, luck, last))
    return min(backoff.cap, seconds + (asked or 0.0))


def _jittered(attempt: int, backoff: Backoff, luck: float, last: float | None) -> float:
    top = ceiling(attempt, backoff)
    if backoff.jitter is Jitter.FULL:
        low = min(backoff.floor, top)
        return low + luck * (top - low)
    if backoff.jitter is Jitter.EQUAL:
        return top / 2 + luck * top / 2
    if backoff.jitter is Jitter.DECORRELATED:
        low = min(backoff.base, backoff.cap)
        high = max(low, 3 * (last or low))
        return min(backoff.cap, low + luck * (high - low))
    return top


def longest(max_retries: int | None, backoff: Backoff) -> float:
    """The longest wait that a call with so many retries can meet without being asked for more, in seconds."""
    if max_retries is None:
        return backoff.cap
    if max_retries < 1:
        return 0.0
    if backoff.jitter is not Jitter.DECORRELATED:
        return max(backoff.floor, ceiling(max_retries, backoff))
    return float(
        min(backoff.cap, max(backoff.floor, backoff.base) * 3 ** min(max_retries, _LONGEST_EXPONENT))
    )


def may_retry(
    retries: int,
    max_retries: int | None,
    *,
    spent: float = 0.0,
    wait: float = 0.0,
    budget: float | None = None,
) -> bool:
    """Whether a call that was retried `retries` times may be retried once more, `wait` seconds from now (B4).

    `spent` seconds after its first failure, of `budget` seconds (B5).
    """
    if budget is not None and spent + wait > budget:
        return False
    return max_retries is None or retries < max_retries


def asked_by(error: object, now: datetime) -> float | None:
    """Seconds that an exception asks to wait for (B6); None if it does not, or says it in no known way.

    Its `retry_after`, in seconds; or `Retry-After` among the headers of its `response`, or among its own, in
    seconds or as a date (RFC 9110, 10.2.3).
    """
    try:
        said = getattr(error, "retry_after", None)
        if said is None:
            said = _header(getattr(error, "response", None))
        if said is None:
            said = _header(error)
        return _seconds(said, now)
    except Exception:  # whatever other people's exceptions do when they are looked at
        return None


def _header(owner: Any) -> Any:
    headers = getattr(owner, "headers", None)
    if headers is None:
        return None
    found = headers.get("Retry-After")
    return headers.get("retry-after") if found is None else found


def _seconds(said: Any, now: datetime) -> float | None:
    if said is None or isinstance(said, bool):
        return None
    if isinstance(said, timedelta):
        said = said.total_seconds()
    try:
        seconds = float(said)
    except (TypeError, ValueError):
        moment = said if isinstance(said, datetime) else parsedate_to_datetime(str(said))
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
        seconds = (aware - now).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
