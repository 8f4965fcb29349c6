"""The model's server as the oracle of the real stores: same operations, outcomes and state."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import redis

from celery_singlebeat.errors import Deposed
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.memory_beat import MemoryBeatStore
from celery_singlebeat.store.ports import Candidate, Enrolment, Keep, Overdue, Push, Won, record_id
from celery_singlebeat.store.ports import Claim as RealClaim
from celery_singlebeat.store.redis_beat import RedisBeatStore
from celery_singlebeat.testing import FakeClock
from tests.model import server as model
from tests.model.server import KEEP, KINDS, PUSH, SKIP, Claim, Guards, Message, Server

GUARDS = Guards()
NONCES, ENTRIES, DUE, FUTURE = ("a", "b", "c"), ("p", "q"), 2, 3
TTL, GRACE, TICK = 50_000.0, 5.0, 60.0


class Op(NamedTuple):
    """One operation. Its arguments are names ("newest" token); what they mean depends on what was done."""

    name: str
    args: tuple = ()

    def __str__(self) -> str:
        return f"{self.name}{self.args}"


def operations() -> list[Op]:
    """Return everything that walks choose from."""
    tokens = ("newest", "before", "forged")
    return [
        *(
            Op("bid", (nonce, suspect, overdue))
            for nonce in NONCES[:2]
            for suspect in ("", "holder")
            for overdue in (0, 1)
        ),
        Op("bid", ("c", "before", 0)),
        *(Op("renew", (token,)) for token in tokens),
        *(Op("release", (token,)) for token in tokens),
        *(Op("emit", (token, ((0, 1, PUSH),))) for token in tokens),
        Op("emit", ("newest", ((0, 2, PUSH),))),
        Op("emit", ("newest", ((0, FUTURE, PUSH),))),
        Op("emit", ("newest", ((0, 1, PUSH), (0, 2, SKIP), (0, FUTURE, PUSH), (1, 1, KEEP)))),
        Op("emit", ("newest", ((1, 1, KEEP), (1, 2, KEEP), (1, 1, PUSH)))),
        Op("emit", ("before", ((1, 2, KEEP),))),
        *(Op("enroll", (token,)) for token in ("newest", "before")),
        *(Op("confirm", (which,)) for which in ("oldest", "another payload", "all")),
        *(Op("listen", (nonce,)) for nonce in NONCES[:2]),
        Op("deaf"),
        Op("tick"),
        Op("expire"),
    ]


class Real(NamedTuple):
    """A real store, and how to reach around it."""

    store: Any
    queue: Callable[[str], list[str]]
    expire: Callable[[], None]
    tick: Callable[[], None]
    deaf: Callable[[list[Any]], None]


class Pair:
    """The model and a real store, side by side."""

    def __init__(self, real: Real) -> None:
        self.real = real
        self.server = model.empty(len(ENTRIES))
        self.listening: set[str] = set()
        self.ears: list[Any] = []
        self.enrolled = 0
        self.granted: list[Grant] = []  # the model's epoch n is granted[n - 1]
        now = real.store.overview().time
        start = now - timedelta(days=1)
        self.slots = [
            start,
            start + timedelta(seconds=1),
            start + timedelta(seconds=2),
            now + timedelta(days=1),
        ]
        self.done: list[Op] = []

    def close(self) -> None:
        """Close the subscriptions, and wait until nobody is heard any more."""
        self.real.deaf(self.ears)

    def do(self, op: Op) -> None:
        """Do one operation to both, and compare."""
        self.done.append(op)
        expected, found = getattr(self, f"_{op.name}")(*op.args)
        told = " -> ".join(map(str, self.done))
        assert found == expected, f"{told}\nanswers {found}, and the model says {expected}"
        assert self.state() == self.wanted(), (
            f"{told}\nleaves {self.state()}, and the model says {self.wanted()}"
        )

    # -- what both hold -------------------------------------------------------------------------

    def wanted(self) -> tuple:
        """The model's state, in the words of the real store."""
        server = self.server
        holder = self.granted[server.epoch - 1].epoch if server.epoch else None
        marks = {name: mark for name, mark in zip(ENTRIES, server.marks, strict=True) if mark}
        log = [self._payload(message) for message in server.log]
        records = [
            self._record(message) for message in sorted(server.outbox, key=lambda m: (m.slot, m.entry))
        ]
        return holder, marks, log, records, self.enrolled

    def state(self) -> tuple:
        """The same of the real store."""
        store = self.real.store
        leader, memory = store.overview().leader, store.remember()
        marks = {name: self.slots.index(mark) for name, mark in memory.marks.items()}
        enrolled = self.slots.index(memory.entries["p"].anchor) if memory.entries else 0
        return leader and leader.epoch, marks, self.real.queue("work"), store.outbox(), enrolled

    def _payload(self, message: Message) -> str:
        return f"{ENTRIES[message.entry]}{message.slot} of {message.epoch}"

    def _record(self, message: Message) -> tuple[str, str]:
        claim = RealClaim(ENTRIES[message.entry], self.slots[message.slot])
        return record_id(claim), self._payload(message)

    def _token(self, name: str) -> tuple[int, Grant]:
        """The model's token and the real one."""
        epoch = len(self.granted) - (name == "before")
        if epoch < 1:
            return -1, Grant(1, "nobody")
        if name == "forged":
            return -1, Grant(self.granted[-1].epoch, "nobody")
        return epoch, self.granted[epoch - 1]

    # -- operations -----------------------------------------------------------------------------

    def _bid(self, nonce: str, suspect: str, overdue: int) -> tuple[Any, Any]:
        server = self.server
        names = {"holder": server.epoch, "before": server.epoch - 1}
        suspected = names.get(suspect, 0)
        holder = NONCES[server.nonce - 1] if server.nonce else ""
        absent = bool(server.epoch) and holder not in self.listening
        claim = Claim(0, 1) if overdue else None
        self.server, expected = model.bid(
            server,
            GUARDS,
            nonce=NONCES.index(nonce) + 1,
            clock=0,
            suspect=suspected,
            absent=absent,
            overdue=claim,
        )
        answer = self.real.store.bid(
            nonce,
            ttl=TTL,
            grace=GRACE,
            candidate=Candidate(node=nonce, host="host", pid=1, schedule="same", listens=True),
            suspect=self.granted[suspected - 1].token if suspected > 0 else "",
            overdue={ENTRIES[0]: Overdue(self.slots[1])} if overdue else None,
        )
        if expected[0] == "held":
            token = self.granted[expected[1] - 1].token
            return ("held", token, absent), ("won" if isinstance(answer, Won) else "held", *_held(answer))
        if not isinstance(answer, Won):
            return expected, answer
        if expected[2] == "again":
            return (self.granted[expected[1] - 1], "again"), (answer.grant, answer.reason)
        grows = not self.granted or answer.grant.epoch > self.granted[-1].epoch
        self.granted.append(answer.grant)
        return (nonce, expected[2], True), (answer.grant.nonce, answer.reason, grows)

    def _renew(self, name: str) -> tuple[Any, Any]:
        token, grant = self._token(name)
        self.server, expected = model.renew(self.server, token)
        return expected, self.real.store.renew(grant, ttl=TTL, listens=True).held

    def _release(self, name: str) -> tuple[Any, Any]:
        token, grant = self._token(name)
        self.server, expected = model.release(self.server, GUARDS, token)
        return expected, self.real.store.release(grant)

    def _emit(self, name: str, wanted: tuple) -> tuple[Any, Any]:
        token, grant = self._token(name)
        self.server, outcomes = model.emit(self.server, GUARDS, token, tuple(Claim(*c) for c in wanted), DUE)
        claims = []
        for entry, slot, write in wanted:
            payload = self._payload(Message(entry, slot, token))
            writes = {PUSH: (Push("work", payload),), KEEP: (Keep(payload),), SKIP: ()}[write]
            claims.append(RealClaim(ENTRIES[entry], self.slots[slot], writes))
        try:
            found = [outcome.kind for outcome in self.real.store.emit(grant, claims)[1]]
        except Deposed as error:
            found = ["deposed"] if error.epoch == grant.epoch else [f"deposed {error.epoch}"]
        return [KINDS[outcome] for outcome in outcomes], found

    def _enroll(self, name: str) -> tuple[Any, Any]:
        token, grant = self._token(name)
        allowed = token > 0 and token == self.server.epoch
        anchor = 1 + self.enrolled % 2
        try:
            self.real.store.enroll(grant, {"p": Enrolment(self.slots[anchor], "rule")})
            found = True
        except Deposed:
            found = False
        if allowed:
            self.enrolled = anchor
        return allowed, found

    def _confirm(self, which: str) -> tuple[Any, Any]:
        kept = sorted(self.server.outbox, key=lambda m: (m.slot, m.entry))
        chosen = kept if which == "all" else kept[:1]
        if which == "another payload":
            chosen = [record._replace(epoch=record.epoch + 100) for record in chosen]
        expected = 0
        for record in chosen:
            self.server, gone = model.confirm(self.server, GUARDS, record)
            expected += gone
        return expected, self.real.store.confirm([self._record(record) for record in chosen])

    def _listen(self, nonce: str) -> tuple[Any, Any]:
        self.listening.add(nonce)
        ears = self.real.store.ears()
        self.ears.append(ears)
        return True, ears.listen(nonce)

    def _deaf(self) -> tuple[Any, Any]:
        self.listening.clear()
        self.real.deaf(self.ears)
        self.ears = []
        return None, None

    def _tick(self) -> tuple[Any, Any]:
        if self.server.epoch:
            self.server = self.server._replace(stale=1, quiet=1)
        self.real.tick()
        return None, None

    def _expire(self) -> tuple[Any, Any]:
        self.server = model.freed(self.server)
        self.real.expire()
        return None, None


