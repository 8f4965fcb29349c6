"""The example project: what a newcomer runs, and what a deployer copies."""

from __future__ import annotations

import configparser
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from celery.bin.base import CLIContext
from celery.bin.celery import celery
from rich.console import Console

from celery_singlebeat import SingleBeatTask
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import ServerNotFoundError, find_redis_server
from example_project.app import app
from example_project.narration import Narrator, Player, Scene
from example_project.verdict import count, slots_due
from tests.support.missing import miss

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLE = REPOSITORY / "example_project"
DEPLOY = EXAMPLE / "deploy"
INI = sorted(path for path in DEPLOY.iterdir() if path.suffix in {".conf", ".service", ".timer"})
YAML = sorted(DEPLOY.glob("*.yaml"))

MIDNIGHT = datetime(2030, 1, 1, tzinfo=timezone.utc)


# The app


@pytest.fixture(scope="module")
def example():
    app.loader.import_default_modules()
    return app


def test_every_entry_of_the_schedule_names_a_task_of_the_app_with_our_base(example):
    for entry in example.conf.beat_schedule.values():
        assert isinstance(example.tasks[entry["task"]], SingleBeatTask)


def test_the_app_runs_the_scheduler_that_elects_a_leader(example):
    assert example.conf.beat_scheduler == "celery_singlebeat:SingleBeatScheduler"
    assert example.main == "example"


@pytest.mark.parametrize("jitter", ["full", "none"])
def test_broker_and_jitter_come_from_the_environment(jitter):
    code = (
        "from example_project.tasks import app, sync_invoices\n"
        "print(app.conf.broker_url, sync_invoices.retry_backoff, sync_invoices.retry_jitter)"
    )
    env = {"EXAMPLE_BROKER_URL": "redis://elsewhere:1/2", "EXAMPLE_RETRY_JITTER": jitter}
    done = python("-c", code, cwd=REPOSITORY, **env)
    assert done.stdout.split() == ["redis://elsewhere:1/2", "1.0", jitter], done.stderr


# What a deployer copies


