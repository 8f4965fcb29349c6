"""The schedulers that are compared with: at their best setting that is safe, and at their defaults.

A peer's lease is its only detector, so its best setting is the shortest lease that is safe. For all of them
that is taken as five seconds, renewed and asked for every second: a lease of five renewals is RedBeat's own
proportion, and a shorter one is lost to a process or a network that stands still for a moment.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

from typing_extensions import override

from benchmarks.fleets import Beat, Fleet
from celery_singlebeat.testing.processes import ManagedProcess

LEASE, EVERY = 5, 1


class RedBeatFleet(Fleet):
    """RedBeat renews its lock in each loop; the replica that lost it ends, and is started again."""

    name = "redbeat"
    title = "RedBeat: loop 1 s, lock 5 s"
    scheduler = "redbeat.RedBeatScheduler"
    address = "redbeat_redis_url"
    settings: ClassVar[dict[str, Any]] = {"beat_max_loop_interval": EVERY, "redbeat_lock_timeout": LEASE}

    @override
    def settled(self) -> bool:
        # a standby waits in lock.acquire: whatever else it does, SET was its last command
        clients: Any = self.client.client_list()
        waiting = sum(client["cmd"] == "set" for client in clients)
        return self.reign() is not None and waiting >= len(self.beats) - 1

    @override
    def reign(self) -> str | None:
        lock: Any = self.client.get("redbeat::lock")
        return None if lock is None else str(lock)

    @override
    def leader(self) -> Beat:
        return self.beats[0]  # there are two: the one that was not there yet is the standby


class LeasedFleet(Fleet):
    """celery-leased-beat asks for its lease in each tick; a standby's tick comes once in an interval."""

    name = "leased"
    title = "leased-beat: interval 1 s, TTL 5 s"
    scheduler = "celery_leased_beat.scheduler.LeasedPersistentScheduler"
    address = "CELERY_LEASE_URL"
    settings: ClassVar[dict[str, Any]] = {"CELERY_LEASE_LOCK_TTL": LEASE, "CELERY_LEASE_INTERVAL": EVERY}

    @override
    def settled(self) -> bool:
        clients: Any = self.client.client_list()
        tried = sum(client["cmd"] in {"set", "evalsha"} for client in clients)
        return self.reign() is not None and tried >= len(self.beats)

    @override
    def reign(self) -> str | None:
        lock: Any = self.client.get("celery_lease:lock")  # host-pid-uuid
        return None if lock is None else str(lock)

    @override
    def leader(self) -> Beat:
        token = self.reign() or ""
        return next(beat for beat in self.beats if f"-{beat.pid}-" in token)


class LeasedDefaults(LeasedFleet):
    name = "leased defaults"
    title = "leased-beat, defaults: interval 15 s, TTL 60 s"
    settings: ClassVar[dict[str, Any]] = {}
    frozen = 80.0
    patience = 120.0


class MultiBeatFleet(Fleet):
    """celery-multibeat-scheduler over django-celery-beat's tables, which is how its authors want it run."""

    name = "multibeat"
    title = "multibeat (Django): lock 5 s, refresh and standby 1 s"
    scheduler = "multibeat.django.MultiBeatDatabaseScheduler"
    address = "multibeat_url"
    settings: ClassVar[dict[str, Any]] = {
        "multibeat_lock_timeout": LEASE,
        "multibeat_refresh_ratio": EVERY / LEASE,
        "multibeat_standby_ratio": EVERY / LEASE,
        "multibeat_min_refresh_seconds": EVERY,
        "multibeat_min_standby_seconds": EVERY,
    }
    preamble = """
import os
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django_celery_beat"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "beat.sqlite",
                           "OPTIONS": {"timeout": 30}}},
    USE_TZ=True,
    TIME_ZONE="UTC",
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
)
django.setup()
"""

    @override
    def prepare(self) -> None:
        code = "import bench_app, django.core.management as m; m.call_command('migrate', verbosity=0)"
        env = self.environment(self.server.url())
        subprocess.run([sys.executable, "-c", code], cwd=self.folder, env=env, check=True)

    @override
    def settled(self) -> bool:
        # a standby asks who holds the lock after it did not get it; the leader only refreshes
        clients: Any = self.client.client_list()
        waiting = sum(client["cmd"] == "get" for client in clients)
        return self.reign() is not None and waiting >= len(self.beats) - 1

    @override
    def reign(self) -> str | None:
        lock: Any = self.client.get("celery:multibeat:lock")  # host:pid:uuid
        return None if lock is None else str(lock)

    @override
    def leader(self) -> Beat:
        token = self.reign() or ""
        return next(beat for beat in self.beats if f":{beat.pid}:" in token)


class MultiBeatDefaults(MultiBeatFleet):
    name = "multibeat defaults"
    title = "multibeat (Django), defaults: lock 60 s, refresh 45 s, standby 30 s"
    settings: ClassVar[dict[str, Any]] = {}
    frozen = 130.0
    patience = 180.0


class StockFleet(Fleet):
    """One stock beat under a supervisor that starts it again as soon as it has ended."""

    name = "stock"
    title = "stock beat, restarted at once"
    scheduler = "celery.beat:PersistentScheduler"
    address = ""
    elects = False
    swift = True

    @override
    def add(self, url: str | None = None) -> Beat:
        beat = self.make(url)
        self.beats.append(beat)
        beat.start()
        threading.Thread(target=self._supervise, args=(beat,), name="supervisor", daemon=True).start()
        return beat

    def _supervise(self, beat: ManagedProcess) -> None:
        while not self._ended.is_set():
            if beat.poll() is not None:
                beat.start()
            time.sleep(0.005)

    @override
    def stop(self) -> None:
        self._ended.set()
        time.sleep(0.05)  # the supervisor has seen it
        super().stop()

    @override
    def settled(self) -> bool:
        return self.beats[0].running

    @override
    def reign(self) -> str | None:
        return None

    @override
    def leader(self) -> Beat:
        return self.beats[0]
