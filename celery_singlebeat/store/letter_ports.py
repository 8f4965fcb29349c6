"""What dead letters may ask of a store. A dead letter is a message in a real queue of the broker.

R1  Burying a call adds exactly one letter for its id and count of replays, or says that it has one.
R2  A letter's body is the failed message's body, byte for byte.
R3  Replaying takes a letter out and puts its message into a queue; of two who replay it, one does.
R4  No answer raises `StoreUnavailable`: then the message must stay where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


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
    """A letter, the call it stands for, and the message to acknowledge with it, if the store can."""

    parcel: Parcel
    task: str
    task_id: str
    reason: str
    attempt: int
    replays: int
    receipt: Receipt | None = None


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

    def replay(self, letter: Parcel, message: Parcel, queue: str) -> bool:
        """Send `message` to `queue` in place of `letter`; False if the letter is gone."""
        ...

    def remove(self, letters: Sequence[Parcel]) -> int:
        """Throw letters away; how many of them were still there."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
