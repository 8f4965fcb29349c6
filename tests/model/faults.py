"""Guards that are taken out, and what each costs; and what the scripts as they are do not promise."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.search import Walk, walk
from tests.model.server import Guards
from tests.model.world import Scope


class Fault(NamedTuple):
    """One guard less. `costs`: the start of what the walk must find; "": safety holds without it."""

    name: str
    guards: Guards
    scope: Scope
    costs: str
    liveness: bool = False
    resend: bool = False

    def walk(self) -> Walk:
        """Walk the world that has this fault."""
        return walk(self.scope, self.guards, liveness=self.liveness, resend=self.resend)


_TWO = Scope(nodes=2, strays=0)
_LATE = Scope(nodes=2, slots=1, strays=1)
_LOSS = Scope(nodes=2, slots=1, strays=0, loss=True, workers=True)
_OUTBOX = Scope(nodes=2, slots=1, strays=0, outbox=True)
_ONE_FLAP = Scope(nodes=2, slots=1, strays=0, flaps=1)
_STUCK = "no work leads from here"

FAULTS = (
    Fault("the emit script does not ask for the token", Guards(token=False), _TWO, "a message of epoch"),
    Fault(
        "the emit script does not ask for the mark",
        Guards(mark=False),
        _TWO,
        "G1: a slot's message is enqueued",
    ),
    Fault("the emit script does not ask for the time", Guards(time=False), _TWO._replace(future=True), "G5"),
    Fault("claim and push are two steps", Guards(script="claim first"), _TWO, "G1: a mark stands"),
    Fault(
        "push and claim are two steps", Guards(script="push first"), _TWO, "G1: a slot's message is enqueued"
    ),
    Fault("one look at presence is enough", Guards(twice=False), _ONE_FLAP, "one lost connection"),
    Fault("queue and marks are on two servers", Guards(same_server=False), _LOSS, "G1: a mark stands"),
    Fault("epochs are not above the clock", Guards(floor=False), _LOSS, "two nodes"),
    Fault("a record is forgotten before it is published", Guards(publish_first=False), _OUTBOX, "G2"),
    # liveness
    Fault("a new leader leaves the outbox alone", Guards(drain=False), _OUTBOX, _STUCK, liveness=True),
    # what only costs time or elections
    Fault("one look at presence is enough, for safety", Guards(twice=False), _LATE, "", liveness=True),
    Fault("a bid asked again is a new bid", Guards(again=False), _LATE, "", liveness=True),
    Fault("a leader that leaves slots undone is kept", Guards(overdue=False), _LATE, "", liveness=True),
    Fault("the lease does not expire", Guards(expiry=False), _LATE, "", liveness=True),
    Fault(
        "a release frees whatever lease there is",
        Guards(owner=False),
        Scope(nodes=2, slots=1, strays=0),
        "",
        liveness=True,
    ),
)

_FORGETS = Scope(nodes=1, strays=0, loss=True)
_BLIP = Scope(nodes=1, slots=1, strays=0, outbox=True, blips=True)

#: Too large for the suite.
LARGE_FAULTS = (
    Fault(
        "a late confirmation takes a record that has changed",
        Guards(unchanged=False),
        _OUTBOX._replace(nodes=1, loss=True, strays=1),
        "",
        liveness=True,
    ),
)

#: Guards against what no error announces; each was missing once, and found here.
FINDINGS = (
    Fault(
        "a leader that outlives a loss goes on after the slots that vanished",
        Guards(builds_on=False, notices=False),
        _FORGETS,
        "G1",
        resend=True,
    ),
    Fault(
        "claims that name the mark that they build on are not enough: it learns with its next slot only",
        Guards(notices=False),
        _FORGETS,
        _STUCK,
        liveness=True,
        resend=True,
    ),
    Fault("renewals tell it, too", Guards(), _FORGETS, "", liveness=True, resend=True),
    Fault(
        "a publisher that lost trust for a moment leaves records for the next leader",
        Guards(returns=False),
        _BLIP,
        _STUCK,
        liveness=True,
    ),
    Fault("it empties the outbox again", Guards(), _BLIP, "", liveness=True),
)
