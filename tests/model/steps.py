"""What may happen next: of each node, of the network, of the store, of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.model import server as store
from tests.model.publishing import publisher_steps
from tests.model.server import ALREADY, BEHIND, DEPOSED, KEEP, PUSH, SENT, Claim, Guards, Message
from tests.model.world import (
    ANSWERED,
    ASKED,
    BID,
    CONFIRM,
    DOWN,
    EMIT,
    HALF,
    HELD,
    IDLE,
    RELEASE,
    WON,
    Node,
    Scope,
    State,
    put,
)


class Step(NamedTuple):
    """One thing that happens. `kind` "work": what nodes that are up do, and may be relied on to do."""

    who: str
    text: str
    state: State
    work: bool = True


def steps(state: State, scope: Scope, guards: Guards) -> Iterator[Step]:
    """Everything that may happen next."""
    for i, node in enumerate(state.nodes):
        name = "ABC"[i]
        if not node.up:
            yield Step(name, "is restarted", put(state, i, Node()), work=False)
            continue
        yield from _elector_steps(state, scope, guards, i, name)
        yield from _dispatcher_steps(state, scope, guards, i, name)
        if scope.outbox:
            for text, after, work in publisher_steps(state, scope, guards, i):
                yield Step(name, text, after, work)
        yield from _crash(state, scope, i, name)
    yield from _stray_steps(state, scope, guards)
    yield from _time_steps(state, scope, guards)
    if scope.loss:
        yield from _loss_steps(state, guards)


# The elector


def _elector_steps(  # noqa: C901 - one branch for each thing that may happen
    state: State, scope: Scope, guards: Guards, i: int, name: str
) -> Iterator[Step]:
    node = state.nodes[i]
    if node.bid:
        if node.bid[0] == ASKED:
            for text, after, reply in _bids(state, scope, guards, i + 1, node.suspect):
                asked = f"executes {name}'s bid: {text}"
                if scope.replies:
                    yield Step("store", asked, put(after, i, node._replace(bid=reply)))
                    continue
                yield Step("store", f"{asked}; {name} learns it", put(after, i, _told(node, reply)))
                lost = put(after, i, node._replace(bid=IDLE))
                yield Step("store", f"{asked}; the answer is lost", lost, work=False)
            idle = put(state, i, node._replace(bid=IDLE))
            for text, after in astray(idle, scope, (BID, i + 1, node.suspect)):
                yield Step(name, f"gives up waiting for its bid, which {text}", after, work=False)
        else:
            what = f"learns that it {'leads' if node.bid[0] == WON else 'does not lead'}"
            yield Step(name, what, put(state, i, _told(node, node.bid)))
            yield Step(
                name, "never gets the answer to its bid", put(state, i, node._replace(bid=IDLE)), work=False
            )
    elif not node.grant:
        yield Step(name, "sends a bid", put(state, i, node._replace(bid=(ASKED,))))
    if node.grant:
        renewed, held = store.renew(state.server, node.grant)
        if not held:
            yield from _give_up(
                state, scope, guards, i, name, "renews and learns that it is deposed", work=True
            )
        elif guards.notices and any(
            mark < known for mark, known in zip(renewed.marks, node.done, strict=False)
        ):
            again = put(state._replace(server=renewed), i, node._replace(done=()))
            yield Step(name, "renews, and learns that the store has forgotten something", again)
        elif renewed != state.server:
            yield Step(name, "renews", state._replace(server=renewed))
        yield from _give_up(state, scope, guards, i, name, "resigns, or stops to trust its term", work=False)


def _told(node: Node, reply: tuple) -> Node:
    """What a node makes of the answer to its bid."""
    if reply[0] == WON:
        return node._replace(bid=IDLE, suspect=0, grant=reply[1], done=())
    return node._replace(bid=IDLE, suspect=reply[1])


def _bids(
    state: State, scope: Scope, guards: Guards, nonce: int, suspect: int
) -> Iterator[tuple[str, State, tuple]]:
    """What the bid script may do: what it sees of presence and hears of overdue slots is open."""
    server = state.server
    lives = bool(server.nonce)
    views = [(not lives, state)]
    if server.epoch and lives and state.flaps:
        views.append((True, state._replace(flaps=max(-1, state.flaps - 1))))
    for absent, seen in views:
        answers = set()
        for claim in (None, _undone(server, state.due)):
            after, reply = store.bid(
                server, guards, nonce=nonce, clock=state.clock, suspect=suspect, absent=absent, overdue=claim
            )
            if reply in answers:
                continue
            answers.add(reply)
            if reply[0] == "held":
                text = f"held by epoch {reply[1]}" + (", absent" if absent else "")
                yield text, seen, (HELD, reply[1] if absent else 0)
            else:
                changed = seen._replace(server=after, clock=max(seen.clock, reply[1]))
                if reply[2] == "crash" and lives and scope.flaps >= 0:
                    changed = changed._replace(robbed=1)
                yield f"won epoch {reply[1]} ({reply[2]})", changed, (WON, reply[1])


def _undone(server: store.Server, due: int) -> Claim | None:
    for entry, mark in enumerate(server.marks):
        if mark < due:
            return Claim(entry, mark + 1)
    return None


def _give_up(
    state: State, scope: Scope, guards: Guards, i: int, name: str, why: str, *, work: bool
) -> Iterator[Step]:
    node = state.nodes[i]
    over = put(nameless(state, i + 1), i, node._replace(grant=0, done=(), drain=0, todo=()))
    released, freed = store.release(over.server, guards, node.grant)
    if freed:
        yield Step(name, f"{why}; its release arrives", over._replace(server=released), work)
    for text, after in astray(over, scope, (RELEASE, node.grant)):
        yield Step(name, f"{why}; its release {text}", after, work)


def nameless(state: State, nonce: int) -> State:
    """The same world after this nonce was given up: whatever carries it is nobody's."""
    server, saved, strays = state.server, state.saved, state.strays
    if server.nonce == nonce:
        server = server._replace(nonce=0)
    if saved and saved.nonce == nonce:
        saved = saved._replace(nonce=0)
    if strays:
        strays = tuple((BID, 0, s[2]) if s[:2] == (BID, nonce) else s for s in strays)
    return state._replace(server=server, saved=saved, strays=strays)


