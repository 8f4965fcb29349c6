"""How long after its slot a message goes out, so that not all go out at once.

J1  The delay of an entry's slot is the same on every node, and each time that it is asked for.
J2  It is shorter than the entry's jitter, and ends before the next slot: the order of slots never changes.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from celery_singlebeat.moments import MILLISECOND, iso

_STEPS = 2**64


def delay(entry: str, slot: datetime, *, jitter: float, following: datetime | None) -> timedelta:
    """The delay of a slot, in whole milliseconds. `jitter` in seconds; `following`: the next slot, if any."""
    longest = round(jitter * 1000)
    if following is not None:
        longest = min(longest, (following - slot) // MILLISECOND)
    digest = hashlib.sha256(f"{entry}\n{iso(slot)}".encode()).digest()
    return timedelta(milliseconds=longest * int.from_bytes(digest[:8], "big") // _STEPS)
