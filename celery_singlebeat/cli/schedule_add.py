"""`singlebeat schedule add`: a dynamic entry from what is typed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from celery_singlebeat.cli.answers import WRONG, Failure, app_with_tasks
from celery_singlebeat.cli.arguments import json_of, moment, sun, zone
from celery_singlebeat.cli.render import say

#: The fields of a crontab, in their order.
_CRON = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")

C = TypeVar("C", bound=Callable[..., Any])


def _when(command: C) -> C:
    """The options that say when an entry runs; one of the first five has to be given."""
    for option in (
        click.option(
            "--start", callback=moment, metavar="ISO", help="With --rrule: its first slot, or before."
        ),
        click.option("--solar", callback=sun, metavar="EVENT,LAT,LON", help="At an event of the sun."),
        click.option("--at", callback=moment, metavar="ISO", help="Once, at this moment."),
        click.option("--rrule", metavar="RULE", help="By a recurrence rule, such as FREQ=DAILY;BYHOUR=9."),
        click.option("--cron", metavar="FIELDS", help='By a crontab, such as "0 9 * * mon-fri".'),
        click.option("--every", type=float, metavar="SECONDS", help="Every so many seconds."),
    ):
        command = option(command)
    return command


def _keys(command: C) -> C:
    """The options that are keys of an entry."""
    for option in (
        click.option(
            "--jitter", type=float, metavar="SECONDS", help="Send each message up to so much later."
        ),
        click.option(
            "--overlap",
            type=click.Choice(["allow", "skip", "queue"]),
            help="What becomes of a slot while the run before goes on.",
        ),
        click.option("--catch-up-limit", type=int, metavar="N", help='With "all": at most so many.'),
        click.option(
            "--misfire-grace", type=float, metavar="SECONDS", help="Slots that are later than this never run."
        ),
        click.option(
            "--misfire", type=click.Choice(["latest", "all", "skip"]), help="Which missed slots run."
        ),
        click.option(
            "--timezone",
            callback=zone,
            metavar="ZONE",
            help="Zone of --cron or --rrule, such as Europe/Berlin.",
        ),
        click.option(
            "--options", callback=json_of(dict, '{"queue": "slow"}'), metavar="JSON", help="Of apply_async."
        ),
        click.option(
            "--kwargs", callback=json_of(dict, '{"kind": "pdf"}'), metavar="JSON", help="Of the task."
        ),
        click.option("--args", callback=json_of(list, '[1, "pdf"]'), metavar="JSON", help="Of the task."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@click.option("--task", required=True, metavar="TASK", help="Name of the task.")
@_when
@_keys
@click.pass_context
def add(
    ctx: click.Context,
    /,
    *,
    name: str,
    task: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    **given: Any,
) -> None:
    """Add a dynamic entry, or change the one of this name.

    One of --every, --cron, --rrule, --at and --solar says when it runs. Its slots start now; a change of
    anything else moves none.
    """
    kinds = ("every", "cron", "rrule", "at", "solar")
    chosen = [kind for kind in kinds if given[kind] is not None]
    if len(chosen) != 1:
        raise click.UsageError("say when: one of --every, --cron, --rrule, --at, --solar", ctx)
    if (given["rrule"] is None) != (given["start"] is None):
        raise click.UsageError("--rrule and --start go together", ctx)
    from celery_singlebeat.beat.schedule import Schedule  # noqa: PLC0415 - see the package

    when = _schedule(chosen[0], given[chosen[0]], given["start"], given["timezone"])
    keys = {
        key: value
        for key, value in given.items()
        if value is not None and key not in (*kinds, "start") and (key != "timezone" or chosen != ["rrule"])
    }
    schedule = Schedule(app_with_tasks(ctx))
    outcome = schedule.add(name, task, when, args or (), kwargs, **keys)
    coming = schedule.next(1, name)
    then = f", next at {coming[0]['slot']}" if coming else ""
    say(f"{outcome} {name}{then}")


def _schedule(kind: str, value: Any, start: datetime, timezone: str | None) -> Any:
    """The schedule object that is meant."""
    from celery.schedules import ParseException, crontab, solar  # noqa: PLC0415 - see the package

    from celery_singlebeat.schedules import clocked, rrule  # noqa: PLC0415

    try:
        if kind == "cron":
            fields = value.split()
            if len(fields) != len(_CRON):
                raise ValueError(f"it has {len(fields)} fields")
            return crontab(**dict(zip(_CRON, fields, strict=True)))
        if kind == "rrule":
            return rrule(value, start, timezone or "UTC")
        if kind == "at":
            return clocked(value)
        return solar(*value) if kind == "solar" else value
    except (ParseException, ValueError) as error:
        remedy = {
            "cron": '; give five fields, "minute hour day-of-month month day-of-week"',
            "rrule": "; give a rule such as FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0",
        }.get(kind, "")
        shown = f" {value!r}" if kind == "cron" else ""
        raise Failure(WRONG, f"--{kind}{shown}: {str(error).rstrip('.')}{remedy}") from None
