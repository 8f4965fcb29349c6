"""How long a leader may believe that it still leads.

The lease is for liveness only: it decides who tries. What makes a second message impossible is the
emit script, which asks for the whole token again at the moment of writing.

L1  A term is trusted from when its grant was *asked for*, not when the answer came: a slow answer
    must not lengthen it.
L2  Trust ends a margin before the lease can expire, so that the old leader stops before a new one
    can start, also when clocks run at slightly different rates.
L3  No answer is neither yes nor no: an unanswered renewal leaves the term as it was.
L4  A grant is renewed and released by its whole token, never by the name of its node.
L5  Standbys look after the leader together: the more they are, the less often each of them bids, and that
    none looks for 150 ms is less likely than one in a million.

The trust window is River's (internal/leadership); the epoch is Kleppmann's fencing token.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_singlebeat.moments import Monotonic, later

#: Seconds between two bids of a standby: while they are few, and at most. And how many are few.
POLL, LONGEST_POLL, FEW = 0.1, 0.5, 10


@dataclass(frozen=True, slots=True)
class Grant:
    """What the store answered: this nonce leads, under this epoch."""

    epoch: int
    nonce: str

    @property
    def token(self) -> str:
        """What the lease holds while this grant is its own."""
        return f"{self.epoch}:{self.nonce}"


@dataclass(frozen=True, slots=True)
class Term:
    """One unbroken stretch of leadership, as far as its holder may trust it."""

    grant: Grant
    trusted_until: Monotonic

    @property
    def epoch(self) -> int:
        """The epoch of the grant."""
        return self.grant.epoch

    def is_trusted(self, moment: Monotonic) -> bool:
        """Whether the holder may act under this term at `moment`."""
        return moment < self.trusted_until

    def remaining(self, moment: Monotonic) -> float:
        """Seconds of trust left; 0 when there is none."""
        return max(0.0, self.trusted_until - moment)


def margin(ttl: float) -> float:
    """Seconds of a lease that its holder does not rely on: a twentieth, at least 50 ms."""
    return min(ttl / 2, max(0.05, ttl / 20))


def begin_term(grant: Grant, *, asked_at: Monotonic, ttl: float) -> Term:
    """The term that a grant of `ttl` seconds, asked for at `asked_at`, allows (L1, L2)."""
    return Term(grant, later(asked_at, ttl - margin(ttl)))


def bid_pauses(listeners: int) -> tuple[float, float]:
    """The shortest and the longest pause before a standby's next bid, where so many nodes listen (L5).

    The wider the range, the sooner their bids are spread evenly again after an event that woke all of them.
    """
    standbys = listeners - 1
    mean = min(LONGEST_POLL, max(POLL, POLL * standbys / FEW))
    shortest = 0.8 * POLL
    return shortest, 2 * mean - shortest
