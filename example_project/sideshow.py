"""What the ledger says while the demo runs, and what is told of it beside the faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import redis

from example_project import ledger
from example_project.verdict import Row


class LedgerReader:
    """The rows, read as they come."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.rows: list[Row] = []

    def read(self) -> list[Row]:
        """The rows that are new; `rows` has them all."""
        raw: Any = self._client.lrange(ledger.KEY, len(self.rows), -1)
        new = [json.loads(row) for row in raw]
        self.rows += new
        return new

    def first(self, kind: str, **facts: Any) -> Row | None:
        """The first row with these facts."""
        wanted = {"kind": kind, **facts}.items()
        return next((row for row in self.rows if wanted <= row.items()), None)


class Sideshow:
    """What goes on beside the faults: counted always, and told the first time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: set[str] = set()
        self._followed: str | None = None
        self.numbers = {"success": 0, "conflict": 0, "retry": 0}
        self.done: dict[str, int] = {}

    def watch(self, row: Row) -> None:
        """Take in one row of the ledger."""
        if row["kind"] != "outcome":
            return
        outcome = row["outcome"]
        if outcome in self.numbers:
            self.numbers[outcome] += 1
        if outcome == "success":
            self.done[row["worker"]] = self.done.get(row["worker"], 0) + 1
        if outcome == "conflict":
            self._once(
                "conflict",
                "The search index is due every 2 s and takes 3 s: while one run holds the lock, "
                "the next one is skipped.",
            )
        elif outcome == "failure":
            self._once(
                "failure",
                f"A card charge failed {row['retries'] + 1} times: it is kept as a dead letter, "
                "with its reason.",
            )
        elif row["task"] == "example.sync_invoices":
            self._follow_sync(row, outcome)

    def _follow_sync(self, row: Row, outcome: str) -> None:
        self._followed = self._followed or row["id"]
        if row["id"] != self._followed:
            return
        attempt = row["retries"] + 1
        if outcome == "retry":
            wait = "" if row["wait"] is None else f" in {row['wait']:g} s"
            self._say(f"Invoice sync: the gateway fails, attempt {attempt + 1} follows{wait}.")
        elif outcome == "success":
            self._once("success", f"Invoice sync: attempt {attempt} succeeds.")

    def _once(self, name: str, text: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._say(text)