# The dispatcher


def _dispatcher_steps(state: State, scope: Scope, guards: Guards, i: int, name: str) -> Iterator[Step]:
    node = state.nodes[i]
    if node.call:
        yield from _call_steps(state, scope, guards, i, name)
    elif node.grant and not node.done:
        adopted = node._replace(done=state.server.marks, drain=int(scope.outbox and guards.drain))
        yield Step(name, f"reads the marks: {state.server.marks}", put(state, i, adopted))
    elif node.grant:
        for entry, last in enumerate(node.done):
            if last < scope.slots:
                asked = node._replace(call=(ASKED, node.grant, entry, last + 1, last))
                yield Step(name, f"sends an emission of {slot_name(entry, last + 1)}", put(state, i, asked))


def _call_steps(state: State, scope: Scope, guards: Guards, i: int, name: str) -> Iterator[Step]:
    node = state.nodes[i]
    kind, token, entry, slot, last = node.call
    idle = node._replace(call=IDLE)
    what = f"the emission of {slot_name(entry, slot)}"
    if kind == ANSWERED:
        yield Step(
            name,
            f"gets the answer to {what}: {store.KINDS[last]}",
            put(state, i, _noted(idle, node.call, scope)),
        )
        yield Step(name, f"never gets the answer to {what}", put(state, i, idle), work=False)
        return
    after, outcome = executed(state, scope, guards, node.call)
    answer = (ANSWERED, token, entry, slot, outcome)
    if guards.script != "one" and kind == ASKED and outcome == SENT:
        answer = (HALF, token, entry, slot, last)
    text = f"executes {name}'s {'second half of ' if kind == HALF else ''}{what[4:]}: {store.KINDS[outcome]}"
    if scope.replies or answer[0] == HALF:
        yield Step("store", text, put(after, i, node._replace(call=answer)))
    else:
        yield Step("store", f"{text}; {name} learns it", put(after, i, _noted(idle, answer, scope)))
        yield Step("store", f"{text}; the answer is lost", put(after, i, idle), work=False)
    for text, lost in astray(
        put(state, i, idle), scope, (EMIT, token, entry, slot, last), fits=kind == ASKED
    ):
        yield Step(name, f"gives up waiting for {what}, which {text}", lost, work=False)


def _noted(node: Node, call: tuple, scope: Scope) -> Node:
    """What a node makes of an answer."""
    _, token, entry, slot, outcome = call
    if outcome == DEPOSED:
        # It stands down; the heartbeat gives the grant back at its next step.
        return node._replace(done=()) if node.grant == token else node
    if outcome == BEHIND:
        return node._replace(done=())
    if outcome in (SENT, ALREADY) and node.done:
        done = list(node.done)
        done[entry] = max(done[entry], slot)
        node = node._replace(done=tuple(done))
    if scope.outbox and node.grant:
        if outcome == SENT:
            return node._replace(todo=tuple(sorted({*node.todo, Message(entry, slot, token)})))
        return node._replace(drain=int(outcome == ALREADY or node.drain))
    return node


