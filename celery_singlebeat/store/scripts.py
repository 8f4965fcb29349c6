"""Lua from files, run by name; the one place where a Redis error becomes `StoreUnavailable`."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import redis

from celery_singlebeat.errors import StoreUnavailable

_FOLDER = files("celery_singlebeat.store") / "lua"
_WITH = re.compile(r"^-- with: (\w+)$", re.MULTILINE)

Argument = str | bytes | int | float


@functools.cache
def source(name: str) -> str:
    """The text of lua/`name`.lua; a line `-- with: OTHER` stands for the text of lua/OTHER.lua."""
    text = (_FOLDER / f"{name}.lua").read_text("utf-8")
    return _WITH.sub(lambda match: source(match[1]), text)


@contextmanager
def answers(operation: str) -> Iterator[None]:
    """Turn "no usable answer" into `StoreUnavailable(operation)`.

    Beside lost connections that is every refusal that says nothing about what was asked: the server
    is loading, is a replica, is out of memory, or wants another password.
    """
    try:
        yield
    except redis.RedisError as error:
        raise StoreUnavailable(operation, _without_secrets(error)) from error
    except OSError as error:
        raise StoreUnavailable(operation, _without_secrets(error)) from error


def _without_secrets(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def matching(prefix: str) -> str:
    """The pattern of SCAN for every key that starts with `prefix`."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in prefix) + "*"


class Scripts:
    """The scripts of one client."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._digests: dict[str, str] = {}

    def run(self, name: str, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run lua/`name`.lua in one step; raises `StoreUnavailable`."""
        digest = self._digests.get(name)
        if digest is None:
            digest = hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()
            self._digests[name] = digest
        words = (len(keys), *keys, *args)
        with answers(name):
            try:
                return self._ask("EVALSHA", digest, *words)
            except redis.exceptions.NoScriptError:
                return self._ask("EVAL", source(name), *words)

    def _ask(self, *words: Argument) -> Any:
        """One command over a connection of the pool.

        `execute_command` does the same for half as much time again, which it spends on retries that
        `connect` switches off.
        """
        pool = self.client.connection_pool
        connection: Any = pool.get_connection(*_COMMAND)
        try:
            connection.send_command(*words)
            return connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:
            # A time limit may strike between the two: the next caller would take this answer for its own.
            connection.disconnect()
            raise
        finally:
            pool.release(connection)


#: Before redis-py 5.3 a pool wants to know for which command; since then it warns if it is told.
_COMMAND = (
    ("EVALSHA",)
    if inspect.signature(redis.ConnectionPool.get_connection).parameters["command_name"].default
    is inspect.Parameter.empty
    else ()
)
