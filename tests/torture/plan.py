"""Which fault comes when, whom it hits and how long it lasts: from a seed, without a clock.

Two faults may be at work at once if they do not need the same thing (`needs`). A step that cannot be taken
for that reason is passed over when it comes up; the steps after it are the same as without it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEADER = -1


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. `hits`: a replica's "process" or "network", the "server", the "broker", or "all"."""

    name: str
    family: str
    hits: str
    weight: float
    #: Seconds, or leases if `in_leases`.
    shortest: float
    longest: float
    in_leases: bool = False


def _kinds(family: str, hits: str, *kinds: tuple[str, float, float, float]) -> tuple[Kind, ...]:
    return tuple(Kind(name, family, hits, *numbers) for name, *numbers in kinds)  # type: ignore[arg-type]


#: Every fault with its weight, and its shortest and longest length.
KINDS = (
    *_kinds("process", "process", ("kill", 3, 0.0, 1.5), ("term", 2, 0.0, 1.5)),
    Kind("stop", "process", "process", 3, 0.1, 3.0, in_leases=True),
    *_kinds(
        "network",
        "network",
        ("cut", 2, 0.1, 4.0),  # every connection reset, every new one refused
        ("refuse", 1, 0.1, 4.0),  # new connections only
        ("slow", 2, 0.5, 4.0),  # each byte late, both ways
        ("slow replies", 1, 0.5, 4.0),
        ("lose replies", 2, 0.1, 4.0),  # the server acts, nobody hears of it
        ("lose requests", 1, 0.1, 4.0),
        ("blackhole", 2, 0.1, 4.0),
        ("late requests", 2, 0.1, 4.0),  # held, and delivered afterwards
        ("late replies", 1, 0.1, 4.0),
        ("lost reply", 4, 2.0, 2.0),  # of one emission: the server acted, then the connection is reset
        ("lost answer", 2, 1.0, 1.0),  # of any request
        ("deaf", 2, 0.3, 1.5),  # the subscription dies and cannot come back; the other connection lives on
    ),
    *_kinds(
        "server",
        "server",
        ("kill connections", 1, 0.0, 0.0),
        ("kill ears", 2, 0.0, 0.0),
        ("usurp", 1.5, 0.2, 1.0),  # a node that nobody knows has the lease, and does nothing
        ("freeze", 2, 0.1, 5.0),
        ("crash", 2, 0.0, 1.0),  # SIGKILL and restart; with appendfsync always nothing is lost
        ("restart", 1, 0.0, 0.5),
    ),
    *_kinds("roll", "all", ("roll", 1, 0.2, 1.5)),
    *_kinds("clock", "process", ("beat clock", 2, 0.5, 4.0)),
    *_kinds("clock", "server", ("redis clock", 2, 0.5, 4.0)),
    *_kinds(
        "lossy",
        "server",
        ("truncate", 2, 0.0, 0.5),  # SIGKILL, and a random piece of the end of the log is gone
        ("empty", 0.7, 0.0, 0.5),  # SIGKILL, and all data are gone
        ("failover", 1.5, 0.05, 1.5),  # to a replica that lags
    ),
    *_kinds("broker", "broker", ("broker freeze", 1, 0.1, 4.0)),
    *_kinds("broker", "network", ("broker cut", 2, 0.1, 4.0), ("broker blackhole", 2, 0.1, 4.0)),
)
FAMILIES = tuple(dict.fromkeys(kind.family for kind in KINDS))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to come. `target` is a replica's number or LEADER; `dice` decides what is left to chance."""

    number: int
    kind: Kind
    target: int
    seconds: float
    dice: float

    @property
    def name(self) -> str:
        return self.kind.name


@dataclass(frozen=True, slots=True)
class Step:
    """Wait so many seconds, then begin the fault, if at most `others` are at work."""

    gap: float
    fault: Fault
    others: int


def chosen(names: Sequence[str], broker: str) -> list[Kind]:
    """The kinds that a comma-separated list of names and families means; raises ValueError."""
    known = {*FAMILIES, *(kind.name for kind in KINDS), "all"}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    found = [kind for kind in KINDS if {"all", kind.name, kind.family} & set(names)]
    if broker == "redis":
        return [kind for kind in found if kind.family != "broker"]
    # What one server loses and the other does not is beyond what an outbox can promise.
    return [kind for kind in found if kind.family != "lossy" and kind.name != "lost reply"]


def steps(seed: int, kinds: Sequence[Kind], *, replicas: int, lease: float, spared: int) -> Iterator[Step]:
    """The faults of a storm, without end. The replica `spared` is never ended: it shows what grows."""
    rng = random.Random(f"faults {seed}")
    number = 0
    while kinds:
        number += 1
        kind = rng.choices(kinds, weights=[kind.weight for kind in kinds])[0]
        target = LEADER if rng.random() < 0.6 else rng.randrange(replicas)
        if kind.name in {"kill", "term"} and target == spared:
            target = (spared + 1) % replicas
        seconds = rng.uniform(kind.shortest, kind.longest) * (lease if kind.in_leases else 1.0)
        yield Step(
            gap=min(rng.expovariate(1.2), 3.0),
            fault=Fault(number, kind, target, seconds, rng.random()),
            others=int(rng.random() < 0.35),
        )


def needs(fault: Fault, target: int, replicas: int) -> set[str]:
    """What a fault needs for itself: nothing else may touch it meanwhile."""
    every = {f"process {number}" for number in range(replicas)}
    if fault.kind.hits == "all":
        return {*every, "clock"}  # of any one clock: a new entry takes its anchor from them
    if fault.kind.hits in {"server", "broker"}:
        own = {fault.kind.hits}
        if fault.name == "empty":
            return {*own, "clock"}
        return {*own, "clock"} if fault.kind.family == "clock" else own
    own = {f"{fault.kind.hits} {target}"}
    return {*own, "clock"} if fault.kind.family == "clock" else own
