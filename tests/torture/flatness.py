"""What must not grow: memory, threads and descriptors of the beats, keys and memory of Redis."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis

    from tests.torture.site import Site

#: Seconds of a process's life that do not count: imports, first connections, first messages.
WARM_UP = 30.0


def sample(site: Site, client: redis.Redis) -> dict[str, Any]:
    """What the processes and the server hold now."""
    found: dict[str, Any] = {"beats": [], "harness": _process(os.getpid())}
    for replica in site.replicas:
        if replica.process.running:
            found["beats"].append({"index": replica.index, **_process(replica.process.pid)})
    try:
        memory: Any = client.info("memory")
        found["redis"] = {"keys": client.dbsize(), "memory": memory["used_memory"]}
    except Exception as error:  # the server is away just now
        found["redis"] = {"problem": str(error)}
    return found


def _process(pid: int) -> dict[str, int]:
    folder = Path(f"/proc/{pid}")
    try:
        pages = int((folder / "statm").read_text().split()[1])
        return {
            "pid": pid,
            "memory": pages * os.sysconf("SC_PAGE_SIZE"),
            "threads": len(list((folder / "task").iterdir())),
            "descriptors": len(list((folder / "fd").iterdir())),
        }
    except (OSError, ValueError):
        return {"pid": pid}  # it has just ended, or this is no Linux


def lines(samples: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the samples of a run say, for people."""
    lives: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for taken in samples:
        moment = taken["t"]
        for beat in taken["beats"]:
            if "memory" in beat:
                lives.setdefault(f"beat{beat['index']} (pid {beat['pid']})", []).append((moment, beat))
        for name in ("harness", "redis"):
            if "memory" in taken[name]:
                lives.setdefault(name, []).append((moment, taken[name]))
    beats = sorted(
        (name for name in lives if name.startswith("beat")),
        key=lambda name: _length(lives[name]),
        reverse=True,
    )
    return [_line(name, lives[name]) for name in [*beats[:2], "harness", "redis"] if name in lives]


def _length(life: list[tuple[float, Mapping[str, Any]]]) -> float:
    return life[-1][0] - life[0][0]


def _line(name: str, life: list[tuple[float, Mapping[str, Any]]]) -> str:
    start = life[0][0]
    warm = [facts for moment, facts in life if moment - start >= WARM_UP]
    if len(warm) < 3:
        return f"{name}: {_length(life):.0f} s is too short to say"
    third = max(1, len(warm) // 3)
    parts = []
    for fact in ("memory", "threads", "descriptors", "keys"):
        values = [facts[fact] for facts in warm if fact in facts]
        if not values:
            continue
        first, last = max(values[:third]), max(values[-third:])
        scale, unit = (1_000_000, " MB") if fact == "memory" else (1, "")
        parts.append(
            f"{fact} {first / scale:.4g} -> {last / scale:.4g}{unit} (peak {max(values) / scale:.4g})"
        )
    return f"{name}, {_length(life):.0f} s: " + ", ".join(parts)
