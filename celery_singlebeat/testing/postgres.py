"""A private PostgreSQL on loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from celery_singlebeat.testing.programs import find_postgres
from celery_singlebeat.testing.servers import EmbeddedServer, ServerStartError

__all__ = ["EmbeddedPostgres", "find_postgres"]

_LOOPBACK = "127.0.0.1"
_USER, _DATABASE = "singlebeat", "postgres"


class EmbeddedPostgres(EmbeddedServer):
    """A private PostgreSQL without a password, ready in a second or two. `settings` are those of the server.

    It refuses to run as root; root runs it as `nobody`.
    """

    kind = "postgresql"

    def __init__(self, *settings: str, port: int | None = None, start_timeout: float = 30.0) -> None:
        super().__init__(port, start_timeout)
        self.settings = settings
        self.binary = find_postgres()

    @property
    def dsn(self) -> str:
        """The address of the server's database."""
        return f"postgresql://{_USER}@{_LOOPBACK}:{self.port}/{_DATABASE}"

    @override
    def stop(self) -> None:
        if self.running:
            self.resume()
            self._stop_gracefully()
        super().stop()

    @override
    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str | None]]:
        data = self.directory / "data"
        if not data.exists():
            self._make(data)
        lines = [
            *("-c", f"listen_addresses={_LOOPBACK}", "-c", f"unix_socket_directories={self.directory}"),
            *("-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "logging_collector=off"),
            *(part for setting in self.settings for part in ("-c", setting)),
        ]
        return [*_unprivileged(), self.binary, "-D", data, "-p", str(self.port), *lines], {"LC_ALL": "C"}

    def _make(self, data: Path) -> None:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
        options = ["-A", "trust", "-U", _USER, "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(  # noqa: S603 - the program beside the server's own
            [*_unprivileged(), self.binary.with_name("initdb"), "-D", data, *options],
            cwd=self.directory,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
            capture_output=True,
            text=True,
            timeout=self.start_timeout,
        )
        if done.returncode:
            raise ServerStartError(f"initdb ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    @override
    def _answers(self) -> bool:
        """Whether a session can begin: a port that is merely open is not enough."""
        words = b"\0".join([b"user", _USER.encode(), b"database", _DATABASE.encode(), b"", b""])
        try:
            with socket.create_connection((_LOOPBACK, self.port), timeout=1.0) as connection:
                connection.sendall(struct.pack("!ii", 8 + len(words), 3 << 16) + words)
                return connection.recv(1) == b"R"
        except OSError:
            return False

    @override
    def _stop_gracefully(self) -> None:
        """End it at once, with its sessions: SIGTERM would wait for them."""
        self.process.kill(signal.SIGINT)
        deadline = time.monotonic() + self.stop_timeout
        while self.running and time.monotonic() < deadline:
            time.sleep(0.005)

    @override
    def _forget(self) -> None:
        shutil.rmtree(self.directory / "data", ignore_errors=True)


def _unprivileged() -> list[str]:
    """What makes a program run as `nobody` when root starts it, and still die with its parent."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    ids = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return ["setpriv", *ids, "--pdeathsig=KILL"]
