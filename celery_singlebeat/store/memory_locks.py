"""The reference store of locks: the contract written as plainly as Python allows.

It lives in one process: for tests, for `memory://`, and for calls that run eagerly.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celery_singlebeat.clock import Clock
from celery_singlebeat.moments import Monotonic, later, millis, whole
from celery_singlebeat.store.lock_ports import (
    CALL_MEMORY,
    Answer,
    Caller,
    Finished,
    Granted,
    Holder,
    Lease,
    LockRecord,
    Orphan,
    Outcome,
    Poison,
    Released,
    Renewal,
    Replaced,
    Ruling,
    Stale,
    Taken,
    Turn,
    unknown_holder,
)


@dataclass(frozen=True, slots=True)
class _Next:
    """A call that wants to come next, and for how many seconds the key is kept for it then."""

    task_id: str
    task: str
    turn: Turn = Turn.NONE
    hold: float = 0.0


@dataclass(slots=True)
class _Lock:
    token: str
    holder: Holder
    fence: int
    expires: Monotonic
    #: Kept for an attempt that is still to come: of the same call, or of the one that came next.
    waiting: bool = False
    backend: str = "redis"
    passed_on: bool = False
    stop: bool = False
    next: _Next | None = None


@dataclass(slots=True)
class _Call:
    replays: int = 0
    expires: Monotonic = Monotonic(0.0)  # noqa: RUF009 - a number, not a call that could differ
    deliveries: int = 0
    token: str = ""
    key: str = ""
    attempt: int = 0
    finished: bool = False
    continued: bool = False
    buried: bool = False
    replaced: bool = False
    settled_at: Monotonic = Monotonic(0.0)  # noqa: RUF009


class MemoryLockStore:
    """`RecordStore` in memory. Its clock is the one that it is given, so that a test can move it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.RLock()
        self._fence = 0
        self._locks: dict[str, _Lock] = {}
        self._calls: dict[str, _Call] = {}
        self._counters: dict[str, int] = {}

    @property
    def counters(self) -> Mapping[str, int]:
        return self._counters

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
        rule = ruling or Ruling(backend="redis")
        with self._guard:
            self._forget_expired()
            call = self._calls.get(caller.task_id) or _Call(caller.replays)
            if caller.replays > call.replays:
                call = _Call(caller.replays)
            coming = _Next(caller.task_id, caller.task, turn, hold)
            refused = self._outcome(call, caller) or self._taken(key, token, caller, rule, coming)
            if refused is not None:
                return refused
            if call.token != token:
                if call.deliveries >= poison_limit:
                    self._pass_on(key)
                    return Poison(call.deliveries)
                call.deliveries += 1
            call.token, call.key, call.settled_at = token, key, Monotonic(0.0)
            self._keep(caller.task_id, call, CALL_MEMORY)
            return Granted(self._grant(key, token, ttl, caller, rule), call.deliveries)

    def _outcome(self, call: _Call, caller: Caller) -> Answer | None:
        """What is known of the call already, unless it may run."""
        if caller.replays < call.replays or call.attempt > caller.attempt or call.buried:
            return Stale()
        if call.finished:
            return Finished(call.continued)
        if call.replaced:
            return Replaced()
        settling = call.settled_at - self._clock.monotonic()
        if settling > 0:
            return Taken(unknown_holder(caller.task_id), settling, same_call=True)
        return None

    def _taken(self, key: str, token: str, caller: Caller, rule: Ruling, coming: _Next) -> Answer | None:
        """Who holds the key, if the caller cannot have it."""
        lock = self._locks.get(key)
        same_call = lock is not None and lock.holder.task_id == caller.task_id
        waits = lock is not None and lock.waiting
        if lock is None or lock.token == token or (waits and same_call):
            if rule.granted is not False:
                return None
            nobody = unknown_holder(caller.task_id if waits else "")
            return Taken(nobody, 0.0, same_call=waits, follows=coming.turn is not Turn.NONE)
        if rule.granted and not waits:
            return None
        follows = False
        if not same_call and coming.turn is not Turn.NONE:
            follows, may_enter = self._line_up(lock, rule, coming)
            if may_enter:
                return None
        if not same_call:
            self.count(f"lock_conflicts:{caller.task}")
        remaining = lock.expires - self._clock.monotonic()
        return Taken(lock.holder, remaining, same_call, follows)

    def _line_up(self, lock: _Lock, rule: Ruling, coming: _Next) -> tuple[bool, bool]:
        """Whether the caller shall ask again, and whether it may have the key at once.

        It comes next as the only one of its task, the first that asked or, to replace, the last. While a
        call of another task comes next, it shall ask again later.
        """
        ahead = lock.next
        if lock.passed_on:
            ahead = _Next(lock.holder.task_id, lock.holder.task)
        is_mine = ahead is not None and ahead.task == coming.task
        is_me = ahead is not None and ahead.task_id == coming.task_id
        may_enter = False
        if coming.turn is Turn.QUEUE:
            follows = not is_mine or is_me
        else:
            follows = True
            if ahead is not None and is_mine and not is_me:
                self._replace(ahead.task_id)
            if not lock.passed_on:
                self._replace(lock.holder.task_id)
                lock.stop = True
            # Nobody runs now, so that nobody has to end first.
            may_enter = rule.granted is not False and lock.waiting and (is_mine or not lock.passed_on)
        if follows and not may_enter and (ahead is None or is_mine):
            lock.next = coming
        return follows, may_enter

    def _replace(self, task_id: str) -> None:
        call = self._calls.get(task_id) or _Call()
        call.replaced = True
        self._keep(task_id, call, CALL_MEMORY)

    def _grant(self, key: str, token: str, ttl: float, caller: Caller, rule: Ruling) -> int:
        expires = later(self._clock.monotonic(), ttl)
        lock = self._locks.get(key)
        if lock is not None and lock.token == token:
            lock.expires = expires
            return lock.fence
        now = whole(self._clock.now())
        self._fence = max(self._fence + 1, millis(now) * 1000, rule.fence)
        holder = Holder(task=caller.task, task_id=caller.task_id, host=caller.host, pid=caller.pid, since=now)
        coming = lock.next if lock is not None else None
        if coming is not None and coming.task_id == caller.task_id:
            coming = None
        self._locks[key] = _Lock(token, holder, self._fence, expires, backend=rule.backend, next=coming)
        return self._fence

    def _pass_on(self, key: str) -> None:
        """End a holding: the lock is free then, or kept for the call that comes next."""
        lock = self._locks.pop(key, None)
        if lock is None or lock.next is None:
            return
        coming, now = lock.next, whole(self._clock.now())
        holder = Holder(task=coming.task, task_id=coming.task_id, host="", pid=0, since=now)
        self._locks[key] = _Lock(
            f"waiting:{coming.task_id}",
            holder,
            lock.fence,
            later(self._clock.monotonic(), coming.hold),
            waiting=True,
            backend=lock.backend,
            passed_on=True,
        )

    def renew(self, leases: Sequence[Lease], *, ttl: float) -> list[Renewal]:
        with self._guard:
            self._forget_expired()
            return [self._renew(lease, ttl) for lease in leases]

    def _renew(self, lease: Lease, ttl: float) -> Renewal:
        lock = self._locks.get(lease.key)
        if lock is None or lock.token != lease.token:
            return Renewal.GONE
        lock.expires = later(self._clock.monotonic(), ttl)
        if lease.task_id in self._calls:
            self._keep(lease.task_id, self._calls[lease.task_id], CALL_MEMORY)
        return Renewal.REPLACED if lock.stop else Renewal.EXTENDED

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
        with self._guard:
            self._forget_expired()
            lock = self._locks.get(key)
            held = lock is not None and lock.token == token
            same_call = (
                not held and lock is not None and lock.holder.task_id == caller.task_id and not lock.waiting
            )
            replaced = lock is not None and held and lock.stop
            if lock is not None and held:
                if hold > 0 and outcome is Outcome.RETRY and not replaced:
                    lock.token, lock.waiting = f"waiting:{caller.task_id}", True
                    lock.expires = later(self._clock.monotonic(), hold)
                elif outcome is Outcome.NONE and not replaced:
                    # The call is delivered again. That one goes first.
                    del self._locks[key]
                else:
                    self._pass_on(key)
            self._note(token, caller, outcome, hold=hold, dedupe_ttl=dedupe_ttl, settle=settle)
            return Released(held, same_call, replaced)

    def _note(
        self,
        token: str,
        caller: Caller,
        outcome: Outcome,
        *,
        hold: float,
        dedupe_ttl: float,
        settle: float,
    ) -> None:
        call = self._calls.get(caller.task_id)
        if call is not None and call.replays > caller.replays:
            return
        if outcome is Outcome.SUCCESS:
            self._calls.pop(caller.task_id, None)
            if dedupe_ttl > 0:
                self._keep(caller.task_id, _Call(caller.replays, finished=True), dedupe_ttl)
        elif outcome is not Outcome.NONE and call is not None and call.token == token:
            undone = outcome is Outcome.UNDONE
            call.deliveries, call.token, call.key = call.deliveries - 1 if undone else 0, "", ""
            if outcome is Outcome.OTHER:
                call.attempt = 0
            if outcome is Outcome.RETRY:
                call.attempt = caller.attempt + 1
                self._keep(caller.task_id, call, CALL_MEMORY + hold)
                self.count(f"retries:{caller.task}")
            elif not (call.replays or call.attempt or call.deliveries or call.replaced):
                del self._calls[caller.task_id]
            if outcome is Outcome.FAILURE and settle > 0:
                call.settled_at = later(self._clock.monotonic(), settle)
                if caller.task_id not in self._calls:
                    self._keep(caller.task_id, call, settle)

    def release_orphan(self, task_id: str, *, host: str, pid: int) -> Orphan:
        with self._guard:
            self._forget_expired()
            call = self._calls.get(task_id)
            if call is None:
                return Orphan(False, 0)
            lock = self._locks.get(call.key)
            if lock is None or lock.waiting:
                return Orphan(False, call.deliveries)
            if (lock.holder.task_id, lock.holder.host, lock.holder.pid) != (task_id, host, pid):
                return Orphan(False, call.deliveries)
            if lock.stop:
                self._pass_on(call.key)
            else:
                # Its call is delivered again. That one goes first, unless it was to be replaced.
                del self._locks[call.key]
            return Orphan(True, call.deliveries, call.key, lock.token)

    def continued(self, task_id: str) -> None:
        with self._guard:
            self._forget_expired()
            call = self._calls.get(task_id)
            if call is not None and call.finished:
                call.continued = True

    def count(self, name: str, number: int = 1) -> None:
        with self._guard:
            self._counters[name] = self._counters.get(name, 0) + number

    def locks(self) -> list[LockRecord]:
        with self._guard:
            self._forget_expired()
            return [self._record(key, self._locks[key]) for key in sorted(self._locks)]

    def break_lock(self, key: str) -> LockRecord | None:
        with self._guard:
            self._forget_expired()
            lock = self._locks.pop(key, None)
            if lock is None:
                return None
            self.count(f"locks_broken:{lock.holder.task}")
            return self._record(key, lock)

    def may_bury(self, task_id: str, *, attempt: int, replays: int) -> bool:
        with self._guard:
            self._forget_expired()
            call = self._calls.get(task_id)
            if call is None or call.replays < replays:
                return True
            return call.replays == replays and not (call.buried or call.replaced) and call.attempt <= attempt

    def buried(self, task_id: str, *, replays: int) -> None:
        with self._guard:
            known = self._calls.get(task_id)
            key = known.key if known else ""
            self._keep(task_id, _Call(replays, key=key, buried=True), CALL_MEMORY)

    def close(self) -> None:
        """There is nothing to close."""

    # -- inside ---------------------------------------------------------------------------------

    def _record(self, key: str, lock: _Lock) -> LockRecord:
        remaining = lock.expires - self._clock.monotonic()
        return LockRecord(
            key=key,
            holder=lock.holder,
            ttl=remaining,
            fence=lock.fence,
            backend=lock.backend,
            waiting=lock.waiting,
        )

    def _keep(self, task_id: str, call: _Call, seconds: float) -> None:
        call.expires = later(self._clock.monotonic(), seconds)
        self._calls[task_id] = call

    def _forget_expired(self) -> None:
        now = self._clock.monotonic()
        for key in [key for key, lock in self._locks.items() if lock.expires <= now]:
            del self._locks[key]
        for task_id in [task_id for task_id, call in self._calls.items() if call.expires <= now]:
            del self._calls[task_id]
