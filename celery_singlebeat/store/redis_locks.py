"""Locks in one Redis: each promise is one script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import redis

from celery_singlebeat.moments import from_millis
from celery_singlebeat.store.keys import Keys
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
)
from celery_singlebeat.store.scripts import Argument, Scripts, answers, matching, source

_PAGE = 500


class RedisLockStore:
    """`RecordStore` over one Redis (or Valkey, or the master that Sentinel names).

    Safe to use from several threads, and in a child after a fork: redis-py's pool sees to both.
    """

    def __init__(self, connect: Callable[[], redis.Redis], keys: Keys) -> None:
        self._keys = keys
        self._client = connect()
        self._scripts = Scripts(self._client)

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
        keys = self._keys
        rule = ruling or Ruling(backend="")
        verdict = "" if rule.granted is None else "granted" if rule.granted else "refused"
        decided: list[Argument] = [rule.backend, verdict, rule.fence]
        wanted: list[Argument] = [turn.value, _ms(hold), keys.call("")]
        about: list[Argument] = [caller.task_id, caller.task, caller.host, caller.pid]
        about += [caller.attempt, caller.replays]
        answer = self._scripts.run(
            "lock_acquire",
            [keys.lock(key), keys.fence, keys.call(caller.task_id), keys.counters],
            [token, _ms(ttl), *about, poison_limit, _ms(CALL_MEMORY), *decided, *wanted],
        )
        kind = answer[0]
        if kind == "granted":
            return Granted(int(answer[1]), int(answer[3]))
        if kind == "held":
            _, remaining, waiting, task, task_id, host, pid, since, _, follows = answer
            holder = {"task": task, "task_id": task_id, "host": host, "pid": pid, "since": since}
            same_call = task_id == caller.task_id and not waiting
            return Taken(_holder(holder), max(0, remaining) / 1000, same_call, bool(follows))
        if kind == "finished":
            return Finished(bool(answer[1]))
        if kind == "replaced":
            return Replaced()
        return Poison(int(answer[1])) if kind == "poison" else Stale()

    def renew(self, leases: Sequence[Lease], *, ttl: float) -> list[Renewal]:
        if not leases:
            return []
        keys = self._keys
        with answers("lock_renew"):
            pipe = self._client.pipeline(transaction=False)
            for lease in leases:
                pipe.eval(
                    source("lock_renew"),
                    2,
                    keys.lock(lease.key),
                    keys.call(lease.task_id),
                    lease.token,
                    str(_ms(ttl)),
                    str(_ms(CALL_MEMORY)),
                )
            return [Renewal(int(answer)) for answer in pipe.execute()]

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
        keys = self._keys
        ended: list[Argument] = [outcome.value, _ms(hold) if hold > 0 else 0]
        ended += [_ms(dedupe_ttl) if dedupe_ttl > 0 else 0]
        about: list[Argument] = [caller.task_id, caller.task, caller.attempt, caller.replays]
        held, same_call, replaced = self._scripts.run(
            "lock_release",
            [keys.lock(key), keys.call(caller.task_id), keys.counters],
            [token, *ended, *about, _ms(CALL_MEMORY), _ms(settle) if settle > 0 else 0],
        )
        return Released(bool(held), bool(same_call), bool(replaced))

    def release_orphan(self, task_id: str, *, host: str, pid: int) -> Orphan:
        answer = self._scripts.run("lock_orphan", [self._keys.call(task_id)], [task_id, host, pid])
        freed, deliveries, *lock = answer
        if not freed:
            return Orphan(False, int(deliveries))
        name, token = lock
        return Orphan(True, int(deliveries), name[len(self._keys.locks) :], token)

    def continued(self, task_id: str) -> None:
        self._scripts.run("lock_continue", [self._keys.call(task_id)], [])

    def may_bury(self, task_id: str, *, attempt: int, replays: int) -> bool:
        with answers("may_bury"):
            known: Any = self._client.hmget(
                self._keys.call(task_id), ["replays", "buried", "attempt", "replaced"]
            )
        before, buried, later, replaced = known
        if _number(before) != replays:
            return _number(before) < replays
        return not buried and not replaced and _number(later) <= attempt

    def buried(self, task_id: str, *, replays: int) -> None:
        key = self._keys.call(task_id)
        with answers("buried"):
            pipe = self._client.pipeline(transaction=True)
            pipe.hdel(key, "deliveries", "token", "attempt", "finished", "continued", "failed")
            pipe.hset(key, mapping={"buried": "1", "replays": str(replays)})
            pipe.pexpire(key, _ms(CALL_MEMORY))
            pipe.execute()

    def count(self, name: str, number: int = 1) -> None:
        with answers("count"):
            self._client.hincrby(self._keys.counters, name, number)

    def locks(self) -> list[LockRecord]:
        """SCAN is not a snapshot: a lock that lives throughout is listed, one that comes or goes may be."""
        prefix = self._keys.locks
        found: dict[str, LockRecord] = {}
        with answers("locks"):
            names = iter(self._client.scan_iter(match=matching(prefix), count=_PAGE))
            while page := list(islice(names, _PAGE)):
                pipe = self._client.pipeline(transaction=False)
                for name in page:
                    pipe.hgetall(name)
                    pipe.pttl(name)
                values = pipe.execute()
                for name, about, ttl in zip(page, values[::2], values[1::2], strict=True):
                    if about:
                        key = name[len(prefix) :]
                        found[key] = _record(key, about, ttl)
        return [found[key] for key in sorted(found)]

    def break_lock(self, key: str) -> LockRecord | None:
        answer = self._scripts.run("lock_break", [self._keys.lock(key), self._keys.counters], [])
        about = dict(zip(answer[::2], answer[1::2], strict=True))
        return _record(key, about, 0) if about else None

    def close(self) -> None:
        with answers("close"):
            self._client.close()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _holder(about: Mapping[str, str]) -> Holder:
    return Holder(
        task=about.get("task", ""),
        task_id=about.get("task_id", ""),
        host=about.get("host", ""),
        pid=_number(about.get("pid")),
        since=from_millis(_number(about.get("since"))),
    )


def _record(key: str, about: Mapping[str, str], ttl: int) -> LockRecord:
    return LockRecord(
        key=key,
        holder=_holder(about),
        ttl=max(0, ttl) / 1000,
        fence=_number(about.get("fence")),
        backend=about.get("backend", "redis"),
        waiting="waiting" in about,
    )
