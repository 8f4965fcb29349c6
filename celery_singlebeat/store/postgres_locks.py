"""Locks in PostgreSQL: session-level advisory locks, with one connection for each lock that is held.

The server frees a lock the moment its connection ends: at once when the holder's process dies. It ends the
connection itself when it has heard nothing for the lock's ttl (`idle_session_timeout`), so that a holder that
is frozen or cut off keeps its key no longer than with Redis. No table is made, and no right to make one is
needed: the holder's description and the fence stay in the record of the store.

A key is hashed to the 64 bits that an advisory lock has. Two keys with one hash exclude each other; that is
a false conflict, and never a lock held twice.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.moments import Monotonic, from_millis, later
from celery_singlebeat.store.backend_ports import Lost, Verdict, Won
from celery_singlebeat.store.lock_ports import Holder, Lease, LockRecord
from celery_singlebeat.store.postgres_session import Row, Session

#: How long a connection without a lock is kept for the next one, and how many of them.
_KEEP_MILLIS = 60_000
_KEEP = 8
_LONGEST_MILLIS = 2**31 - 1
#: A name of a connection is cut off by the server beyond this.
_LONGEST_NAME = 63
#: Begins the key that stands for a lock of which only the number is known. No other key has a space.
UNKNOWN = "postgresql "

_NUMBER = "(l.classid::bigint << 32) | l.objid::bigint"
_ACQUIRE = """
    with lock as materialized (select pg_try_advisory_lock($1::bigint) as got)
    select got::int, set_config('idle_session_timeout', case when got then $2 else $3 end, false) from lock"""
_RENEW = f"""
    select count(*), set_config('idle_session_timeout', $2, false) from pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted and l.objsubid = 1
    and ({_NUMBER}) = $1::bigint"""  # noqa: S608 - a constant
_RELEASE = "select pg_advisory_unlock($1::bigint)::int, set_config('idle_session_timeout', $2, false)"
_HELD = f"""
    select {_NUMBER}, a.application_name, (extract(epoch from a.state_change) * 1000)::bigint
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and a.application_name like $1
    and l.database = (select oid from pg_database where datname = current_database())"""  # noqa: S608
_END = """
    select pg_terminate_backend(pid, $2::bigint)::int from pg_stat_activity where application_name = $1"""


@dataclass(slots=True)
class _Held:
    key: str
    session: Session
    expires: Monotonic
    turn: threading.Lock = field(default_factory=threading.Lock)


class PostgresBackend:
    """`LockBackend` over one PostgreSQL. `patience` is how long one answer may take, in seconds."""

    notes_fences = False

    def __init__(self, parameters: dict[str, str], prefix: str, *, patience: float, clock: Clock) -> None:
        self._parameters = parameters
        self._prefix = prefix
        self._patience = patience
        self._clock = clock
        self._turn = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._idle: list[Session] = []
        #: Token -> the connection that may hold its lock, since it gave no answer.
        self._doubtful: dict[str, tuple[str, Monotonic]] = {}
        self._tag = hashlib.blake2b(prefix.encode(), digest_size=4).hexdigest()
        _backends.add(self)

    def acquire(self, key: str, token: str, *, ttl: float) -> Verdict:
        self._forget_expired()
        deadline = self._deadline()
        if self.renew([Lease(key, token, "")], ttl=ttl) == [True]:
            return Won()
        self._end_doubtful(token, deadline)
        session = self._session(deadline)
        try:
            [(got, _)] = session.ask(_ACQUIRE, self._number(key), _millis(ttl), _KEEP_MILLIS, until=deadline)
        except StoreUnavailable:
            session.close()
            with self._turn:
                self._doubtful[token] = (session.name, later(self._clock.monotonic(), ttl))
            raise
        if got != "1":
            self._park(session)
            return Lost()
        with self._turn:
            self._held[token] = _Held(key, session, later(self._clock.monotonic(), ttl))
        return Won()

    def renew(self, leases: Sequence[Lease], *, ttl: float) -> list[bool | None]:
        """Ask every connection whether it still holds its lock: first all questions, then all answers."""
        deadline = self._deadline()
        asked = [self._ask(lease, ttl) for lease in leases]
        return [self._answer(held, is_asked, ttl, deadline) for held, is_asked in asked]

    def _ask(self, lease: Lease, ttl: float) -> tuple[_Held | None, bool]:
        held = self._held.get(lease.token)
        if held is None or held.key != lease.key:
            return None, False
        held.turn.acquire()
        try:
            held.session.start(_RENEW, self._number(held.key), _millis(ttl))
        except StoreUnavailable:
            return held, False
        return held, True

    def _answer(self, held: _Held | None, is_asked: bool, ttl: float, deadline: Monotonic) -> bool | None:
        if held is None:
            return False
        try:
            if not is_asked:
                # An answer that is still due is one to an earlier question: it does not count from now on.
                return None if held.session.is_open else False
            [(count, _)] = held.session.finish(deadline)
        except StoreUnavailable:
            return None if held.session.is_open else False
        finally:
            held.turn.release()
        held.expires = later(self._clock.monotonic(), ttl)
        return count == "1"

    def release(self, key: str, token: str) -> bool | None:
        with self._turn:
            self._doubtful.pop(token, None)
            held = self._held.get(token)
            if held is None or held.key != key:
                return False
            del self._held[token]
        with held.turn:
            try:
                [(freed, _)] = held.session.ask(
                    _RELEASE, self._number(key), _KEEP_MILLIS, until=self._deadline()
                )
            except StoreUnavailable:
                known = None if held.session.is_open else False
                held.session.close()
                return known
        self._park(held.session)
        return freed == "1"

    def break_lock(self, key: str) -> bool:
        """End the connection of whoever holds the key: nothing but that lock hangs on it."""
        deadline = self._deadline()
        session = self._session(deadline)
        number = str(self._number(key))
        found = [row for row in self._locks(session, deadline) if row[0] == number]
        for row in found:
            session.ask(_END, str(row[1]), _half(self._patience), until=deadline)
        self._park(session)
        return bool(found)

    def held(self, records: Sequence[LockRecord]) -> list[LockRecord]:
        deadline = self._deadline()
        session = self._session(deadline)
        rows = {str(row[0]): row for row in self._locks(session, deadline)}
        self._park(session)
        found = [record for record in records if rows.pop(str(self._number(record.key)), None)]
        return found + [_stranger(number, row) for number, row in rows.items()]

    def close(self) -> None:
        with self._turn:
            sessions = [held.session for held in self._held.values()] + self._idle
            self._held, self._idle = {}, []
        for session in sessions:
            session.close()

    def abandon(self) -> None:
        """In the child of a fork: the connections, and their locks, are the parent's."""
        for session in [*(held.session for held in self._held.values()), *self._idle]:
            session.abandon()
        self._turn = threading.Lock()
        self._held, self._idle, self._doubtful = {}, [], {}

    # -- inside ---------------------------------------------------------------------------------

    def _number(self, key: str) -> int:
        """The key as an advisory lock knows it."""
        if key.startswith(UNKNOWN):
            return int(key.removeprefix(UNKNOWN))
        digest = hashlib.blake2b(f"{self._prefix}\0{key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _session(self, deadline: Monotonic) -> Session:
        """A connection that holds nothing: one that was kept, if it lives, or a new one."""
        while True:
            with self._turn:
                session = self._idle.pop() if self._idle else None
            if session is None:
                break
            if session.is_open:
                return session
            session.close()
        about = f"singlebeat {self._tag} {os.getpid()} {secrets.token_hex(4)} {socket.gethostname()}"
        return Session(self._parameters, about[:_LONGEST_NAME], clock=self._clock, until=deadline)

    def _park(self, session: Session) -> None:
        with self._turn:
            if len(self._idle) < _KEEP:
                self._idle.append(session)
                return
        session.close()

    def _locks(self, session: Session, deadline: Monotonic) -> list[Row]:
        return session.ask(_HELD, f"singlebeat {self._tag} %", until=deadline)

    def _end_doubtful(self, token: str, deadline: Monotonic) -> None:
        """End a connection that may hold this token's lock on the server, although it broke here."""
        with self._turn:
            name, _ = self._doubtful.get(token, ("", 0.0))
        if not name:
            return
        session = self._session(deadline)
        session.ask(_END, name, _half(self._patience), until=deadline)
        self._park(session)
        with self._turn:
            self._doubtful.pop(token, None)

    def _forget_expired(self) -> None:
        """Drop what nobody renews any more; the server has ended it by itself (Q3)."""
        now = self._clock.monotonic()
        with self._turn:
            for token in [token for token, (_, expires) in self._doubtful.items() if expires < now]:
                del self._doubtful[token]
            expired = [token for token, held in self._held.items() if held.expires < now]
            sessions = [self._held.pop(token).session for token in expired]
        for session in sessions:
            session.close()

    def _deadline(self) -> Monotonic:
        return later(self._clock.monotonic(), self._patience)


def _stranger(number: str, row: Row) -> LockRecord:
    """A lock of this app that the record does not describe."""
    _, name, since = row
    words = (name or "").split()
    pid, host = (words[2], words[4]) if len(words) == 5 else ("0", "")  # noqa: PLR2004 - as `_session` names it
    holder = Holder(task="", task_id="", host=host, pid=int(pid), since=from_millis(int(since or 0)))
    return LockRecord(key=UNKNOWN + number, holder=holder, ttl=0.0, fence=0, backend="postgresql")


def _millis(ttl: float) -> int:
    return min(_LONGEST_MILLIS, max(1, round(ttl * 1000)))


def _half(patience: float) -> int:
    return max(1, round(patience * 500))


_backends: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


def _after_fork() -> None:
    for backend in list(_backends):
        backend.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
