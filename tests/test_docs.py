"""The documentation is true: code runs, commands parse, links lead somewhere, tables are the code's."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery, _state
from celery.app import builtins  # its tasks belong to every app
from celery.bin.base import CLIContext
from celery.signals import Signal
from click.testing import CliRunner

import celery_singlebeat
from celery_singlebeat import Locks, SingleBeatScheduler, SingleBeatTask, events, logs, signals
from celery_singlebeat.cli import singlebeat
from celery_singlebeat.clock import SystemClock
from celery_singlebeat.moments import later as after
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.policy.entries import CELERY_KEYS, OWN_KEYS
from celery_singlebeat.settings import _LATER, Settings
from celery_singlebeat.store.lock_ports import Caller
from celery_singlebeat.store.postgres_session import Session, read_dsn
from celery_singlebeat.task.rules import FROM_SETTING
from celery_singlebeat.testing import FakeClock, MemoryBeatStore
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.wiring import wire
from tests.support import documents
from tests.support.documents import ROOT, Page

PAGES = documents.pages()
PROMISED = {
    "calendars",
    "cli",
    "contributing",
    "dead-letters",
    "django",
    "doctor",
    "glossary",
    "guarantees",
    "how-it-works",
    "locks",
    "migrating",
    "operations",
    "reports",
    "schedule",
    "settings",
    "tasks",
    "testing",
}

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_every_page_is_there():
    assert {page.path.stem for page in PAGES} == {"README", *PROMISED}


def test_every_page_can_be_reached_from_the_readme():
    reached, frontier = set(), {ROOT / "README.md"}
    while frontier:
        path = frontier.pop()
        reached.add(path)
        for link in Page(path).links():
            target = (path.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in reached:
                frontier.add(target)
    assert {page.path for page in PAGES} <= reached


# Code


@pytest.fixture
def no_network(monkeypatch):
    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"a page connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """The apps and tasks of a page are nobody else's: none stays the current app, none is shared."""
    state: Any = _state
    before = state._tls.current_app, state.default_app, set(state._on_app_finalizers)
    assert builtins
    yield
    state._tls.current_app, state.default_app = before[:2]
    state._on_app_finalizers.clear()
    state._on_app_finalizers.update(before[2])


@by_page
def test_the_python_of_a_page_runs(page, no_network):
    """All blocks of a page share one namespace, in order; functions named `test_` are called as tests."""
    namespace: dict[str, Any] = {"__name__": "shop"}
    for block in page.blocks("python"):
        exec(documents.as_code(block, page.name), namespace)
    clock = FakeClock()
    fixtures = {"singlebeat_clock": clock, "singlebeat_store": MemoryBeatStore(clock)}
    for name, value in list(namespace.items()):
        if name.startswith("test_"):
            value(**{argument: fixtures[argument] for argument in inspect.signature(value).parameters})


@by_page
def test_the_json_of_a_page_is_json(page):
    for block in page.blocks("json"):
        json.loads(block.text)


def test_the_fence_in_postgresql_refuses_a_late_holder(postgres_server):
    [block] = documents.page("locks.md").blocks("sql")
    clock = SystemClock()
    session = Session(
        read_dsn(postgres_server.dsn, setting="dsn"),
        "documentation",
        clock=clock,
        until=after(clock.monotonic(), 10),
    )
    found = [
        session.ask(statement, until=after(clock.monotonic(), 10))
        for statement in block.text.split(";")
        if statement.strip()
    ]
    session.ask("drop table invoice", until=after(clock.monotonic(), 10))
    session.close()
    assert found[-3:] == [[("1700000000000041",)], [("1700000000000042",)], []]


# Commands


@pytest.fixture
def shop(monkeypatch):
    """The app of the pages can be imported: Celery 5.4 does so while it parses."""
    module: Any = ModuleType("shop")
    module.app = Celery("shop", broker="memory://", set_as_current=False)
    monkeypatch.setitem(sys.modules, "shop", module)


