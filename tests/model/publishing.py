"""What the publisher of a node may do next: read, publish, confirm; and the broker beside it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import server as store
from tests.model.server import Guards, Message
from tests.model.world import CONFIRM, CONFIRMED, IDLE, PUBLISHED, READ, Scope, State, put


def publisher_steps(state: State, scope: Scope, guards: Guards, i: int) -> Iterator[tuple[str, State, bool]]:
    """Text, the world after it, and whether it may be relied on."""
    node = state.nodes[i]
    if not node.pub:
        yield from _reads(state, scope, guards, i)
        return
    kind, record = node.pub
    what = f"the record of {'pqr'[record.entry]}{record.slot}"
    if kind == READ and guards.publish_first:
        published = _published(state, scope, record)
        yield f"publishes {what}", put(published, i, node._replace(pub=(PUBLISHED, record))), True
        failed = node._replace(pub=IDLE, drain=int(bool(node.grant)))
        yield f"gets no confirmation of {what}, which arrived", put(published, i, failed), False
        yield f"cannot publish {what}", put(state, i, failed), False
    elif kind == CONFIRMED:
        yield f"publishes {what}", put(_published(state, scope, record), i, node._replace(pub=IDLE)), True
    else:
        yield from _confirms(state, scope, guards, i, what)


def _reads(state: State, scope: Scope, guards: Guards, i: int) -> Iterator[tuple[str, State, bool]]:
    node = state.nodes[i]
    if not node.grant:
        return
    if node.drain:
        taken = node._replace(drain=0, todo=state.server.outbox)
        yield "reads the outbox", put(state, i, taken), True
    for record in node.todo:
        rest = tuple(other for other in node.todo if other != record)
        taken = node._replace(todo=rest, pub=(READ, record))
        yield f"turns to the record of {'pqr'[record.entry]}{record.slot}", put(state, i, taken), True
    if scope.blips and (node.drain or node.todo):
        blind = node._replace(drain=int(guards.returns), todo=())
        yield "renews so late that its publisher alone sees the term untrusted", put(state, i, blind), False


def _confirms(
    state: State, scope: Scope, guards: Guards, i: int, what: str
) -> Iterator[tuple[str, State, bool]]:
    node = state.nodes[i]
    record = node.pub[1]
    server, gone = store.confirm(state.server, guards, record)
    after = node._replace(pub=IDLE if guards.publish_first else (CONFIRMED, record))
    yield f"has {what} forgotten: {gone}", put(state._replace(server=server), i, after), True
    lost = put(state, i, node._replace(pub=IDLE, drain=int(bool(node.grant))))
    yield f"cannot have {what} forgotten", lost, False
    if len(state.strays) < scope.strays and guards.publish_first:
        late = lost._replace(strays=(*lost.strays, (CONFIRM, record)))
        yield f"gives up waiting for {what} to be forgotten, which is still under way", late, False


def _published(state: State, scope: Scope, record: Message) -> State:
    broker = list(state.broker)
    flat = record.entry * scope.slots + record.slot - 1
    broker[flat] = min(2, broker[flat] + 1)
    return state._replace(broker=tuple(broker))
