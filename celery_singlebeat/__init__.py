"""Run celery beat on every server; at most one of them leads.

Four rooms, one sentence: **policy** decides, **store** remembers, **beat** and **task** act, the
command line and the metrics show.

=============  =====================  ==================  ====================  ==================
subject        policy decides         store remembers     acts                  shows
=============  =====================  ==================  ====================  ==================
leadership     leases, clocks         LeaseStore          beat.elector          status, resign
due slots      slots, entries         SlotStore           beat.dispatcher       status
task locks     lock_keys              LockStore           task.locks            locks
dead letters   backoff, dead_letters  the broker's queue  task.dead_letters     dlq
installation   diagnosis              ServerStore         doctor                doctor
=============  =====================  ==================  ====================  ==================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_singlebeat.errors import (
    DeadLetterError,
    Deposed,
    EntryError,
    EntryNotFound,
    LeaseError,
    LetterNotFound,
    LockConflict,
    LockError,
    LockKeyError,
    LockLost,
    NotLeader,
    ReplayRefused,
    ResignRefused,
    SettingsError,
    SingleBeatError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from celery_singlebeat.beat.leadership import Leadership
    from celery_singlebeat.beat.mixin import SingleBeatMixin
    from celery_singlebeat.beat.schedule import Schedule
    from celery_singlebeat.beat.scheduler import SingleBeatScheduler
    from celery_singlebeat.task.base import SingleBeatTask
    from celery_singlebeat.task.conflicts import was_skipped
    from celery_singlebeat.task.dead_letters import DeadLetters
    from celery_singlebeat.task.locks import Locks

__version__ = "0.1.0.dev0"

__all__ = [
    "DeadLetterError",
    "DeadLetters",
    "Deposed",
    "EntryError",
    "EntryNotFound",
    "Leadership",
    "LeaseError",
    "LetterNotFound",
    "LockConflict",
    "LockError",
    "LockKeyError",
    "LockLost",
    "Locks",
    "NotLeader",
    "ReplayRefused",
    "ResignRefused",
    "Schedule",
    "SettingsError",
    "SingleBeatError",
    "SingleBeatMixin",
    "SingleBeatScheduler",
    "SingleBeatTask",
    "StoreUnavailable",
    "__version__",
    "was_skipped",
]

#: Public names that cost an import of celery.beat or redis, and where they live. Celery imports this
#: package for every `celery` command, so they are imported when they are asked for.
_ROOMS = {
    "Leadership": "beat.leadership",
    "Schedule": "beat.schedule",
    "SingleBeatMixin": "beat.mixin",
    "SingleBeatScheduler": "beat.scheduler",
    "SingleBeatTask": "task.base",
    "was_skipped": "task.conflicts",
    "DeadLetters": "task.dead_letters",
    "Locks": "task.locks",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see _ROOMS

    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
