"""The file between the storm and the judges: one JSON object a line, in the order in which it was seen.

Every record has `k`, its kind, and `t`, seconds since the storm began; `r` is the store's clock in
milliseconds, `w` the true one.

    run        seed, replicas, lease, failover, broker, prefix, and the options of the command line
    version    number, entries: a schedule that some replica may have from now on
    process    index, phase "start" or "exit", pid, version; wanted: whether the storm did it
    fault      id, name, hits, target, length, phase "begin", "end" or "passed over"
    lead       token, epoch, pid: the lease as it was seen when all queues were empty; "" when it is free
    enrolled   entries name -> [anchor, rule]; gone: names; left: messages in queues that were there before
    m          e entry, s slot, p epoch, i task id, b batch, q queue, r and w at the moment it was taken
    loss       how, restored: the newest batch that the store still knows after it lost data
    sample     of each replica: pid, memory, threads, descriptors; keys and memory of Redis
    settled    r, w: the storm is over and every slot up to this moment had its time
    end        counters, left: messages that were left in queues
    trouble    what: something that must not happen and that only the storm could see
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class History:
    """Appends records to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self.messages = 0

    def write(self, kind: str, seconds: float, **facts: Any) -> None:
        """Append one record."""
        self.messages += kind == "m"
        record = {"k": kind, "t": round(seconds, 3), **facts}
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Record]:
    """The records of a file, one by one: a long storm does not fit into memory."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def excerpt(path: Path, start: float, end: float, *, entry: str | None = None, most: int = 40) -> list[str]:
    """The lines between two moments, messages of one entry only, as they stand in the file."""
    found: list[str] = []
    for record in read(path):
        if record["t"] > end:
            break
        if record["t"] < start or record["k"] in {"run", "version", "sample"}:
            continue
        if record["k"] == "m" and record["e"] != entry:
            continue
        if record["k"] == "enrolled":
            record["entries"] = {name: value for name, value in record["entries"].items() if name == entry}
            if not record["entries"] and entry not in record["gone"]:
                continue
        found.append(json.dumps(record, separators=(",", ":")))
        if len(found) >= most:
            found.append("...")
            break
    return found
