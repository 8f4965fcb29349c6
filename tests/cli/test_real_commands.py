"""The commands as operators run them: `celery -A proj singlebeat ...`, against a Redis with a password."""

import json

import pytest

from celery_singlebeat.testing.processes import wait_until
from tests.cli.conftest import PASSWORD
from tests.support.projects import SOURCE, Project

pytestmark = [pytest.mark.redis, pytest.mark.process]

UNREACHABLE = "redis://:{password}@127.0.0.1:1/0"


def status(project):
    done = project.singlebeat("status", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def running(project):
    """The project with a leader and a standby."""
    project.beat()
    project.beat()
    wait_until(lambda: (found := status(project))["leader"] and found["standbys"], 30)
    return project


def test_the_command_is_attached_to_celery(project):
    done = project.celery("--help")
    assert done.returncode == 0
    assert "singlebeat" in done.stdout


def test_no_command_is_slowed_down_by_the_imports_of_another(project):
    heavy = "{'celery', 'redis', 'rich'}"
    script = f"import sys, celery_singlebeat.cli; print(sorted({heavy} & set(sys.modules)))"
    done = project.python("-c", script)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_leader_and_a_standby_are_shown(running):
    # O1, O4
    found = status(running)
    assert found["leader"]["pid"] != found["standbys"][0]["pid"]
    assert found["entries"] == 1
    table = running.singlebeat("status")
    assert found["leader"]["node"] in table.stdout
    assert "\x1b" not in table.stdout
    assert PASSWORD not in table.stdout + table.stderr


def test_resigning_returns_when_another_leads(running):
    before = status(running)["leader"]
    done = running.singlebeat("resign", "--json")
    assert done.returncode == 0, done.stderr
    leader = json.loads(done.stdout)
    assert leader["pid"] != before["pid"]
    assert leader["epoch"] > before["epoch"]


def test_health_says_yes_then_names_the_paused_beat(running):
    # O2
    assert running.singlebeat("health").returncode == 0
    leader = status(running)["leader"]
    paused = next(process for process in running.processes if process.pid == leader["pid"])
    paused.pause()
    done = wait_until(
        lambda: (done := running.singlebeat("health", "--json")).returncode == 1 and done,
        30,
        "health does not see that a beat is paused",
    )
    (problem,) = json.loads(done.stdout)["problems"]
    assert leader["node"] in problem
    assert len(done.stderr.splitlines()) == 1
    assert running.singlebeat("health", "--node", leader["node"]).returncode == 1
    paused.resume()
    wait_until(lambda: running.singlebeat("health").returncode == 0, 30, "it does not recover")


def test_health_forgets_a_killed_beat_that_was_replaced(running):
    leader = status(running)["leader"]
    killed = next(process for process in running.processes if process.pid == leader["pid"])
    killed.kill()
    wait_until(lambda: status(running)["standbys"] == [], 30)
    assert running.singlebeat("health").returncode == 0


def test_health_says_no_when_the_only_beat_was_killed(project):
    beat = project.beat()
    wait_until(lambda: project.singlebeat("health").returncode == 0, 30)
    beat.kill()
    wait_until(lambda: project.singlebeat("health").returncode == 1, 30)


def test_health_says_no_when_a_loop_does_not_turn(locked_url, tmp_path):
    stuck = """
import time
from celery.schedules import schedule

class Stuck(schedule):
    def is_due(self, last_run_at):
        time.sleep(600)

app.conf.singlebeat_lease_ttl = 1
app.conf.beat_schedule["stuck"] = {"task": "proj.tick", "schedule": Stuck(1)}
"""
    project = Project(tmp_path, locked_url, source=SOURCE + stuck)
    try:
        project.beat()
        wait_until(lambda: "is wedged" in project.singlebeat("health").stderr, 30)
    finally:
        project.end()


@pytest.mark.parametrize(
    ("arguments", "env", "code"),
    [
        (["status"], {}, 0),
        (["resign"], {}, 1),
        (["status", "--nonsense"], {}, 2),
        (["status"], {"PROJ_CONF": '{"singlebeat_lease_ttll": 3}'}, 2),
        (["status"], {"PROJ_BROKER": UNREACHABLE}, 3),
        (["locks", "list"], {"PROJ_BROKER": UNREACHABLE}, 3),
        (["dlq", "count"], {"PROJ_BROKER": UNREACHABLE}, 3),
        (["health"], {"PROJ_BROKER": UNREACHABLE}, 3),
        (["status"], {"wrong": "yes"}, 3),
    ],
)
def test_a_failure_is_an_exit_code_and_one_line_without_a_password(project, locked_url, arguments, env, code):
    # O2, O3, O4
    if env.pop("wrong", None):
        env = {"PROJ_BROKER": locked_url.replace(PASSWORD, PASSWORD[::-1])}
    env = {name: value.replace("{password}", PASSWORD) for name, value in env.items()}
    done = project.singlebeat(*arguments, **env)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == (1 if code else 0)
    for secret in (PASSWORD, PASSWORD[::-1]):
        assert secret not in done.stdout + done.stderr


def test_a_call_that_failed_for_good_is_found_and_sent_again(project):
    worker = project.worker()
    calling = 'from proj import fail; print(fail.delay("argument").id)'
    task_id = project.python("-c", calling).stdout.strip()

    def letters():
        return json.loads(project.singlebeat("dlq", "list", "--json").stdout)

    (letter,) = wait_until(letters, 30, worker.logs)
    assert (letter["id"], letter["task"], letter["args"]) == (task_id, "proj.fail", ["argument"])
    worker.terminate()
    done = project.singlebeat("dlq", "replay", task_id)
    assert done.returncode == 0, done.stderr
    assert letters() == []
    assert json.loads(project.singlebeat("dlq", "count", "--json").stdout) == {"count": 0}


def test_what_task_modules_print_stays_out_of_the_answer(project):
    # O1
    (project.folder / "more.py").write_text('print("hello from a module")\n')
    done = project.singlebeat("status", "--json", PROJ_CONF='{"imports": ["more"]}')
    json.loads(done.stdout)
    assert "hello" in done.stderr


def test_task_modules_that_cannot_be_imported_are_wrong_configuration(project):
    # O2
    done = project.singlebeat("dlq", "count", PROJ_CONF='{"imports": ["missing_module"]}')
    assert done.returncode == 2
    assert "missing_module" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_entry_is_added_seen_and_removed_while_a_beat_leads(running, locked_redis):
    # O1, O4, O5
    def schedule(*arguments, **options):
        done = running.singlebeat("schedule", *arguments, **options)
        assert PASSWORD not in done.stdout + done.stderr
        return done

    assert schedule("add", "mine", "--task", "proj.mine", "--every", "0.2").stdout.startswith("added mine")
    with locked_redis.client() as client:
        wait_until(lambda: b"proj.mine" in b"".join(client.lrange("celery", 0, -1)), 30)
    found = {entry["name"]: entry for entry in json.loads(schedule("list", "--json").stdout)}
    assert {name: entry["source"] for name, entry in found.items()} == {"mine": "dynamic", "tick": "config"}
    assert found["mine"]["runs"] >= 1
    for command in ("pause", "resume"):
        assert schedule(command, "mine").returncode == 0
    asked = schedule("remove", "mine")  # without a terminal nobody can say yes
    assert (asked.returncode, asked.stdout) == (1, "")
    assert schedule("remove", "mine", "--yes").stdout == "removed mine\n"
    refused = schedule("backfill", "tick", "--from", "2026-01-01", "--to", "2026-01-02")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1)
