"""`singlebeat health`: a probe for supervisors and containers. It needs no worker and no broker."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from celery_singlebeat.cli.answers import NO, Failure, app_of
from celery_singlebeat.cli.render import json_option, show_json, show_table


@click.command()
@click.option("--node", metavar="NAME", help="Judge this beat alone, wherever it runs.")
@json_option
@click.pass_context
def health(ctx: click.Context, *, node: str | None, as_json: bool) -> None:
    """Exit with 0 if every beat of this app on this host can lead or follow, and there is one.

    With 1 otherwise; the reason is one line on stderr.
    """
    import socket  # noqa: PLC0415 - see the package

    from celery_singlebeat.health import SILENCE, Bounds, examine, examine_node, sight  # noqa: PLC0415
    from celery_singlebeat.wiring import wire  # noqa: PLC0415

    wiring = wire(app_of(ctx))
    with closing(wiring.beat_store()) as store:
        overview = store.overview()
    # Beyond its lease's length without a turn a beat gives up leading and does not bid.
    bounds = Bounds(tick=wiring.settings.lease_ttl, silence=SILENCE + wiring.patience)
    if node is not None:
        found = examine_node(overview, node=node, bounds=bounds)
    else:
        found = examine(overview, host=socket.gethostname(), bounds=bounds, sight=sight)
    beats = [_beat(finding) for finding in found.findings]
    if as_json:
        show_json({"healthy": found.is_well, "problems": list(found.problems), "beats": beats})
    elif beats:
        columns = ("node", "host", "pid", "role", "last_seen", "problem")
        rows = [[beat[column] for column in columns] for beat in beats]
        show_table([column.replace("_", " ") for column in columns], rows, ctx=ctx, empty="")
    if not found.is_well:
        raise Failure(NO, "; ".join(found.problems))


def _beat(finding: Any) -> dict[str, Any]:
    from celery_singlebeat.moments import iso  # noqa: PLC0415 - see the package

    report = finding.report
    return {
        "node": report.node,
        "host": report.host,
        "pid": report.pid,
        "role": report.role,
        "last_seen": None if report.seen is None else iso(report.seen),
        "tick_age": report.tick_age,
        "problem": finding.problem or None,
    }
