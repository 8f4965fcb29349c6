"""Lua from files, run by name; the one place where a Redis error becomes `StoreUnavailable`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import redis
from redis.commands.core import Script

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
        self._registered: dict[str, Script] = {}

    def run(self, name: str, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run lua/`name`.lua in one step; raises `StoreUnavailable`."""
        script = self._registered.get(name)
        if script is None:
            script = self._registered[name] = self.client.register_script(source(name))
        with answers(name):
            return script(keys=list(keys), args=list(args))
