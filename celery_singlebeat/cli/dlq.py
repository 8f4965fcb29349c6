"""`singlebeat dlq ...`: the calls that failed for good, and sending them again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
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
    """`--task`, `--reason`, `--exception`, `--entry`, `--since`, `--before` and `--limit`."""
    for option in (
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many letters."),
        click.option("--before", callback=since, metavar="WHEN", help="Died before: as for --since."),
        click.option(
            "--since", callback=since, metavar="WHEN", help="Died since: ISO 8601, or 90s, 30m, 2h, 7d."
        ),
        click.option("--entry", metavar="NAME", help="Dispatched for this entry of the schedule."),
        click.option("--exception", metavar="NAME", help="Died of this exception class."),
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
@filters
@click.pass_context
def export(ctx: click.Context, /, **chosen: Any) -> None:
    """Print dead letters as JSON lines, oldest first, without holding all of them in memory."""
    for letter in _letters(ctx).each(**chosen):
        say(json.dumps(letter, default=str))


@dlq.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Replay every dead letter.")
@filters
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N a second.")
@click.option("--queue", metavar="NAME", help="Send them to this queue, not to their own.")
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
    queue: str | None,
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
        number = 0
        for letter in _found(letters, ids, limit, chosen):
            number += 1
            say(f"would replay {letter['id']} ({letter['task']}) to queue {queue or letter['queue']}")
        say(f"{_number(number)} would be replayed")
        return
    if not ids and not yes:
        number = _count(letters, limit, chosen)
        if number == 0:
            say(f"{_number(0)} replayed")
            return
        ask(f"Replay {_number(number)}?", yes=yes)
    given = {"ids": dict.fromkeys(ids)} if ids else chosen
    _replay(ctx, letters.replay_each(limit=limit, rate=rate, queue=queue, **given), set(ids), limit)


def _found(letters: Any, ids: tuple[str, ...], limit: int | None, chosen: dict[str, Any]) -> Iterable[Any]:
    if ids:
        return [letters.get(letter_id) for letter_id in dict.fromkeys(ids)][:limit]
    found: Iterable[Any] = letters.each(limit=limit, **chosen)
    return found


def _count(letters: Any, limit: int | None, chosen: dict[str, Any]) -> int:
    """How many letters an operation would take."""
    if all(value is None for value in chosen.values()):
        number: int = letters.count()
        return number if limit is None else min(limit, number)
    return sum(1 for _ in letters.each(limit=limit, **chosen))


def _replay(ctx: click.Context, found: Iterable[Any], wanted: set[str], limit: int | None) -> None:
    """Say what became of each letter; one that cannot be replayed does not stop the others."""
    from celery_singlebeat.errors import LetterNotFound, ReplayRefused  # noqa: PLC0415 - see the package

    done = taken = young = failed = 0
    missing = set(wanted)
    for replayed in found:
        letter = replayed.letter
        missing.discard(letter["id"])
        if not replayed.problem:
            done += 1
            say(f"replayed {letter['id']} ({letter['task']}) to queue {replayed.queue}")
        elif replayed.is_taken and not wanted:
            taken += 1
        elif replayed.is_young:
            young += 1
        else:
            failed += 1
            click.echo(f"Error: {ReplayRefused(letter['id'], replayed.problem)}", err=True)
    if limit is None or done + failed < limit:
        failed += len(missing)
        for letter_id in sorted(missing):
            click.echo(f"Error: {LetterNotFound(letter_id)}", err=True)
    say(f"{_number(done)} replayed")
    if taken:
        say(f"{_number(taken)} taken by somebody else meanwhile")
    if young:
        say(f"{_number(young)} left, buried after this began")
    if failed:
        ctx.exit(NO)


@dlq.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filters
@click.option("--dry-run", is_flag=True, help="Say what would be thrown away, and do nothing.")
@yes_option
@click.pass_context
def purge(
    ctx: click.Context,
    /,
    *,
    ids: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    limit: int | None,
    **chosen: Any,
) -> None:
    """Throw dead letters away for good: those named by ID, those that the filters leave, or all of them."""
    if ids and any(value is not None for value in chosen.values()):
        raise click.UsageError("say which: IDs, or filters", ctx)
    letters = _letters(ctx)
    if dry_run:
        number = 0
        for letter in _found(letters, ids, limit, chosen):
            number += 1
            say(f"would throw away {letter['id']} ({letter['task']}), {letter['reason']}")
        say(f"{_number(number)} would be thrown away")
        return
    if not yes:
        number = len([*_found(letters, ids, limit, chosen)]) if ids else _count(letters, limit, chosen)
        if number:
            ask(f"Throw away {_number(number)} for good?", yes=yes)
    gone = letters.purge(ids=dict.fromkeys(ids) if ids else None, limit=limit, **chosen)
    say(f"{_number(gone)} thrown away")
    if gone < len(set(ids)) and limit is None:
        click.echo(f"Error: {len(set(ids)) - gone} of these ids have no dead letter", err=True)
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
