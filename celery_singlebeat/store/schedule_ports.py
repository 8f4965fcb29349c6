"""What the store keeps of the schedule itself: dynamic entries, pauses, and the runs that must not overlap.

Every change is one step, and goes into a stream of changes under the entry's name. A node that knows its
place in that stream reads what came after it, however many entries there are. A leader emits with its
place, too: the store takes no slot of an entry that has changed since. So a change is in force as soon as
its command returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from celery_singlebeat.policy.pauses import Pause


@dataclass(frozen=True, slots=True)
class Record:
    """A dynamic entry: since when it has its rule, and its text, which the store does not read."""

    since: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed up to `cursor`; if `is_everything`, all there is. None: it is gone.

    `unreadable` are entries whose stored form is damaged.
    """

    cursor: str
    is_everything: bool = False
    records: Mapping[str, Record | None] = field(default_factory=dict)
    pauses: Mapping[str, Pause | None] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


class ScheduleStore(Protocol):
    """Dynamic entries and pauses, which any process may change."""

    def changes(self, cursor: str = "") -> Changes:
        """What changed after `cursor`, which the last answer gave; everything for ""."""
        ...

    def of(self, entry: str) -> Changes:
        """What there is of one entry, without a cursor: nothing, if it is neither dynamic nor paused."""
        ...

    def put(
        self, entries: Mapping[str, tuple[str, str]], since: Mapping[str, datetime] | None = None
    ) -> dict[str, str]:
        """Add or change entries, given as (rule, text): what became of each, "added", "changed" or
        "same". Under the same rule it keeps its `since`.

        `since`: from when the slots of entries count that had their rule elsewhere before. Under the same
        rule the later of that and its own stands.
        """
        ...

    def remove(self, entry: str, *, keep_pause: bool = False) -> bool:
        """Remove a dynamic entry; False if there is none. `keep_pause`: another of this name goes on."""
        ...

    def pause(self, entry: str, *, is_dynamic: bool = False) -> bool | None:
        """Dispatch no slot of this entry from now on; False if it was paused. None: it is said to be dynamic,
        and is not there any more.
        """
        ...

    def resume(self, entry: str) -> bool:
        """Let it go on with its next slot; False if it was not paused."""
        ...

    def finish(self, entry: str, task_id: str) -> bool:
        """The call of an entry that must not overlap itself has ended; False if a newer one runs."""
        ...
