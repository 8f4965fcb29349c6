"""The documentation, read as a program reads it; and the tables in it that the code dictates.

    python -m tests.support.documents       write those tables into README.md and docs/*.md again

A table between `<!-- generated: NAME -->` and `<!-- end -->` comes from the code: comments of settings, help
of commands, docstrings of keys, invariants in docstrings. `tests/test_docs.py` fails when one is out of date.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery
from markdown_it import MarkdownIt
from markdown_it.token import Token

from celery_singlebeat import errors
from celery_singlebeat.policy.diagnosis import APP_CHECKS, SERVER_CHECKS
from celery_singlebeat.settings import Settings
from celery_singlebeat.store.keys import Keys

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "celery_singlebeat"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which the text begins."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def blocks(self, language: str) -> list[Block]:
        return [
            Block(token.info.strip(), token.content, (token.map or [0])[0] + 2)
            for token in _MARKDOWN.parse(self.text)
            if token.type == "fence" and token.info.strip() == language
        ]

    def commands(self) -> list[str]:
        """The commands in console blocks: what follows the prompt, and its continued lines."""
        found: list[str] = []
        for block in self.blocks("console"):
            text = block.text.replace("\\\n", " ")
            found += [line[2:].strip() for line in text.splitlines() if line.startswith("$ ")]
        return found

    def anchors(self) -> set[str]:
        """The names that GitHub gives to the headings."""
        tokens = _MARKDOWN.parse(self.text)
        return {
            slug("".join(child.content for child in inline.children or () if child.type != "html_inline"))
            for opening, inline in pairwise(tokens)
            if opening.type == "heading_open"
        }

    def headings(self) -> list[str]:
        tokens = _MARKDOWN.parse(self.text)
        return [two.content for one, two in pairwise(tokens) if one.type == "heading_open"]

    def links(self) -> list[str]:
        return [
            str(child.attrs["href"])
            for token in _MARKDOWN.parse(self.text)
            for child in token.children or ()
            if child.type == "link_open"
        ]

    def prose(self) -> str:
        """The text without code, links' targets and HTML."""
        return "\n".join(
            child.content
            for token in _MARKDOWN.parse(self.text)
            for child in token.children or ()
            if child.type == "text"
        )

    def rows(self, heading: str = "") -> list[list[str]]:
        """The cells of all tables under a heading (up to the next heading), as they stand in the source."""
        under = not heading
        rows: list[list[str]] = []
        tokens = _MARKDOWN.parse(self.text)
        for number, token in enumerate(tokens):
            if heading and token.type == "heading_open":
                under = tokens[number + 1].content == heading
            if under and token.type == "tr_open":
                rows.append(_cells(tokens, number))
        return rows


def _cells(tokens: list[Token], start: int) -> list[str]:
    cells: list[str] = []
    for token in tokens[start:]:
        if token.type == "tr_close":
            break
        if token.type == "inline":
            cells.append(token.content)
    return cells


def pages() -> list[Page]:
    return [Page(path) for path in PAGES]


def page(name: str) -> Page:
    return Page(ROOT / "docs" / name)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


# Commands


def commands() -> dict[str, click.Command]:
    """Every command below `celery singlebeat`, by its words; "" is the group itself."""
    ctx = click.Context(celery)
    top = celery.get_command(ctx, "singlebeat")
    assert top is not None, "the package is not installed: its entry point is missing"
    return dict(_walk("", top))


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for word in sorted(command.commands):
            yield from _walk(f"{name} {word}".strip(), command.commands[word])


def parse_celery(line: str) -> str:
    """Parse `celery ...` as celery does, without importing an app or running anything; its words."""
    arguments = shlex.split(line, comments=True)[1:]
    ctx = celery.make_context("celery", arguments)
    ctx.obj = CLIContext(Celery("parsed", set_as_current=False), no_color=True, workdir=None)
    words: list[str] = []
    command: click.Command = celery
    rest = _rest(ctx)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(ctx, rest)
        assert found is not None, f"celery has no {name}"
        command = found
        ctx = command.make_context(name, list(rest), parent=ctx)
        words.append(str(name))
        rest = _rest(ctx)
    return " ".join(words)


def _rest(ctx: click.Context) -> list[str]:
    """What a group has not parsed. Click before 8.2 has no underscore there."""
    first = ctx._protected_args if hasattr(ctx, "_protected_args") else ctx.protected_args
    return [*first, *ctx.args]


# Tables that the code dictates


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


#: Defaults that are worked out at start.
WORKED_OUT = {
    "redis_url": "the broker's URL if that is Redis, else none: it must be given",
    "prefix": "`singlebeat:<app name>`",
    "node": "`<host>:<pid>:<random>`",
    "renew_every": "a third of `singlebeat_lease_ttl`",
}
SECONDS = {"lease_ttl", "renew_every", "takeover_grace", "misfire_grace", "lock_ttl", "dedupe_ttl"} | {
    "dead_letter_max_age"
}
COUNTS = {"catch_up_limit": "slots", "dead_letter_limit": "letters", "poison_limit": "deliveries"}


