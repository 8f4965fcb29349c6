"""`singlebeat status`: who leads, who would, and what is wrong."""

from __future__ import annotations

from typing import Any

import click

from celery_singlebeat.cli.answers import UNREACHABLE, Failure, app_with_tasks
from celery_singlebeat.cli.render import json_option, show_facts, show_json


@click.command()
@json_option
@click.pass_context
def status(ctx: click.Context, *, as_json: bool) -> None:
    """Show the leader, the standbys, and what is wrong."""
    from celery_singlebeat.beat.leadership import Leadership  # noqa: PLC0415 - see the package

    app = app_with_tasks(ctx)
    found = Leadership(app).status()
    if as_json:
        show_json(found)
    else:
        show_facts([*_facts(found), *_waiting(app)], ctx=ctx)
    if found["dead_letters"] is None:
        raise Failure(UNREACHABLE, "the broker cannot be reached: how many dead letters it has is not known")


def _facts(found: dict[str, Any]) -> list[tuple[str, object]]:
    leader = found["leader"]
    facts: list[tuple[str, object]] = [("leader", "nobody")]
    if leader is not None:
        facts = [
            ("leader", _process(leader)),
            ("epoch", f"{leader['epoch']}, since {leader['since']}"),
            ("lease", f"{leader['lease_remaining']:.1f} s left"),
        ]
    facts += [("standby", f"{_process(node)}, heard {node['last_seen']}") for node in found["standbys"]]
    if not found["standbys"]:
        facts.append(("standby", "none"))
    names = ("entries", "paused", "faulty", "overdue", "other_schedules", "locks", "dead_letters")
    facts += [(name.replace("_", " "), found[name]) for name in names]
    totals = ("dispatched", "refused", "missed", "elections")
    return [*facts, *((name, found[name]) for name in totals)]


def _waiting(app: Any) -> list[tuple[str, object]]:
    """How many calls wait for their next attempt in Redis, if some task lets its calls wait there."""
    from celery_singlebeat.errors import StoreUnavailable  # noqa: PLC0415 - see the package
    from celery_singlebeat.wiring import wire  # noqa: PLC0415

    wiring = wire(app)
    if not wiring.keeps_waiting_calls:
        return []
    try:
        return [("waiting", wiring.waiting_store().number())]
    except StoreUnavailable:
        return [("waiting", None)]


def _process(node: dict[str, Any]) -> str:
    return f"{node['node']} (host {node['host']}, pid {node['pid']})"
