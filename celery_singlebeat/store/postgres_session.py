"""One connection to PostgreSQL, with a deadline for every answer.

psycopg's own connections wait for an answer as long as it takes, and a server that is frozen, or behind a
cable that was pulled, never sends one. So this drives libpq itself, through psycopg's `pq`.
"""

from __future__ import annotations

import os
import selectors

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import SettingsError, StoreUnavailable
from celery_singlebeat.moments import Monotonic

Row = tuple[str | None, ...]

#: The oldest server whose sessions end by themselves when nothing is heard of them.
_OLDEST = 140000
_DONE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_READING, _WRITING = selectors.EVENT_READ, selectors.EVENT_WRITE


def read_dsn(dsn: str, *, setting: str) -> dict[str, str]:
    """The parts of a connection string; raises `SettingsError`, which shows nothing of it."""
    remedy = "give postgresql://user:password@host:5432/database, or libpq's host=... dbname=..."
    scheme = dsn.partition("://")[0] if "://" in dsn else "postgresql"
    if scheme not in ("postgresql", "postgres"):
        raise SettingsError(f"{setting} is no address of PostgreSQL: {remedy}")
    try:
        options = pq.Conninfo.parse(dsn.encode())
    except psycopg.Error:
        raise SettingsError(f"{setting} cannot be read: {remedy}") from None
    given = {option.keyword.decode(): option.val.decode() for option in options if option.val is not None}
    port = given.get("port", "")
    if port and not port.replace(",", "").isdigit():
        raise SettingsError(f"{setting} has a port that is no number: {remedy}")
    return given


class Session:
    """One connection, used by one thread at a time. `name` is its `application_name`.

    Raises `StoreUnavailable` for whatever gives no answer. An answer that is late is waited for by the next
    question, which then discards it, so that one slow answer does not cost the connection and its locks.
    """

    def __init__(self, parameters: dict[str, str], name: str, *, clock: Clock, until: Monotonic) -> None:
        self.name = name
        self._clock = clock
        self._secret = parameters.get("password", "")
        self._is_busy = False
        given = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
        given |= {"target_session_attrs": "read-write", **parameters, "application_name": name}
        text = " ".join(f"{keyword}={_quoted(value)}" for keyword, value in given.items())
        try:
            self._pg = self._connect(text.encode(), until)
        except psycopg.Error as error:
            raise StoreUnavailable("postgresql", self._plain(str(error))) from None

    def _connect(self, conninfo: bytes, until: Monotonic) -> PGconn:
        pg = pq.PGconn.connect_start(conninfo)
        while (status := pg.connect_poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise StoreUnavailable("postgresql", self._plain(pg.get_error_message()))
            events = _READING if status == pq.PollingStatus.READING else _WRITING
            if not self._wait(pg.socket, events, until):
                raise StoreUnavailable("postgresql", "no connection in time")
        if pg.server_version < _OLDEST:
            raise StoreUnavailable(
                "postgresql", f"locks need PostgreSQL 14 or newer; this is {pg.server_version // 10000}"
            )
        pg.nonblocking = 1
        self._pg = pg
        [(pid,)] = self.ask("select pg_backend_pid()", until=until)
        if str(pid) != str(pg.backend_pid):
            raise StoreUnavailable(
                "postgresql",
                "a pooler (PgBouncer) stands before the server; a lock belongs to a connection to the server "
                "itself, so give singlebeat_postgres_dsn its address",
            )
        return pg

    def ask(self, sql: str, *values: str | int, until: Monotonic) -> list[Row]:
        """Run one statement and return its rows."""
        self.start(sql, *values)
        return self.finish(until)

    def start(self, sql: str, *values: str | int) -> None:
        """Send one statement without waiting for its answer."""
        try:
            if self._is_busy and not self._drain(self._clock.monotonic()):
                raise StoreUnavailable("postgresql", "the answer before this one is still due")
            self._pg.send_query_params(sql.encode(), [str(value).encode() for value in values])
            self._is_busy = True
        except psycopg.Error as error:
            raise self._broken(error) from None

    def finish(self, until: Monotonic) -> list[Row]:
        """The rows of the statement that was sent last."""
        rows: list[Row] | None = None
        try:
            while self._flush(until) and self._has_answer(until):
                result = self._pg.get_result()
                if result is None:
                    self._is_busy = False
                    return rows or []
                if result.status not in _DONE:
                    raise psycopg.OperationalError(result.get_error_message())
                columns = range(result.nfields)
                rows = [tuple(_text(result, row, n) for n in columns) for row in range(result.ntuples)]
        except psycopg.Error as error:
            raise self._broken(error) from None
        raise StoreUnavailable("postgresql", "no answer in time")

    @property
    def is_open(self) -> bool:
        """Whether nothing was heard of the connection's end."""
        try:
            if self._pg.status == pq.ConnStatus.OK:
                self._pg.consume_input()
        except psycopg.Error:
            return False
        return bool(self._pg.status == pq.ConnStatus.OK)

    def close(self) -> None:
        """End the connection, and with it every lock that it holds."""
        self._pg.finish()

    def abandon(self) -> None:
        """Let go of a connection that belongs to the parent of this process, without a word to the server.

        Only this process's copy of the socket is closed: otherwise the server would not see the parent die.
        """
        if self._pg.status == pq.ConnStatus.OK:
            os.close(self._pg.socket)

    # -- inside ---------------------------------------------------------------------------------

    def _flush(self, until: Monotonic) -> bool:
        while self._pg.flush():
            if not self._wait(self._pg.socket, _READING | _WRITING, until):
                return False
            self._pg.consume_input()
        return True

    def _has_answer(self, until: Monotonic) -> bool:
        self._pg.consume_input()
        while self._pg.is_busy():
            if not self._wait(self._pg.socket, _READING, until):
                return False
            self._pg.consume_input()
        return True

    def _drain(self, until: Monotonic) -> bool:
        """Discard the answer that an earlier question did not wait for."""
        while self._flush(until) and self._has_answer(until):
            if self._pg.get_result() is None:
                self._is_busy = False
                return True
        return False

    def _wait(self, socket: int, events: int, until: Monotonic) -> bool:
        left = until - self._clock.monotonic()
        if left <= 0:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(socket, events)
            return bool(selector.select(left))

    def _broken(self, error: psycopg.Error) -> StoreUnavailable:
        return StoreUnavailable("postgresql", self._plain(str(error)))

    def _plain(self, text: str) -> str:
        """An error's text in one line, without the password."""
        text = " ".join(text.split())
        return text.replace(self._secret, "***") if self._secret else text


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _text(result: PGresult, row: int, column: int) -> str | None:
    value = result.get_value(row, column)
    return None if value is None else value.decode()
