"""What the scripts do to the store, as pure functions; each guard can be taken out."""

from __future__ import annotations

from typing import NamedTuple

PUSH, KEEP, SKIP = 1, 2, 3
SENT, ALREADY, EARLY, DEPOSED, BEHIND = 1, 0, -2, -1, -3
KINDS = {SENT: "sent", ALREADY: "already", EARLY: "early", DEPOSED: "deposed", BEHIND: "forgotten"}


class Guards(NamedTuple):
    """The guards as they are."""

    token: bool = True  # slots_emit: only the holder writes
    mark: bool = True  # slots_emit: only a slot above the high-water mark
    time: bool = True  # slots_emit: only a slot that is due
    script: str = "one"  # slots_emit: claim and message are one step; or "claim first", "push first"
    owner: bool = True  # lease_release: only one's own grant
    twice: bool = True  # lease_bid: absence is seen twice in a row
    again: bool = True  # lease_bid: one's own nonce gets its own grant
    overdue: bool = True  # lease_bid: a leader that leaves a due slot undone is replaced
    expiry: bool = True  # the lease expires
    floor: bool = True  # an epoch is at least the clock, also after data loss
    same_server: bool = True  # queue and marks are lost together
    unchanged: bool = True  # outbox_confirm: only the record that was published
    publish_first: bool = True  # the publisher confirms what the broker has
    drain: bool = True  # a new leader empties the outbox
    builds_on: bool = True  # slots_emit: no claim that builds on a mark which the store has lost
    notices: bool = True  # lease_renew: a leader learns that the store has lost one of its emissions
    returns: bool = True  # the publisher empties the outbox again after a moment without trust


class Message(NamedTuple):
    """One message, in the order in which the lists got them."""

    entry: int
    slot: int
    epoch: int
    consumed: int = 0


class Claim(NamedTuple):
    """One slot to claim; `after` is the mark that the client believes in."""

    entry: int
    slot: int
    write: int = PUSH
    after: int = 0


class Server(NamedTuple):
    """What the store keeps. Epoch 0: no lease."""

    epoch: int
    nonce: int
    stale: int  # not renewed since the last tick
    quiet: int  # its holder has not emitted since the last tick
    counter: int
    marks: tuple[int, ...]
    log: tuple[Message, ...] = ()
    outbox: tuple[Message, ...] = ()


def empty(entries: int) -> Server:
    """Return a store that nobody has used."""
    return Server(0, 0, 0, 0, 0, (0,) * entries)


def bid(
    server: Server,
    guards: Guards,
    *,
    nonce: int,
    clock: int,
    suspect: int = 0,
    absent: bool = False,
    overdue: Claim | None = None,
) -> tuple[Server, tuple]:
    """lease_bid; `clock` is the newest epoch that the server's clock forbids to use again.

    Returns ("won", epoch, reason) or ("held", epoch, absent).
    """
    reason = "free"
    if server.epoch:
        if guards.again and nonce and server.nonce == nonce:
            return server._replace(stale=0), ("won", server.epoch, "again")
        reason = ""
        if absent and (suspect == server.epoch or not guards.twice):
            reason = "crash"
        elif overdue and guards.overdue and server.quiet and server.marks[overdue.entry] < overdue.slot:
            reason = "overdue"
        if not reason:
            return server, ("held", server.epoch, absent)
    epoch = max(server.counter, clock if guards.floor else 0) + 1
    return server._replace(epoch=epoch, nonce=nonce, stale=0, quiet=0, counter=epoch), ("won", epoch, reason)


def renew(server: Server, token: int) -> tuple[Server, bool]:
    """lease_renew."""
    if not token or server.epoch != token:
        return server, False
    return server._replace(stale=0), True


def release(server: Server, guards: Guards, token: int) -> tuple[Server, bool]:
    """lease_release."""
    if not server.epoch or (guards.owner and server.epoch != token):
        return server, False
    return freed(server), True


def freed(server: Server) -> Server:
    """Expiry does what a release does."""
    return server._replace(epoch=0, nonce=0, stale=0, quiet=0)


def emit(
    server: Server, guards: Guards, token: int, claims: tuple[Claim, ...], due: int
) -> tuple[Server, tuple[int, ...]]:
    """slots_emit; slots above `due` are in the future by the server's clock. (DEPOSED,): nothing was done."""
    if guards.token and (not token or server.epoch != token):
        return server, (DEPOSED,)
    outcomes = []
    for claim in claims:
        server, outcome = _emit(server, guards, token, claim, due)
        outcomes.append(outcome)
    return server._replace(quiet=0), tuple(outcomes)


def _emit(server: Server, guards: Guards, token: int, claim: Claim, due: int) -> tuple[Server, int]:
    if guards.time and claim.slot > due:
        return server, EARLY
    mark = server.marks[claim.entry]
    if guards.builds_on and mark < claim.after:
        return server, BEHIND
    if guards.mark and mark >= claim.slot:
        return server, ALREADY
    return marked(written(server, claim, token), claim), SENT


def written(server: Server, claim: Claim, token: int) -> Server:
    """Only the message."""
    message = Message(claim.entry, claim.slot, token)
    if claim.write == PUSH:
        return server._replace(log=(*server.log, message))
    if claim.write == KEEP:
        others = tuple(kept for kept in server.outbox if kept[:2] != message[:2])
        return server._replace(outbox=tuple(sorted((*others, message))))
    return server


def marked(server: Server, claim: Claim) -> Server:
    """Only the mark."""
    marks = list(server.marks)
    marks[claim.entry] = claim.slot
    return server._replace(marks=tuple(marks))


def confirm(server: Server, guards: Guards, record: Message) -> tuple[Server, int]:
    """outbox_confirm."""
    left = tuple(
        kept for kept in server.outbox if kept != record and (guards.unchanged or kept[:2] != record[:2])
    )
    return server._replace(outbox=left), len(server.outbox) - len(left)
