"""Private Redis and RabbitMQ servers on loopback: real ones, without root, containers or configuration.

Each server has a temporary directory, a free port and a process group of its own. `restart()` and `start()`
come back on the same port, so that clients see what they would see of a server that was away for a moment.
Only the programs come from elsewhere; `programs` says where from, and in which order.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from typing_extensions import Self, override

from celery_singlebeat.testing.processes import ManagedProcess
from celery_singlebeat.testing.programs import (
    ServerNotFoundError,
    find_epmd,
    find_rabbitmq,
    find_redis_server,
    find_tls_redis_server,
)

__all__ = [
    "EmbeddedRabbitMQ",
    "EmbeddedRedis",
    "EmbeddedServer",
    "ServerNotFoundError",
    "ServerStartError",
    "find_rabbitmq",
    "find_redis_server",
    "find_tls_redis_server",
    "free_port",
]

_LOOPBACK = "127.0.0.1"


class ServerStartError(RuntimeError):
    """A server ended, or stayed silent, instead of answering. The message carries its log."""


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago. Someone may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedServer(ABC):
    """A server process with a directory, a port and a deadline for being ready; a context manager."""

    kind: ClassVar[str]
    start_timeout: float
    stop_timeout: ClassVar[float] = 10.0

    def __init__(self, port: int | None, start_timeout: float) -> None:
        self._fixed_port = port is not None
        self.port = port or free_port()
        self.start_timeout = start_timeout
        self._directory: Path | None = None
        self._process: ManagedProcess | None = None

    def __repr__(self) -> str:
        status = self._process.status if self._process else "new"
        return f"<{type(self).__name__} {_LOOPBACK}:{self.port} {status}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        """The private directory: data, configuration and log. Made on first use, removed by `stop`."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"singlebeat-{self.kind}-"))
        return self._directory

    @property
    def process(self) -> ManagedProcess:
        """The server's process since the last start. Raises RuntimeError before the first."""
        if self._process is None:
            raise RuntimeError(f"{type(self).__name__} was not started")
        return self._process

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process lives; a paused one does."""
        return self._process is not None and self._process.running

    def logs(self) -> str:
        """What the server has written, restarts included."""
        return self._process.logs() if self._process else ""

    def start(self) -> Self:
        """Start and wait until the server answers. Raises ServerStartError with the server's log."""
        if self.running:
            raise RuntimeError(f"{self!r} already runs")
        self.kill()
        while _is_taken(self.port):
            # Someone was quicker. A port that was asked for, or that clients know already, is not given up.
            if self._fixed_port or self._process is not None:
                raise ServerStartError(f"{self.kind} cannot start: port {self.port} is in use already")
            self.port = free_port()
        try:
            return self._start_once()
        except ServerStartError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and remove its directory. Stopping twice is fine."""
        if self._process is not None:
            self._process.terminate(self.stop_timeout)
            self._process = None
        self._stop_companions()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """Kill the server with SIGKILL. Its directory stays: `start` comes back on what it had written."""
        if self._process is not None:
            self._process.kill(signal.SIGKILL)

    def restart(self, keep_data: bool = True) -> Self:
        """Stop and start again on the same port.

        With `keep_data` the server may write everything down first (one that was killed before keeps what it
        had on disk). Without, it is killed and comes back empty.
        """
        if self.running and keep_data:
            self.process.resume()
            self._stop_gracefully()
        self.kill()
        if not keep_data:
            self._forget()
        return self.start()

    def pause(self) -> None:
        """Freeze the server with SIGSTOP. The kernel still accepts connections for it; nobody answers."""
        self.process.pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        self.process.resume()

    def _start_once(self) -> Self:
        argv, env = self._command()
        self._process = ManagedProcess(
            argv, cwd=self.directory, env=env, name=self.kind, log_path=self.directory / "server.log"
        ).start()
        deadline = time.monotonic() + self.start_timeout
        while not self._answers():
            if (code := self._process.poll()) is not None:
                raise ServerStartError(
                    f"{self.kind} on port {self.port} ended with {code} at start. "
                    f"Its log:\n{self._process.logs_since_start()}"
                )
            if time.monotonic() > deadline:
                raise ServerStartError(
                    f"{self.kind} on port {self.port} did not answer within {self.start_timeout:g} s. "
                    f"Its log:\n{self._process.logs_since_start()}"
                )
            time.sleep(0.01)
        return self

    def _stop_gracefully(self) -> None:
        self.process.terminate(self.stop_timeout)

    def _stop_companions(self) -> None:  # noqa: B027 - most servers have none
        """End the processes that the server needs beside itself."""

    @abstractmethod
    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str | None]]:
        """Return what to run, and what to add to the environment."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server is ready to serve."""

    @abstractmethod
    def _forget(self) -> None:
        """Remove the data from the directory."""


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return True
    return False


