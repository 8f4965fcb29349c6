"""The beat's store in Redis: one script for each promise that must be atomic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import redis

from celery_singlebeat.errors import Deposed
from celery_singlebeat.moments import from_millis, millis
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.policy.tombstones import Absences
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.ports import (
    RUN_FORGOTTEN,
    Candidate,
    Claim,
    Enrolment,
    Held,
    Leader,
    Memory,
    NodeReport,
    Outcome,
    Overdue,
    Overview,
    Publish,
    Push,
    Renewal,
    Won,
)
from celery_singlebeat.store.redis_ears import RedisEars
from celery_singlebeat.store.redis_schedule import RedisScheduleStore
from celery_singlebeat.store.scripts import Scripts, answers

_KINDS = {1: "sent", 0: "already", -2: "early", -3: "forgotten", -4: "changed", -5: "overlap", -6: "busy"}

#: How many entries one script tidies.
BATCH_TIDIED = 1000

#: Makes a client; True: with short timeouts.
Connect = Callable[[bool], redis.Redis]


class RedisBeatStore:
    """`BeatStore` over one Redis (or Valkey, or the master that Sentinel names)."""

    def __init__(self, connect: Connect, keys: Keys, *, hasty: bool = False) -> None:
        self._connect = connect
        self._keys = keys
        self._client = connect(hasty)
        self._scripts = Scripts(self._client)
        self.schedule = RedisScheduleStore(self._scripts, keys)

    # -- the lease ------------------------------------------------------------------------------

    def bid(
        self,
        nonce: str,
        *,
        ttl: float,
        candidate: Candidate,
        suspect: str = "",
        grace: float = 0.3,
        overdue: Mapping[str, Overdue] | None = None,
        silent: str = "",
    ) -> Won | Held:
        keys = self._keys
        about = {
            "node": candidate.node,
            "host": candidate.host,
            "pid": candidate.pid,
            "presence": int(candidate.listens),
        }
        slots = [
            [entry, millis(late.slot), "" if late.since is None else str(millis(late.since))]
            for entry, late in (overdue or {}).items()
        ]
        answer = self._scripts.run(
            "lease_bid",
            [keys.lease, keys.epoch, keys.leader, keys.marks, keys.counters, keys.schedule],
            [
                nonce,
                _ms(ttl),
                suspect,
                _ms(grace),
                json.dumps(about),
                keys.presence,
                keys.events,
                json.dumps(slots),
                silent,
                candidate.schedule,
            ],
        )
        if answer[0] == "won":
            epoch, _, own = answer[1].partition(":")
            return Won(Grant(int(epoch), own), answer[2], from_millis(answer[3]))
        _, token, absent, listeners, now, seen, renewals = answer
        marks = {entry: _moment(mark) for entry, mark in zip(seen[::2], seen[1::2], strict=True)}
        sign = f"{token} {renewals}"
        return Held(token, bool(absent), listeners, from_millis(now), marks, sign)

    def renew(self, grant: Grant, *, ttl: float, listens: bool = False, schedule: str = "") -> Renewal:
        held, now, emitted = self._scripts.run(
            "lease_renew",
            [self._keys.lease, self._keys.leader],
            [grant.token, _ms(ttl), int(listens), schedule],
        )
        return Renewal(bool(held), from_millis(now), from_millis(emitted) if emitted else None)

    def release(self, grant: Grant) -> bool:
        return bool(self._scripts.run("lease_release", [self._keys.lease], [grant.token, self._keys.events]))

    # -- the slots ------------------------------------------------------------------------------

    def remember(self, entries: Sequence[str] | None = None) -> Memory:
        keys = (self._keys.marks, self._keys.runs, self._keys.entries, self._keys.gone)
        with answers("remember"):
            pipe = self._client.pipeline(transaction=True)
            for key in keys:
                pipe.hgetall(key) if entries is None else pipe.hmget(key, entries)
            found = pipe.execute() if entries is None or entries else [[]] * len(keys)
        if entries is not None:
            found = [
                {name: text for name, text in zip(entries, texts, strict=True) if text is not None}
                for texts in found
            ]
        marks, runs, enrolments, gone = found
        unreadable: list[str] = []
        return Memory(
            marks=_readable(marks, _mark, unreadable),
            runs=_readable(runs, int, []),  # they are for people
            entries=_readable(enrolments, _enrolment, unreadable),
            gone=_readable(gone, _mark, []),
            unreadable=tuple(unreadable),
        )

    def enroll(self, grant: Grant, entries: Mapping[str, Enrolment]) -> None:
        items = [
            (
                entry,
                f"{millis(enrolment.anchor)} {enrolment.rule}",
                enrolment.runs,
                "" if enrolment.mark is None else str(millis(enrolment.mark)),
            )
            for entry, enrolment in entries.items()
        ]
        keys = [self._keys.lease, self._keys.entries, self._keys.marks, self._keys.runs]
        if not self._scripts.run("slots_enroll", keys, [grant.token, json.dumps(items)]):
            raise Deposed(grant.epoch)

    def tidy(self, grant: Grant, absences: Absences, *, keep: float) -> None:
        keys = self._keys
        touched = [keys.lease, keys.gone, keys.schedule, keys.marks, keys.runs, keys.entries, keys.running]
        lists = (absences.gone, absences.back, absences.over)
        for start in range(0, max(map(len, lists)), BATCH_TIDIED):
            batches = [json.dumps(names[start : start + BATCH_TIDIED]) for names in lists]
            if not self._scripts.run("slots_tidy", touched, [grant.token, _ms(keep), *batches]):
                raise Deposed(grant.epoch)

    def emit(
        self, grant: Grant, claims: Sequence[Claim], *, cursor: str = ""
    ) -> tuple[datetime, list[Outcome]]:
        keys = self._keys
        fixed = [keys.lease, keys.marks, keys.runs, keys.counters, keys.leader, keys.outbox]
        plan = _Plan([*fixed, keys.changes, keys.running])
        steps = [
            [
                claim.entry,
                str(millis(claim.slot)),
                claim.missed,
                plan.steps(claim),
                -1 if claim.base is None else millis(claim.base),
                _overlap(claim),
            ]
            for claim in claims
        ]
        args = [grant.token, json.dumps(steps), cursor, *plan.payloads]
        answer = self._scripts.run("slots_emit", plan.keys, args)
        now, *outcomes = answer
        if outcomes == [-1]:
            raise Deposed(grant.epoch)
        return from_millis(now), [_outcome(value) for value in outcomes]

    def mend(self, grant: Grant) -> dict[str, str]:
        keys = self._keys
        hashes = [keys.marks, keys.entries, keys.schedule, keys.counters, keys.runs, keys.leader]
        hashes += [keys.gone, keys.outbox, keys.paused, keys.running, keys.nodes]
        kinds = {**dict.fromkeys(hashes, "hash"), keys.changes: "stream"}
        places = self._scripts.run("state_mend", [keys.lease, *kinds], [grant.token, *kinds.values()])
        if places == -1:
            raise Deposed(grant.epoch)
        found = zip(kinds, places, strict=True)
        return {key: "" if place == "gone" else place for key, place in found if place}

    def outbox(self) -> list[tuple[str, str]]:
        with answers("outbox"):
            records: Any = self._client.hgetall(self._keys.outbox)
        return sorted(records.items(), key=lambda record: (_slot_of(record[0]), record[0]))

    def confirm(self, records: Iterable[tuple[str, str]]) -> int:
        args = [text for record in records for text in record]
        return int(self._scripts.run("outbox_confirm", [self._keys.outbox], args)) if args else 0

    # -- the nodes ------------------------------------------------------------------------------

    def report(self, report: NodeReport, *, keep: float | None) -> datetime:
        about = {
            "host": report.host,
            "pid": report.pid,
            "role": report.role,
            "tick_age": round(report.tick_age, 3),
            "stuck": round(report.stuck, 3),
            "entries": report.entries,
            "faulty": dict(report.faulty),
            "birth": report.birth,
            "up": round(report.up, 3),
            "overdue": report.overdue,
            "schedule": report.schedule,
        }
        now = self._scripts.run(
            "node_report",
            [self._keys.nodes],
            [report.node, json.dumps(about), "" if keep is None else _ms(keep)],
        )
        return from_millis(now)

    def leave(self, node: str) -> None:
        self._scripts.run("node_report", [self._keys.nodes], [node, "", ""])

    def overview(self) -> Overview:
        keys = self._keys
        with answers("overview"):
            pipe = self._client.pipeline(transaction=True)
            pipe.time()
            pipe.get(keys.lease)
            pipe.pttl(keys.lease)
            pipe.hgetall(keys.leader)
            pipe.hgetall(keys.nodes)
            pipe.hgetall(keys.counters)
            pipe.hgetall(keys.paused)
            pipe.hlen(keys.outbox)
            (seconds, micros), lease, ttl, leader, nodes, counters, paused, outbox = pipe.execute()
        ignored: list[str] = []
        return Overview(
            time=from_millis(seconds * 1000 + micros // 1000),
            leader=_leader(lease, ttl, leader),
            nodes=[_report(node, text) for node, text in sorted(nodes.items())],
            counters=_readable(counters, int, ignored),
            paused=sorted(name for name, text in paused.items() if " " not in text),
            outbox=outbox,
        )

    def ask_to_resign(self, epoch: int) -> int:
        with answers("resign"):
            return int(self._client.publish(self._keys.events, f"resign {epoch}"))

    # -- connections ----------------------------------------------------------------------------

    def ears(self) -> RedisEars:
        return RedisEars(self._connect(False), self._keys)

    def farewell(self) -> RedisBeatStore:
        return RedisBeatStore(self._connect, self._keys, hasty=True)

    def close(self) -> None:
        with answers("close"):
            self._client.close()


class _Plan:
    """Collects the keys and payloads that the writes of some claims need."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.payloads: list[str] = []
        self._index: dict[str, int] = {}

    def steps(self, claim: Claim) -> list[list[Any]]:
        steps: list[list[Any]] = []
        for write in claim.writes:
            self.payloads.append(write.payload)
            payload = len(self.payloads) + 3  # after token, claims and cursor, counted from 1
            if isinstance(write, Push):
                steps.append(["push", self._key(write.queue), payload])
                if write.expires is not None:
                    steps += [["expire", self._key(key), write.expires] for key in write.also]
            elif isinstance(write, Publish):
                steps.append(["publish", write.channel, payload])
            else:
                steps.append(["store", 0, payload])
        return steps

    def _key(self, key: str) -> int:
        if key not in self._index:
            self.keys.append(key)
            self._index[key] = len(self.keys)
        return self._index[key]


