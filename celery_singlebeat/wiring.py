"""The one place that chooses: an app's configuration in, settings and connected stores out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property, partial
from typing import Any, TypeVar

import redis
from celery import Celery

from celery_singlebeat import events, json_logs, logs, signals
from celery_singlebeat.clock import Clock, SystemClock
from celery_singlebeat.errors import SettingsError
from celery_singlebeat.policy.dead_letters import RERUN
from celery_singlebeat.settings import PREFIX, Settings
from celery_singlebeat.store.backed_locks import BackedLockStore
from celery_singlebeat.store.backend_ports import LockBackend, demand_driver
from celery_singlebeat.store.broker_letters import BrokerLetterStore
from celery_singlebeat.store.connection import Address, address_from, address_of, connect, demand_master
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.letter_ports import LetterStore
from celery_singlebeat.store.lock_ports import LockStore, RecordStore
from celery_singlebeat.store.memory_beat import MemoryBeatStore
from celery_singlebeat.store.memory_locks import MemoryLockStore
from celery_singlebeat.store.memory_waiting import MemoryWaitingStore
from celery_singlebeat.store.ports import BeatStore
from celery_singlebeat.store.redis_beat import RedisBeatStore
from celery_singlebeat.store.redis_letters import RedisLetterStore
from celery_singlebeat.store.redis_locks import RedisLockStore
from celery_singlebeat.store.redis_redbeat import RedBeatSettings, RedisRedBeatStore
from celery_singlebeat.store.redis_schedule import RedisScheduleStore
from celery_singlebeat.store.redis_server import RedisServerStore
from celery_singlebeat.store.redis_waiting import RedisWaitingStore
from celery_singlebeat.store.redlock import RedlockBackend
from celery_singlebeat.store.schedule_ports import ScheduleStore
from celery_singlebeat.store.scripts import Scripts
from celery_singlebeat.store.server_ports import ServerStore
from celery_singlebeat.store.waiting_ports import WaitingStore

T = TypeVar("T")

_SIGNALS = {
    events.LeadershipAcquired: signals.leadership_acquired,
    events.LeadershipLost: signals.leadership_lost,
    events.SlotDispatched: signals.slot_dispatched,
    events.SlotSkipped: signals.slot_skipped,
    events.SlotRefused: signals.slot_refused,
    events.LockAcquired: signals.lock_acquired,
    events.LockConflicted: signals.lock_conflict,
    events.LockWasLost: signals.lock_lost,
    events.TaskBuried: signals.task_buried,
    events.TaskReplayed: signals.task_replayed,
}

#: Seconds that a farewell in a signal handler may wait for Redis.
HASTE = 0.5

#: Stores of memory:// URLs, by prefix: every part of one process meets in the same one.
_in_memory: dict[tuple[type, str], Any] = {}


class Wiring:
    """Everything that one app's configuration chooses. Nothing is connected before it is used."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.clock: Clock = SystemClock()
        broker: Any = app.conf.broker_write_url or app.conf.broker_url
        self.broker_url = broker if isinstance(broker, str) else ";".join(broker or ())
        self.settings = Settings.from_conf(
            app.conf,
            main=app.main,
            namespace=getattr(app, "namespace", None),
            broker_url=self.broker_url,
        )
        self.keys = Keys(self.settings.prefix)
        json_logs.use(self.settings.log_format, app)
        self._letters: dict[str, LetterStore] = {}
        self._backed: dict[str, LockStore] = {}

    # -- where ----------------------------------------------------------------------------------

    @property
    def in_memory(self) -> bool:
        """Whether the store is this process's memory."""
        return self.settings.redis_url.startswith("memory://")

    @cached_property
    def broker(self) -> Address | None:
        """The broker's address if it is one Redis."""
        try:
            return address_of(self.app.connection_for_write())
        except (ValueError, TypeError, LookupError, ImportError):
            return None

    @cached_property
    def store_setting(self) -> str:
        """The setting that decided where the store is, for messages."""
        return "broker_url" if self.settings.redis_url == self.broker_url else "singlebeat_redis_url"

    @cached_property
    def address(self) -> Address:
        """Where the store is; raises `SettingsError`. Not for memory:// stores."""
        if self.store_setting == "broker_url" and self.broker is not None and not self.settings.redis_options:
            return demand_master(self.broker, "broker_url", "broker_transport_options")
        options = dict(self.settings.redis_options)
        return address_from(self.settings.redis_url, options, setting=self.store_setting)

    @cached_property
    def place(self) -> str:
        """Where the store is, for people; without secrets."""
        where = "memory" if self.in_memory else str(self.address)
        return f"{where} (from {self.store_setting})"

    @cached_property
    def is_atomic(self) -> bool:
        """Whether claim and message go into one script; raises `SettingsError` if they cannot but must."""
        same = not self.in_memory and self.broker is not None and self.broker.is_same_database(self.address)
        wish = self.settings.dispatch
        if wish == "atomic" and not same:
            raise SettingsError(
                "singlebeat_dispatch='atomic' needs the broker and singlebeat_redis_url to be the same "
                "database of one Redis: use 'auto', or leave singlebeat_redis_url out"
            )
        return same and wish != "outbox"

    @property
    def broker_prefix(self) -> str:
        """What kombu puts before each key of the broker (`global_keyprefix`)."""
        return str((self.app.conf.broker_transport_options or {}).get("global_keyprefix", ""))

    # -- connections ----------------------------------------------------------------------------

    @property
    def patience(self) -> float:
        """Seconds to wait for one answer of Redis: short beside a lease, long beside a network."""
        return max(0.25, min(5.0, self.settings.lease_ttl / 4))

    def redis(self, *, hasty: bool = False, decode: bool = True) -> redis.Redis:
        """A new client of the store's Redis."""
        timeout = min(HASTE, self.patience) if hasty else self.patience
        return connect(self.address, timeout=timeout, decode=decode, name="singlebeat")

    def beat_store(self) -> BeatStore:
        """A new store for a beat, over connections of its own."""
        if self.in_memory:
            return self.shared(MemoryBeatStore, lambda: MemoryBeatStore(self.clock))
        return RedisBeatStore(lambda hasty: self.redis(hasty=hasty), self.keys)

    def schedule_store(self) -> ScheduleStore:
        """The store of the dynamic schedule: one client for this process, whoever asks."""
        return self._schedule

    @cached_property
    def _schedule(self) -> ScheduleStore:
        if self.in_memory:
            return self.beat_store().schedule
        return RedisScheduleStore(Scripts(self.redis()), self.keys)

    def redbeat_store(self) -> RedisRedBeatStore:
        """What celery-redbeat has kept, read where its own settings say; raises `SettingsError`."""
        settings = RedBeatSettings.from_conf(self.app.conf, broker_url=self.broker_url)
        return RedisRedBeatStore(lambda: settings.connect(timeout=self.patience), settings)

    def lock_store(self, backend: str = "redis", what: str = "") -> LockStore:
        """The store of the task locks that `backend` decides: one for this process, whoever asks.

        Raises `SettingsError` if the settings lack something that the backend needs; `what` asked for it.
        """
        if backend == "redis":
            return self._locks
        found = self._backed.get(backend)
        if found is None:
            what = what or f"{PREFIX}lock_backend={backend!r}"
            self.settings.demand_backend(backend, what)
            decides = self._redlock() if backend == "redlock" else self._postgresql(what)
            both = backend == "redis+postgresql"
            store = BackedLockStore(backend, self._locks, decides, both=both)
            found = self._backed.setdefault(backend, store)
        return found

    def lock_stores(self) -> dict[str, LockStore]:
        """A store for each backend that a task of this app uses, and the one that keeps the record."""
        used = {"redis", self.settings.lock_backend}
        used |= {str(getattr(task, "lock_backend", None) or "redis") for task in self.app.tasks.values()}
        return {backend: self.lock_store(backend) for backend in sorted(used)}

    @cached_property
    def _locks(self) -> RecordStore:
        if self.in_memory:
            return self.shared(MemoryLockStore, lambda: MemoryLockStore(self.clock))
        return RedisLockStore(
            lambda: connect(self.address, timeout=self._lock_patience, name="singlebeat-locks"), self.keys
        )

    @property
    def _lock_patience(self) -> float:
        """Seconds to wait for one answer about a lock: not so long that the lock expires meanwhile."""
        return max(HASTE / 2, min(self.patience, self.settings.lock_ttl / 4))

    def _redlock(self) -> LockBackend:
        # Short: a server that is away must not keep anybody waiting for the majority.
        patience = max(0.05, min(HASTE, self.settings.lock_ttl / 20))
        addresses = [
            address_from(url, {}, setting=f"{PREFIX}lock_urls[{number}]")
            for number, url in enumerate(self.settings.lock_urls)
        ]
        connects = [
            partial(connect, address, timeout=patience, name="singlebeat-redlock") for address in addresses
        ]
        return RedlockBackend(connects, self.keys, patience=patience, clock=self.clock)

    def _postgresql(self, what: str) -> LockBackend:
        demand_driver(what)
        # Here, because without the extra there is nothing to import.
        from celery_singlebeat.store.postgres_locks import PostgresBackend  # noqa: PLC0415
        from celery_singlebeat.store.postgres_session import read_dsn  # noqa: PLC0415

        parameters = read_dsn(str(self.settings.postgres_dsn), setting=f"{PREFIX}postgres_dsn")
        return PostgresBackend(
            parameters, self.settings.prefix, patience=self._lock_patience, clock=self.clock
        )

    def letter_store(self, queue: str) -> LetterStore:
        """The dead letters in this queue of the broker; one store for each name, whoever asks."""
        found = self._letters.get(queue)
        if found is None:
            found = self._letters[queue] = self._letter_store(queue)
        return found

    def letter_queues(self) -> list[str]:
        """Every queue that a task of this app buries in."""
        queues = {self.settings.dead_letter_queue}
        queues |= {getattr(task, "dead_letter_queue", None) for task in self.app.tasks.values()}
        return sorted(queue for queue in queues if isinstance(queue, str))

    def letter_stores(self) -> list[LetterStore]:
        """One store for each of these queues, and for the one beside each."""
        names = self.letter_queues()
        return [self.letter_store(queue) for queue in sorted({*names, *map(beside, names)})]

    def _letter_store(self, queue: str) -> LetterStore:
        options = self.app.conf.broker_transport_options or {}
        limit, place = self.settings.dead_letter_limit, self.broker
        if place is None:
            options = {**options, "confirm_publish": True}
            return BrokerLetterStore(
                lambda: self.app.connection_for_write(transport_options=options),
                self.lock_store(),
                queue=queue,
                limit=limit,
            )
        one_place = not self.in_memory and place.is_same_database(self.address)
        return RedisLetterStore(
            lambda: connect(place, timeout=self.patience, decode=False, name="singlebeat"),
            self.keys,
            queue=queue,
            limit=limit,
            broker_prefix=self.broker_prefix,
            steps=options.get("priority_steps", (0, 3, 6, 9)),
            separator=options.get("sep", "\x06\x16"),
            elsewhere=None if one_place else self.lock_store(),
        )

    def server_stores(self) -> list[ServerStore]:
        """The Redis servers that this app depends on: the store, and the broker if it is another one."""
        found: list[ServerStore] = []
        if not self.in_memory:
            found.append(
                RedisServerStore(
                    self.redis, subject="store", place=self.place, clock=self.clock, keys=self.keys
                )
            )
        broker = self.broker
        if broker is not None and (self.in_memory or not broker.is_same_database(self.address)):
            place = demand_master(broker, "broker_url", "broker_transport_options")
            found.append(
                RedisServerStore(
                    lambda: connect(place, timeout=self.patience, name="singlebeat"),
                    subject="broker",
                    place=str(place),
                    clock=self.clock,
                )
            )
        return found

    def waiting_store(self) -> WaitingStore:
        """Where calls wait for their next attempt: one client for this process, whoever asks."""
        return self._waiting

    @cached_property
    def _waiting(self) -> WaitingStore:
        # In the broker's own database a message moves into its queue in one step.
        if self.broker is None and self.in_memory:
            return self.shared(MemoryWaitingStore, lambda: MemoryWaitingStore(self.clock))
        place = self.broker or self.address
        return RedisWaitingStore(
            lambda: connect(place, timeout=self.patience, name="singlebeat-waiting"), self.keys
        )

    @property
    def keeps_waiting_calls(self) -> bool:
        """Whether a task of this app lets its calls wait in a store, not at the broker."""
        kinds = {getattr(task, "retry_store", None) or "eta" for task in self.app.tasks.values()}
        return self.settings.retry_store == "redis" or "redis" in kinds

    def shared(self, kind: type[T], make: Callable[[], T]) -> T:
        """The one store of this kind and prefix in this process, for memory:// URLs."""
        place = (kind, self.settings.prefix)
        if place not in _in_memory:
            _in_memory[place] = make()
        found: T = _in_memory[place]
        return found

    # -- events ---------------------------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """Pass an event to every listener: the log, and the signals."""
        logs.write(event)
        signal = _SIGNALS.get(type(event))
        if signal is not None and signal.receivers:
            values = {item.name: getattr(event, item.name) for item in fields(event)}
            signal.send(sender=self.app, **values)


def beside(queue: str) -> str:
    """The queue for calls that failed again when a worker on the dead-letter queue `queue` ran them."""
    return f"{queue}.failed"


def grave(queue: str, headers: Mapping[str, Any]) -> str:
    """The queue in which a call with these headers is buried, if its dead-letter queue is `queue`."""
    return beside(queue) if headers.get(RERUN) else queue


_wirings: weakref.WeakKeyDictionary[Celery, Wiring] = weakref.WeakKeyDictionary()


def wire(app: Celery) -> Wiring:
    """The wiring of an app, made at the first call; raises `SettingsError`."""
    found = _wirings.get(app)
    if found is None:
        found = _wirings[app] = Wiring(app)
    return found
