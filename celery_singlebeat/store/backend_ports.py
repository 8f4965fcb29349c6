"""What decides who holds a key, where that is not the one Redis that keeps the record.

Q1  A backend decides about keys and tokens and knows no calls. What is known of a call, the wait for its
    next attempt, and the count of fences stay in the record of the one store, whatever the backend is.
Q2  At most one token holds a key, while a majority of what the backend is made of keeps its data.
Q3  A lock that nobody renews frees itself after its ttl, counted from after the request was sent.
Q4  No answer of a majority is no answer: it raises `StoreUnavailable`, and leaves nothing behind that
    outlives the ttl.
Q5  A fence that a backend was told is below every fence that it asks for later.
Q6  What is taken from two backends is lost with either.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from celery_singlebeat.errors import SettingsError
from celery_singlebeat.store.lock_ports import Lease, LockRecord


@dataclass(frozen=True, slots=True)
class Won:
    """The key is the token's, under a fence of at least `fence`."""

    fence: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """The key is not the token's. Not `sure`: perhaps nobody holds it, as after a split vote."""

    sure: bool = True


Verdict: TypeAlias = Won | Lost


class LockBackend(Protocol):
    """Locks by key and token, and nothing else."""

    @property
    def notes_fences(self) -> bool:
        """Whether a grant has to tell its fence, by a renewal, before it counts (Q5)."""
        ...

    def acquire(self, key: str, token: str, *, ttl: float) -> Verdict:
        """Take the key. Asking again with the same token is safe; raises `StoreUnavailable`."""
        ...

    def renew(self, leases: Sequence[Lease], *, ttl: float) -> list[bool | None]:
        """Extend locks; False for each that is not that token's any more, None for one without an answer."""
        ...

    def release(self, key: str, token: str) -> bool | None:
        """Free the key if it is the token's: whether it was, None without an answer.

        What cannot be reached frees itself after its ttl (Q3).
        """
        ...

    def break_lock(self, key: str) -> bool:
        """Take the key away from whoever holds it; whether anybody did. Raises `StoreUnavailable`."""
        ...

    def held(self, records: Sequence[LockRecord]) -> list[LockRecord]:
        """Of these records those whose key is held, and a poor one for each held key without a record."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def demand_driver(what: str) -> None:
    """Raise `SettingsError` unless psycopg can be used; `what` asked for it."""
    try:
        importlib.import_module("psycopg.pq")
    except ImportError:
        raise SettingsError(f"{what} needs psycopg 3: pip install 'celery-singlebeat[postgresql]'") from None
