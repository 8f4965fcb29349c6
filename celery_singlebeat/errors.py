"""Every exception that celery-singlebeat raises on purpose.

SingleBeatError
├── SettingsError          the configuration cannot work; raised at start
├── EntryError             one entry of the schedule cannot work; that entry alone is parked
├── StoreUnavailable       Redis did not answer; nothing is known about what it did
├── LeaseError
│   ├── NotLeader          this node may not dispatch now
│   ├── Deposed            it led one epoch, and the store knows a newer one
│   └── ResignRefused      no other node leads, though one was asked for
├── LockError
│   ├── LockConflict       another call holds the key
│   ├── LockLost           the lock was held once, and cannot be relied on any more
│   └── LockKeyError       no key can be formed from this call
└── DeadLetterError
    ├── PoisonedCall       so many deliveries ended without an outcome that the call must not run again
    ├── LetterNotFound     no dead letter has this id
    └── ReplayRefused      the letter is there, and cannot be sent again

Errors travel: a worker raises them, a result backend pickles them, another process raises them
again. So each passes to `Exception` exactly the arguments that its constructor takes.
"""

from __future__ import annotations

import click


class SingleBeatError(Exception):
    """Base of every error that celery-singlebeat raises on purpose."""


class SettingsError(SingleBeatError, click.ClickException, ValueError):
    """The configuration cannot work. Its message names the setting, the value and the remedy.

    It is a click exception too, so that `celery beat` prints one line and exits with code 2
    instead of a traceback.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)

    def __str__(self) -> str:
        return self.message


class ExtraMissing(SingleBeatError, click.ClickException, ImportError):
    """What `extra` of this distribution installs is missing; `problem` says what needs it.

    A click exception too, for the same reason as `SettingsError`; no `ValueError`, which kombu would wrap.
    """

    exit_code = 2

    def __init__(self, problem: str, extra: str) -> None:
        click.ClickException.__init__(self, f"{problem}: pip install 'celery-singlebeat[{extra}]'")
        self.args = (problem, extra)
        self.problem = problem
        self.extra = extra

    def __str__(self) -> str:
        return self.message


class EntryError(SingleBeatError, ValueError):
    """Entry `entry` of the schedule cannot work; the others are not touched by it."""

    def __init__(self, entry: str, problem: str) -> None:
        super().__init__(entry, problem)
        self.entry = entry
        self.problem = " ".join(problem.splitlines())

    def __str__(self) -> str:
        return f"entry {self.entry!r}: {self.problem}"


class EntryNotFound(SingleBeatError, LookupError):
    """The schedule has no entry `entry`; `nearest` is the nearest name that it has, or ""."""

    def __init__(self, entry: str, nearest: str = "") -> None:
        super().__init__(entry, nearest)
        self.entry = entry
        self.nearest = nearest

    def __str__(self) -> str:
        hint = f"did you mean {self.nearest!r}?" if self.nearest else "see `schedule list`"
        return f"the schedule has no entry {self.entry!r}; {hint}"


class StoreUnavailable(SingleBeatError):
    """The store did not answer `operation`, so nobody knows whether it happened."""

    def __init__(self, operation: str, cause: str = "") -> None:
        super().__init__(operation, cause)
        self.operation = operation
        self.cause = cause

    def __str__(self) -> str:
        return f"no answer to {self.operation}" + (f": {self.cause}" if self.cause else "")


class LeaseError(SingleBeatError):
    """Acting as the leader was not allowed."""


class NotLeader(LeaseError):
    """Node `node` may not dispatch now."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node

    def __str__(self) -> str:
        return f"{self.node} does not lead"


class Deposed(LeaseError):
    """The store refused a write of epoch `epoch`: the lease is not that grant's any more."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch

    def __str__(self) -> str:
        return f"epoch {self.epoch} does not hold the lease any more"


class ResignRefused(LeaseError):
    """Nobody took over from `node`, the leader ("" if there is none), because of `problem`."""

    def __init__(self, node: str, problem: str) -> None:
        super().__init__(node, problem)
        self.node = node
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.node} does not hand over: {self.problem}" if self.node else self.problem


class LockError(SingleBeatError):
    """Base of everything that can go wrong with a task's lock."""


class LockConflict(LockError):
    """Another call holds `key`. `holder` is {"task_id", "host", "pid", "since"}."""

    def __init__(self, key: str, holder: dict[str, object] | None = None) -> None:
        super().__init__(key, holder)
        self.key = key
        self.holder = holder or {}

    def __str__(self) -> str:
        who = ", ".join(f"{name} {value}" for name, value in self.holder.items())
        return f"lock {self.key} is held" + (f" by {who}" if who else "")


class LockLost(LockError):
    """The lock on `key` under `fence` cannot be relied on any more: another call may run."""

    def __init__(self, key: str, fence: int) -> None:
        super().__init__(key, fence)
        self.key = key
        self.fence = fence

    def __str__(self) -> str:
        return f"lock {self.key} (fence {self.fence}) was lost"


class LockKeyError(LockError, ValueError):
    """No lock key can be formed for `task`; running it unlocked would be worse than failing."""

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(task, problem)
        self.task = task
        self.problem = problem

    def __str__(self) -> str:
        return f"task {self.task}: {self.problem}"


class DeadLetterError(SingleBeatError):
    """Base of everything that can go wrong with a dead letter."""


class PoisonedCall(DeadLetterError):
    """Of the call `task_id`, `deliveries` deliveries ended without an outcome, so it is not run again."""

    def __init__(self, task_id: str, deliveries: int) -> None:
        super().__init__(task_id, deliveries)
        self.task_id = task_id
        self.deliveries = deliveries

    def __str__(self) -> str:
        return (
            f"{self.deliveries} deliveries of call {self.task_id} ended without an outcome "
            "(worker killed, out of memory); raise poison_limit to allow more"
        )


class LetterNotFound(DeadLetterError, LookupError):
    """No dead letter has the id `letter`."""

    def __init__(self, letter: str) -> None:
        super().__init__(letter)
        self.letter = letter

    def __str__(self) -> str:
        return f"no dead letter has the id {self.letter}"


class ReplayRefused(DeadLetterError):
    """Dead letter `letter` stays where it is, because of `problem`."""

    def __init__(self, letter: str, problem: str) -> None:
        super().__init__(letter, problem)
        self.letter = letter
        self.problem = problem

    def __str__(self) -> str:
        return f"dead letter {self.letter} was not replayed: {self.problem}"
