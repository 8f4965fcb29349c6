"""Leadership as a small machine: one step in, one step out, no thread of its own.

            bid -> won                   renew -> no | trust ran out | told to stop
STANDBY --------------------> LEADER ------------------------------------------> STANDBY
           <-- bid -> held              renew -> no answer: trust on, until the end

`step` is called by one thread, the heartbeat. `term`, `due_now` and `stand_down` are called by the
tick loop; they read and write single attributes only, so that nothing waits for anything.
"""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import NotLeader, StoreUnavailable
from celery_singlebeat.events import (
    ClocksDisagree,
    LeadershipAcquired,
    LeadershipLost,
    Listener,
    StoreFound,
    StoreLost,
)
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.policy.clocks import Offset, combine, disagreement, due_clock, sample
from celery_singlebeat.policy.leases import POLL, Grant, Term, begin_term, bid_pauses
from celery_singlebeat.store.ports import Candidate, LeaseStore, Overdue, Won

#: Seconds until a standby looks again when the leader seems gone.
CONFIRM = 0.05
#: Seconds between two lines about the same trouble: a silent store, or clocks that disagree.
REMIND = 60.0
#: Seconds by which this machine's clock and the store's may differ without a word.
TOLERANCE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations of one elector, in seconds."""

    ttl: float
    renew_every: float
    grace: float

    @property
    def sit_out(self) -> float:
        """How long a node that gave up leadership lets the others have it."""
        return min(2.0, self.ttl)


class Elector:
    """Bids for the lease, renews it, and says whether this node may dispatch."""

    def __init__(
        self,
        store: LeaseStore,
        candidate: Candidate,
        timing: Timing,
        *,
        clock: Clock,
        tell: Listener,
        place: str = "",
    ) -> None:
        self._store = store
        self._candidate = candidate
        self._timing = timing
        self._clock = clock
        self._tell = tell
        self._place = place
        self._term: Term | None = None
        self._over: Grant | None = None  # the newest grant of ours that has ended; epochs may repeat
        self._why_over = ""
        self._closed = False
        self._suspect = ""
        self._sign, self._sign_since = "", Monotonic(0.0)
        self._sits_out_until = Monotonic(float("-inf"))
        self._offset: Offset | None = None
        self._silent_since: Monotonic | None = None
        self._reminded_at = Monotonic(float("-inf"))
        self._clocks_told_at = Monotonic(float("-inf"))
        #: Unguessable name of the present candidature, and of its presence channel.
        self.nonce = secrets.token_hex(16)
        #: The store's time of the newest emission of this node's term that was answered.
        self.emitted: datetime | None = None
        #: How often the store gave no answer: whatever was read from it before may not hold after.
        self.silences = 0
        #: Slots that the tick loop of a standby believes undispatched.
        self.overdue: Mapping[str, Overdue] = {}
        #: Marks that bids brought for overdue entries, for the tick loop to take.
        self.marks_seen: deque[Mapping[str, datetime | None]] = deque(maxlen=100)

    # -- for the tick loop ----------------------------------------------------------------------

    def term(self) -> Term:
        """The term that this node may act under right now; raises `NotLeader`."""
        term = self._term
        if term is None or term.grant == self._over or not term.is_trusted(self._clock.monotonic()):
            raise NotLeader(self._candidate.node)
        return term

    def due_now(self) -> datetime:
        """The time by which slots are due: neither clock is before it."""
        return due_clock(self._clock.now(), self._offset, self._clock.monotonic())

    def clock_disagreement(self) -> float:
        """Seconds by which this machine's clock is ahead of the store's."""
        return disagreement(self._clock.now(), self._offset, self._clock.monotonic())

    def stand_down(self, grant: Grant, reason: str) -> None:
        """End the term of this grant: it was refused, or cannot do its work."""
        if grant != self._over:
            self._why_over = reason
            self._over = grant

    def describe(self, schedule: str) -> None:
        """Say which schedule this node has, so that only nodes with the same one judge each other."""
        self._candidate = replace(self._candidate, schedule=schedule)

    @property
    def has_heard_the_store(self) -> bool:
        """Whether the store answered the last question that was asked."""
        return self._offset is not None and self._silent_since is None

    # -- for the heartbeat ----------------------------------------------------------------------

    def step(self, *, turning: bool, listens: bool) -> float:
        """Bid or renew; the seconds until the next step.

        `turning`: the tick loop makes progress. `listens`: the presence channel of `nonce` is
        subscribed.
        """
        if self._closed:
            return self._timing.renew_every
        term = self._term
        if term is None:
            return self._bid(listens) if turning and self._may_bid() else POLL
        if term.grant == self._over:
            sits_out = self._why_over not in ("deposed", "expired")
            self._give_up(term, self._why_over, sits_out=sits_out)
            return 0.0
        if not turning:
            # a process that was frozen finds both at once; it is well, and its term is just over
            wedged = term.is_trusted(self._clock.monotonic())
            self._give_up(term, "wedged" if wedged else "expired", sits_out=wedged)
            return POLL
        return self._renew(term, listens)

    def hear(self, event: str) -> bool:
        """Take note of an event of the events channel; whether the next step is due at once.

        That is so for the free lease, and for a leader that hears of another. A standby has nothing to do
        about a new leader: if all of them bid then, they would only be in its way.
        """
        kind, _, about = event.partition(" ")
        term = self._term
        if kind == "resign" and term is not None and about == str(term.epoch):
            self._give_up(term, "resigned", sits_out=True)
        return kind == "released" or term is not None

    def close(self, store: LeaseStore | None = None) -> None:
        """Give the lease back for good. Idempotent; through `store` if given, so that a signal handler
        needs no connection that it may have interrupted.
        """
        self._closed = True
        term = self._term
        if term is not None:
            self._term = None
            self._over = term.grant
            try:
                (store or self._store).release(term.grant)
            except StoreUnavailable:
                pass  # it expires, and the presence is gone as soon as this process is
            self._tell(self._loss(term, "closed"))

    # -- inside ---------------------------------------------------------------------------------

    def _may_bid(self) -> bool:
        return self._clock.monotonic() >= self._sits_out_until

    def _bid(self, listens: bool) -> float:
        asked_at = self._clock.monotonic()
        try:
            answer = self._store.bid(
                self.nonce,
                ttl=self._timing.ttl,
                candidate=replace(self._candidate, listens=listens),
                suspect=self._suspect,
                grace=self._timing.grace,
                overdue=self.overdue,
                silent=self._silent_sign(asked_at),
            )
        except StoreUnavailable as error:
            return self._unanswered(error)
        self._answered(asked_at, answer.time)
        if isinstance(answer, Won):
            self._suspect, self.emitted = "", None
            term = begin_term(answer.grant, asked_at=asked_at, ttl=self._timing.ttl)
            self._term = term
            if self._closed:  # `close` ran while the question was under way
                self.close()
            else:
                self._tell(
                    LeadershipAcquired(node=self._candidate.node, epoch=term.epoch, reason=answer.reason)
                )
            return self._timing.renew_every
        if answer.marks:
            self.marks_seen.append(answer.marks)
        self._suspect = answer.token if answer.absent else ""
        if answer.sign != self._sign:
            self._sign, self._sign_since = answer.sign, asked_at
        return CONFIRM if answer.absent else random.uniform(*bid_pauses(answer.listeners))

    def _silent_sign(self, moment: Monotonic) -> str:
        """The holder's sign, if this node has seen it unchanged for longer than a lease lasts.

        The store's expiry depends on the store's clock; set back, it lets a dead leader's lease live on.
        """
        return self._sign if moment - self._sign_since > self._timing.ttl else ""

    def _renew(self, term: Term, listens: bool) -> float:
        asked_at, emitted = self._clock.monotonic(), self.emitted
        try:
            answer = self._store.renew(
                term.grant, ttl=self._timing.ttl, listens=listens, schedule=self._candidate.schedule
            )
        except StoreUnavailable as error:
            if not term.is_trusted(self._clock.monotonic()):
                self._give_up(term, "expired")
            return self._unanswered(error)
        self._answered(asked_at, answer.time)
        if not answer.held:
            self._give_up(term, "deposed")
            return 0.0
        if emitted is not None and answer.emitted is not None and answer.emitted < emitted:
            self.silences += 1  # the store lost an emission that it had acknowledged
        self._term = begin_term(term.grant, asked_at=asked_at, ttl=self._timing.ttl)
        return self._timing.renew_every

    def _give_up(self, term: Term, reason: str, *, sits_out: bool = False) -> None:
        self._term = None
        self._over = term.grant
        self.nonce = secrets.token_hex(16)
        if sits_out:
            self._sits_out_until = later(self._clock.monotonic(), self._timing.sit_out)
        try:
            self._store.release(term.grant)  # frees that grant only, if the store has it at all
        except StoreUnavailable:
            pass  # it expires unused
        self._tell(self._loss(term, reason))

    def _loss(self, term: Term, reason: str) -> LeadershipLost:
        return LeadershipLost(node=self._candidate.node, epoch=term.epoch, reason=reason)

    def _answered(self, asked_at: Monotonic, store_time: datetime) -> None:
        answered_at = self._clock.monotonic()
        new = sample(asked_at=asked_at, answered_at=answered_at, store_time=store_time)
        self._offset = combine(self._offset, new)
        ahead = self.clock_disagreement()
        if abs(ahead) > TOLERANCE and answered_at - self._clocks_told_at >= REMIND:
            self._clocks_told_at = answered_at
            self._tell(ClocksDisagree(node=self._candidate.node, seconds=ahead))
        if self._silent_since is not None:
            self._tell(StoreFound(node=self._candidate.node, seconds=answered_at - self._silent_since))
            self._silent_since = None
            self._reminded_at = Monotonic(float("-inf"))

    def _unanswered(self, error: StoreUnavailable) -> float:
        now = self._clock.monotonic()
        self.silences += 1
        if self._silent_since is None:
            self._silent_since = now
        if now - self._reminded_at >= REMIND:
            self._reminded_at = now
            problem = f"{error} ({self._place})" if self._place else str(error)
            silent = now - self._silent_since
            self._tell(StoreLost(node=self._candidate.node, problem=problem, seconds=silent))
        return min(self._timing.renew_every, 0.25)