@by_page
def test_every_command_of_a_page_exists(page, shop):
    for command in page.commands():
        words = shlex.split(command, comments=True)
        check = _CHECKS.get(words[0])
        assert check is not None, f"{page.name} shows {words[0]}, which no test knows"
        check(command, words)


def _is_celery(command: str, words: list[str]) -> None:
    if words[-1] == "--help":
        command = command.replace("--help", "").strip()
        assert " ".join(words[4:-1]) in documents.commands()
        return
    assert documents.parse_celery(command)


def _is_target(command: str, words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) +\?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in words[1:]:
        name, given, _ = word.partition("=")
        assert name in (variables if given else targets), f"{command}: make has no {name}"


def _is_module(command: str, words: list[str]) -> None:
    assert words[1] == "-m", command
    assert importlib.util.find_spec(words[2]) is not None, command


def _is_another(command: str, words: list[str]) -> None:
    """A program that is not ours."""


_CHECKS = {
    "celery": _is_celery,
    "make": _is_target,
    "python": _is_module,
    "pip": _is_another,
    ".venv54/bin/pip": _is_another,
    "redis-cli": _is_another,
}


# Links and names


@by_page
def test_every_link_leads_somewhere(page):
    for link in page.links():
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file).resolve() if file else page.path
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in Page(target).anchors(), f"{page.name} links to {link}"


def test_headings_make_anchors_as_on_github():
    assert (
        documents.slug("G1: one message for each slot, over Redis")
        == "g1-one-message-for-each-slot-over-redis"
    )
    assert documents.slug("memory://") == "memory"


@by_page
def test_every_test_that_is_named_exists(page):
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.text)
    for file, test in named:
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
        if test:
            assert test in documents.tests_of(file), f"{page.name} names {file}::{test}"


def test_every_failure_names_the_test_that_shows_it_or_says_that_there_is_none():
    page = documents.page("guarantees.md")
    rows = [
        row for heading in ("Beats", "Redis", "Tasks") for row in page.rows(heading) if row[0] != "failure"
    ]
    assert len(rows) >= 40
    assert [row[0] for row in rows if "::test_" not in row[2] and "no test" not in row[2]] == []


def test_every_report_names_the_test_that_shows_what_happens_here():
    page = documents.page("reports.md")
    rows = [row for row in page.rows() if row[0] != "report" and len(row) == 4]
    assert len(rows) >= 60
    assert [row[0] for row in rows if "::test_" not in row[3] or not re.search(r"#\d+|PR \d+", row[0])] == []


def test_every_guarantee_has_its_section_and_a_test_that_cites_it():
    cited = documents.citations(("tests",))
    headings = documents.page("guarantees.md").headings()
    for number in range(1, 10):
        assert any(heading.startswith(f"G{number}: ") for heading in headings)
        # G8 says of everything what B4 and E1 say of entries, and M of stored state
        assert f"G{number}" in cited or number == 8


# Words


def _unused_words() -> list[str]:
    return [
        row[0]
        for row in documents.page("glossary.md").rows("Words that are not used")
        if row[0] != "not this"
    ]


@by_page
def test_a_page_keeps_to_the_words_of_the_glossary(page):
    prose = page.prose()
    if page.path.name == "glossary.md":
        prose = prose[: prose.index("Words that are not used")]
    unused = _unused_words()
    assert len(unused) > 5
    found = [word for word in unused if re.search(rf"\b{re.escape(word)}s?\b", prose, re.IGNORECASE)]
    assert found == []


@by_page
def test_a_page_names_no_place_of_one_machine(page):
    assert re.findall(r"(?<![\w.:])/(?:root|home|work|tmp|Users|mnt)/\S*", page.text) == []


@by_page
def test_a_page_has_no_pictures_in_its_text(page):
    """No badges, and no characters that only decorate; figures that a script of this repository draws."""
    assert re.findall(r"!\[(?![^\]]*\]\(\w+\.svg\))|[\U0001F000-\U0001FAFF\u2600-\u27BF]", page.text) == []