def ini(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#", ";"))
    parser.optionxform = str  # systemd's names have capitals
    parser.read_string(path.read_text())
    return parser


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def command_lines(path: Path) -> Iterator[list[str]]:
    """Every command that starts `celery` in a file of the example, as its arguments."""
    if path.suffix == ".yaml":
        texts = [text for document in documents(path) for text in _commands_in(document)]
    elif path.suffix == ".md":
        texts = [line.strip() for line in path.read_text().splitlines() if line.startswith("    celery ")]
    else:
        sections = ini(path)
        texts = [
            sections[section][key]
            for section in sections.sections()
            for key in ("command", "ExecStart")
            if key in sections[section]
        ]
    for text in texts:
        for called in re.findall(r"(?:^|[/\s])celery (-A example_project\.app [^;]*)", text):
            yield shlex.split(called.replace("%(process_num)d", "0").replace("%i", "1"))


def _commands_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _commands_in(inner)
    elif isinstance(value, list):
        if "celery" in value:
            yield shlex.join(value[value.index("celery") :])
        else:
            for inner in value:
                yield from _commands_in(inner)
    elif isinstance(value, str) and "celery -A" in value:
        yield value


def check_command(arguments: list[str]) -> str:
    """Parse a command line as `celery` does, without running it; the name of the command."""
    ctx = celery.make_context("celery", list(arguments))
    ctx.obj = CLIContext(app, no_color=True, workdir=None)
    rest = _rest(ctx)
    group: click.Command = celery
    path = []
    while isinstance(group, click.Group):
        name, command, rest = group.resolve_command(ctx, rest)
        assert command is not None, f"celery has no {name}"
        ctx = command.make_context(name, list(rest), parent=ctx)
        path.append(name)
        rest = _rest(ctx)
        group = command
    return " ".join(path)


def _rest(ctx: click.Context) -> list[str]:
    """What a group has not parsed. Click before 8.2 has no underscore there."""
    first = ctx._protected_args if hasattr(ctx, "_protected_args") else ctx.protected_args
    return [*first, *ctx.args]


@pytest.mark.parametrize(
    ("path", "commands"),
    [
        (DEPLOY / "supervisord.conf", {"beat", "worker"}),
        (DEPLOY / "example-beat@.service", {"beat"}),
        (DEPLOY / "example-worker@.service", {"worker"}),
        (DEPLOY / "example-health.service", {"singlebeat health"}),
        (DEPLOY / "compose.yaml", {"beat", "worker", "singlebeat health"}),
        (DEPLOY / "kubernetes.yaml", {"beat", "worker", "singlebeat health"}),
        (
            EXAMPLE / "README.md",
            {
                "beat",
                "worker",
                "singlebeat status",
                "singlebeat health",
                "singlebeat resign",
                "singlebeat locks list",
                "singlebeat dlq list",
                "singlebeat dlq show",
                "singlebeat dlq replay",
            },
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_every_command_in_a_file_exists_with_the_options_that_it_gets(path, commands):
    assert {check_command(arguments) for arguments in command_lines(path)} == commands


def test_no_beat_writes_a_pidfile_that_could_stop_the_next_one():
    files = ("supervisord.conf", "example-beat@.service", "compose.yaml", "kubernetes.yaml")
    lines = [words for file in files for words in command_lines(DEPLOY / file)]
    beats = [words for words in lines if check_command(words) == "beat"]
    assert len(beats) >= 4
    assert all("--pidfile=" in words for words in beats)


@pytest.mark.parametrize("path", INI, ids=lambda path: path.name)
def test_programs_and_services_run_as_a_user_of_their_own(path):
    sections = ini(path)
    assert sections.sections()
    for name in sections.sections():
        if name == "Service" or name.startswith("program:"):
            assert sections[name].get("User", sections[name].get("user")) == "example"


def test_supervisor_runs_two_of_each():
    sections = ini(DEPLOY / "supervisord.conf")
    assert [sections[name]["numprocs"] for name in sections.sections()] == ["2", "2"]


def test_compose_runs_two_of_each_and_nothing_as_root():
    (compose,) = documents(DEPLOY / "compose.yaml")
    for service in compose["services"].values():
        assert service["user"].partition(":")[0] not in {"0", "root"}
    for name in ("beat", "worker"):
        service = compose["services"][name]
        assert service["deploy"]["replicas"] >= 2
        assert (DEPLOY / service["build"]["context"]).resolve() == REPOSITORY
        assert (REPOSITORY / service["build"]["dockerfile"]).exists()


def test_kubernetes_rolls_two_of_each_and_nothing_as_root():
    deployments = {
        document["metadata"]["name"]: document["spec"]
        for document in documents(DEPLOY / "kubernetes.yaml")
        if document["kind"] == "Deployment"
    }
    assert set(deployments) == {"example-beat", "example-worker"}
    for spec in deployments.values():
        pod = spec["template"]["spec"]
        assert spec["replicas"] >= 2
        assert spec["strategy"]["type"] == "RollingUpdate"
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        assert pod["terminationGracePeriodSeconds"] >= 30
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
    (beat,) = deployments["example-beat"]["template"]["spec"]["containers"]
    assert {"readinessProbe", "livenessProbe"} <= set(beat)


def test_the_image_does_not_run_as_root():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]


# The verdict


def message(second: int, **facts: Any) -> dict[str, Any]:
    slot = (MIDNIGHT + timedelta(seconds=second)).isoformat()
    row = {"kind": "message", "id": f"call {second}", "entry": "e", "slot": slot}
    return {**row, "retries": 0, "redelivered": False, **facts}


def outcome(second: int, how: str = "success") -> dict[str, Any]:
    return {"kind": "outcome", "id": f"call {second}", "outcome": how}


def judged(*rows: dict[str, Any], seconds: int = 2) -> Any:
    until = MIDNIGHT + timedelta(seconds=seconds)
    return count(rows, anchors={"e": MIDNIGHT}, periods={"e": 1.0}, until=until)


def test_slots_are_due_one_interval_after_the_anchor_and_up_to_the_end():
    slots = slots_due(MIDNIGHT, 1.5, MIDNIGHT + timedelta(seconds=3))
    assert slots == ["2030-01-01T00:00:01.500000+00:00", "2030-01-01T00:00:03+00:00"]


def test_one_message_and_one_end_for_each_slot_is_clean():
    found = judged(message(1), outcome(1), message(2), outcome(2, "conflict"))
    assert found.is_clean
    assert (found.due, found.dispatched, found.executed, found.skipped) == (2, 2, 1, 1)


def test_nothing_due_proves_nothing():
    assert not judged(seconds=0).is_clean


def test_a_slot_with_two_messages_was_sent_twice():
    found = judged(message(1), message(1), outcome(1), message(2), outcome(2))
    assert len(found.twice) == 1
    assert not found.is_clean


def test_redelivered_messages_and_later_attempts_were_not_sent_twice():
    again = message(1, redelivered=True)
    found = judged(message(1), again, message(1, retries=1), outcome(1), message(2), outcome(2))
    assert found.is_clean


def test_a_slot_without_a_message_is_lost():
    assert len(judged(message(1), outcome(1)).lost) == 1


def test_a_call_that_never_came_to_its_end_is_lost():
    assert len(judged(message(1), outcome(1), message(2), outcome(2, "retry")).lost) == 1


def test_a_call_that_was_carried_out_twice_is_not_clean():
    found = judged(message(1), outcome(1), outcome(1), message(2), outcome(2))
    assert found.executed_twice == ["call 1"]
    assert not found.is_clean


# The screen


def test_the_screen_fits_into_80_by_24_characters_and_shows_who_leads():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24, record=True)
    narrator = Narrator(console)
    assert narrator.is_live
    players = [Player(f"beat {number}", 2**22, "stands by") for number in (1, 2, 3)]
    players += [Player(f"worker {number}", 2**22, "works", "1000 calls executed") for number in (1, 2)]
    players[1] = Player("beat 2", 2**22, "leads", "puts due calls into the queue")
    names = ("dispatched", "executed", "skipped by lock", "retries", "dead letters", "leaders")
    narrator.show(Scene(players, dict.fromkeys(names, 1000)))
    with narrator:
        empty = narrator._screen()
        for number in range(30):
            narrator.say(f"event {number} " + "that is longer than one line of the screen " * 3)
        screen = console.render_lines(narrator._screen(), pad=False)
    text = "\n".join("".join(segment.text for segment in line) for line in screen)
    assert len(screen) < 24
    assert len(screen) == len(console.render_lines(empty, pad=False))  # it does not jump
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"beat 2 .* leads", text)
    assert "event 29" in text


def test_whoever_reads_lines_gets_no_colours_and_no_cursor_movement(capsys):
    with Narrator() as narrator:
        narrator.show(Scene([Player("beat 1", 1, "leads")], {"dispatched": 1}))
        narrator.say("[bold]one[/bold] event", "bold red")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]one[/bold] event" in out


