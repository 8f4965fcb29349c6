"""A schedule of a hundred thousand entries: start, takeover, idle cost, memory, and many slots at once.

    python -m benchmarks.scale [--entries 100000] [--burst 10000]

Nine of ten entries are crontabs, the others intervals. One entry is due every half a second, so that there is
something to be late; `burst` others are due in one and the same second.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from typing_extensions import override

from benchmarks.figures import Check
from benchmarks.fleets import QUEUE, Fleet, SingleBeatFleet, cpu, resident, strike
from benchmarks.report import checks_table

APP = """
from celery.schedules import crontab

ENTRIES, BURST, MINUTE = (int(os.environ[name]) for name in ("ENTRIES", "BURST", "MINUTE"))


def _entries():
    yield "pulse", {"task": "bench.job", "schedule": 0.5}
    for n in range(BURST):
        yield f"burst {n:06d}", {"task": "bench.job", "schedule": crontab(minute=MINUTE)}
    for n in range(ENTRIES - BURST):
        if n % 10:
            # never near the burst's minute: that is measured by itself
            fields = {"hour": n % 24, "day_of_month": 1 + n % 28, "month_of_year": 2}
            schedule = crontab(minute=(MINUTE + 30) % 60, **fields)
        else:
            schedule = 86400 + n
        yield f"entry {n:06d}", {"task": "bench.job", "schedule": schedule, "args": (n,)}


app.conf.beat_schedule = dict(_entries())
"""
#: What wakes as often as a standby, and does nothing: so much of its cost is the machine's.
SLEEPER = "import time\nwhile True: time.sleep(0.025)"
#: Seconds of rest over which idle cost is measured, and after which a beat counts as settled.
REST = 10.0


@dataclass(slots=True)
class Found:
    """Seconds, bytes, and shares of a core."""

    entries: int
    burst: int
    start: float = 0.0
    stock_start: float = 0.0
    memory: int = 0
    stock_memory: int = 0
    idle_stock: float = 0.0
    idle_leader: float = 0.0
    idle_standby: float = 0.0
    idle_sleeper: float = 0.0
    takeover: float = 0.0
    spread: float = 0.0


class _Big:
    """Mixed into a fleet: a schedule of another size and shape."""

    def __init__(self, *, entries: int, burst: int, minute: int) -> None:
        super().__init__(entries=entries, period=0.5)  # type: ignore[call-arg]
        self.shape = {"BURST": str(burst), "MINUTE": str(minute)}

    def environment(self, url: str) -> dict[str, str]:
        environment: dict[str, str] = super().environment(url)  # type: ignore[misc]
        return {**environment, **self.shape}


class _Ours(_Big, SingleBeatFleet):
    @override
    def prepare(self) -> None:
        (self.folder / "bench_app.py").open("a").write(APP)


class _Stock(_Big, Fleet):
    name = "stock"
    title = "stock beat"
    scheduler = "celery.beat:Scheduler"
    address = ""
    elects = False

    @override
    def prepare(self) -> None:
        (self.folder / "bench_app.py").open("a").write(APP)

    @override
    def settled(self) -> bool:
        return int(self.client.llen(QUEUE)) > 0  # type: ignore[arg-type]

    @override
    def reign(self) -> None:
        return None

    @override
    def leader(self) -> Any:
        return self.beats[0]


def rest(*pids: int) -> list[float]:
    """The shares of a core that processes use while nothing happens."""
    before, begun = [cpu(pid) for pid in pids], time.monotonic()
    time.sleep(REST)
    passed = time.monotonic() - begun
    return [(cpu(pid) - spent) / passed for pid, spent in zip(pids, before, strict=True)]


def calm(pid: int, timeout: float) -> None:
    """Wait until a process has little to do."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        before = cpu(pid)
        time.sleep(1.0)
        if cpu(pid) - before < 0.2:
            return
    raise TimeoutError(f"process {pid} does not come to rest")