# Tables and shapes that are the code's


@by_page
def test_generated_tables_are_up_to_date(page):
    assert documents.generated(page.text) == page.text, "python -m tests.support.documents writes them again"


def test_every_setting_is_in_the_table_with_the_default_that_counts():
    page = documents.page("settings.md")
    assert "settings" in documents.generated_names(page.text)
    app = Celery("shop", broker="redis://localhost:6379/0", set_as_current=False)
    read = Settings.from_conf(app.conf, main="shop", broker_url="redis://localhost:6379/0")
    for item in fields(Settings):
        if item.name not in documents.WORKED_OUT:
            cells = next(row for row in page.rows() if row[0] == f"`singlebeat_{item.name}`")
            assert cells[1] == f"`{documents.literal(getattr(read, item.name))}`"
    assert (read.redis_url, read.prefix) == ("redis://localhost:6379/0", "singlebeat:shop")
    assert read.renew_every == pytest.approx(read.lease_ttl / 3)
    assert re.fullmatch(r".+:\d+:[0-9a-f]+", read.node)
    for later in _LATER:
        assert f"singlebeat_{later}" in page.text


def test_every_setting_that_a_page_names_exists():
    known = {item.name for item in fields(Settings)} | set(_LATER)
    for page in PAGES:
        # fixtures, a mistake that a page shows, and any setting whatever
        named = set(re.findall(r"\bsinglebeat_(\w+)", page.text)) - {"clock", "store", "lease_tll", "x"}
        headers = {"entry", "slot", "epoch", "trigger", "letter"}
        assert {name for name in named if name not in known | headers} == set(), page.name


def test_every_attribute_of_a_task_is_in_the_table_with_its_default():
    rows = {row[0].strip("`"): row for row in documents.page("tasks.md").rows("Attributes")[1:]}
    own = {
        name
        for name in vars(SingleBeatTask)
        if name in SingleBeatTask.__annotations__ or name in ("acks_late", "reject_on_worker_lost")
    } - {"_singlebeat_rules", "_tells_its_end"}
    assert set(rows) == own | {"retry_on_worker_lost"}
    settings = {item.name for item in fields(Settings)}
    for name, row in rows.items():
        value = vars(SingleBeatTask)[name]
        from_setting = value is FROM_SETTING or (value is None and name in settings)
        shown = f"singlebeat_{name}" if from_setting else documents.literal(value)
        if name == "autoretry_for":
            shown = "(Exception,)"
        assert row[1] == f"`{shown}`", name


def test_every_key_of_an_entry_is_described():
    page = documents.page("schedule.md")
    rows = [row[0].strip("`") for row in page.rows("Keys of an entry")[1:]]
    assert set(rows) == OWN_KEYS
    for key in CELERY_KEYS:
        assert f"`{key}`" in page.text


def test_every_command_has_its_section_with_all_its_options():
    page = documents.page("cli.md")
    leaves = {
        name: command
        for name, command in documents.commands().items()
        if not isinstance(command, click.Group)
    }
    generated = documents.generated_names(page.text)
    for name, command in leaves.items():
        assert name in page.headings()
        assert f"options {name.replace(' ', '-')}" in generated
        first = " ".join((command.help or "").split("\n\n")[0].split())
        assert first in page.text, f"the help of {name} is not in its section"
    missing = {name.split()[0] for name in leaves} - {heading.split()[0] for heading in page.headings()}
    assert missing == set()


def _shape(value: Any) -> Any:
    """The keys of a document, and the kinds of its values."""
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(value[0])] if value else []
    return (
        "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
    )


def _examples() -> list[Any]:
    return [json.loads(block.text) for block in documents.page("cli.md").blocks("json")]


