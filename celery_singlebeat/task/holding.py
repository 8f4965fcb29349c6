"""The lock of one execution, as its body sees it."""

from __future__ import annotations

import threading
from datetime import timedelta

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import LockLost
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.policy.leases import margin
from celery_singlebeat.store.lock_ports import Caller, Holder, Lease, LockStore


class TaskLock:
    """A lock that was granted to one execution.

    `key` names it, `token` is its holder's alone, `fence` grows with every acquisition: hand it to
    whatever stores the work, which can then refuse a smaller one.
    """

    def __init__(
        self,
        key: str,
        token: str,
        fence: int,
        *,
        caller: Caller,
        store: LockStore,
        clock: Clock,
        ttl: float,
        asked_at: Monotonic,
    ) -> None:
        self.key = key
        self.token = token
        self.fence = fence
        self.caller = caller
        self.store = store
        self.ttl = ttl
        self._clock = clock
        self._asked_at = asked_at
        self._state = threading.Lock()
        self._lost = False
        self._replaced = False
        self._trusted_until = later(asked_at, ttl - margin(ttl))

    def __repr__(self) -> str:
        return f"<TaskLock {self.key} fence={self.fence} {'held' if self.held else 'lost'}>"

    @property
    def held(self) -> bool:
        """Whether nobody else can hold the key now, by this process's own monotonic clock, or is to."""
        return not self._replaced and not self.lapsed

    def check(self) -> None:
        """Raise `LockLost` unless the lock is held."""
        if not self.held:
            raise LockLost(self.key, self.fence)

    @property
    def holder(self) -> Holder:
        """Who holds it, as another call is told."""
        since = self._clock.now() - timedelta(seconds=self._clock.monotonic() - self._asked_at)
        caller = self.caller
        return Holder(task=caller.task, task_id=caller.task_id, host=caller.host, pid=caller.pid, since=since)

    @property
    def lease(self) -> Lease:
        """What a renewal names."""
        return Lease(self.key, self.token, self.caller.task_id, self.fence)

    def extend(self, asked_at: Monotonic) -> None:
        """The store said yes to a renewal that was asked for at `asked_at`."""
        with self._state:
            if not self._lost:
                self._trusted_until = max(self._trusted_until, later(asked_at, self.ttl - margin(self.ttl)))

    @property
    def replaced(self) -> bool:
        """Whether another call asked to run in this one's place. The body does not hold it then."""
        return self._replaced

    def replace(self) -> None:
        """Tell the body to end. Until it has, the key is still this token's."""
        self._replaced = True

    @property
    def lapsed(self) -> bool:
        """Whether somebody else can have the key by now."""
        return self._lost or self._clock.monotonic() >= self._trusted_until

    def lose(self) -> bool:
        """From now on the lock counts as lost; True for whoever says so first."""
        with self._state:
            first, self._lost = not self._lost, True
            return first


class NoLock:
    """Stands in where there is no lock: a direct call, or `on_lock_error="run"` without Redis.

    It is not held, and cannot be lost: `check()` has nothing to say.
    """

    key = ""
    token = ""
    fence = 0
    held = False

    def check(self) -> None:
        """Do nothing."""

    def __repr__(self) -> str:
        return "<NoLock>"
