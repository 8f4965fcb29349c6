"""Every way for a task to end, and what becomes of its lock: ours beside celery-once and celery-singleton.

    python -m benchmarks.endings             the table
    python -m benchmarks.endings --markdown  as in docs/tasks.md

Each contender has a worker of its own on one Redis. A call is sent, and ended; then the keys of its lock are
watched until none is left, or until nobody would wait any longer. A second worker takes over where the first
one ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import celery
from celery.result import AsyncResult
from rich.console import Console
from rich.table import Table
from typing_extensions import Self

from benchmarks.endings_app import TTL, make_app
from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis

ROOT = Path(__file__).resolve().parents[1]
#: How the keys of each contender's locks begin.
PATTERNS = {"singlebeat": "endings:*:lock:*", "once": "qo_*", "singleton": "SINGLETONLOCK_*"}
TITLES = {"singlebeat": "celery-singlebeat", "once": "celery-once", "singleton": "celery-singleton"}
#: Seconds after which a lock that is still there counts as left behind.
PATIENCE = TTL + 8.0
#: Seconds without a lock after which a call without a result counts as lost.
LOST = 6.0
READY = frozenset({"SUCCESS", "FAILURE", "REVOKED", "REJECTED", "IGNORED"})


@dataclass(frozen=True, slots=True)
class Row:
    """What was seen of one ending. `freed`: seconds until the lock was gone for good; None: it stayed.

    `started` and `finished` count the runs of the body.
    """

    ending: str
    freed: float | None
    state: str
    started: int
    finished: int


@dataclass(slots=True)
class Stage:
    """One contender on a Redis, with a worker that lives as long as no ending takes it down."""

    kind: str
    server: EmbeddedRedis
    folder: Path
    workers: list[ManagedProcess] = field(default_factory=list)
    client: Any = field(init=False)
    app: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.server.client(decode_responses=True)
        self.app = make_app(self.kind, self.server.url())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        self.client.close()
        # A result that is collected after its server has gone would try to reconnect for twenty seconds.
        self.app.backend.remove_pending_result = lambda _: None
        self.app.close()

    def worker(self, *, soft: float | None = None) -> ManagedProcess:
        """The worker that runs, or a new one."""
        found = next((each for each in self.workers if each.running), None)
        if found is not None and soft is None:
            return found
        for each in self.workers:
            each.kill()
        name = f"{self.kind}{len(self.workers)}"
        env = {"ENDINGS_KIND": self.kind, "ENDINGS_URL": self.server.url()}
        env |= {"ENDINGS_SOFT": str(soft)} if soft is not None else {}
        argv = [sys.executable, "-m", "celery", "-A", "benchmarks.endings_app", "worker", "-l", "INFO"]
        argv += ["-c", "2", "-n", f"{name}@%h", "-Q", self.kind]
        argv += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
        log = self.folder / f"{name}.log"
        worker = ManagedProcess(argv, cwd=ROOT, env=env, name=name, log_path=log).start()
        self.workers.append(worker)
        wait_until(lambda: " ready." in worker.logs() or not worker.running, 30, worker.logs)
        return worker

    def locks(self) -> set[str]:
        return set(self.client.keys(PATTERNS[self.kind]))

    def number(self, what: str, name: str) -> int:
        return int(self.client.get(f"{what}:{name}") or 0)

    def deliver_again(self) -> None:
        """What a worker does with messages older than the visibility timeout, but now."""
        with self.app.connection_for_write() as connection:
            connection.default_channel.qos.visibility_timeout = 0
            connection.default_channel.qos.restore_visible(num=100, interval=1)

    def play(self, ending: Ending) -> Row:
        """Send a call, end it, and watch."""
        worker = self.worker(soft=ending.soft)
        before, name = self.locks(), uuid.uuid4().hex[:8]
        task = self.app.tasks["endings.body"]
        result: AsyncResult[Any] = task.apply_async((name, ending.how), **ending.options)
        begun = time.monotonic()
        if not ending.early:
            wait_until(lambda: self.number("started", name), 15, worker.logs)
            begun = time.monotonic()
        if ending.act is not None:
            begun = ending.act(self, worker, name, result.id) or begun
        last = self._gone(before, result, begun, settles=ending.settles and worker.running)
        if not worker.running:
            self.worker()
            self.deliver_again()
            self._gone(before, result, time.monotonic(), settles=ending.settles)
        return Row(
            ending.title,
            last,
            result.state,
            self.number("started", name),
            self.number("finished", name),
        )

    def _unfinished(self, result: AsyncResult[Any]) -> bool:
        return result.state not in READY

    def _gone(
        self, before: set[str], result: AsyncResult[Any], begun: float, *, settles: bool
    ) -> float | None:
        """Seconds from `begun` until the lock was there for the last time; None if it stays."""
        last = calm = 0.0
        while (now := time.monotonic() - begun) < PATIENCE:
            if self.locks() - before:
                last, calm = now, now
            elif now - calm > (LOST if settles and self._unfinished(result) else 0.8):
                return last
            time.sleep(0.01)
        return None if self.locks() - before else last


Act = Callable[[Stage, ManagedProcess, str, str], "float | None"]


@dataclass(frozen=True, slots=True)
class Ending:
    """One way to end. `early`: before the body starts. `act` may return the moment that counts as the end.

    `settles`: the call has a result in the end.
    """

    title: str
    how: str = "wait"
    act: Act | None = None
    early: bool = False
    soft: float | None = None
    settles: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def _revoke(stage: Stage, _: ManagedProcess, __: str, task_id: str) -> None:
    stage.app.control.revoke(task_id)


def _terminate(signum: str) -> Act:
    def act(stage: Stage, _: ManagedProcess, __: str, task_id: str) -> None:
        stage.app.control.revoke(task_id, terminate=True, signal=signum)

    return act


def _kill_child(stage: Stage, _: ManagedProcess, name: str, __: str) -> None:
    os.kill(stage.number("pid", name), signal.SIGKILL)


def _signal(*signals: int, go: bool = False) -> Act:
    def act(stage: Stage, worker: ManagedProcess, name: str, _: str) -> float:
        for number, signum in enumerate(signals):
            if number:
                wait_until(lambda: "Warm shutdown" in worker.logs(), 10, worker.logs)
            # To the parent alone, as a supervisor does; a terminal would send SIGINT to all.
            os.kill(worker.pid, signum)
        begun = time.monotonic()
        if go:
            stage.client.set(f"go:{name}", 1, ex=60)
        worker.wait(30)
        return begun

    return act


def _kill_worker(_: Stage, worker: ManagedProcess, __: str, ___: str) -> None:
    worker.kill()


ENDINGS = (
    Ending("success", "success"),
    Ending("failure", "failure"),
    Ending("retry, then success", "retry"),
    Ending("Ignore", "ignore", settles=False),
    Ending("Reject", "reject"),
    Ending("Reject with requeue, then success", "requeue"),
    Ending("revoked before its start", "success", _revoke, early=True, options={"countdown": 1.0}),
    Ending("expired before its start", "success", early=True, options={"countdown": 1.0, "expires": 0.5}),
    Ending("revoked with terminate (SIGTERM)", act=_terminate("SIGTERM")),
    Ending("revoked with terminate (SIGKILL)", act=_terminate("SIGKILL")),
    Ending("soft time limit of 1 s", options={"soft_time_limit": 1}),
    Ending("hard time limit of 1 s", options={"time_limit": 1}),
    Ending("SystemExit in the body", "exit"),
    Ending("child killed (SIGKILL)", act=_kill_child),
    Ending("warm shutdown (SIGTERM)", act=_signal(signal.SIGTERM, go=True)),
    Ending("warm shutdown (SIGINT)", act=_signal(signal.SIGINT, go=True)),
    Ending("cold shutdown (SIGINT twice)", act=_signal(signal.SIGINT, signal.SIGINT)),
    Ending("cold shutdown (SIGQUIT)", act=_signal(signal.SIGQUIT)),
    *(
        [Ending("soft shutdown (SIGQUIT)", act=_signal(signal.SIGQUIT, go=True), soft=2.0)]
        if celery.VERSION >= (5, 5)
        else []
    ),
    Ending("worker killed (SIGKILL)", act=_kill_worker),
)


def measure(
    kinds: Sequence[str] = tuple(PATTERNS), endings: Sequence[Ending] = ENDINGS
) -> dict[str, list[Row]]:
    """The rows of each contender, in one run on one Redis."""
    found = {}
    with EmbeddedRedis() as server, tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            with Stage(kind, server, Path(folder)) as stage:
                found[kind] = [stage.play(ending) for ending in endings]
    return found


def shown(row: Row) -> str:
    """One cell: when the lock was free, the state, and how often the body started and finished."""
    freed = "**never**" if row.freed is None else "at once" if row.freed < 0.2 else f"{row.freed:.1f} s"
    return f"{freed}, {row.state}, {row.finished} of {row.started}"


def table(found: dict[str, list[Row]]) -> Table:
    """What was measured, one line for each ending."""
    drawn = Table(title=CAPTION, title_justify="left")
    for heading in ("the call ends by", *(TITLES[kind] for kind in found)):
        drawn.add_column(heading)
    for rows in zip(*found.values(), strict=True):
        drawn.add_row(rows[0].ending, *(shown(row).replace("*", "") for row in rows))
    return drawn


def markdown(found: dict[str, list[Row]]) -> str:
    """The same as a table of Markdown."""
    lines = [["the call ends by", *(TITLES[kind] for kind in found)], ["---"] * (len(found) + 1)]
    lines += [[rows[0].ending, *map(shown, rows)] for rows in zip(*found.values(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


CAPTION = f"Lock free after, state of the result, bodies finished of started. lock_ttl is {TTL:g} s"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endings", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print a table of Markdown")
    parser.add_argument("--only", action="append", choices=tuple(PATTERNS), help="this contender alone")
    parser.add_argument("--ending", action="append", metavar="TEXT", help="endings whose name has this text")
    chosen = parser.parse_args(argv)
    wanted = [each for each in ENDINGS if any(text in each.title for text in chosen.ending or [""])]
    found = measure(chosen.only or tuple(PATTERNS), wanted)
    if chosen.markdown:
        print(markdown(found))
    else:
        console = Console()
        (console if console.is_terminal else Console(width=160)).print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
