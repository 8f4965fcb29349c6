"""What dead letters may ask of a store. A dead letter is a message in a real queue of the broker.

R1  Burying a call adds exactly one letter for its id and count of replays, or says that it has one.
R2  A letter's body is the failed message's body, byte for byte.
R3  Replaying takes a letter out and puts its message into a queue; of two who replay it, one does.
R4  No answer raises `StoreUnavailable`: then the message must stay where it is.
R5  Whoever reads or sweeps meets every letter that is there throughout, oldest first, without holding all
    of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A message as it travels. `body` is text or bytes, exactly as the broker holds it; `place` is what
    the store itself needs to find the message again.
    """

    body: Any = field(repr=False)
    content_type: str | None
    content_encoding: str | None
    headers: Mapping[str, Any] = field(repr=False)
    properties: Mapping[str, Any] = field(repr=False)
    place: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a Redis broker keeps a message that a consumer has in hand: the tag, and the names of the
    hash and of the sorted set, without the broker's key prefix.
    """

    tag: str
    unacked: str
    index: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Burial:
    """A letter, the call it stands for, and the message to acknowledge with it, if the store can.

    `moves`: the message is a letter already, and only changes its queue.
    """

    parcel: Parcel
    task: str
    task_id: str
    reason: str
    attempt: int
    replays: int
    receipt: Receipt | None = None
    moves: bool = False


class Verdict(Enum):
    """What becomes of a letter in a sweep, unless it is sent."""

    KEEP = "keep"  #: It stays.
    DROP = "drop"  #: It is thrown away.
    STOP = "stop"  #: It stays, and the sweep ends.


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `queue` in place of the letter."""

    message: Parcel
    queue: str


Decision: TypeAlias = Callable[[Parcel], Send | Verdict]


@dataclass(frozen=True, slots=True)
class Swept:
    """A letter that was to be sent or dropped. `problem`: why it was not."""

    letter: Parcel
    problem: str = ""

    @property
    def done(self) -> bool:
        """Whether this sweep did it."""
        return not self.problem


#: The problem of a letter that another sweep took.
TAKEN = "somebody else replayed or removed it just now"


class LetterStore(Protocol):
    """The dead-letter queue of one name."""

    def bury(self, burial: Burial) -> bool:
        """Add the letter; False if the call has one already or was overtaken."""
        ...

    def letters(self) -> Iterator[Parcel]:
        """Every letter, oldest first."""
        ...

    def number(self) -> int:
        """How many letters there are."""
        ...

    def sweep(self, decide: Decision, *, step: int = 100) -> Iterator[Swept]:
        """Do with each letter, oldest first, what `decide` says, and yield those that were to go.

        Up to `step` of them go before the first is yielded. A sweep that is closed leaves the rest as it is.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