@pytest.fixture
def beat():
    app = Celery("shapes", broker="memory://", set_as_current=False)
    app.conf.update(
        singlebeat_prefix="documents",
        beat_schedule={"good": {"task": "t", "schedule": 60}, "bad": {"task": "t"}},
    )
    scheduler = SingleBeatScheduler(app)

    def ask(*words: str) -> Any:
        obj = CLIContext(app=app, no_color=True, workdir=None)
        done = CliRunner().invoke(singlebeat, [*words, "--json"], obj=obj)
        return json.loads(done.stdout)

    try:
        wait_until(lambda: scheduler.tick() and ask("status")["leader"] and ask("status")["faulty"], 10)
        yield SimpleNamespace(app=app, ask=ask)
    finally:
        scheduler.close()


def test_json_has_the_documented_shape(beat):
    status, health, entries, coming, locks, letters, count = _examples()
    found = beat.ask("status")
    assert found["standbys"] == []  # in this process there is one beat
    assert _shape({**found, "standbys": 0}) == _shape({**status, "standbys": 0})
    assert set(status["standbys"][0]) == {"node", "host", "pid", "last_seen"}

    found = beat.ask("health")
    assert found["healthy"] is True
    assert list(found) == list(health)
    assert list(found["beats"][0]) == list(health["beats"][0])

    (found,) = beat.ask("schedule", "list")
    assert _shape({**found, "last": ""}) == _shape(entries[0])
    assert _shape(beat.ask("schedule", "next")) == _shape(coming)

    caller = Caller(task="t", task_id="1", host="h", pid=7)
    wire(beat.app).lock_store().acquire("key", "token", ttl=60, caller=caller, poison_limit=5)
    assert _shape(beat.ask("locks", "list")) == _shape(Locks(beat.app).list()) == _shape(locks)

    assert list(dead_letters.shown({}, [], {})) == list(letters[0])
    record = dead_letters.record(attempt=1, failed_at="", exception="E", message="m", host="h")
    assert list(record) == list(letters[0]["attempts"][0])

    assert _shape(beat.ask("dlq", "count")) == _shape(count)


def test_the_fields_of_status_and_of_a_letter_are_explained(beat):
    rows = documents.page("operations.md").rows("Status")[1:]
    assert [row[0].strip("`") for row in rows] == list(beat.ask("status"))
    cells = " ".join(row[0] for row in documents.page("dead-letters.md").rows("What a letter has")[1:])
    assert re.findall(r"`(\w+)`", cells) == list(dead_letters.shown({}, [], {}))


def test_the_reasons_of_letters_are_explained():
    reasons = {
        value for name, value in vars(dead_letters).items() if name.isupper() and isinstance(value, str)
    }
    headers = {value for value in reasons if value.startswith("singlebeat_")}
    rows = documents.page("dead-letters.md").rows("Why a call is buried")[1:]
    assert {row[0].strip("`") for row in rows} == reasons - headers


def test_every_log_line_is_explained():
    rows = {row[1].strip("`"): row[0] for row in documents.page("operations.md").rows("Log lines")[1:]}
    lines = {re.sub(r"\{(\w+)[^}]*\}", r"{\1}", text): kind for kind, text in logs._LINES.items()}
    assert set(rows) == set(lines)
    for text, kind in lines.items():
        assert rows[text].split(";")[0] == _level(kind), text


def _level(kind: type[events.Event]) -> str:
    if kind in logs._ERROR:
        return "error"
    if kind in (*logs._WARNING, events.LeadershipLost):
        return "warning"
    return "debug" if kind in logs._QUIET else "info"


def test_every_signal_is_explained_with_its_arguments():
    rows = {row[0].strip("`"): row[1] for row in documents.page("operations.md").rows("Signals")[1:]}
    ours = {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert set(rows) == set(ours)
    for name, signal in ours.items():
        assert set(re.findall(r"`(\w+)`", rows[name])) == set(signal.providing_args)


def test_every_invariant_has_its_place():
    generated = documents.generated_names(documents.page("how-it-works.md").text)
    assert {name.split()[1] for name in generated} == documents.invariant_modules()


def test_every_public_name_is_in_the_documentation():
    text = "".join(page.text for page in PAGES)
    missing = [name for name in celery_singlebeat.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == ["__version__"]
