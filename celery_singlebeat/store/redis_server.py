"""A Redis or Valkey server, looked at from outside: INFO, CONFIG, TIME, and a probe of what it allows.

Managed servers forbid CONFIG, and an ACL may forbid INFO: then the facts that only they tell are None.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import redis

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.policy.clocks import Offset, combine, sample
from celery_singlebeat.policy.diagnosis.facts import Memory, Persistence, Probe, Replication, Server
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.redis_ears import RedisEars
from celery_singlebeat.store.scripts import Scripts, answers

#: How many PINGs are timed, and for how many seconds at most.
PINGS, PINGING = 20, 2.0
#: How often the server's clock is read; each reading narrows the interval.
READINGS = 5
#: Seconds to wait for the probe's own message.
HEARING = 1.0

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SETTINGS = ("save", "appendfsync", "min-replicas-to-write")
_DISK = {
    "rdb_last_bgsave_status": "the last snapshot failed",
    "aof_last_write_status": "the last write to the append-only file failed",
    "aof_last_bgrewrite_status": "the last rewrite of the append-only file failed",
}


class RedisServerStore:
    """`ServerStore` over one Redis. With `keys` it is probed as a store: a script, a subscription."""

    def __init__(
        self,
        connect: Callable[[], redis.Redis],
        *,
        subject: str,
        place: str,
        clock: Clock,
        keys: Keys | None = None,
    ) -> None:
        self._connect = connect
        self.subject = subject
        self.place = place
        self._clock = clock
        self._keys = keys

    def look(self) -> Server:
        with answers("look"), closing(self._connect()) as client:
            _allowed(client.ping)  # connects, so that no timed one has to
            trips = self._round_trips(client)
            ahead = self._clock_ahead(client)
            info = _allowed(client.info) or {}
            config = {name: found for name in _SETTINGS if (found := _setting(client, name)) is not None}
            valkey = info.get("valkey_version")
            version = valkey or info.get("redis_version")
            return Server(
                subject=self.subject,
                place=self.place,
                product="Valkey" if valkey else "Redis",
                version=None if version is None else str(version),
                is_cluster=bool(info["cluster_enabled"]) if "cluster_enabled" in info else None,
                round_trips=trips,
                clock_ahead=ahead,
                probe=None if self._keys is None else self._probe(client, self._keys),
                memory=_memory(info),
                persistence=_persistence(info, config),
                replication=_replication(info, config),
            )

    def _round_trips(self, client: redis.Redis) -> tuple[float, ...]:
        trips: list[float] = []
        while len(trips) < PINGS and sum(trips) < PINGING:
            asked_at = self._clock.monotonic()
            _allowed(client.ping)
            trips.append(self._clock.monotonic() - asked_at)
        return tuple(trips)

    def _clock_ahead(self, client: redis.Redis) -> tuple[float, float] | None:
        known: Offset | None = None
        for _ in range(READINGS):
            asked_at = self._clock.monotonic()
            answer: Any = _allowed(client.time)
            if answer is None:
                return None
            store_time = _EPOCH + timedelta(seconds=answer[0], microseconds=answer[1])
            answered_at = self._clock.monotonic()
            known = combine(known, sample(asked_at=asked_at, answered_at=answered_at, store_time=store_time))
        if known is None:
            return None
        own, moment = self._clock.now(), self._clock.monotonic()
        low, high = own - known.latest(moment), own - known.earliest(moment)
        return low.total_seconds(), high.total_seconds()

    def _probe(self, client: redis.Redis, keys: Keys) -> Probe:
        nonce = f"doctor-{secrets.token_hex(8)}"
        with closing(self._connect()) as listening, closing(RedisEars(listening, keys)) as ears:
            try:
                subscribe_problem = "" if ears.listen(nonce) else "it is not confirmed"
            except StoreUnavailable as error:
                subscribe_problem = error.cause
            try:
                presence = Scripts(client).run("probe", [keys.probe], [keys.presence + nonce])
            except StoreUnavailable as error:
                return Probe(script_problem=error.cause, subscribe_problem=subscribe_problem)
            heard = not subscribe_problem and self._hears(ears)
        counted = isinstance(presence, int)
        return Probe(
            subscribe_problem=subscribe_problem,
            presence=presence if counted else None,
            presence_problem="" if counted else str(presence),
            heard=heard,
        )

    def _hears(self, ears: RedisEars) -> bool:
        """Whether the probe's message arrives; events of beats may come before it."""
        until = self._clock.monotonic() + HEARING
        while (left := until - self._clock.monotonic()) > 0:
            if ears.hear(left) == "probe":
                return True
        return False


def _allowed(ask: Callable[[], Any]) -> Any:
    """The answer, or None where the server refuses the command. One whose disk is full refuses even PING."""
    try:
        return ask()
    except redis.ResponseError:
        return None


def _setting(client: redis.Redis, name: str) -> str | None:
    found: Any = _allowed(lambda: client.config_get(name)) or {}
    return str(found[name]) if name in found else None


def _number(info: Mapping[str, Any], name: str) -> int | None:
    value = info.get(name)
    return value if isinstance(value, int) else None


def _memory(info: Mapping[str, Any]) -> Memory:
    policy = info.get("maxmemory_policy")
    return Memory(
        policy=None if policy is None else str(policy),
        used=_number(info, "used_memory"),
        maximum=_number(info, "maxmemory"),
        evicted=_number(info, "evicted_keys") or 0,
    )


def _persistence(info: Mapping[str, Any], config: Mapping[str, str]) -> Persistence:
    enabled = _number(info, "aof_enabled")
    save = config.get("save")
    snapshots = None if save is None else bool(save.strip())
    asked = [name for name in _DISK if (snapshots is not False if name.startswith("rdb") else enabled)]
    return Persistence(
        append_only=None if enabled is None else bool(enabled),
        fsync=config.get("appendfsync"),
        snapshots=snapshots,
        problems=tuple(_DISK[name] for name in asked if info.get(name, "ok") != "ok"),
    )


def _replication(info: Mapping[str, Any], config: Mapping[str, str]) -> Replication:
    minimum = config.get("min-replicas-to-write", "")
    return Replication(
        is_replica=info["role"] != "master" if "role" in info else None,
        replicas=_number(info, "connected_slaves") or 0,
        minimum=int(minimum) if minimum.isdigit() else None,
    )
