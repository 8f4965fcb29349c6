"""What is known before anything is judged. None: it is not known. No fact holds a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_singlebeat.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What the store did when it was asked to do what it is there for. Problems are texts, "" for none.

    `presence` is how many subscribers a script saw on a channel that had exactly one; `heard` says
    whether what the script published on it arrived.
    """

    script_problem: str = ""
    subscribe_problem: str = ""
    presence: int | None = None
    presence_problem: str = ""
    heard: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes; `maximum` 0 is no limit. `evicted` counts keys since the server started."""

    policy: str | None = None
    used: int | None = None
    maximum: int | None = None
    evicted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """What survives a restart. `snapshots`: whether they are taken by themselves."""

    append_only: bool | None = None
    fsync: str | None = None
    snapshots: bool | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """`minimum`: without so many replicas the server takes no writes."""

    is_replica: bool | None = None
    replicas: int = 0
    minimum: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One Redis or Valkey: the store, or a broker. With a `problem` it did not answer, and nothing is known.

    `round_trips` and `clock_ahead` are seconds; the latter is the interval in which the lead of this
    machine's clock over the server's lies.
    """

    subject: str
    place: str
    problem: str = ""
    product: str = "Redis"
    version: str | None = None
    is_cluster: bool | None = None
    round_trips: tuple[float, ...] = ()
    clock_ahead: tuple[float, float] | None = None
    probe: Probe | None = None
    memory: Memory = field(default_factory=Memory)
    persistence: Persistence = field(default_factory=Persistence)
    replication: Replication = field(default_factory=Replication)

    @property
    def is_store(self) -> bool:
        """Whether lease, marks and locks are here."""
        return self.subject == "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where messages go. `kind` is kombu's name of the transport: "redis", "amqp", ...

    `redelivers_after`: so many seconds after a delivery an unacknowledged message is delivered again
    (None: never, or not known); `redelivery` names the option that says so; `assumed`: it is the
    default of a server that cannot be asked. `holds_waiting`: a message with a countdown waits in a
    worker, unacknowledged. `stray` are places where `visibility_timeout` is set without any effect.
    """

    kind: str
    place: str
    problem: str = ""
    redelivers_after: float | None = None
    redelivery: str = ""
    assumed: bool = False
    holds_waiting: bool = True
    stray: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One registered task; `is_ours`: it is a `SingleBeatTask`. Durations are seconds.

    `longest_wait` is the longest countdown between two deliveries of a call that the broker sees.
    `doubts` are attributes that contradict each other, one line for each.
    """

    name: str
    is_ours: bool = False
    acks_late: bool = False
    reject_on_worker_lost: bool = False
    time_limit: float | None = None
    soft_time_limit: float | None = None
    longest_wait: float = 0.0
    exclusive: bool = False
    lock_ttl: float | None = None
    dedupe_ttl: float | None = None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown:
    """An entry of the schedule whose options delay each call of its task by so many seconds."""

    entry: str
    task: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beats:
    """What the beats told the store. `silent` and `wedged` are one line for each such beat.

    `outbox_age`: how many seconds ago the oldest slot in the outbox was due.
    """

    leader: str | None = None
    heard: int = 0
    standbys: int = 0
    silent: tuple[str, ...] = ()
    wedged: tuple[str, ...] = ()
    entries: int = 0
    faulty: Mapping[str, str] = field(default_factory=dict)
    overdue: tuple[str, ...] = ()
    outbox: int = 0
    outbox_age: float = 0.0
    trimmed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is judged. `beats` is None where the store did not answer, or with a problem.

    `dead_letters` is the number in each queue, and None where the broker did not answer.
    """

    settings: Settings
    store_place: str
    is_atomic: bool
    servers: tuple[Server, ...]
    broker: Broker
    tasks: tuple[TaskFacts, ...] = ()
    countdowns: tuple[Countdown, ...] = ()
    beats: Beats | None = None
    beats_problem: str = ""
    dead_letters: Mapping[str, int | None] = field(default_factory=dict)