def settings_table() -> str:
    comments = attribute_comments(PACKAGE / "settings.py", "Settings")
    rows = []
    for item in fields(Settings):
        default = item.default if item.default is not MISSING else None
        if item.default is MISSING and item.default_factory is not MISSING and item.name not in WORKED_OUT:
            default = item.default_factory()
        shown = WORKED_OUT.get(item.name) or f"`{literal(default)}`"
        unit = "seconds" if item.name in SECONDS else COUNTS.get(item.name, "")
        rows.append([f"`singlebeat_{item.name}`", shown, unit, comments[item.name]])
    return table(["setting", "default", "unit", "meaning"], rows)


def literal(value: object) -> str:
    """A value as one would type it."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return repr(value).replace("'", '"')


def attribute_comments(path: Path, class_name: str) -> dict[str, str]:
    """The `#:` comments above the attributes of a class."""
    found: dict[str, str] = {}
    comment: list[str] = []
    inside = False
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("class "):
            inside = line.startswith(f"class {class_name}")
        stripped = line.strip()
        if not inside:
            continue
        if stripped.startswith("#:"):
            comment.append(stripped[2:].strip())
        elif comment and (match := re.match(r"(\w+)\s*[:=]", stripped)):
            found[match[1]] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def options_table(name: str) -> str:
    named = {words.replace(" ", "-") or "group": command for words, command in commands().items()}
    command = named[name]
    rows = [_option(parameter) for parameter in command.params]
    return table(["option", "meaning"], rows or [["none", ""]])


def _option(parameter: click.Parameter) -> list[str]:
    """Name and meaning, in words that do not depend on the version of click."""
    if isinstance(parameter, click.Argument):
        many = parameter.nargs < 0
        words = "Any number of them." if many else "Required." if parameter.required else "Optional."
        return [f"`{parameter.metavar or str(parameter.name).upper()}`", words]
    assert isinstance(parameter, click.Option)
    value = parameter.metavar or ""
    if isinstance(parameter.type, click.Choice):
        value = " | ".join(map(str, parameter.type.choices))
    shown = " ".join(filter(None, ["/".join(parameter.opts), value]))
    default = f" Default: {parameter.default:g}." if parameter.show_default else ""
    required = " Required." if parameter.required else ""
    return [f"`{shown}`", (parameter.help or "") + default + required]


def keys_table() -> str:
    keys = Keys("singlebeat:shop")
    rows = []
    for name, member in vars(Keys).items():
        text = inspect.getdoc(member.fget if isinstance(member, property) else member) or ""
        if isinstance(member, property):
            where = getattr(keys, name)
            shown = f"{where}NONCE" if name == "presence" else where
        elif name in ("lock", "call"):
            shown = getattr(keys, name)(name.upper() + "_KEY" if name == "lock" else "TASK_ID")
        else:
            continue
        if name != "locks":
            rows.append([f"`{shown}`", " ".join(text.split())])
    return table(["key", "what it is"], rows)


def checks_table() -> str:
    """The checks of `doctor`, in their order: settings, each server, all else."""
    checks = {**SERVER_CHECKS, **APP_CHECKS}
    names = sorted(checks, key=lambda name: name != "settings")
    rows = [[f"`{name}`", " ".join((inspect.getdoc(checks[name]) or "").split())] for name in names]
    return table(["check", "what it says"], rows)


def errors_tree() -> str:
    docstring = inspect.getdoc(errors) or ""
    return "```text\n" + docstring[docstring.index("SingleBeatError") :].split("\n\n")[0] + "\n```"


_INVARIANT = re.compile(r"^([A-Z][0-9]+)  (\S.*(?:\n    .*)*)", re.MULTILINE)

#: Where the tests of a module's invariants are. Two modules may use the same letter.
_SHOWN_IN = {
    "beat": ("tests/beat/test_[del]*", "tests/beat/test_config*", "tests/faults", "tests/store/test_slot*"),
    "beat.dynamic": ("tests/beat/test_schedule*", "tests/store/test_schedule*"),
    "beat.publisher": ("tests/faults/test_broker*", "tests/faults/test_wedged*"),
    "beat.timetables": ("tests/beat/test_timetables*", "tests/beat/test_[cd]*", "tests/test_schedules*"),
    "beat.windows": ("tests/beat",),
    "cli": ("tests/cli",),
    "policy.backoff": ("tests/policy/test_backoff*", "tests/task"),
    "policy.calendars": ("tests/beat/test_calendars*", "tests/beat/test_timetables*"),
    "policy.clocks": ("tests/policy/test_clocks*", "tests/beat"),
    "policy.dead_letters": ("tests/policy/test_dead_letters*", "tests/task"),
    "policy.diagnosis": ("tests/policy/test_diagnosis*", "tests/store/test_server*"),
    "policy.entries": ("tests/policy/test_entries*", "tests/beat"),
    "policy.jitter": ("tests/policy/test_jitter*",),
    "policy.leases": ("tests/policy/test_leases*", "tests/beat", "tests/store/test_lease*"),
    "policy.lock_keys": ("tests/policy/test_lock_keys*", "tests/task"),
    "policy.slots": ("tests/policy/test_slots*", "tests/beat"),
    "django": ("tests/django",),
    "settings": ("tests/test_settings*", "tests/faults"),
    "store": ("tests/store", "tests/beat", "tests/faults"),
    "store.backend_ports": (
        "tests/store/test_redlock*",
        "tests/store/test_postgres*",
        "tests/task/test_backends*",
    ),
    "store.letter_ports": ("tests/store/test_letter*", "tests/task"),
    "store.waiting_ports": ("tests/store/test_waiting*", "tests/task/test_waiting*"),
    "store.lock_ports": ("tests/store/test_lock*", "tests/store/test_letter*", "tests/task"),
    "task": ("tests/task",),
    "task.request": ("tests/task",),
    "zones": ("tests/beat/test_calendars*", "tests/beat/test_timetables*"),
}
_MOST_CITED = 3


def invariants(module: str) -> dict[str, str]:
    """The numbered invariants in the docstring of a module of the package."""
    docstring = inspect.getdoc(importlib.import_module(f"celery_singlebeat.{module}")) or ""
    return {number: " ".join(text.split()) for number, text in _INVARIANT.findall(docstring)}


def invariant_modules() -> set[str]:
    """Every module of the package that numbers invariants."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        if _INVARIANT.search(text):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            found.add(".".join(part for part in parts if part != "__init__"))
    return found


