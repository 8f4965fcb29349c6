"""The reference store: the contract written as plainly as Python allows.

It lives in one process, for tests and for `memory://`. Its clock is the one that it is given, so
that a test can move it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import Deposed
from celery_singlebeat.moments import Monotonic, later, millis, whole
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.policy.tombstones import Absences
from celery_singlebeat.store.memory_schedule import KeptSchedule, MemoryScheduleStore
from celery_singlebeat.store.ports import (
    RUN_FORGOTTEN,
    Candidate,
    Claim,
    Enrolment,
    Held,
    Keep,
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
    record_id,
)


@dataclass(slots=True)
class _Lease:
    grant: Grant
    candidate: Candidate
    since: datetime
    emitted: datetime
    expires: Monotonic
    listens: bool
    renewals: int = 0

    @property
    def sign(self) -> str:
        return f"{self.grant.token} {self.renewals}"


@dataclass(slots=True)
class _Everything:
    """What a server would keep."""

    lease: _Lease | None = None
    epoch: int = 0
    marks: dict[str, datetime] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    entries: dict[str, Enrolment] = field(default_factory=dict)
    gone: dict[str, datetime] = field(default_factory=dict)
    outbox: dict[str, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, NodeReport] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)
    ears: list[MemoryEars] = field(default_factory=list)
    schedule: KeptSchedule = field(default_factory=KeptSchedule)


class MemoryBeatStore:
    """`BeatStore` in memory; `queues` are its lists of messages, newest first, as in Redis."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.RLock()
        self._kept = _Everything()
        self.schedule = MemoryScheduleStore(lambda: self._kept.schedule, self._now, self._tell, self._guard)

    @property
    def queues(self) -> Mapping[str, Sequence[str]]:
        return self._kept.queues

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
        with self._guard:
            kept, now = self._kept, self._now()
            held, reason = self._held(), "free"
            seen = {entry: kept.marks.get(entry) for entry in overdue or {}}
            if held is not None:
                if held.grant.nonce == nonce:
                    held.expires = later(self._clock.monotonic(), ttl)
                    return Won(held.grant, "again", now)
                token = held.grant.token
                absent = held.listens and not any(ear.nonce == held.grant.nonce for ear in kept.ears)
                if absent and suspect == token:
                    reason = "crash"
                elif silent == held.sign:
                    reason = "silent"
                elif self._is_overdue(held, candidate, grace, overdue or {}):
                    reason = "overdue"
                else:
                    return Held(token, absent, len(kept.ears), now, seen, held.sign)
            kept.epoch = max(kept.epoch + 1, millis(now))
            grant = Grant(kept.epoch, nonce)
            expires = later(self._clock.monotonic(), ttl)
            kept.lease = _Lease(grant, candidate, now, now, expires, candidate.listens)
            self._count("elections")
            self._count(f"elections:{reason}")
            self._tell(f"acquired {grant.token}")
            return Won(grant, reason, now)

    def _is_overdue(
        self, held: _Lease, candidate: Candidate, grace: float, overdue: Mapping[str, Overdue]
    ) -> bool:
        quiet_since = max(held.since, held.emitted)
        settled = held.emitted > held.since or self._now() > held.since + timedelta(seconds=10 * grace)
        if not settled:  # it has to read first
            return False
        for entry, late in overdue.items():
            mark, slot = self._kept.marks.get(entry), whole(late.slot)
            record = self._kept.schedule.records.get(entry)
            if late.since is None:
                known = held.candidate.schedule == candidate.schedule
            else:
                known = record is not None and record[1].since == late.since
            patience = max(slot, quiet_since) + timedelta(seconds=grace)
            if known and (mark is None or mark < slot) and self._now() > patience:
                return True
        return False

    def renew(self, grant: Grant, *, ttl: float, listens: bool = False, schedule: str = "") -> Renewal:
        with self._guard:
            held = self._held()
            if held is None or held.grant != grant:
                return Renewal(False, self._now())
            held.expires = later(self._clock.monotonic(), ttl)
            held.listens = listens
            held.candidate = replace(held.candidate, schedule=schedule or held.candidate.schedule)
            held.renewals += 1
            return Renewal(True, self._now(), held.emitted)

    def release(self, grant: Grant) -> bool:
        with self._guard:
            held = self._held()
            if held is None or held.grant != grant:
                return False
            self._kept.lease = None
            self._tell(f"released {grant.token}")
            return True

    # -- the slots ------------------------------------------------------------------------------

    def remember(self, entries: Sequence[str] | None = None) -> Memory:
        with self._guard:
            kept = self._kept
            names = set(entries) if entries is not None else {*kept.marks, *kept.runs, *kept.entries}
            return Memory(
                {name: mark for name, mark in kept.marks.items() if name in names},
                {name: runs for name, runs in kept.runs.items() if name in names},
                {name: enrolment for name, enrolment in kept.entries.items() if name in names},
                {name: since for name, since in kept.gone.items() if entries is None or name in names},
            )

    def enroll(self, grant: Grant, entries: Mapping[str, Enrolment]) -> None:
        with self._guard:
            self._demand(grant)
            for entry, enrolment in entries.items():
                self._kept.entries[entry] = replace(enrolment, anchor=whole(enrolment.anchor))
                if enrolment.runs:
                    self._kept.runs.setdefault(entry, enrolment.runs)
                mark = self._kept.marks.get(entry)
                if mark is not None and mark > self._now() + timedelta(days=1):
                    self._kept.marks[entry] = whole(enrolment.mark or enrolment.anchor)
                elif enrolment.mark is not None:
                    self._kept.marks.setdefault(entry, whole(enrolment.mark))

    def tidy(self, grant: Grant, absences: Absences, *, keep: float) -> None:
        with self._guard:
            self._demand(grant)
            kept, now = self._kept, self._now()
            for entry in absences.gone:
                kept.gone.setdefault(entry, now)
            for entry in absences.back:
                kept.gone.pop(entry, None)
            for entry in absences.over:
                went = kept.gone.get(entry, now)
                if list(kept.marks) == [entry]:
                    continue  # the last one tells that they are not lost
                if now - went > timedelta(seconds=keep) and entry not in kept.schedule.records:
                    for values in (kept.gone, kept.marks, kept.runs, kept.entries, kept.schedule.running):
                        values.pop(entry, None)

    def emit(
        self, grant: Grant, claims: Sequence[Claim], *, cursor: str = ""
    ) -> tuple[datetime, list[Outcome]]:
        with self._guard:
            try:
                held = self._demand(grant)
            except Deposed:
                self._count("refused", len(claims))
                raise
            now = self._now()
            changed = self._kept.schedule.since(cursor)
            outcomes = [self._emit(claim, now, changed) for claim in claims]
            held.emitted = now
            return now, outcomes

    def _emit(self, claim: Claim, now: datetime, changed: set[str]) -> Outcome:
        kept, slot = self._kept, whole(claim.slot)
        refusal = self._refusal(claim, slot, now, changed)
        if refusal == "early":
            self._count("refused")
        if refusal == "overlap":
            kept.marks[claim.entry] = slot
            self._count("missed", claim.missed + 1)
        if refusal is not None:
            return Outcome(refusal)
        for write in claim.writes:
            if isinstance(write, Push):
                kept.queues.setdefault(write.queue, []).insert(0, write.payload)
            elif isinstance(write, Publish):
                kept.queues.setdefault(write.channel, []).insert(0, write.payload)
            elif isinstance(write, Keep):
                kept.outbox[record_id(claim)] = write.payload
        kept.marks[claim.entry] = slot
        self._count("missed", claim.missed)
        if claim.writes:
            kept.runs[claim.entry] = kept.runs.get(claim.entry, 0) + 1
            self._count("dispatched")
            if claim.overlap:
                kept.schedule.running[claim.entry] = (now, claim.task_id)
        return Outcome("sent")

    def _refusal(self, claim: Claim, slot: datetime, now: datetime, changed: set[str]) -> str | None:
        mark = self._kept.marks.get(claim.entry)
        running = self._kept.schedule.running.get(claim.entry)
        goes_on = running is not None and abs(now - running[0]) < timedelta(seconds=RUN_FORGOTTEN)
        if claim.entry in changed:
            return "changed"
        if slot > now:
            return "early"
        if claim.base is not None and (mark is None or mark < whole(claim.base)):
            return "forgotten"
        if mark is not None and mark > now + timedelta(days=1):
            return "forgotten"
        if mark is not None and mark >= slot:
            return "already"
        if goes_on and claim.writes and claim.overlap:
            return "busy" if claim.overlap == "queue" else "overlap"
        return None

    def mend(self, grant: Grant) -> dict[str, str]:
        with self._guard:
            self._demand(grant)
            return {}

    def outbox(self) -> list[tuple[str, str]]:
        with self._guard:
            records = self._kept.outbox.items()
            return sorted(records, key=lambda record: (int(record[0].partition(" ")[0]), record[0]))

    def confirm(self, records: Iterable[tuple[str, str]]) -> int:
        with self._guard:
            gone = [key for key, payload in records if self._kept.outbox.get(key) == payload]
            for key in gone:
                del self._kept.outbox[key]
            return len(gone)

    # -- the nodes ------------------------------------------------------------------------------

    def report(self, report: NodeReport, *, keep: float | None) -> datetime:
        with self._guard:
            now = self._now()
            self._kept.nodes[report.node] = replace(report, seen=now)
            if keep is not None:
                for node, known in list(self._kept.nodes.items()):
                    if known.seen is None or (now - known.seen).total_seconds() > keep:
                        del self._kept.nodes[node]
            return now

    def leave(self, node: str) -> None:
        with self._guard:
            self._kept.nodes.pop(node, None)

    def overview(self) -> Overview:
        with self._guard:
            held = self._held()
            leader = None
            if held is not None:
                who = held.candidate
                leader = Leader(
                    node=who.node,
                    host=who.host,
                    pid=who.pid,
                    epoch=held.grant.epoch,
                    since=held.since,
                    lease_remaining=held.expires - self._clock.monotonic(),
                )
            kept = self._kept
            nodes = [kept.nodes[node] for node in sorted(kept.nodes)]
            return Overview(
                time=self._now(),
                leader=leader,
                nodes=nodes,
                counters=dict(kept.counters),
                paused=sorted(n for n, pause in kept.schedule.pauses.items() if pause.until is None),
                outbox=len(kept.outbox),
            )

    def ask_to_resign(self, epoch: int) -> int:
        with self._guard:
            return self._tell(f"resign {epoch}")

    # -- what happens to servers ----------------------------------------------------------------

    def forget(self, entry: str | None = None) -> None:
        """Lose everything, or the newest writes for one entry: its mark and the newest message."""
        with self._guard:
            if entry is None:
                self._kept = _Everything(ears=self._kept.ears)
                return
            self._kept.marks.pop(entry, None)
            if self._kept.lease is not None:
                self._kept.lease.emitted = self._kept.lease.since
            for messages in self._kept.queues.values():
                del messages[:1]

    # -- connections ----------------------------------------------------------------------------

    def ears(self) -> MemoryEars:
        return MemoryEars(self._kept.ears)

    def farewell(self) -> MemoryBeatStore:
        return self

    def close(self) -> None:
        """There is nothing to close."""

    # -- inside ---------------------------------------------------------------------------------

    def _now(self) -> datetime:
        return whole(self._clock.now())

    def _held(self) -> _Lease | None:
        lease = self._kept.lease
        return lease if lease is not None and self._clock.monotonic() < lease.expires else None

    def _demand(self, grant: Grant) -> _Lease:
        held = self._held()
        if held is None or held.grant != grant:
            raise Deposed(grant.epoch)
        return held

    def _count(self, name: str, number: int = 1) -> None:
        if number:
            self._kept.counters[name] = self._kept.counters.get(name, 0) + number

    def _tell(self, text: str) -> int:
        for ear in self._kept.ears:
            ear.inbox.put(text)
        return len(self._kept.ears)


class MemoryEars:
    """`Ears` within one process."""

    def __init__(self, listeners: list[MemoryEars]) -> None:
        self._listeners = listeners
        self.inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.nonce = ""

    def listen(self, nonce: str) -> bool:
        self.nonce = nonce
        if self not in self._listeners:
            self._listeners.append(self)
        return True

    def hear(self, timeout: float) -> str | None:
        try:
            return self.inbox.get(timeout=max(0.001, timeout))
        except queue.Empty:
            return None

    def close(self) -> None:
        self.nonce = ""
        if self in self._listeners:
            self._listeners.remove(self)