def measure(*, entries: int, burst: int, ahead: float, patience: float) -> Found:
    """Everything, one after another. The burst is due `ahead` seconds from now, at a full minute."""
    found = Found(entries, burst)
    due = (int(time.time() + ahead) // 60 + 1) * 60
    with _Ours(entries=entries, burst=burst, minute=time.gmtime(due).tm_min) as fleet:
        begun = time.monotonic()
        leader = fleet.make()
        fleet.beats.append(leader)
        leader.start()
        fleet.wait(lambda: fleet.client.llen(QUEUE), "nothing is dispatched", patience)
        found.start = time.monotonic() - begun
        calm(leader.pid, patience)
        found.memory = resident(leader.pid)
        [found.idle_leader] = rest(leader.pid)
        standby = fleet.add()
        calm(standby.pid, patience)
        with subprocess.Popen([sys.executable, "-c", SLEEPER]) as sleeper:
            found.idle_standby, found.idle_sleeper = rest(standby.pid, sleeper.pid)
            sleeper.kill()
        found.takeover = _kill(fleet)
        calm(standby.pid, patience)
        found.spread = _burst(fleet, due, patience)
    with _Stock(entries=entries, burst=0, minute=0) as stock:
        begun = time.monotonic()
        beat = stock.make()
        stock.beats.append(beat)
        beat.start()
        stock.wait(stock.settled, "nothing is dispatched", patience)
        found.stock_start = time.monotonic() - begun
        time.sleep(REST)  # it never comes to rest: it compares the whole schedule at each tick
        found.stock_memory = resident(beat.pid)
        [found.idle_stock] = rest(beat.pid)
    return found


def _kill(fleet: _Ours) -> float:
    """From SIGKILL of the leader until the next one's first message."""
    fleet.client.delete(QUEUE)
    struck = time.monotonic()
    strike(fleet.leader(), signal.SIGKILL)
    fleet.client.delete(QUEUE)
    fleet.wait(lambda: fleet.client.llen(QUEUE), "nobody takes over", 60)
    return time.monotonic() - struck


def _burst(fleet: _Ours, due: int, patience: float) -> float:
    """How long after its second the last of the burst is in the queue."""
    if time.time() > due - 5:
        raise RuntimeError("the burst was due before everything else was measured; give it more time")
    with closing(fleet.server.client(decode_responses=True)) as client:
        end = time.monotonic() + patience + max(0.0, due - time.time())
        seen = 0
        while time.monotonic() < end:
            taken: Any = client.blpop([QUEUE], timeout=1)
            if taken and json.loads(taken[1])["headers"]["singlebeat_entry"].startswith("burst"):
                seen += 1
                if seen == int(fleet.shape["BURST"]):
                    return time.time() - due
    raise TimeoutError(f"{seen} messages of the burst came")


def checks(found: Found) -> list[Check]:
    """What is required of a hundred thousand entries."""
    return [
        Check("takeover to the first message: below 2 s", f"{found.takeover:.2f} s", found.takeover < 2),
        Check("idle leader: below 2 % of a core", f"{found.idle_leader:.2%}", found.idle_leader < 0.02),
        Check("idle standby: below 2 % of a core", f"{found.idle_standby:.2%}", found.idle_standby < 0.02),
        Check(
            f"{found.burst:,} slots of one second in the queue within 3 s",
            f"{found.spread:.2f} s",
            found.spread < 3,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--burst", type=int, default=10_000)
    parser.add_argument("--ahead", type=float, default=150.0, help="seconds until the burst, at least (150)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for one thing (300)")
    chosen = parser.parse_args()
    found = measure(entries=chosen.entries, burst=chosen.burst, ahead=chosen.ahead, patience=chosen.patience)
    console = Console() if sys.stdout.isatty() else Console(width=140, color_system=None)
    console.print(
        f"{found.entries:,} entries, one beat: first message {found.start:.1f} s after its start; "
        f"stock beat {found.stock_start:.1f} s"
    )
    ours, stock = found.memory / 1e6, found.stock_memory / 1e6
    console.print(f"resident: {ours:,.0f} MB; stock beat with the same schedule {stock:,.0f} MB")
    console.print(f"stock beat takes {found.idle_stock:.0%} of a core while nothing but its pulse is due")
    console.print(f"a process that only wakes as often as a standby takes {found.idle_sleeper:.2%}")
    judged = checks(found)
    console.print(checks_table(judged))
    return 0 if all(check.holds for check in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
