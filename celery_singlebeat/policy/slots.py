"""Which of the slots that are due get a message, and which do not.

S1  Every due slot gets exactly one verdict, oldest first.
S2  A slot that is late by no more than a failover takes is no misfire: it is dispatched, whatever
    the policy.
S3  A slot later than its entry's `misfire_grace` is never dispatched; nor is one of a crontab that is later
    than Celery's `beat_cron_starting_deadline`.
S4  The same entry and slot have the same task id on every node.

The misfire words are the field's: `latest` is Quartz's fire-once-now and APScheduler's coalesce.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TypeAlias

from celery_singlebeat.moments import iso

#: How many missed slots of one entry are caught up in any case at most.
MOST_CAUGHT_UP = 10_000
_NAMESPACE = uuid.UUID("6f0a3f0e-5d8e-5c36-9f0b-7c1c5a3f6f5e")


class Misfire(str, Enum):
    """What to do with slots that fell while nobody dispatched."""

    LATEST = "latest"  #: Dispatch the last one only.
    ALL = "all"  #: Dispatch each of them, oldest first.
    SKIP = "skip"  #: Wait for the next slot.


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedRules:
    """How one entry treats slots that are late.

    `failover` is how many seconds late a slot may be and still count as on time; `grace` seconds
    later than that it never runs (None: no bound), nor `deadline` seconds later, which is Celery's bound
    for crontabs; `limit` slots at most are caught up by ALL.
    """

    misfire: Misfire = Misfire.LATEST
    grace: float | None = None
    deadline: float | None = None
    limit: int = 100
    failover: float = 20.0

    @property
    def most_caught_up(self) -> int:
        """How many missed slots are dispatched at most, beside the newest one of `LATEST`."""
        return min(self.limit, MOST_CAUGHT_UP) if self.misfire is Misfire.ALL else 0


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The slot gets its message."""

    slot: datetime


@dataclass(frozen=True, slots=True)
class Skip:
    """The slot gets none, and why: superseded, skip, grace, deadline, limit, paused, overlap, or error
    when none can be made.
    """

    slot: datetime
    reason: str


Verdict: TypeAlias = Dispatch | Skip


def _punctual(_: datetime) -> timedelta:
    return timedelta(0)


def judge(
    due: Sequence[datetime],
    *,
    now: datetime,
    rules: MissedRules,
    delay: Callable[[datetime], timedelta] = _punctual,
) -> list[Verdict]:
    """One verdict for each due slot, in their order (S1). `due` is ascending; `delay` is a slot's jitter,
    which is no lateness.
    """
    verdicts: list[Verdict] = []
    latenesses = {slot: (now - slot - delay(slot)).total_seconds() for slot in due}
    late = [slot for slot in due if latenesses[slot] > rules.failover]
    caught_up = set(late[-rules.most_caught_up :]) if rules.most_caught_up else set()
    for slot in due:
        lateness = latenesses[slot]
        if rules.grace is not None and lateness > rules.grace:
            verdicts.append(Skip(slot, "grace"))
        elif rules.deadline is not None and lateness > rules.deadline:
            verdicts.append(Skip(slot, "deadline"))
        elif lateness <= rules.failover:
            verdicts.append(Dispatch(slot))
        elif rules.misfire is Misfire.SKIP:
            verdicts.append(Skip(slot, "skip"))
        elif rules.misfire is Misfire.LATEST:
            verdicts.append(Dispatch(slot) if slot == due[-1] else Skip(slot, "superseded"))
        else:
            verdicts.append(Dispatch(slot) if slot in caught_up else Skip(slot, "limit"))
    return verdicts


def task_id(prefix: str, entry: str, slot: datetime, trigger: str = "schedule") -> str:
    """The deterministic task id of a slot (S4), a UUID of version 5."""
    return str(uuid.uuid5(_NAMESPACE, f"{prefix}\n{entry}\n{iso(slot)}\n{trigger}"))
