"""Servers that this machine lacks: their tests are skipped, or failed where everything is required.

With SINGLEBEAT_REQUIRE_ALL=1 (the CI) nothing may be skipped: a missing server fails its tests, and
`skip_report` fails the run over any other skip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from celery_singlebeat.testing.servers import EmbeddedRedis, ServerNotFoundError

REMEDY = "make servers"
PREFIX = "missing server: "


def require_all() -> bool:
    return os.environ.get("SINGLEBEAT_REQUIRE_ALL", "") not in {"", "0"}


def miss(reason: object) -> NoReturn:
    """Skip the test for want of a server, or fail it if everything is required."""
    if require_all():
        message = f"{reason} (SINGLEBEAT_REQUIRE_ALL is set; `{REMEDY}` installs it)"
        raise pytest.fail.Exception(message, pytrace=False) from None
    raise pytest.skip.Exception(f"{PREFIX}{reason}") from None


@contextmanager
def running_redis(*arguments: str, **options: Any) -> Iterator[EmbeddedRedis]:
    """A Redis of the caller's own; arguments and options are those of `EmbeddedRedis`."""
    try:
        server = EmbeddedRedis(*arguments, **options)
    except ServerNotFoundError as error:
        miss(error)
    with server:
        yield server
