"""Everything that a step may change, and when two of them are the same but for names."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.server import Guards, Message, Server, empty

# A request on its way, and what became of it.
IDLE: tuple = ()
ASKED, WON, HELD, ANSWERED, HALF = 1, 2, 3, 4, 5
# Requests whose sender no longer waits.
BID, EMIT, RELEASE, CONFIRM = 1, 2, 3, 4
# What the publisher has in hand.
READ, PUBLISHED, CONFIRMED = 1, 2, 3


class Scope(NamedTuple):
    """How much of the world there is."""

    nodes: int = 3
    entries: int = 1
    slots: int = 2
    strays: int = 1  # how many delayed requests may be under way at once, beside those that are waited for
    loss: bool = False  # the store may forget a suffix of its writes, once
    workers: bool = False
    future: bool = False  # only the first slot of each entry is due at the start
    outbox: bool = False
    flaps: int = -1  # how often a living leader's presence may be lost from view; -1: whenever
    replies: bool = (
        False  # an answer under way is a state of its own; if not, it is delivered at once, or lost
    )
    blips: bool = False  # the publisher alone may see that trust has run out, before a late renewal arrives

    def pairs(self) -> list[tuple[int, int]]:
        """Return every (entry, slot)."""
        return [(entry, slot) for entry in range(self.entries) for slot in range(1, self.slots + 1)]


class Node(NamedTuple):
    """One process: what it believes, and what it waits for. A crash leaves nothing of it."""

    up: int = 1
    grant: int = 0
    suspect: int = 0
    done: tuple[int, ...] = ()  # marks that it believes in; empty until it has read them under this grant
    bid: tuple = IDLE  # (ASKED,) | (WON, epoch) | (HELD, epoch if absent)
    call: tuple = IDLE  # (ASKED | HALF, token, entry, slot, after) | (ANSWERED, token, entry, slot, outcome)
    drain: int = 0  # its publisher will read the outbox
    todo: tuple[Message, ...] = ()  # records that it has in memory
    pub: tuple = IDLE  # (READ | PUBLISHED | CONFIRMED, record)


DOWN = Node(up=0)


class State(NamedTuple):
    """The world between two steps. Node i has the nonce i + 1; nonce 0 is one that nobody uses any more."""

    server: Server
    nodes: tuple[Node, ...]
    strays: tuple[tuple, ...] = ()
    saved: Server | tuple = ()  # what the disk has
    lost: int = 0
    due: int = 0
    slots: int = 0  # of each entry
    clock: int = 0  # the newest epoch ever granted
    flaps: int = -1
    broker: tuple[int, ...] = ()  # how often it got each slot's message, at most 2
    gone: tuple[tuple[int, int], ...] = ()  # slots whose marks and messages were lost
    ran: tuple[int, ...] = ()  # how often a worker got each slot's message, at most 2
    robbed: int = 0  # a leader whose process lives was replaced as crashed


def initial(scope: Scope) -> State:
    """Return the world before anything happens."""
    zeros = (0,) * (scope.entries * scope.slots)
    return State(
        empty(scope.entries),
        (Node(),) * scope.nodes,
        due=1 if scope.future else scope.slots,
        slots=scope.slots,
        flaps=scope.flaps,
        broker=zeros if scope.outbox else (),
        ran=zeros if scope.workers else (),
    )


def put(state: State, i: int, node: Node) -> State:
    """Return the same world with another node."""
    nodes = list(state.nodes)
    nodes[i] = node
    return state._replace(nodes=tuple(nodes))


def canonical(state: State, guards: Guards, *, dead: bool = True) -> State:
    """Return the one of its kind: nodes in order, epochs without gaps, nothing that no step reads.

    Nodes are alike, and of epochs the scripts ask only which is larger; so states that differ in names have
    the same futures. An order of nodes that ties leaves open costs states, and hides none.

    `dead`: tokens that neither the lease nor the disk names are one, 1. New epochs are larger than all, so
    none of them is ever named again, and while the guards are in place a script does nothing for them:
    requests under them are as good as lost. A test compares with walks that keep them apart.
    """
    server, saved = state.server, state.saved
    order = _order(state)
    if order is not None:
        new = {0: 0} | {old + 1: position + 1 for position, old in enumerate(order)}
        server = server._replace(nonce=new[server.nonce])
        saved = saved and saved._replace(nonce=new[saved.nonce])
        strays = tuple((BID, new[stray[1]], stray[2]) if stray[0] == BID else stray for stray in state.strays)
        nodes = tuple([state.nodes[old] for old in order])
    else:
        strays, nodes = state.strays, state.nodes
    if not guards.floor:
        return state._replace(server=server, saved=saved, strays=tuple(sorted(strays)), nodes=nodes)
    named = _epochs(server) | (_epochs(saved) if saved else set())
    tokens = {server.epoch, saved.epoch} if saved else {server.epoch}
    dead = dead and guards.token and guards.owner and guards.unchanged and guards.script == "one"
    if dead:
        rank = _Ranks(named, 2)
        strays = tuple(
            stray
            for stray in strays
            if stray[0] == BID
            or (
                stray[1] in server.outbox + (saved.outbox if saved else ())
                if stray[0] == CONFIRM
                else stray[1] in tokens
            )
        )
    else:
        named = named.union(*(_epochs_of(node) for node in nodes), *(_epochs_of_stray(s) for s in strays))
        rank = _Ranks(named, 1)
    return State(
        _ranked(server, rank, state.slots),
        tuple([_ranked_node(node, rank, tokens, dead=dead) for node in nodes]),
        tuple(sorted([_ranked_stray(stray, rank, tokens) for stray in strays])),
        saved and _ranked(saved, rank, state.slots),
        state.lost,
        state.due,
        state.slots,
        len(rank) + 1,
        state.flaps,
        state.broker,
        state.gone,
        state.ran,
        state.robbed,
    )


class _Ranks(dict):
    """Epochs by their place, from `first` on; what has none is 1."""

    def __init__(self, epochs: set[int], first: int) -> None:
        epochs.discard(0)
        super().__init__(zip(sorted(epochs), range(first, first + len(epochs)), strict=True))
        self[0] = 0

    def __missing__(self, epoch: int) -> int:
        return 1


def _order(state: State) -> list[int] | None:
    """The order of the nodes by what distinguishes them; None if they are in it."""
    nodes, saved = state.nodes, state.saved
    holder, before = state.server.nonce, saved.nonce if saved else 0
    bidders = [stray[1] for stray in state.strays if stray[0] == BID]
    keys = [
        (node, holder == place, before == place, place in bidders)
        for place, node in enumerate(nodes, start=1)
    ]
    order = sorted(range(len(nodes)), key=keys.__getitem__)
    return None if order == list(range(len(nodes))) else order


def _epochs(server: Server) -> set[int]:
    used = {server.epoch}
    if server.log:
        used.add(server.log[-1].epoch)
    if server.outbox:
        used.update(record.epoch for record in server.outbox)
    return used


def _epochs_of(node: Node) -> set[int]:
    used = {node.grant, node.suspect, *node.bid[1:], *node.call[1:2], *(record.epoch for record in node.todo)}
    return used | {node.pub[1].epoch} if node.pub else used


def _epochs_of_stray(stray: tuple) -> set[int]:
    if stray[0] == CONFIRM:
        return {stray[1].epoch}
    return {stray[2] if stray[0] == BID else stray[1]}


def _ranked(server: Server, rank: _Ranks, slots: int) -> Server:
    epoch, nonce, stale, quiet, _, marks, log, outbox = server
    if quiet and min(marks) >= slots:  # nothing can be overdue
        quiet = 0
    if log:  # of the older messages nobody asks the epoch again, unless it was larger
        entry, slot, newest, consumed = log[-1]
        log = (
            *[m if m[2] == 0 else Message(m[0], m[1], 99 if m[2] > newest else 0, m[3]) for m in log[:-1]],
            Message(entry, slot, rank[newest], consumed),
        )
    if outbox:
        outbox = tuple(sorted(_message(record, rank) for record in outbox))
    return Server(rank[epoch], nonce, stale, quiet, 0, marks, log, outbox)


def _message(record: Message, rank: _Ranks) -> Message:
    return Message(record[0], record[1], rank[record[2]], record[3])


def _ranked_node(node: Node, rank: _Ranks, tokens: set[int], *, dead: bool) -> Node:
    up, grant, suspect, done, bid, call, drain, todo, pub = node
    if not (grant or suspect or bid or call or todo or pub):
        return node
    if len(bid) == 2:
        bid = (bid[0], (rank[bid[1]] if bid[0] == WON or bid[1] in tokens else 0))
    if call and dead and call[0] == ASKED and call[1] not in tokens:
        call = IDLE
    elif call:
        call = (call[0], rank[call[1]], *call[2:])
    if dead and grant not in tokens:
        done = ()
    if todo:
        todo = tuple(sorted(_message(record, rank) for record in todo))
    if pub:
        pub = (pub[0], _message(pub[1], rank))
    return Node(up, rank[grant], rank[suspect] if suspect in tokens else 0, done, bid, call, drain, todo, pub)


def _ranked_stray(stray: tuple, rank: _Ranks, tokens: set[int]) -> tuple:
    if stray[0] == BID:
        return (BID, stray[1], rank[stray[2]] if stray[2] in tokens else 0)
    if stray[0] == CONFIRM:
        return (CONFIRM, _message(stray[1], rank))
    return (stray[0], rank[stray[1]], *stray[2:])
