"""What happened, as values.

Code that acts tells an event and nothing else; logs, signals and metrics are listeners of the same
stream. Names of fields are the names in JSON logs and of signal arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipAcquired:
    """This node leads. `reason`: free, crash, overdue, silent, or again
    when the grant came with the second answer.
    """

    node: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipLost:
    """This node led. `reason`: resigned, deposed, expired, wedged, publishing, closed."""

    node: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDispatched:
    """The message of a slot is in its queue. `lateness` in seconds."""

    entry: str
    slot: datetime
    epoch: int
    lateness: float
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSkipped:
    """A slot got the verdict not to run. `reason`: superseded, skip, grace, deadline,
    limit, paused, overlap, error.
    """

    entry: str
    slot: datetime
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsSkipped:
    """So many slots of an entry before `slot` got the verdict not to run, beside those that are
    told one by one. `reason` is that of the newest of them.
    """

    entry: str
    slot: datetime
    count: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRefused:
    """The store did not take a slot. `reason`: deposed, early, error."""

    entry: str
    slot: datetime
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryParked:
    """One entry cannot work and is left out; every other entry runs."""

    entry: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost:
    """The store does not answer. Told once, then once in a while."""

    node: str
    problem: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFound:
    """The store answers again, after so many seconds."""

    node: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClocksDisagree:
    """This machine's clock is so many seconds ahead of the store's; negative: behind.

    Slots wait for the later of the two, so they are late by as much. Told once a minute.
    """

    node: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed:
    """The broker did not take outbox records; they stay, and are tried again."""

    waiting: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAcquired:
    """A call holds its lock."""

    task: str
    task_id: str
    key: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockConflicted:
    """Another call holds the key. `policy` is the task's `on_conflict`, or "duplicate"."""

    task: str
    task_id: str
    key: str
    holder: dict[str, object]
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWasLost:
    """A lock cannot be relied on any more, and its call still runs."""

    task: str
    task_id: str
    key: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBroken:
    """An operator took a lock away from this call, which may still run."""

    task: str
    task_id: str
    key: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReplaced:
    """A call ends as revoked, because another one runs in its place."""

    task: str
    task_id: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled:
    """Attempt `attempt` failed; the next starts `wait` seconds later."""

    task: str
    task_id: str
    attempt: int
    wait: float
    exception: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBuried:
    """A call failed for good; its dead letter is in `queue`. `reason` as in the letter."""

    task: str
    task_id: str
    reason: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReplayed:
    """A dead letter is in its original queue again, for the `replays`th time."""

    task: str
    task_id: str
    queue: str
    replays: int


Event: TypeAlias = (
    LeadershipAcquired
    | LeadershipLost
    | SlotDispatched
    | SlotSkipped
    | SlotsSkipped
    | SlotRefused
    | EntryParked
    | StoreLost
    | StoreFound
    | ClocksDisagree
    | PublishFailed
    | LockAcquired
    | LockConflicted
    | LockWasLost
    | CallReplaced
    | LockBroken
    | RetryScheduled
    | TaskBuried
    | TaskReplayed
)

Listener: TypeAlias = Callable[[Event], None]
