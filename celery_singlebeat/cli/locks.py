"""`singlebeat locks ...`: who holds which lock, and taking one away."""

from __future__ import annotations

from typing import Any

import click

from celery_singlebeat.cli.answers import NO, Failure, app_of
from celery_singlebeat.cli.render import (
    ask,
    json_option,
    say,
    show_facts,
    show_json,
    show_table,
    yes_option,
)


@click.group()
def locks() -> None:
    """See who holds the locks of tasks, and take one away."""


@locks.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, as_json: bool) -> None:
    """List the locks that are held now."""
    found = _locks(ctx).list()
    if as_json:
        show_json(found)
        return
    rows = [
        [lock["key"], lock["task"], *_holder(lock), lock["since"], f"{lock['ttl']:.1f} s", lock["fence"]]
        for lock in found
    ]
    columns = ("key", "task", "task id", "host", "pid", "since", "ttl", "fence")
    show_table(columns, rows, ctx=ctx, empty="no lock is held")


@locks.command()
@click.argument("key")
@json_option
@click.pass_context
def show(ctx: click.Context, *, key: str, as_json: bool) -> None:
    """Show the lock on KEY; exit with 1 if nobody holds it."""
    lock = _held(ctx, key)
    if as_json:
        show_json(lock)
        return
    facts = {**lock, **lock["holder"], "ttl": f"{lock['ttl']:.1f} s"}
    del facts["holder"]
    show_facts([(name.replace("_", " "), value) for name, value in facts.items()], ctx=ctx)


@locks.command()
@click.argument("key")
@yes_option
@click.pass_context
def release(ctx: click.Context, *, key: str, yes: bool) -> None:
    """Take the lock on KEY away from its holder, who is told; another call may then run beside it."""
    ask(f"Take {key} away from {_who(_held(ctx, key))}?", yes=yes)
    lock = _locks(ctx).release(key)
    if lock is None:
        raise Failure(NO, f"nobody holds {key} any more")
    say(f"released {key}, which {_who(lock)} held")


def _locks(ctx: click.Context) -> Any:
    from celery_singlebeat.task.locks import Locks  # noqa: PLC0415 - see the package

    return Locks(app_of(ctx))


def _held(ctx: click.Context, key: str) -> dict[str, Any]:
    for lock in _locks(ctx).list():
        if lock["key"] == key:
            found: dict[str, Any] = lock
            return found
    raise Failure(NO, f"nobody holds {key}")


def _holder(lock: dict[str, Any]) -> tuple[Any, Any, Any]:
    holder = lock["holder"]
    return holder["task_id"], holder["host"], holder["pid"]


def _who(lock: dict[str, Any]) -> str:
    task_id, host, pid = _holder(lock)
    return f"{lock['task']}[{task_id}] on host {host}, pid {pid}"