def _overlap(claim: Claim) -> list[Any]:
    if not claim.overlap or not claim.writes:
        return []
    return [claim.overlap, claim.task_id, _ms(RUN_FORGOTTEN)]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _mark(text: str) -> datetime:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no moment")
    return from_millis(int(text))


def _moment(text: str) -> datetime | None:
    """A mark; None if there is none, or one that cannot be read."""
    try:
        return _mark(text)
    except (ValueError, OverflowError):
        return None


def _enrolment(text: str) -> Enrolment:
    anchor, _, rule = text.partition(" ")
    return Enrolment(_mark(anchor), rule)


def _readable(raw: Mapping[str, str], read: Callable[[str], Any], unreadable: list[str]) -> dict[str, Any]:
    """Each value that can be read; the names of the others go to `unreadable`."""
    values = {}
    for name, text in raw.items():
        try:
            values[name] = read(text)
        except (ValueError, OverflowError):
            unreadable.append(name)
    return values


def _outcome(value: int | str) -> Outcome:
    if isinstance(value, str):
        return Outcome("error", value)
    return Outcome(_KINDS[value])


def _slot_of(record: str) -> int:
    return _number(record.partition(" ")[0])


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _leader(lease: str | None, ttl: int, about: Mapping[str, str]) -> Leader | None:
    if lease is None:
        return None
    known = about if about.get("token") == lease else {}
    epoch = lease.partition(":")[0]
    return Leader(
        node=known.get("node", "?"),
        host=known.get("host", "?"),
        pid=_number(known.get("pid", "")),
        epoch=_number(epoch),
        since=_moment(known.get("since", "")) or from_millis(0),
        lease_remaining=max(0, ttl) / 1000,
    )


def _report(node: str, text: str) -> NodeReport:
    try:
        about = json.loads(text)
        faulty = about.get("faulty") or {}
        return NodeReport(
            node=node,
            host=str(about["host"]),
            pid=int(about["pid"]),
            role=str(about["role"]),
            tick_age=float(about["tick_age"]),
            entries=int(about.get("entries", 0)),
            faulty=faulty if isinstance(faulty, dict) else {},
            overdue=tuple(map(str, about.get("overdue", ()))),
            stuck=float(about.get("stuck", 0.0)),
            birth=str(about.get("birth", "")),
            up=float(about.get("up", 0.0)),
            schedule=str(about.get("schedule", "")),
            seen=from_millis(int(about["seen"])),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return NodeReport(node=node, host="?", pid=0, role="unreadable", tick_age=0.0)
