"""What the rest of the code may ask of a store.

Every method raises `StoreUnavailable` when the answer is unknown, which is not the same as "no":
the write may have happened. Asking again is always safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from celery_singlebeat.moments import millis
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.policy.tombstones import Absences
from celery_singlebeat.store.schedule_ports import ScheduleStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Who bids. `schedule` is the hash of its static schedule; `listens` says whether its presence
    channel is subscribed.
    """

    node: str
    host: str
    pid: int
    schedule: str = ""
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Won:
    """The lease is the bidder's. `reason`: free, crash, overdue, silent, again."""

    grant: Grant
    reason: str
    time: datetime


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody holds the lease. `absent`: nobody listens on its presence channel; `listeners`: how many
    nodes listen for events, or 0 if the store does not tell; `marks` answers for the entries that the
    bidder called overdue; `sign` changes with every renewal.
    """

    token: str
    absent: bool
    listeners: int
    time: datetime
    marks: Mapping[str, datetime | None]
    sign: str = ""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A slot that the bidder believes undispatched. `since` is that of a dynamic entry's record."""

    slot: datetime
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    """Whether the lease is still the asker's, the store's time, and when the newest emission was."""

    held: bool
    time: datetime
    emitted: datetime | None = None


class LeaseStore(Protocol):
    """One lease, at most one holder, an epoch that only ever grows."""

    def bid(
        self,
        nonce: str,
        *,
        ttl: float,
        candidate: Candidate,
        suspect: str = "",
        grace: float = 0.3,
        overdue: Mapping[str, Overdue] | None = None,
        silent: str = "",
    ) -> Won | Held:
        """Take the lease if it is free, if `suspect` holds it and is absent again, if one of the
        `overdue` slots is undispatched `grace` seconds after it was due, or if its sign is still
        `silent`.
        """
        ...

    def renew(self, grant: Grant, *, ttl: float, listens: bool = False, schedule: str = "") -> Renewal:
        """Extend exactly this grant, and say which static schedule its holder has by now."""
        ...

    def release(self, grant: Grant) -> bool:
        """Free exactly this grant and wake the standbys; False if it was not the lease's."""
        ...