# The demo itself


def python(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=_environment(**env),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def _environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


@pytest.fixture
def places(tmp_path):
    """A current directory and a directory for temporary files, both empty."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    return here, temporary


@pytest.fixture
def a_server():
    try:
        find_redis_server()
    except ServerNotFoundError as error:
        miss(error)


def processes_with(mark: str) -> dict[int, dict[str, str]]:
    """The environment of each living process that inherited this mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            raw = (folder / "environ").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if mark.encode() in raw:
            pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
            found[int(folder.name)] = {name: value for name, _, value in pairs}
    return found


@pytest.mark.redis
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_sends_nothing_twice_loses_nothing_and_says_so(places, a_server):
    here, temporary = places
    mark = uuid.uuid4().hex
    done = python("-m", "example_project.demo", "--quick", cwd=here, TMPDIR=str(temporary), EXAMPLE_MARK=mark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    rows = {line[:70].strip(): line.split()[-1] for line in done.stdout.splitlines() if line[-1:].isdigit()}
    table = {re.sub(r"\s+\d+$", "", name): int(value) for name, value in rows.items()}
    due = next(value for name, value in table.items() if name.startswith("slots due"))
    assert due > 15
    assert table["slots dispatched"] == due
    assert [table[name] for name in ("slots sent twice", "slots lost", "calls executed twice")] == [0, 0, 0]
    for name in ("runs skipped by the lock", "retries", "dead letters"):
        assert table[name] > 0
    for fault in ("killed", "terminated", "frozen"):
        assert re.search(rf"^beat \d: {fault} +beat \d +\d+ ms +\d+ ms$", done.stdout, re.MULTILINE)
    assert "begun again by worker" in done.stdout
    assert "task example.charge_card, reason max_retries, 3 attempts" in done.stdout
    assert "Nothing was sent twice, and nothing was lost." in done.stdout
    assert processes_with(mark) == {}
    assert [*here.iterdir(), *temporary.iterdir()] == []


@pytest.mark.redis
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_nothing_behind(signum, places, tmp_path, a_server):
    here, temporary = places
    mark = uuid.uuid4().hex
    told = tmp_path / "told"
    with told.open("wb") as output:
        demo = subprocess.Popen(
            [sys.executable, "-m", "example_project.demo", "--quick"],
            cwd=here,
            env=_environment(TMPDIR=str(temporary), EXAMPLE_MARK=mark, NO_COLOR="1"),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "1. Kill" in told.read_text(), 60, told.read_text)
        inside = processes_with(mark)
        (url,) = {env["EXAMPLE_BROKER_URL"] for env in inside.values() if "EXAMPLE_BROKER_URL" in env}
        assert len(inside) >= 8  # the demo, Redis, beats, workers and the workers' children
        demo.send_signal(signum)
        assert demo.wait(30) == 128 + signum
    finally:
        demo.kill()
        demo.wait(10)
    assert signal.Signals(signum).name in told.read_text()
    assert "Traceback" not in told.read_text()
    assert processes_with(mark) == {}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]))) != 0
    assert [*here.iterdir(), *temporary.iterdir()] == []


@pytest.mark.process
def test_a_machine_without_redis_is_told_so_in_one_line(places):
    here, temporary = places
    done = python(
        "-m", "example_project.demo", cwd=here, TMPDIR=str(temporary), SINGLEBEAT_REDIS_SERVER="/nowhere"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: $SINGLEBEAT_REDIS_SERVER")
    assert len(done.stderr.splitlines()) == 1
    assert [*here.iterdir(), *temporary.iterdir()] == []
