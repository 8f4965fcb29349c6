"""Which entries the replicas have, from the seed alone; and how a schedule changes in a rolling deployment.

A schedule is plain data, name -> entry:

    {"every": 1500} or {"align": 60000}   milliseconds: an interval from an anchor, or a crontab of minutes
    "misfire": "all" or "latest", "queue": name
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

Entry = dict[str, Any]
Schedule = dict[str, Entry]

PREFIX = "torture"
QUEUES = ("celery", "second")
#: Share of each interval in milliseconds; 0 stands for crontabs.
_SHARES = {
    200: 3, 250: 2, 300: 2, 500: 6, 700: 6, 1000: 25, 1500: 20, 2000: 20, 3000: 20, 5000: 30, 7500: 30,
    10_000: 30, 15_000: 20, 20_000: 20, 30_000: 20, 45_000: 10, 60_000: 8, 0: 8,
}  # fmt: skip
#: A schedule's entries that a rolling deployment may change.
CHANGING = "changing"
_FAST = (500, 800, 1000, 1300, 2000, 3000)


def make_schedule(seed: int, number: int) -> Schedule:
    """`number` entries, a tenth of which may change later."""
    rng = random.Random(f"entries {seed}")
    schedule: Schedule = {}
    changing = max(2, min(12, number // 10))
    for position in range(changing):
        schedule[f"{CHANGING} {position}"] = _entry(rng, rng.choice(_FAST))
    periods = rng.choices(list(_SHARES), weights=list(_SHARES.values()), k=max(0, number - changing))
    for position, period in enumerate(periods):
        schedule[f"entry {position} of {period / 1000:g} s"] = _entry(rng, period)
    return schedule


def changed(schedule: Schedule, seed: int, version: int) -> tuple[Schedule, str]:
    """The next version of a schedule, with one entry added, removed or changed; and what was done."""
    rng = random.Random(f"version {seed} {version}")
    names = [name for name in schedule if name.startswith(CHANGING)]
    after = dict(schedule)
    what = rng.choice(("add", "remove", "change") if len(names) > 1 else ("add",))
    if what == "add":
        name = f"{CHANGING} v{version}"  # a name never comes back
        after[name] = _entry(rng, rng.choice(_FAST))
    else:
        name = rng.choice(names)
        if what == "remove":
            del after[name]
        else:
            others = [period for period in _FAST if period != schedule[name]["every"]]
            after[name] = {**schedule[name], "every": rng.choice(others)}
    return after, f"{what} {name!r}"


def rule_of(entry: Mapping[str, Any]) -> str | None:
    """The rule hash that the store keeps for an interval; None for a crontab."""
    if "every" not in entry:
        return None
    return hashlib.sha256(f"every {entry['every'] * 1000} us".encode()).hexdigest()[:16]


def _entry(rng: random.Random, period: int) -> Entry:
    rule = {"every": period} if period else {"align": rng.choice((60_000, 120_000))}
    misfire = "latest" if rng.random() < 0.3 else "all"
    return {**rule, "misfire": misfire, "queue": rng.choices(QUEUES, weights=(3, 1))[0]}
