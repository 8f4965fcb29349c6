"""Where calls wait for their next attempt.

W1  A record waits exactly as it was parked, and is there until a mover has passed it on. Parking the same
    record again changes nothing.
W2  No record is passed on before it is due, by the store's own clock.
W3  Of several movers at once each record goes to one. A message for a Redis broker moves into its queue in
    that step; one for another broker is the mover's for `CLAIM` seconds, then anybody's again.
W4  While a beat moves, workers rest; `BEAT_COUNTS` seconds after its last word they move themselves.
W5  A record that its queue does not take is put off, and holds up no other.

As everywhere in the store, no answer raises `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from celery_singlebeat.store.ports import Keep, Write

#: Seconds that a mover has to publish what it took.
CLAIM = 30.0
#: Seconds for which the word of a beat counts.
BEAT_COUNTS = 2.0
#: Seconds that a record is put off when it cannot be passed on.
PUT_OFF = 5.0
#: Records that one step moves at most.
MOST = 200


class Rank(str, Enum):
    """Who moves: a beat goes first."""

    BEAT = "beat"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Moved:
    """What one step did. `taken` is to be published by the caller.

    `due_in`: seconds until there may be more to do; None: nothing waits. `rests`: a beat does it.
    """

    number: int = 0
    taken: Sequence[Keep] = ()
    due_in: float | None = None
    refused: int = 0
    rests: bool = False


class WaitingStore(Protocol):
    """Calls that wait, in the order in which they are due."""

    def park(self, records: Sequence[Write], wait: float) -> None:
        """Keep records for `wait` seconds."""
        ...

    def move(self, rank: Rank) -> Moved:
        """Pass on what is due, at most `MOST` records."""
        ...

    def done(self, record: Keep) -> None:
        """Forget a taken record: its broker has it."""
        ...

    def put_off(self, record: Keep, wait: float) -> None:
        """Let a taken record wait for `wait` seconds more: its broker did not take it."""
        ...

    def number(self) -> int:
        """How many records wait."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
