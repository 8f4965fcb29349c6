"""`singlebeat resign`: let another beat lead, as before maintenance of the leader's host."""

from __future__ import annotations

import click

from celery_singlebeat.cli.answers import app_of
from celery_singlebeat.cli.render import json_option, say, show_json


@click.command()
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until another leads.",
)
@json_option
@click.pass_context
def resign(ctx: click.Context, *, timeout: float, as_json: bool) -> None:
    """Ask the leader to hand over; returns when another leads."""
    from celery_singlebeat.beat.leadership import Leadership  # noqa: PLC0415 - see the package

    leader = Leadership(app_of(ctx)).resign(timeout=timeout)
    if as_json:
        show_json(leader)
    else:
        where = f"host {leader['host']}, pid {leader['pid']}"
        say(f"{leader['node']} leads now ({where}), epoch {leader['epoch']}")
