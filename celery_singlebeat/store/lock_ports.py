"""What tasks may ask of a store of locks.

N1  At most one token holds a key. Whoever holds it is told apart by the token alone: not by host, task
    or thread.
N2  Every acquisition of any key has a fence that is larger than all before, also after data was lost.
N3  Renewing and releasing take the exact token; with any other token nothing changes.
N4  A lock without a living holder frees itself after its ttl. Only the fence counter never expires.
N5  A call knows its outcome: a finished, buried, replaced or overtaken one is not granted a lock again.
N6  Deliveries that ended without an outcome are counted, once each; an outcome clears the count.
N7  A lock that is kept through a backoff is granted to the next attempt of the same call alone.
N8  Between the failure of a call and its burial no copy of it runs.
N9  Of the calls of one task that queue up for a held key one comes next, and the key is kept for it when the
    holder ends. It is the first that asked. If the holder's process dies, its own call goes before it.
N10 To replace a holder is to ask it to end. It holds the key until it has; then the key is kept for the
    last that asked. Whoever was replaced never runs again and is not buried.

As everywhere in the store, no answer raises `StoreUnavailable`, and asking again is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum
from typing import Protocol, TypeAlias

from celery_singlebeat.moments import from_millis

#: Seconds that the record of a call without success is kept after its last delivery: longer than any
#: sensible visibility timeout of a broker.
CALL_MEMORY = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One delivery of a call: `attempt` retries and `replays` came before it."""

    task: str
    task_id: str
    host: str
    pid: int
    attempt: int = 0
    replays: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock, or waits with it for the next attempt."""

    task: str
    task_id: str
    host: str
    pid: int
    since: datetime


def unknown_holder(task_id: str = "") -> Holder:
    """Stands for a holder of whom nothing is described: its host is empty."""
    return Holder(task="", task_id=task_id, host="", pid=0, since=from_millis(0))


@dataclass(frozen=True, slots=True)
class Granted:
    """The key is the caller's. `deliveries` counts this one and those before it without an outcome."""

    fence: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The key is not the caller's for `remaining` seconds at least, unless its holder dies or releases.

    `same_call`: another copy of this very call holds it, and it lives as far as the store knows.
    `follows`: the caller wanted its turn and shall ask again.
    """

    holder: Holder
    remaining: float
    same_call: bool
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """This call succeeded before. `continued`: what follows it was sent on as well."""

    continued: bool


@dataclass(frozen=True, slots=True)
class Stale:
    """This copy of the call was overtaken by a later attempt, a dead letter or a replay."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another call took this one's place."""


@dataclass(frozen=True, slots=True)
class Poison:
    """So many deliveries of this call ended without an outcome that it must not run again."""

    deliveries: int


Answer: TypeAlias = Granted | Taken | Finished | Stale | Replaced | Poison


class Turn(str, Enum):
    """What a caller wants whose key is held."""

    NONE = "none"
    QUEUE = "queue"  #: To run once after the holder, for all of its task that ask meanwhile.
    REPLACE = "replace"  #: To run in the holder's place.


class Outcome(str, Enum):
    """How one delivery ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    RETRY = "retry"
    OTHER = "other"  #: Ignored or rejected by the body.
    UNDONE = "undone"  #: The lock was not wanted after all: the body never ran.
    NONE = "none"  #: The process is about to end; the delivery counts as lost.


@dataclass(frozen=True, slots=True)
class Lease:
    """What a renewal names: the key, the exact token, the call that holds it, and its fence."""

    key: str
    token: str
    task_id: str
    fence: int = 0


class Renewal(IntEnum):
    """What became of one lock at a renewal."""

    GONE = 0  #: It is not that token's any more.
    EXTENDED = 1
    REPLACED = 2  #: Extended, and its holder has to end.


@dataclass(frozen=True, slots=True)
class Released:
    """`held`: it was the caller's until now. `same_call`: another copy of the call holds it now.

    `replaced`: another call had asked to run in its place.
    """

    held: bool
    same_call: bool = False
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Orphan:
    """`freed`: the dead process's lock is free now. `deliveries` without an outcome, this one included.

    `key` and `token` are those of the lock that was freed.
    """

    freed: bool
    deliveries: int
    key: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """One lock as operators see it; `ttl` in seconds.

    `backend` decides who holds it. `waiting`: it is kept for the next attempt of a call, and nobody runs.
    """

    key: str
    holder: Holder
    ttl: float
    fence: int
    backend: str = "redis"
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What was decided about a key elsewhere, by `backend`; None: the store decides itself.

    The store then keeps the record alone: a grant replaces whatever holder is described there, and has a
    fence of at least `fence`.
    """

    backend: str
    granted: bool | None = None
    fence: int = 0


class LockStore(Protocol):
    """Locks for executions, and what is known of each call."""

    def acquire(
        self,
        key: str,
        token: str,
        *,
        ttl: float,
        caller: Caller,
        poison_limit: int,
        turn: Turn = Turn.NONE,
        hold: float = 0.0,
    ) -> Answer:
        """Take the key for one delivery. Asking again with the same token returns the same grant.

        If the key is held, `turn` says what the caller wants; when its turn has come, the key is kept for it
        for `hold` seconds.
        """
        ...

    def renew(self, leases: Sequence[Lease], *, ttl: float) -> Sequence[Renewal | None]:
        """Extend locks; None for each of which there is no answer."""
        ...

    def release(
        self,
        key: str,
        token: str,
        *,
        caller: Caller,
        outcome: Outcome,
        hold: float = 0.0,
        dedupe_ttl: float = 0.0,
        settle: float = 0.0,
    ) -> Released:
        """End a delivery.

        After a retry, `hold` seconds keep the key for the next attempt of this call. A success is remembered
        for `dedupe_ttl` seconds. After a failure no copy of the call runs for `settle` seconds: so long its
        burial may take.
        """
        ...

    def release_orphan(self, task_id: str, *, host: str, pid: int) -> Orphan:
        """Free what a dead process held for this call, and nothing else."""
        ...

    def continued(self, task_id: str) -> None:
        """Note that what follows a finished call was sent on."""
        ...

    def may_bury(self, task_id: str, *, attempt: int, replays: int) -> bool:
        """Whether the call has no dead letter yet, was not replaced, and has no later attempt or replay."""
        ...

    def buried(self, task_id: str, *, replays: int) -> None:
        """Note that the call is a dead letter: it is not granted a lock again before it is replayed."""
        ...

    def count(self, name: str, number: int = 1) -> None:
        """Add to a total."""
        ...

    def locks(self) -> list[LockRecord]:
        """Every lock that is held now, by key."""
        ...

    def break_lock(self, key: str) -> LockRecord | None:
        """Take a lock away from whoever holds it; None if nobody did."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class RecordStore(LockStore, Protocol):
    """A store of locks that keeps the record also of those which a backend decides."""

    def acquire(
        self,
        key: str,
        token: str,
        *,
        ttl: float,
        caller: Caller,
        poison_limit: int,
        turn: Turn = Turn.NONE,
        hold: float = 0.0,
        ruling: Ruling | None = None,
    ) -> Answer:
        """Take the key for one delivery, or note who has it.

        Refused elsewhere, `Taken` names the holder that is described here; without one its `host` is empty.
        """
        ...