def executed(state: State, scope: Scope, guards: Guards, call: tuple) -> tuple[State, int]:
    """What an emission does when it arrives; half of it where it is two steps."""
    kind, token, entry, slot, last = call
    claim = Claim(entry, slot, KEEP if scope.outbox else PUSH, last)
    server = state.server
    after, (outcome,) = store.emit(server, guards, token, (claim,), state.due)
    if kind == HALF:
        write: Callable = store.written if guards.script == "claim first" else _marked
        return state._replace(server=write(server, claim, token)), SENT
    if guards.script != "one" and outcome == SENT:
        write = _marked if guards.script == "claim first" else store.written
        after = write(server, claim, token)
    return state._replace(server=after), outcome


def _marked(server: store.Server, claim: Claim, _token: int) -> store.Server:
    return store.marked(server, claim)


def slot_name(entry: int, slot: int) -> str:
    """How traces call a slot."""
    return f"{'pqr'[entry]}{slot}"


# The network


def astray(state: State, scope: Scope, request: tuple, *, fits: bool = True) -> Iterator[tuple[str, State]]:
    """What may become of a request that nobody waits for: lost, or still under way."""
    yield "is lost", state
    if fits and len(state.strays) < scope.strays:
        yield "is still under way", state._replace(strays=(*state.strays, request))


def _crash(state: State, scope: Scope, i: int, name: str) -> Iterator[Step]:
    node = state.nodes[i]
    dead = put(nameless(state, i + 1), i, DOWN)
    outcomes = [("", dead)]
    if node.bid == (ASKED,):
        outcomes = [(f"; its bid {t}", s) for t, s in astray(dead, scope, (BID, 0, node.suspect))]
    if node.call and node.call[0] == ASKED:
        request = (EMIT, *node.call[1:])
        outcomes = [(f"{t}; its emission {u}", s) for t, o in outcomes for u, s in astray(o, scope, request)]
    for text, after in outcomes:
        yield Step(name, f"crashes{text}", after, work=False)


def _stray_steps(state: State, scope: Scope, guards: Guards) -> Iterator[Step]:
    for place, stray in enumerate(state.strays):
        rest = state._replace(strays=state.strays[:place] + state.strays[place + 1 :])
        kind = stray[0]
        if kind == BID:
            for text, after, _ in _bids(rest, scope, guards, stray[1], stray[2]):
                yield Step("store", f"executes a late bid: {text}", after)
        elif kind == EMIT:
            after, outcome = executed(rest, scope, guards, (ASKED, *stray[1:]))
            what = slot_name(*stray[2:4])
            yield Step(
                "store",
                f"executes a late emission of {what} (epoch {stray[1]}): {store.KINDS[outcome]}",
                after,
            )
        elif kind == RELEASE:
            server, freed = store.release(rest.server, guards, stray[1])
            yield Step("store", f"executes a late release: {freed}", rest._replace(server=server))
        elif kind == CONFIRM:
            server, gone = store.confirm(rest.server, guards, stray[1])
            yield Step("store", f"executes a late confirmation: {gone}", rest._replace(server=server))


# Time, workers, the disk


def _time_steps(state: State, scope: Scope, guards: Guards) -> Iterator[Step]:
    server = state.server
    if server.epoch:
        if not (server.stale and server.quiet):
            yield Step("time", "passes", state._replace(server=server._replace(stale=1, quiet=1)))
        if server.stale and guards.expiry:
            healthy = any(node.grant == server.epoch for node in state.nodes)
            yield Step("time", "ends the lease", state._replace(server=store.freed(server)), work=not healthy)
    if state.due < scope.slots:
        yield Step("time", f"slot {state.due + 1} is due", state._replace(due=state.due + 1))
    if scope.workers:
        for place, message in enumerate(server.log):
            if not message.consumed:
                yield Step(
                    "worker", f"takes {slot_name(*message[:2])}", _consumed(state, scope, place), work=False
                )


def _consumed(state: State, scope: Scope, place: int) -> State:
    log, ran = list(state.server.log), list(state.ran)
    message: Message = log[place]
    log[place] = message._replace(consumed=1)
    flat = message.entry * scope.slots + message.slot - 1
    ran[flat] = min(2, ran[flat] + 1)
    return state._replace(server=state.server._replace(log=tuple(log)), ran=tuple(ran))


def _loss_steps(state: State, guards: Guards) -> Iterator[Step]:
    if state.lost:
        return
    if not state.saved:
        yield Step("disk", "has everything up to here", state._replace(saved=state.server), work=False)
        return
    before, after = state.server, state.saved
    if not guards.same_server:  # only the broker's server loses anything
        after = before._replace(log=after.log, outbox=after.outbox)
    gone = {m[:2] for m in before.log + before.outbox} - {m[:2] for m in after.log + after.outbox}
    together = tuple(sorted(pair for pair in gone if after.marks[pair[0]] < pair[1]))
    lost = state._replace(server=after, saved=(), lost=1, gone=together)
    yield Step("disk", "loses everything after that", lost, work=False)
