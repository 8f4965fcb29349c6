"""`singlebeat dlq ...`: the calls that failed for good, and sending them again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import click

from celery_singlebeat.cli.answers import NO, app_with_tasks
from celery_singlebeat.cli.render import (
    ask,
    json_option,
    say,
    show_facts,
    show_json,
    show_table,
    yes_option,
)

C = TypeVar("C", bound=Callable[..., Any])

REASONS = ("max_retries", "not_retryable", "poison", "conflict_timeout", "undecodable")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def since(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """The aware moment that `--since` means: ISO 8601, in UTC unless it says otherwise, or how long ago."""
    from dateutil.parser import isoparse  # noqa: PLC0415 - see the package

    from celery_singlebeat.clock import SystemClock  # noqa: PLC0415

    if value is None:
        return None
    if ago := re.fullmatch(r"(\d+)([smhd])", value):
        return SystemClock().now() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = isoparse(value)
    except ValueError:
        problem = f"{value!r} is neither an ISO 8601 moment nor a time such as 90s, 30m, 2h, 7d"
        raise click.BadParameter(problem, ctx, param) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def filters(command: C) -> C:
    """`--task`, `--reason`, `--since` and `--limit`."""
    for option in (
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many letters."),
        click.option(
            "--since", callback=since, metavar="WHEN", help="Died since: ISO 8601, or 90s, 30m, 2h, 7d."
        ),
        click.option("--reason", type=click.Choice(REASONS), help="Died for this reason."),
        click.option("--task", metavar="NAME", help="Calls of this task."),
    ):
        command = option(command)
    return command


@click.group()
def dlq() -> None:
    """See the calls that failed for good, and send them again."""


@dlq.command("list")
@filters
@json_option
@click.pass_context
def list_(ctx: click.Context, /, *, as_json: bool, **chosen: Any) -> None:
    """List dead letters."""
    found = _letters(ctx).list(**chosen)
    if as_json:
        show_json(found)
        return
    columns = ("id", "task", "queue", "reason", "exception", "died_at", "replays")
    rows = [[letter[column] for column in columns] for letter in found]
    show_table([column.replace("_", " ") for column in columns], rows, ctx=ctx, empty="no dead letters")


@dlq.command()
@click.argument("letter_id", metavar="ID")
@json_option
@click.pass_context
def show(ctx: click.Context, *, letter_id: str, as_json: bool) -> None:
    """Show everything that is known of one dead letter."""
    letter = _letters(ctx).get(letter_id)
    if as_json:
        show_json(letter)
        return
    facts = [(name.replace("_", " "), value) for name, value in letter.items() if name != "attempts"]
    facts += [("attempt", _attempt(attempt)) for attempt in letter["attempts"]]
    show_facts(facts, ctx=ctx)


@dlq.command()
@json_option
@click.pass_context
def count(ctx: click.Context, *, as_json: bool) -> None:
    """Count the dead letters."""
    number = _letters(ctx).count()
    if as_json:
        show_json({"count": number})
    else:
        say(str(number))


@dlq.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Replay every dead letter.")
@filters
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N a second.")
@click.option("--dry-run", is_flag=True, help="Say what would be replayed, and do nothing.")
@yes_option
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    *,
    ids: tuple[str, ...],
    everything: bool,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    limit: int | None,
    **chosen: Any,
) -> None:
    """Send dead letters to their queues again: those named by ID, all of them, or those that the filters
    leave.

    Each keeps its id, and is replayed by one operator only, however many try. Several letters are asked
    about before, unless --yes is given.
    """
    filtered = any(value is not None for value in chosen.values())
    if (bool(ids), everything, filtered).count(True) != 1:
        raise click.UsageError("say which: IDs, or --all, or filters", ctx)
    letters = _letters(ctx)
    if dry_run:
        found = _found(letters, ids, limit, chosen)
        for letter in found:
            say(f"would replay {letter['id']} ({letter['task']}) to queue {letter['queue']}")
        say(f"{_number(len(found))} would be replayed")
        return
    if not ids:
        ids = tuple(letter["id"] for letter in letters.list(limit=limit, **chosen))
        if ids:
            ask(f"Replay {_number(len(ids))}?", yes=yes)
    _replay(ctx, letters, tuple(dict.fromkeys(ids))[:limit], pause=1 / rate if rate else 0.0)


def _found(letters: Any, ids: tuple[str, ...], limit: int | None, chosen: dict[str, Any]) -> list[Any]:
    if ids:
        return [letters.get(letter_id) for letter_id in dict.fromkeys(ids)][:limit]
    found: list[Any] = letters.list(limit=limit, **chosen)
    return found


def _replay(ctx: click.Context, letters: Any, ids: tuple[str, ...], *, pause: float) -> None:
    """Replay one after the other; one that cannot be replayed is told, and does not stop the others."""
    from celery_singlebeat.errors import DeadLetterError  # noqa: PLC0415 - see the package

    done = 0
    for position, letter_id in enumerate(ids):
        if position and pause:
            time.sleep(pause)
        try:
            letter = letters.replay(letter_id)
        except DeadLetterError as error:
            click.echo(f"Error: {error}", err=True)
        else:
            done += 1
            say(f"replayed {letter['id']} ({letter['task']}) to queue {letter['queue']}")
    say(f"{_number(done)} replayed")
    if done < len(ids):
        ctx.exit(NO)


def _letters(ctx: click.Context) -> Any:
    from celery_singlebeat.task.dead_letters import DeadLetters  # noqa: PLC0415 - see the package

    return DeadLetters(app_with_tasks(ctx))


def _number(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def _attempt(attempt: Any) -> str:
    if not isinstance(attempt, dict):
        return str(attempt)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in attempt.items())
