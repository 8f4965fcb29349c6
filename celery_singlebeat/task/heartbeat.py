"""One thread of a process that keeps all its locks alive.

It starts with the first lock that this process holds, so that it runs in the process that runs the
body: the child of a prefork pool, or the worker itself. It survives every error of the store; a lock
is lost when the store says so, or when nothing was heard of it for so long that it may have expired.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_singlebeat.clock import Clock, SystemClock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.events import Event, LockWasLost
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.store.lock_ports import LockStore, Renewal
from celery_singlebeat.task.holding import TaskLock

#: A third of the ttl between renewals, so that two may fail.
_PART = 3
#: After an unanswered request the next follows after this part of the ttl.
_PART_IN_TROUBLE = 12
_IDLE = 60.0

Tell = Callable[[Event], None]


@dataclass(slots=True)
class _Watch:
    lock: TaskLock
    tell: Tell
    due: Monotonic


@dataclass(slots=True)
class _Debt:
    """Something that the store still has to hear, until it is pointless."""

    pay: Callable[[], object]
    due: Monotonic
    until: Monotonic


class Heartbeat:
    """Renews locks, and delivers releases that found no answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._watches: dict[str, _Watch] = {}
        self._debts: list[_Debt] = []
        self._thread: threading.Thread | None = None
        self._wakes_at = Monotonic(0.0)

    def watch(self, lock: TaskLock, tell: Tell) -> None:
        """Renew this lock until `forget`."""
        due = later(self._clock.monotonic(), lock.ttl / _PART)
        with self._changed:
            self._watches[lock.token] = _Watch(lock, tell, due)
            self._ensure_thread(due)

    def forget(self, lock: TaskLock) -> None:
        """Renew this lock no more."""
        with self._changed:
            self._watches.pop(lock.token, None)

    def lock_on(self, key: str) -> TaskLock | None:
        """The lock of this key that this process renews, if there is one."""
        with self._changed:
            return next((watch.lock for watch in self._watches.values() if watch.lock.key == key), None)

    def owe(self, pay: Callable[[], object], *, every: float, within: float) -> None:
        """Call `pay` until it does not raise `StoreUnavailable`, every `every` seconds, for `within`."""
        now = self._clock.monotonic()
        with self._changed:
            self._debts.append(_Debt(pay, later(now, every), later(now, within)))
            self._ensure_thread(later(now, every))

    def _ensure_thread(self, due: Monotonic) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="singlebeat-locks", daemon=True)
            self._thread.start()
        elif due < self._wakes_at:
            self._wakes_at = due
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = self._clock.monotonic()
                moments = [watch.due for watch in self._watches.values()]
                moments += [debt.due for debt in self._debts]
                if self._wakes_at > now:
                    # Asked for by a lock that may be gone again: without this, every short body would
                    # wake the thread anew.
                    moments.append(self._wakes_at)
                self._wakes_at = min(moments, default=later(now, _IDLE))
                if self._wakes_at > now:
                    self._changed.wait(self._wakes_at - now)
                now = self._clock.monotonic()
                due = [watch for watch in self._watches.values() if watch.due <= now]
                debts = [debt for debt in self._debts if debt.due <= now]
            self._renew(due)
            for debt in debts:
                self._settle(debt)

    def _renew(self, watches: list[_Watch]) -> None:
        groups: dict[tuple[int, float], list[_Watch]] = {}
        for watch in watches:
            groups.setdefault((id(watch.lock.store), watch.lock.ttl), []).append(watch)
        for (_, ttl), group in groups.items():
            self._renew_group(group[0].lock.store, ttl, group)

    def _renew_group(self, store: LockStore, ttl: float, group: list[_Watch]) -> None:
        asked_at = self._clock.monotonic()
        answers: Sequence[Renewal | None]
        try:
            answers = store.renew([watch.lock.lease for watch in group], ttl=ttl)
        except Exception:  # whatever went wrong, the other locks need this thread
            answers = [None] * len(group)
        for watch, renewal in zip(group, answers, strict=True):
            if renewal is None and not watch.lock.lapsed:
                watch.due = later(self._clock.monotonic(), ttl / _PART_IN_TROUBLE)
            elif renewal and not watch.lock.lapsed:
                if renewal is Renewal.REPLACED:
                    watch.lock.replace()
                watch.lock.extend(asked_at)
                watch.due = later(asked_at, ttl / _PART)
            else:
                self._lose(watch)

    def _lose(self, watch: _Watch) -> None:
        lock = watch.lock
        with self._changed:
            watched = self._watches.pop(lock.token, None) is not None
        if watched:
            report_loss(lock, watch.tell)

    def _settle(self, debt: _Debt) -> None:
        now = self._clock.monotonic()
        try:
            if now < debt.until:
                debt.pay()
        except StoreUnavailable:
            debt.due = later(now, max(0.1, (debt.until - now) / _PART_IN_TROUBLE))
            return
        with self._changed:
            self._debts.remove(debt)


def report_loss(lock: TaskLock, tell: Tell) -> None:
    """Say once that a lock was lost, and count it."""
    if not lock.lose():
        return
    caller = lock.caller
    tell(LockWasLost(task=caller.task, task_id=caller.task_id, key=lock.key, fence=lock.fence))
    try:
        lock.store.count(f"locks_lost:{caller.task}")
    except StoreUnavailable:
        heartbeat().owe(
            lambda: lock.store.count(f"locks_lost:{caller.task}"), every=lock.ttl / _PART, within=_IDLE
        )


_heartbeats: dict[int, Heartbeat] = {}


def heartbeat() -> Heartbeat:
    """The heartbeat of this process. Threads do not survive a fork, so a child has its own."""
    found = _heartbeats.get(os.getpid())
    if found is None:
        found = _heartbeats.setdefault(os.getpid(), Heartbeat(SystemClock()))
    return found
