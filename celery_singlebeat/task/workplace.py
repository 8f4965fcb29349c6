"""What an execution needs around it: the app's settings, its store of locks, and somebody to tell."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from celery import Celery

from celery_singlebeat import logs
from celery_singlebeat.clock import Clock, SystemClock
from celery_singlebeat.errors import SettingsError
from celery_singlebeat.events import Event
from celery_singlebeat.settings import Settings
from celery_singlebeat.store.lock_ports import LockStore
from celery_singlebeat.store.memory_locks import MemoryLockStore
from celery_singlebeat.wiring import wire

#: Defaults for calls that run eagerly in an app whose settings name no Redis.
BARE_SETTINGS = Settings(redis_url="memory://")


@dataclass(frozen=True, slots=True)
class Workplace:
    """`eager`: the call runs in the process of its caller, and its locks are that process's own."""

    app: Celery
    settings: Settings
    locks: LockStore
    tell: Callable[[Event], None]
    clock: Clock
    eager: bool

    def locks_of(self, backend: str) -> LockStore:
        """The store of the locks that `backend` decides; raises `SettingsError`."""
        return self.locks if self.eager else wire(self.app).lock_store(backend)


@cache
def host() -> str:
    """The name of this machine, as it stands in locks."""
    return socket.gethostname()


def at_work(app: Celery) -> Workplace:
    """Where a worker runs its calls; raises `SettingsError`."""
    wiring = wire(app)
    return Workplace(app, wiring.settings, wiring.lock_store(), wiring.tell, wiring.clock, eager=False)


def in_place(app: Celery) -> Workplace:
    """Where an eager call runs. It asks for nothing, so that tests need neither Redis nor settings."""
    clock = SystemClock()
    try:
        wiring = wire(app)
    except SettingsError:
        return Workplace(app, BARE_SETTINGS, _own_locks(os.getpid()), logs.write, clock, eager=True)
    return Workplace(app, wiring.settings, _own_locks(os.getpid()), wiring.tell, clock, eager=True)


@cache
def _own_locks(_pid: int) -> LockStore:
    return MemoryLockStore(SystemClock())
