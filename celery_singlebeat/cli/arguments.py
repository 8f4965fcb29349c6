"""Values that are typed on the command line, and what to type instead of one that cannot be read.

These are callbacks of click's options. JSON is not repeated in a message, since it may hold a secret.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from celery_singlebeat.moments import reachable


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """ISO 8601 with an offset: an aware datetime."""
    from dateutil.parser import isoparse  # noqa: PLC0415 - see the package

    if value is None:
        return None
    try:
        found = isoparse(value)
    except ValueError:
        problem = f"{value!r} is not ISO 8601; give a moment such as 2026-03-02T12:00:00+00:00"
        raise click.BadParameter(problem, ctx, param) from None
    if found.tzinfo is None:
        problem = f"{value!r} has no offset; give one, such as {found.isoformat()}+00:00"
        raise click.BadParameter(problem, ctx, param)
    try:
        return reachable(found)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def json_of(kind: type, example: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A JSON list or object."""
    what = "list" if kind is list else "object"
    remedy = f"give a JSON {what} such as '{example}'"

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise click.BadParameter(f"it is not JSON ({error}); {remedy}", ctx, param) from None
        if not isinstance(found, kind):
            raise click.BadParameter(f"it is JSON, but no {what}; {remedy}", ctx, param)
        return found

    return read


def sun(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, float, float] | None:
    """EVENT,LAT,LON: an event of the sun, and where."""
    if value is None:
        return None
    event, _, place = value.partition(",")
    latitude, _, longitude = place.partition(",")
    try:
        found = event.strip(), float(latitude), float(longitude)
        if all(map(math.isfinite, found[1:])):
            return found
        raise ValueError
    except ValueError:
        problem = f"{value!r} is not EVENT,LAT,LON; give one such as sunset,52.52,13.40"
        raise click.BadParameter(problem, ctx, param) from None


def zone(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The IANA name of a zone."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - see the package

    try:
        return None if value is None else ZoneInfo(value).key
    except (KeyError, ValueError, OSError):
        problem = f"{value!r} is not an IANA zone; give a name such as Europe/Berlin"
        raise click.BadParameter(problem, ctx, param) from None