def invariants_table(module: str) -> str:
    cited = citations(_SHOWN_IN[module])
    rows = [
        [number, text, "<br>".join(map(link, cited.get(number, [])[:_MOST_CITED]))]
        for number, text in invariants(module).items()
    ]
    return table(["", "", "shown by"], rows)


def link(test: str) -> str:
    """A test, as a page in docs/ links to it."""
    return f"[`{test}`](../{test.partition('::')[0]})"


def citations(places: tuple[str, ...]) -> dict[str, list[str]]:
    """Invariant -> tests in these places that cite it in a comment, as paths from the root."""
    found: dict[str, list[str]] = {}
    for place in places:
        path = ROOT / place
        files = sorted(path.rglob("*.py")) if path.is_dir() else sorted(ROOT.glob(f"{place}.py"))
        for file in files:
            for test, numbers in _cited_in(file):
                for number in numbers:
                    known = found.setdefault(number, [])
                    if test not in known:
                        known.append(test)
    return found


def _cited_in(file: Path) -> Iterator[tuple[str, list[str]]]:
    test = ""
    for line in file.read_text("utf-8").splitlines():
        if match := re.match(r"\s*def (test_\w+)", line):
            test = match[1]
        for comment in re.findall(r"#\s*((?:[A-Z][0-9]+\b[,; ]*)+)", line):
            if test:
                yield f"{file.relative_to(ROOT)}::{test}", re.findall(r"[A-Z][0-9]+", comment)


_GENERATORS: dict[str, Callable[..., str]] = {
    "settings": settings_table,
    "options": options_table,
    "keys": keys_table,
    "errors": errors_tree,
    "checks": checks_table,
    "invariants": invariants_table,
}
_GENERATED = re.compile(r"(<!-- generated: (\w+)(?: ([\w.-]+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def generated(text: str) -> str:
    """The text of a page with its generated tables as the code has them now."""

    def fill(match: re.Match[str]) -> str:
        arguments = [match[3]] if match[3] else []
        return f"{match[1]}\n{_GENERATORS[match[2]](*arguments)}\n\n{match[5]}"

    return _GENERATED.sub(fill, text)


def generated_names(text: str) -> set[str]:
    """What a page has generated: "settings", "options dlq-list", ..."""
    return {" ".join(filter(None, match.group(2, 3))) for match in _GENERATED.finditer(text)}


# Tests


@functools.cache
def tests_of(file: str) -> set[str]:
    """The names of the test functions in a file."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    }


def as_code(block: Block, name: str) -> Any:
    """A Python block, compiled so that errors name the page and its line."""
    return compile("\n" * (block.line - 1) + textwrap.dedent(block.text), name, "exec")


def main() -> None:
    for found in pages():
        text = found.text
        if (new := generated(text)) != text:
            found.path.write_text(new, "utf-8")
            print(f"{found.name} is written again")


if __name__ == "__main__":
    main()
