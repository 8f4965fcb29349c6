"""One loop: drain the queues, begin and end faults, take samples; then let the dust settle."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis

from tests.torture.faults import Faults, Wait
from tests.torture.flatness import sample
from tests.torture.history import History
from tests.torture.plan import LEADER, Fault, Kind, needs, steps
from tests.torture.site import Replica, Site
from tests.torture.tap import Tap
from tests.torture.timetable import PREFIX, QUEUES, make_schedule

#: Seconds between two looks at the queues, and between two samples.
LOOK_EVERY, SAMPLE_EVERY = 0.025, 10.0
#: The replica that is never killed.
SPARED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for on the command line."""

    seed: int
    duration: float
    broker: str = "redis"
    replicas: int = 5
    entries: int = 300
    lease: float = 2.0
    faults: Sequence[str] = ("all",)

    @property
    def command(self) -> str:
        return (
            f"python -m tests.torture --duration {self.duration:g} --seed {self.seed} --broker {self.broker} "
            f"--replicas {self.replicas} --entries {self.entries} --lease {self.lease:g} "
            f"--faults {','.join(self.faults)!r}"
        )


@dataclass(slots=True)
class _Active:
    fault: Fault
    target: int
    course: Wait
    needs: set[str]
    due: float = field(default=0.0)


