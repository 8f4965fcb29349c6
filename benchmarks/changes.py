"""How soon a running leader follows a change of the schedule: `python -m benchmarks.changes`.

A real `celery beat` on a private Redis leads. A hundred entries are added, one after the other, each with a
queue of its own; what is timed is from before `Schedule.add` is called until the entry's first message is in
that queue. Its period is ten milliseconds, the least that it can take. Then the entry is removed, and what
comes into its queue after `Schedule.remove` has returned would be a slot too many.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from celery import Celery
from rich.console import Console

from benchmarks.fleets import SingleBeatFleet
from celery_singlebeat import Schedule

PERIOD = 0.01
#: For how long a queue is watched after its entry was removed, and the bound of a change. Seconds.
WATCHED, BOUND = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Seconds until each change was seen, and messages that came after their entry was gone."""

    seen: Sequence[float]
    too_many: int


def measure(rounds: int) -> Changes:
    seen, too_many = [], 0
    with SingleBeatFleet(period=3600.0) as fleet:
        fleet.add()
        app = Celery("bench", broker=fleet.server.url(), set_as_current=False)
        app.conf.update(result_expires=None, **fleet.settings)
        schedule = Schedule(app)
        for number in range(rounds):
            name = f"change {number}"
            began = time.perf_counter()
            schedule.add(name, "bench.job", PERIOD, options={"queue": name})
            assert fleet.client.blpop([name], timeout=30), f"{name} is not seen"
            seen.append(time.perf_counter() - began)
            schedule.remove(name)
            left = fleet.client.llen(name)
            time.sleep(WATCHED)
            too_many += fleet.client.llen(name) - left
    return Changes(seen, too_many)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.changes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    found = measure(parser.parse_args(argv).rounds)
    Console(highlight=False).print(
        f"a change seen by a running leader, {len(found.seen)} times: median {median(found.seen):.3f} s, "
        f"maximum {max(found.seen):.3f} s; messages after an entry was removed: {found.too_many}"
    )
    return 0 if max(found.seen) <= BOUND and not found.too_many else 1


if __name__ == "__main__":
    sys.exit(main())
