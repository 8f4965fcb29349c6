"""Answers as JSON for programs and as tables for people (O1, O6)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])

#: Wide enough that no line is ever wrapped for a program that reads it.
_UNWRAPPED = 10_000


def json_option(command: C) -> C:
    """`--json`, as argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def yes_option(command: C) -> C:
    """`--yes`, as argument `yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def ask(question: str, *, yes: bool) -> None:
    """Ask on stderr and end the command unless the answer is yes."""
    if not yes:
        click.confirm(question, abort=True, err=True)


def say(line: str) -> None:
    """One line on stdout, whatever names are in it."""
    click.echo(" ".join(line.splitlines()))


def show_json(document: Any) -> None:
    """One JSON document on stdout; what JSON does not know is shown as text."""
    click.echo(json.dumps(document, indent=2, default=str))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, ctx: click.Context, empty: str
) -> None:
    """A table on stdout, or the line `empty` on stderr if there are no rows."""
    found = [[_cell(value) for value in row] for row in rows]
    if not found:
        click.echo(empty, err=True)
        return
    from rich.console import Console  # noqa: PLC0415 - see the package
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in found:
        table.add_row(*(Text(cell) for cell in row))
    seen = sys.stdout.isatty()
    coloured = seen and not os.environ.get("NO_COLOR") and not getattr(ctx.obj, "no_color", False)
    console = Console(
        file=sys.stdout,
        force_terminal=seen,
        color_system="auto" if coloured else None,
        width=None if seen else _UNWRAPPED,
        highlight=False,
    )
    if seen:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():  # without the blanks that fill the last column
        click.echo(line.rstrip())


def show_facts(facts: Iterable[tuple[str, object]], *, ctx: click.Context) -> None:
    """Names and values, one a line."""
    show_table(("", ""), facts, ctx=ctx, empty="")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    return str(value)