class Storm:
    """A site, and what happens to it for so many seconds."""

    def __init__(
        self, options: Options, folder: Path, kinds: Sequence[Kind], say: Callable[[str], None]
    ) -> None:
        self.options = options
        self.folder = folder
        self.say = say
        self.history = History(folder / "history.jsonl")
        self._began = time.monotonic()
        schedule = make_schedule(options.seed, options.entries)
        self.site = Site(
            folder,
            self.history,
            schedule,
            broker=options.broker,
            replicas=options.replicas,
            lease=options.lease,
        )
        if self.site.clocks.why_not:
            self.say(f"no clock is stepped: {self.site.clocks.why_not}")
            kinds = [kind for kind in kinds if kind.family != "clock"]
        self.kinds = kinds
        queues = QUEUES if options.broker == "redis" else ["executions"]
        self.tap = Tap(self.site.client, self.history, PREFIX, queues)
        self.faults = Faults(self.site, self.tap, seed=options.seed, spared=SPARED, now=self._now)
        self._active: list[_Active] = []
        self._sample_at = 0.0
        self._said = 0.0
        self._took = 0
        self._deaths = 0
        self.history.write(
            "run",
            0.0,
            seed=options.seed,
            command=options.command,
            duration=options.duration,
            replicas=options.replicas,
            lease=options.lease,
            failover=2 * options.lease,
            broker=options.broker,
            prefix=PREFIX,
            kinds=[kind.name for kind in kinds],
            why_no_clocks=self.site.clocks.why_not,
        )
        self.history.write("version", 0.0, number=0, what="start", entries=schedule)

    def run(self) -> None:
        """The whole storm; the history is complete when this returns."""
        try:
            for replica in self.site.replicas:
                replica.start(self._now())
            self._work_until(lambda: self._all_report() or self._deaths >= self.options.replicas, 90)
            if not self._all_report():
                raise RuntimeError(
                    "the replicas do not all start:\n" + self.site.replicas[0].process.logs()[-3000:]
                )
            self._rage()
            self._settle()
            self._end()
        finally:
            for active in self._active:
                active.course.close()  # a generator undoes what it holds
            self.site.close()
            self.history.close()

    # -- the parts ------------------------------------------------------------------------------

    def _rage(self) -> None:
        options = self.options
        plan = steps(options.seed, self.kinds, replicas=options.replicas, lease=options.lease, spared=SPARED)
        end = self._now() + options.duration
        step = next(plan, None)
        begin_at = self._now() + (step.gap if step else 0.0)
        while self._now() < end:
            self._turn()
            if step is None or self._now() < begin_at or len(self._active) > step.others:
                continue
            self._begin(step.fault)
            step = next(plan, None)
            begin_at = self._now() + (step.gap if step else 0.0)
        self._work_until(lambda: not self._active, 120, "faults do not end")

    def _settle(self) -> None:
        """Wait for two leases without faults; then every slot until now has to go out, however late."""
        calm = self._now() + 2 * self.options.lease + 2
        self._work_until(lambda: self._now() > calm, 60)
        (seconds, micros), wall = self.site.client.time(), time.time_ns() // 1_000_000
        moment = seconds * 1000 + micros // 1000
        entries = self.site.versions[-1]
        self._work_until(lambda: self._has_dispatched(entries, moment), 60)
        self.history.write("settled", self._now(), r=moment, w=wall, version=len(self.site.versions) - 1)

    def _has_dispatched(self, entries: dict[str, dict[str, Any]], moment: int) -> bool:
        enrolled: Any = self.site.client.hgetall(self.tap.keys.entries)
        marks: Any = self.site.client.hgetall(self.tap.keys.marks)
        for name, entry in entries.items():
            if name not in enrolled:
                return False
            anchor = int(enrolled[name].partition(" ")[0])
            period = entry.get("every") or entry["align"]
            last = moment - (moment - anchor) % period if "every" in entry else moment - moment % period
            if last > anchor and int(marks.get(name, 0)) < last:
                return False
        return True

    def _end(self) -> None:
        self._end_replicas(self.site.replicas)
        first = self.site.replicas[0]
        while self._outbox():  # a leader that ends within a wave leaves the rest of it to the next one
            first.start(self._now())
            self._work_until(lambda: not self._outbox(), 30, "the outbox is never empty")
            self._end_replicas([first])
        calm_since = self._now()

        def drained() -> bool:
            nonlocal calm_since
            if self._took:
                calm_since = self._now()
            return self._now() - calm_since > (0.5 if self.site.rabbit is None else 5.0)

        self._work_until(drained, 120, "the queues are never empty")
        counters: Any = self.site.client.hgetall(self.tap.keys.counters)
        tracebacks = {
            path.stem: path.read_text(errors="replace").count("Traceback (most recent call last)")
            for path in sorted(self.folder.glob("*.log"))
        }
        self.history.write(
            "end",
            self._now(),
            counters={name: int(value) for name, value in counters.items()},
            outbox=self._outbox(),
            tracebacks={name: number for name, number in tracebacks.items() if number},
        )

    def _end_replicas(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            replica.ask_to_end()
        for replica in replicas:
            self._work_until(partial(_has_ended, replica), 30)
            replica.has_ended(self._now())

    def _outbox(self) -> int:
        return int(self.site.client.hlen(self.tap.keys.outbox))  # type: ignore[arg-type]

    # -- the loop -------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _turn(self) -> None:
        began = time.monotonic()
        self._took = self._drain()
        for active in [active for active in self._active if active.due <= self._now()]:
            self._advance(active)
        self._watch()
        if self._now() >= self._sample_at and not self.site.away:
            self._sample_at = self._now() + SAMPLE_EVERY
            self.history.write("sample", self._now(), **sample(self.site, self.tap.client))
            self.history.flush()
            if self._now() - self._said > 60:
                self._said = self._now()
                self.say(f"{self._now():7.0f} s  {self.history.messages} messages")
        time.sleep(max(0.001, LOOK_EVERY - (time.monotonic() - began)))

    def _drain(self) -> int:
        if self.site.away or self.site.resting:
            return 0
        try:
            return self.tap.turn(self._now())
        except redis.RedisError:
            return 0  # asked again, for the same batch

    def _begin(self, fault: Fault) -> None:
        target = self._leader() if fault.target == LEADER else fault.target
        wanted = needs(fault, target, self.options.replicas)
        passed = fault.name in {"kill", "term"} and target == SPARED
        if passed or any(wanted & active.needs for active in self._active) or not self._can(fault):
            self._note(fault, target, "passed over")
            return
        self._note(fault, target, "begin")
        active = _Active(fault, target, self.faults.begin(fault, target), wanted)
        self._active.append(active)
        self._advance(active)

    def _can(self, fault: Fault) -> bool:
        """Faults that send the server a command need one that answers."""
        return not self.site.away or fault.kind.hits == "process"

    def _advance(self, active: _Active) -> None:
        try:
            active.due = self._now() + next(active.course)
        except StopIteration:
            self._active.remove(active)
            self._note(active.fault, active.target, "end")
        except redis.RedisError as error:  # a command of the fault itself met another fault
            self._active.remove(active)
            self.site.replicas[active.target].proxy.heal()
            self._note(active.fault, active.target, "end", problem=str(error))

    def _note(self, fault: Fault, target: int, phase: str, **facts: object) -> None:
        self.history.write(
            "fault",
            self._now(),
            id=fault.number,
            name=fault.name,
            hits=fault.kind.hits,
            target=target,
            length=round(fault.seconds, 3),
            dice=round(fault.dice, 3),
            phase=phase,
            **facts,
        )

    def _leader(self) -> int:
        pid = self.tap.leader_pid
        found = [
            replica.index for replica in self.site.replicas if replica.wanted and replica.process.pid == pid
        ]
        return found[0] if found else SPARED

    def _watch(self) -> None:
        """A beat that ends without being told to is trouble; it is started again, as it would be anywhere."""
        for replica in self.site.replicas:
            if replica.wanted and not replica.process.running:
                code = replica.process.returncode
                self._deaths += 1
                self.history.write("trouble", self._now(), what=f"{replica.name} ended by itself with {code}")
                replica.has_ended(self._now())
                replica.start(self._now())

    def _all_report(self) -> bool:
        return self.site.client.hlen(self.tap.keys.nodes) >= self.options.replicas

    def _work_until(self, done: Callable[[], bool], timeout: float, trouble: str = "") -> None:
        """Go on with the loop until something holds; a deadline that passes is noted, if it is trouble."""
        deadline = time.monotonic() + timeout
        while not done():
            if time.monotonic() > deadline:
                if trouble:
                    self.history.write("trouble", self._now(), what=f"{trouble} ({timeout:g} s)")
                return
            self._turn()


def _has_ended(replica: Replica) -> bool:
    return not replica.process.running
