"""For how long it is kept where an entry stands that no schedule has any more.

A release that is rolled back finds its entries where it left them. Names that are new with each release, or
of entries that come and go by the thousand, do not pile up for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta

#: Since when no leader had the entry in its schedule.
KEPT = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class Absences:
    """Entries that have gone since somebody looked, those that have come back, and those to forget."""

    gone: tuple[str, ...]
    back: tuple[str, ...]
    over: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.gone or self.back or self.over)


def absences(
    known: AbstractSet[str],
    present: Collection[str],
    gone: Mapping[str, datetime],
    *,
    marks: Mapping[str, datetime],
    now: datetime,
) -> Absences:
    """What has changed. `known`: entries of which anything is kept; `present`: those of the schedule; `gone`:
    since when the others are away, as far as that was noted; `marks`: the newest slots with a verdict.

    An entry may have come back and gone again since its note, which only its mark tells then.
    """
    absent = known - set(present)

    def is_over(name: str) -> bool:
        return name in gone and now - max(gone[name], marks.get(name, gone[name])) > KEPT

    return Absences(
        gone=tuple(sorted(name for name in absent if name not in gone)),
        back=tuple(sorted(name for name in gone if name not in absent)),
        over=tuple(sorted(filter(is_over, absent))),
    )