def _held(answer: Any) -> tuple:
    return () if isinstance(answer, Won) else (answer.token, answer.absent)


def replay(real: Real, ops: Iterable[Op]) -> Server:
    """Do these operations to a fresh store and to the model; raises AssertionError where they part."""
    pair = Pair(real)
    try:
        for op in ops:
            pair.do(op)
    finally:
        pair.close()
    return pair.server


def random_walks(number: int, length: int, seed: int = 1) -> Iterator[list[Op]]:
    """Walks of server-side operations, the same each time."""
    choice = random.Random(seed)
    everything = operations()
    for _ in range(number):
        yield [Op("bid", ("a", "", 0)), *choice.choices(everything, k=length)]


def short_walks(length: int) -> Iterator[tuple[Op, ...]]:
    """Every sequence of so many operations."""
    return itertools.product(operations(), repeat=length)


def memory_store() -> Real:
    """A fresh memory store; its clock is the test's."""
    clock = FakeClock()
    store = MemoryBeatStore(clock)

    def deaf(ears: list[Any]) -> None:
        for one in ears:
            one.close()

    return Real(
        store,
        lambda name: list(reversed(store.queues.get(name, []))),
        lambda: setattr(store._kept, "lease", None),
        lambda: clock.advance(TICK),
        deaf,
    )


def redis_store(client: redis.Redis, store: RedisBeatStore, keys: Keys) -> Real:
    """Empty a Redis store. A tick puts back the moments since which its leader is quiet, so nobody sleeps."""
    client.flushdb()

    def tick() -> None:
        if client.exists(keys.leader):
            for name in ("since", "emitted"):
                client.hincrby(keys.leader, name, -round(TICK * 1000))

    def deaf(ears: list[Any]) -> None:
        for one in ears:
            one.close()
        deadline = time.monotonic() + 5
        while client.pubsub_channels(keys.presence + "*"):
            assert time.monotonic() < deadline, "Redis did not notice closed connections"

    return Real(
        store,
        lambda name: list(reversed(client.lrange(name, 0, -1))),
        lambda: client.delete(keys.lease),
        tick,
        deaf,
    )
