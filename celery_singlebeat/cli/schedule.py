"""`singlebeat schedule ...`: what runs when, and changing it while beats run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from celery_singlebeat.cli.answers import NO, UNREACHABLE, Failure, app_of, app_with_tasks, without_secrets
from celery_singlebeat.cli.arguments import moment
from celery_singlebeat.cli.render import ask, json_option, say, show_json, show_table, yes_option
from celery_singlebeat.cli.schedule_add import add
from celery_singlebeat.moments import MILLISECOND

#: How many slots `next` names if it is not told, and at most.
_COMING, _MOST = 10, 10_000


@click.group()
def schedule() -> None:
    """See and change the schedule; beats that run follow at once."""


schedule.add_command(add)


@schedule.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, as_json: bool) -> None:
    """List the entries that can work; `status` names the others."""
    found = _schedule(ctx).list()
    if as_json:
        show_json(found)
        return
    columns = ("name", "task", "schedule", "next", "last", "runs", "enabled", "paused", "source")
    rows = [[_cell(entry[column]) for column in columns] for entry in found]
    show_table(columns, rows, ctx=ctx, empty="the schedule has no entry")


@schedule.command("next")
@click.option(
    "-n",
    "number",
    type=click.IntRange(min=1, max=_MOST),
    default=_COMING,
    show_default=True,
    metavar="N",
    help="So many slots.",
)
@click.argument("name", required=False, metavar="[NAME]")
@json_option
@click.pass_context
def next_(ctx: click.Context, *, number: int, name: str | None, as_json: bool) -> None:
    """Show the coming slots of all entries, or of one, soonest first."""
    found = _schedule(ctx).next(number, name)
    if as_json:
        show_json(found)
        return
    rows = [[slot["slot"], slot["name"], "paused" if slot["paused"] else ""] for slot in found]
    show_table(("slot", "name", ""), rows, ctx=ctx, empty="no slot can be named")


@schedule.command()
@click.argument("name")
@click.pass_context
def pause(ctx: click.Context, *, name: str) -> None:
    """Dispatch no slot of an entry until it is resumed, through restarts and failovers."""
    done = _schedule(ctx).pause(name)
    say(f"paused {name}" if done else f"{name} was paused already")


@schedule.command()
@click.argument("name")
@click.pass_context
def resume(ctx: click.Context, *, name: str) -> None:
    """Let a paused entry go on with its next slot; those in between were skipped."""
    done = _schedule(ctx).resume(name)
    say(f"resumed {name}" if done else f"{name} was not paused")


@schedule.command()
@click.argument("name")
@click.pass_context
def run(ctx: click.Context, *, name: str) -> None:
    """Dispatch an entry once, now, and move none of its slots; paused or not."""
    task_id = _schedule(ctx).run(name)
    say(f"dispatched {name} as {task_id}")


@schedule.command()
@click.argument("name")
@yes_option
@click.pass_context
def remove(ctx: click.Context, *, name: str, yes: bool) -> None:
    """Remove a dynamic entry; those of the configuration are removed there."""
    found = _schedule(ctx)
    if found.is_dynamic(name):
        ask(f"Remove {name}?", yes=yes)
    found.remove(name)
    say(f"removed {name}")


@schedule.command()
@click.argument("name")
@click.option(
    "--from", "start", callback=moment, required=True, metavar="ISO", help="The first slot, or before."
)
@click.option("--to", "end", callback=moment, required=True, metavar="ISO", help="After the last slot.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N a second.")
@click.option("--dry-run", is_flag=True, help="Name the slots, and dispatch none.")
@yes_option
@click.pass_context
def backfill(
    ctx: click.Context,
    *,
    name: str,
    start: datetime,
    end: datetime,
    rate: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Dispatch the slots of an entry in a time that is over, oldest first.

    A slot has the same task id each time it is backfilled. Several slots are asked about before, unless --yes
    is given.
    """
    found = _schedule(ctx)
    slots = found.backfill(name, start, end, rate=rate, dry_run=True)
    if dry_run:
        for slot in slots:
            say(f"would dispatch {name} of {slot.isoformat()}")
        say(f"{_number(slots)} would be dispatched")
        return
    if len(slots) > 1:
        first, last = slots[0].isoformat(), slots[-1].isoformat()
        ask(f"Dispatch {_number(slots)} of {name}, from {first} to {last}?", yes=yes)
    out: list[datetime] = []
    try:
        found.backfill(name, start, end, rate=rate, tell=out.append)
    except KeyboardInterrupt:
        rest = (out[-1] + MILLISECOND if out else start).isoformat()
        text = f"interrupted after {_number(out)} of {len(slots)}; for the others give --from {rest}"
        raise Failure(NO, text) from None
    say(f"{_number(out)} of {name} dispatched")


@schedule.command()
@click.option("--dry-run", is_flag=True, help="Say what would become of each entry, and do nothing.")
@yes_option
@click.pass_context
def import_redbeat(ctx: click.Context, *, dry_run: bool, yes: bool) -> None:
    """Take over the entries that celery-redbeat keeps in Redis, and when each ran last.

    RedBeat's own keys stay as they are. Exit with 1 if an entry could not be taken over; the others are.
    Several entries are asked about before, unless --yes is given.
    """
    found = _schedule(ctx)
    if _redbeat_leads(ctx, found):
        click.echo("Warning: a RedBeat holds its lock; stop it, or both will run these entries", err=True)
    entries = found.import_redbeat(dry_run=True)
    changes = [entry["name"] for entry in entries if entry["outcome"] in {"added", "changed"}]
    if not dry_run:
        if len(changes) > 1:
            ask(f"Add or change {len(changes)} entries?", yes=yes)
        entries = found.import_redbeat()
    for entry in entries:
        would = "would be " if dry_run and entry["name"] in changes else ""
        reason = f": {entry['reason']}" if entry["reason"] else ""
        say(f"{entry['name']}: {would}{entry['outcome']}{reason}")
    outcomes = [entry["outcome"] for entry in entries]
    counts = (f"{outcomes.count(word)} {word}" for word in ("added", "changed", "same", "static", "refused"))
    say(("dry run: " if dry_run else "") + ", ".join(counts))
    if "refused" in outcomes:
        ctx.exit(NO)


def _redbeat_leads(ctx: click.Context, found: Any) -> bool:
    from celery_singlebeat.errors import StoreUnavailable  # noqa: PLC0415 - see the package

    try:
        return bool(found.redbeat_leads())
    except StoreUnavailable as error:
        text = f"the Redis in which RedBeat keeps its entries does not answer: {error.cause}"
        raise Failure(UNREACHABLE, without_secrets(text, app_of(ctx))) from None


def _schedule(ctx: click.Context) -> Any:
    from celery_singlebeat.beat.schedule import Schedule  # noqa: PLC0415 - see the package

    return Schedule(app_with_tasks(ctx))


def _number(slots: list[datetime]) -> str:
    return "1 slot" if len(slots) == 1 else f"{len(slots)} slots"


def _cell(value: object) -> object:
    return ("no", "yes")[value] if isinstance(value, bool) else value