@dataclass(frozen=True, slots=True)
class Push:
    """Append `payload` to the list `queue`; `expires` milliseconds re-arm the expiry of `also`."""

    queue: str
    payload: str
    expires: int | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Publish:
    """Send `payload` to the subscribers of `channel` (fanout exchanges)."""

    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep `payload` in the outbox until the broker has confirmed it."""

    payload: str


Write = Push | Publish | Keep


@dataclass(frozen=True, slots=True)
class Claim:
    """One slot to claim, with what to write when it is granted; no writes: the slot is skipped.

    `missed` counts the slots before it that got the verdict not to run. `base` is the mark that the claim
    builds on, if there was one.

    `overlap` is "", "skip" or "queue": what to do while the entry's newest run goes on; `task_id` is the run
    that this claim would begin.
    """

    entry: str
    slot: datetime
    writes: tuple[Write, ...] = ()
    missed: int = 0
    base: datetime | None = None
    overlap: str = ""
    task_id: str = ""


def record_id(claim: Claim) -> str:
    """The id of a claim's outbox record, as the emit script makes it."""
    return f"{millis(claim.slot)} {claim.entry}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a claim: "sent", "already", "early", "error" with its text; "overlap": the slot is
    skipped, since the run before goes on.

    Nothing was done for these: "forgotten": the store has lost the mark that it builds on, or has one that
    cannot be; "changed": somebody changed the entry since the caller looked; "busy": the slot waits for the
    run before.
    """

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Since when an entry has its rule, and the rule's hash. Its count of runs begins at `runs`, and its
    marks at `mark`: a node remembers what a store has lost.
    """

    anchor: datetime
    rule: str
    runs: int = field(default=0, compare=False)
    mark: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that the store remembers of the schedule. `marks` are the newest slots with a verdict; `gone` says
    since when no leader has an entry in its schedule.
    """

    marks: Mapping[str, datetime] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    entries: Mapping[str, Enrolment] = field(default_factory=dict)
    gone: Mapping[str, datetime] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


#: After so many seconds a run that must not be overlapped, and of whose end nobody told, counts as gone.
RUN_FORGOTTEN = 86_400.0


class SlotStore(Protocol):
    """A high-water mark for each entry, which only the leader moves."""

    def remember(self, entries: Sequence[str] | None = None) -> Memory:
        """Read everything, or what is known of these entries; fields that cannot be read are named in
        `unreadable`, entry by entry.
        """
        ...

    def enroll(self, grant: Grant, entries: Mapping[str, Enrolment]) -> None:
        """Write the anchors of new or changed entries, and where the counts of those without one begin;
        raises `Deposed`.
        """
        ...

    def tidy(self, grant: Grant, absences: Absences, *, keep: float) -> None:
        """Note which entries have gone and come back, and forget those of the others that went more than
        `keep` seconds ago, by the store's own clock, and are no dynamic ones by now. Raises `Deposed`.
        """
        ...

    def emit(
        self, grant: Grant, claims: Sequence[Claim], *, cursor: str = ""
    ) -> tuple[datetime, list[Outcome]]:
        """Claim each slot and write its messages, in one step; one outcome for each claim, in order,
        and the store's time. `cursor`: which changes of the schedule the caller has. Raises `Deposed` when
        nothing was done.
        """
        ...

    def mend(self, grant: Grant) -> Mapping[str, str]:
        """Put aside what stands where state belongs and is of a type that no state has: its place, and where
        it is kept; "" if that place is empty, and should not be.

        What is lost with it begins anew, from now. Raises `Deposed` when nothing was done.
        """
        ...

    def outbox(self) -> list[tuple[str, str]]:
        """Unconfirmed messages as (id, payload), oldest slot first."""
        ...

    def confirm(self, records: Iterable[tuple[str, str]]) -> int:
        """Forget records that the broker has confirmed; how many went."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a beat process says of itself. `tick_age` is how many seconds ago its loop last turned,
    beyond what it had announced to sleep; `stuck` for how many seconds the broker has taken nothing of
    what waits for it; `overdue` are entries whose next slot waits too long; `seen`
    is the store's time of the report.

    `birth` tells this process from any other that has its pid, and `up` is how many seconds ago it
    began: a process that was killed says no goodbye, and its pid may be somebody else's by now. `schedule`
    is the hash of its static schedule.
    """

    node: str
    host: str
    pid: int
    role: str
    tick_age: float
    entries: int = 0
    faulty: Mapping[str, str] = field(default_factory=dict)
    overdue: tuple[str, ...] = ()
    stuck: float = 0.0
    birth: str = ""
    up: float = 0.0
    schedule: str = ""
    seen: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who holds the lease. `lease_remaining` in seconds."""

    node: str
    host: str
    pid: int
    epoch: int
    since: datetime
    lease_remaining: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One look at the store, for `status`, `health` and `resign`."""

    time: datetime
    leader: Leader | None
    nodes: Sequence[NodeReport]
    counters: Mapping[str, int]
    paused: Sequence[str]
    outbox: int


class NodeStore(Protocol):
    """What operators see: reports of nodes, and totals."""

    def report(self, report: NodeReport, *, keep: float | None) -> datetime:
        """Store a report, and return the store's time. Silent nodes' reports older than `keep` seconds go;
        None leaves them alone, which costs much less.
        """
        ...

    def leave(self, node: str) -> None:
        """Forget the node's report: it stops on purpose."""
        ...

    def overview(self) -> Overview:
        """Leader, nodes and totals, read at one moment."""
        ...

    def ask_to_resign(self, epoch: int) -> int:
        """Ask the leader of `epoch` to hand over; how many nodes heard it."""
        ...


class Ears(Protocol):
    """A node's subscriptions: what wakes a standby, and what shows that a leader is connected."""

    def listen(self, nonce: str) -> bool:
        """Subscribe to events and to the presence channel of `nonce`; True once both are confirmed."""
        ...

    def hear(self, timeout: float) -> str | None:
        """The next event, or None after `timeout` seconds. Texts: "released TOKEN", "acquired TOKEN",
        "resign EPOCH".
        """
        ...

    def close(self) -> None:
        """End the subscriptions."""
        ...


class BeatStore(LeaseStore, SlotStore, NodeStore, Protocol):
    """All that a beat process needs of one store."""

    @property
    def schedule(self) -> ScheduleStore:
        """Dynamic entries and pauses."""
        ...

    def ears(self) -> Ears:
        """A new set of subscriptions, on a connection of its own."""
        ...

    def farewell(self) -> BeatStore:
        """The same store over connections of its own with short timeouts, for use in a signal handler
        that may have interrupted any other use.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
