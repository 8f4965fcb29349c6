"""What must hold in every state."""

from __future__ import annotations

from tests.model.server import Guards
from tests.model.world import HALF, Scope, State


def broken(state: State, scope: Scope, guards: Guards, *, resend: bool = False) -> str:
    """Say what is wrong with this state; nothing is: ""."""
    server = state.server
    log = server.log
    if log:
        if len({message[:2] for message in log}) < len(log):
            return "G1: a slot's message is enqueued twice"
        if len(log) > 1 and log[-1].epoch < log[-2].epoch:
            return f"a message of epoch {log[-1].epoch} follows one of epoch {log[-2].epoch}"
    if state.due < scope.slots and any(message.slot > state.due for message in log + server.outbox):
        return "G5: a slot went out before it was due"
    if server.epoch and sum(node.grant == server.epoch for node in state.nodes) > 1:
        return "two nodes hold the grant that the lease names"
    if not state.lost and any(number > 1 for number in state.ran):
        return "G1: a slot's message ran twice, and nothing was lost"
    if state.robbed:
        return "one lost connection cost a living leader its lease"
    if not guards.floor and any(
        node.grant > 0 and node.grant == other for node, other in _claimed_twice(state)
    ):
        return "two nodes were granted the same epoch"
    return _silent_loss(state, scope, resend=resend)


def _claimed_twice(state: State) -> list[tuple]:
    nodes = state.nodes
    return [(a, b.grant) for i, a in enumerate(nodes) for b in nodes[i + 1 :]]


def _silent_loss(state: State, scope: Scope, *, resend: bool) -> str:
    """A mark without its message, its record or somebody who is about to write it."""
    server = state.server
    if not any(server.marks):
        return ""
    there = {message[:2] for message in server.log + server.outbox}
    for entry, mark in enumerate(server.marks):
        for slot in range(1, mark + 1):
            if (entry, slot) in there or (scope.outbox and state.broker[entry * scope.slots + slot - 1]):
                continue
            if not resend and (entry, slot) in state.gone:
                continue
            if any(
                node.call and node.call[0] == HALF and node.call[2:4] == (entry, slot) for node in state.nodes
            ):
                continue
            kind = "G2: a record is forgotten" if scope.outbox else "G1: a mark stands"
            return f"{kind}, and nobody has the message of {'pqr'[entry]}{slot}"
    return ""


def reached(state: State, scope: Scope, *, resend: bool) -> bool:
    """Whether every slot's message is where it belongs: in its queue, at the broker, or with a worker.

    What vanished in a loss is waited for only if it is to be sent again.
    """
    if scope.outbox:
        there = {pair for pair, number in zip(scope.pairs(), state.broker, strict=True) if number}
    else:
        there = {message[:2] for message in state.server.log}
    wanted = set(scope.pairs())
    return wanted <= (there if resend else there | set(state.gone))


def watched(state: State) -> bool:
    """Whether there is anybody to work."""
    return any(node.up for node in state.nodes)