class EmbeddedRedis(EmbeddedServer):
    """A private Redis or Valkey, in memory unless `appendonly`.

    `arguments` are passed to the server ("--maxmemory", "10mb"). `binary` picks another program than the one
    that `find_redis_server` finds.
    """

    kind = "redis"

    def __init__(
        self,
        *arguments: str,
        appendonly: bool = False,
        port: int | None = None,
        password: str | None = None,
        binary: str | Path | None = None,
        start_timeout: float = 10.0,
    ) -> None:
        super().__init__(port, start_timeout)
        self.arguments = arguments
        self.appendonly = appendonly
        self.password = password
        self.binary = Path(binary) if binary is not None else find_redis_server()

    def url(self, db: int = 0) -> str:
        """Return the address of one database, password included."""
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}{_LOOPBACK}:{self.port}/{db}"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client. `options` are redis-py's; the defaults are no retry and 5 s of patience."""
        defaults: dict[str, Any] = {
            "host": _LOOPBACK,
            "port": self.port,
            "password": self.password,
            "socket_timeout": 5.0,
            "socket_connect_timeout": 5.0,
            "retry": Retry(NoBackoff(), 0),
        }
        return redis.Redis(**{**defaults, **options})

    @override
    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str | None]]:
        lines = [
            f"port {self.port}",
            f"bind {_LOOPBACK}",
            f"dir {self.directory}",
            'save ""',
            f"appendonly {'yes' if self.appendonly else 'no'}",
        ]
        if self.password:
            lines.append(f"requirepass {self.password}")
        # A file, not arguments: every user of the machine can read the arguments of a process.
        configuration = self.directory / "server.conf"
        configuration.write_text("".join(f"{line}\n" for line in lines))
        configuration.chmod(0o600)
        return [self.binary, configuration, *self.arguments], {}

    @override
    def _answers(self) -> bool:
        with self.client(socket_timeout=0.5, socket_connect_timeout=0.5) as client:
            try:
                return bool(client.info("server")["process_id"] == self.pid)
            except redis.RedisError:  # not listening yet, or still loading its data
                return False

    @override
    def _stop_gracefully(self) -> None:
        """Save a snapshot first: without `appendonly`, nothing else would survive."""
        with self.client() as client:
            client.shutdown(nosave=self.appendonly, save=not self.appendonly)
        self.process.wait(self.stop_timeout)

    @override
    def _forget(self) -> None:
        for path in [self.directory / "dump.rdb", *self.directory.glob("appendonly*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class EmbeddedRabbitMQ(EmbeddedServer):
    """A private RabbitMQ node without plugins, with its own Erlang port mapper. Ready in 5 to 10 seconds."""

    kind = "rabbitmq"
    stop_timeout = 20.0

    def __init__(self, *, port: int | None = None, start_timeout: float = 90.0) -> None:
        super().__init__(port, start_timeout)
        self.binary = find_rabbitmq()
        self._epmd_port = free_port()
        self._epmd: ManagedProcess | None = None

    def url(self, vhost: str = "/") -> str:
        """Return the AMQP address of a virtual host, as the default user."""
        return f"amqp://guest:guest@{_LOOPBACK}:{self.port}/{vhost}"

    def add_vhost(self, name: str) -> str:
        """Make a virtual host that the default user may use, and return its address. Takes half a second."""
        expression = (
            f'rabbit_vhost:add(<<"{name}">>, <<"singlebeat">>), '
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>, '
            f'<<".*">>, <<".*">>, <<".*">>, <<"singlebeat">>).'
        )
        subprocess.run(  # noqa: S603 - the program beside the server's own
            [self.binary.parent / "rabbitmqctl", "--quiet", "eval", expression],
            env={**os.environ, **self._identity(), "LC_ALL": "C.UTF-8"},
            check=True,
            capture_output=True,
            timeout=self.start_timeout,
        )
        return self.url(name)

    def _identity(self) -> dict[str, str]:
        """Return the environment by which Erlang programs find this node and no other."""
        return {
            "HOME": str(self.directory),  # the Erlang cookie goes there
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": _LOOPBACK,
            "RABBITMQ_NODENAME": f"singlebeat{self._epmd_port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "no-rabbitmq-env.conf"),
        }

    @override
    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str | None]]:
        self._start_epmd()
        plugins = self.directory / "enabled_plugins"
        plugins.write_text("[].\n")
        env = {
            **self._identity(),
            "RABBITMQ_NODE_IP_ADDRESS": _LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_PID_FILE": str(self.directory / "rabbitmq.pid"),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_LOGS": "-",
            # Otherwise the script stays as the parent of the Erlang machine, and is all that signals reach.
            "RUNNING_UNDER_SYSTEMD": "true",
            "NOTIFY_SOCKET": None,
            # Two schedulers that sleep when idle: the tests around it need the processor more.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }
        return [self.binary], env

    @override
    def _answers(self) -> bool:
        """Whether the node opens an AMQP conversation: a port that is merely open is not enough."""
        try:
            with socket.create_connection((_LOOPBACK, self.port), timeout=1.0) as connection:
                connection.settimeout(2.0)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    @override
    def _stop_companions(self) -> None:
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd = None

    @override
    def _forget(self) -> None:
        shutil.rmtree(self.directory / "mnesia", ignore_errors=True)

    def _start_epmd(self) -> None:
        """Start the port mapper here, or RabbitMQ would leave a daemon of its own behind."""
        if self._epmd is None or not self._epmd.running:
            self._epmd = ManagedProcess(
                [find_epmd(), "-port", str(self._epmd_port), "-address", _LOOPBACK],
                cwd=self.directory,
                name="epmd",
                log_path=self.directory / "epmd.log",
            ).start()
