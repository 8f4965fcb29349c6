"""A store of locks made of two: a backend that decides about keys, and the record of the calls."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.backend_ports import LockBackend, Lost, Won
from celery_singlebeat.store.lock_ports import (
    Answer,
    Caller,
    Granted,
    Lease,
    LockRecord,
    Orphan,
    Outcome,
    RecordStore,
    Released,
    Renewal,
    Ruling,
    Taken,
    Turn,
    unknown_holder,
)

#: Seconds to wait, about, before a key is asked for again that somebody held who is not described: who has
#: just taken it, who is about to find that its call may not run, or half of a split vote.
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2)


class BackedLockStore:
    """`LockStore` whose keys `backend` decides (Q1). With `both` the record's own lock is taken as well (Q6).

    A call costs what the backend costs, and one round trip to the record before and after its body.
    """

    def __init__(
        self,
        name: str,
        records: RecordStore,
        backend: LockBackend,
        *,
        both: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._records = records
        self._backend = backend
        self._both = both
        self._pause = pause

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
        def record(ruling: Ruling) -> Answer:
            return self._records.acquire(
                key,
                token,
                ttl=ttl,
                caller=caller,
                poison_limit=poison_limit,
                turn=turn,
                hold=hold,
                ruling=ruling,
            )

        def ask() -> tuple[Answer, bool]:
            return (self._ask_both if self._both else self._ask)(key, token, ttl, caller, record)

        answer, sure = ask()
        for pause in _PAUSES:
            if not _is_nobody(answer):
                break
            self._pause(pause * random.uniform(0.5, 1.5))
            answer, sure = ask()
        if _is_nobody(answer) and not sure:
            raise StoreUnavailable("lock_acquire", "no majority of the lock servers agrees")
        return answer

    def _ask(
        self, key: str, token: str, ttl: float, caller: Caller, record: Callable[[Ruling], Answer]
    ) -> tuple[Answer, bool]:
        """Let the backend decide, and the record say what that means for the call."""
        verdict = self._backend.acquire(key, token, ttl=ttl)
        won = isinstance(verdict, Won)
        fence = verdict.fence if isinstance(verdict, Won) else 0
        ruling = Ruling(backend=self.name, granted=won, fence=fence)
        try:
            answer = record(ruling)
            if won and isinstance(answer, Granted):
                self._note_fence(key, token, answer.fence, ttl, caller)
                return answer, True
        except StoreUnavailable:
            if won:
                self._backend.release(key, token)
            raise
        if won:
            # The call must not run, or the key waits for another.
            self._backend.release(key, token)
        return answer, isinstance(verdict, Lost) and verdict.sure

    def _ask_both(
        self, key: str, token: str, ttl: float, caller: Caller, record: Callable[[Ruling], Answer]
    ) -> tuple[Answer, bool]:
        answer = record(Ruling(backend=self.name))
        if not isinstance(answer, Granted):
            return answer, True
        try:
            verdict = self._backend.acquire(key, token, ttl=ttl)
        except StoreUnavailable:
            self._undo(key, token, caller)
            raise
        if isinstance(verdict, Won):
            return answer, True
        self._undo(key, token, caller)
        return Taken(unknown_holder(), 0.0, same_call=False, follows=True), verdict.sure

    def _note_fence(self, key: str, token: str, fence: int, ttl: float, caller: Caller) -> None:
        """Tell the backend the fence before the body can use it (Q5)."""
        if not self._backend.notes_fences:
            return
        if self._backend.renew([Lease(key, token, caller.task_id, fence)], ttl=ttl) != [True]:
            self._undo(key, token, caller)
            raise StoreUnavailable("lock_acquire", "no majority of the lock servers has noted the fence")

    def _undo(self, key: str, token: str, caller: Caller) -> None:
        with suppress(StoreUnavailable):  # then the record frees itself
            self._records.release(key, token, caller=caller, outcome=Outcome.UNDONE)

    def renew(self, leases: Sequence[Lease], *, ttl: float) -> list[Renewal | None]:
        answers = self._backend.renew(leases, ttl=ttl)
        kept = [lease for lease, answer in zip(leases, answers, strict=True) if answer]
        noted: Sequence[Renewal | None]
        try:
            noted = self._records.renew(kept, ttl=ttl)
        except StoreUnavailable:
            noted = [None] * len(kept)
        rest = iter(noted if self._both else map(_decided_elsewhere, noted))
        return [next(rest) if answer else None if answer is None else Renewal.GONE for answer in answers]

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
        """The record first: until the outcome is noted the key is not free for a copy of the call.

        Where both are taken, in the reverse of the order in which they were.
        """
        kept = self._backend.release(key, token) if self._both else None
        released = self._records.release(
            key, token, caller=caller, outcome=outcome, hold=hold, dedupe_ttl=dedupe_ttl, settle=settle
        )
        if self._both:
            held = released.held and kept is not False
        else:
            kept = self._backend.release(key, token)
            held = released.held if kept is None else kept
        return Released(held, released.same_call and not held, released.replaced)

    def release_orphan(self, task_id: str, *, host: str, pid: int) -> Orphan:
        orphan = self._records.release_orphan(task_id, host=host, pid=pid)
        if orphan.freed:
            self._backend.release(orphan.key, orphan.token)
        return orphan

    def locks(self) -> list[LockRecord]:
        records = self._records.locks()
        running = [record for record in records if not record.waiting]
        found = {record.key: record for record in self._backend.held(running)}
        certain = [record for record in records if record.waiting or self._both]
        found |= {record.key: record for record in certain if record.backend == self.name}
        known = {record.key for record in records if record.backend != self.name}
        return [found[key] for key in sorted(found) if key not in known]

    def break_lock(self, key: str) -> LockRecord | None:
        broken = self._backend.break_lock(key)
        record = self._records.break_lock(key)
        if record is None and broken:
            return LockRecord(key=key, holder=unknown_holder(), ttl=0.0, fence=0, backend=self.name)
        return record

    def continued(self, task_id: str) -> None:
        self._records.continued(task_id)

    def may_bury(self, task_id: str, *, attempt: int, replays: int) -> bool:
        return self._records.may_bury(task_id, attempt=attempt, replays=replays)

    def buried(self, task_id: str, *, replays: int) -> None:
        self._records.buried(task_id, replays=replays)

    def count(self, name: str, number: int = 1) -> None:
        self._records.count(name, number)

    def close(self) -> None:
        """Close the backend's connections; those of the record are its owner's."""
        self._backend.close()


def _is_nobody(answer: Answer) -> bool:
    """Whether the key is held by somebody of whom nothing is known."""
    return isinstance(answer, Taken) and not answer.holder.host and answer.remaining == 0


def _decided_elsewhere(noted: Renewal | None) -> Renewal:
    """What the record adds to a lock that its backend has extended: whether its holder has to end."""
    return Renewal.REPLACED if noted is Renewal.REPLACED else Renewal.EXTENDED
