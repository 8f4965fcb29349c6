"""`singlebeat doctor`: what is wrong with settings, servers, tasks and beats, and what to do about it."""

from __future__ import annotations

from typing import Any

import click

from celery_singlebeat.cli.answers import NO, UNREACHABLE, Failure, app_with_tasks, without_secrets
from celery_singlebeat.cli.render import json_option, say, show_json, show_table


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Check settings, Redis, the broker, tasks and beats; each finding comes with a remedy.

    Exit with 0 if nothing fails (warnings may be there), 1 if something does, 2 if the settings cannot work,
    3 if Redis or the broker cannot be reached.
    """
    from celery_singlebeat.doctor import examine  # noqa: PLC0415 - see the package

    app = app_with_tasks(ctx)
    found = examine(app)
    findings = [_shown(finding, app) for finding in found.findings]
    if as_json:
        show_json({"verdict": found.verdict.value, "findings": findings})
    else:
        _show(findings, ctx)
    if found.unreachable:
        names = " and ".join("the " + name for name in found.unreachable)
        raise Failure(UNREACHABLE, f"{names} cannot be reached; see above")
    failed = [finding for finding in findings if finding["verdict"] == "failure"]
    if failed:
        raise Failure(NO, f"{_number(len(failed), 'failure')}: {', '.join(map(_name, failed))}")


def _shown(finding: Any, app: Any) -> dict[str, Any]:
    """A finding as JSON has it. What other libraries said may quote a URL."""
    return {
        "check": finding.check,
        "subject": finding.subject or None,
        "verdict": finding.verdict.value,
        "found": without_secrets(finding.found, app),
        "remedy": without_secrets(finding.remedy, app) or None,
    }


def _show(findings: list[dict[str, Any]], ctx: click.Context) -> None:
    rows: list[tuple[str, str, str]] = []
    for finding in findings:
        rows.append((finding["verdict"], _name(finding), finding["found"]))
        if finding["remedy"]:
            rows.append(("", "", f"remedy: {finding['remedy']}"))
    show_table(("verdict", "check", "found"), rows, ctx=ctx, empty="")
    counts = [
        _number(sum(finding["verdict"] == verdict for finding in findings), verdict)
        for verdict in ("failure", "warning")
    ]
    dark = sum(finding["verdict"] == "unknown" for finding in findings)
    say(f"{counts[0]}, {counts[1]}, {dark} unknown, {_number(len(findings), 'finding')}")


def _name(finding: dict[str, Any]) -> str:
    subject = finding["subject"]
    return f"{finding['check']} ({subject})" if subject else str(finding["check"])


def _number(count: int, word: str) -> str:
    return f"1 {word}" if count == 1 else f"{count} {word}s"
