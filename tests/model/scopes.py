"""The worlds that are walked to their ends: the small ones in the suite, the large ones by hand."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.search import Walk, walk
from tests.model.server import Guards
from tests.model.world import Scope


class Study(NamedTuple):
    """A scope, and how it is walked."""

    scope: Scope
    guards: Guards = Guards()
    resend: bool = False
    dead: bool = True

    def walk(self) -> Walk:
        """Walk all of it, for safety and liveness."""
        return walk(self.scope, self.guards, resend=self.resend, dead=self.dead, liveness=True)


SMALL = {
    "2 nodes, 1 slot, 1 delayed request": Study(Scope(nodes=2, slots=1, strays=1)),
    "3 nodes, 1 entry of 2 slots": Study(Scope(nodes=3, strays=0)),
    "2 nodes, 2 entries of 1 slot": Study(Scope(nodes=2, entries=2, slots=1, strays=0)),
    "2 nodes, 1 entry of 2 slots, the second not yet due": Study(Scope(nodes=2, strays=0, future=True)),
    "2 nodes, 1 slot, answers that take their time": Study(Scope(nodes=2, slots=1, strays=0, replies=True)),
    "1 node, 1 slot, workers, a lost suffix": Study(
        Scope(nodes=1, slots=1, strays=0, loss=True, workers=True)
    ),
    "2 nodes, 1 slot, outbox": Study(Scope(nodes=2, slots=1, strays=0, outbox=True)),
}

LARGE = {
    "2 nodes, 1 entry of 2 slots, 1 delayed request": Study(Scope(nodes=2, strays=1)),
    "3 nodes, 1 entry of 2 slots, 1 delayed request": Study(Scope(nodes=3, strays=1)),
    "2 nodes, 2 entries of 1 slot, 1 delayed request": Study(Scope(entries=2, slots=1, nodes=2, strays=1)),
    "2 nodes, 1 entry of 2 slots, 2 delayed requests": Study(Scope(nodes=2, strays=2)),
    "2 nodes, 1 slot, workers, a lost suffix": Study(
        Scope(nodes=2, slots=1, strays=0, loss=True, workers=True)
    ),
    "2 nodes, 1 entry of 2 slots, a lost suffix": Study(Scope(nodes=2, strays=0, loss=True)),
    "1 node, 1 slot, outbox, a lost suffix, 1 delayed request": Study(
        Scope(nodes=1, slots=1, strays=1, outbox=True, loss=True)
    ),
}
