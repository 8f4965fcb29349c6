"""`singlebeat doctor` as operators run it: findings, exit codes, and no password anywhere."""

import json

import pytest

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.wiring import wire
from tests.cli.conftest import PASSWORD
from tests.cli.test_commands import make_app, run
from tests.support.documents import page
from tests.support.missing import running_redis
from tests.support.projects import Project

AWAY = "redis://:hidden-1@127.0.0.1:1/0"


def findings(result):
    """The findings of `doctor --json`, by check; a check of a server by its subject too."""
    document = json.loads(result.stdout)
    assert set(document) == {"verdict", "findings"}
    for finding in document["findings"]:
        assert list(finding) == ["check", "subject", "verdict", "found", "remedy"]
    return {(finding["check"], finding["subject"]): finding for finding in document["findings"]}


def status(project):
    return json.loads(project.singlebeat("status", "--json").stdout)


@pytest.fixture(scope="module")
def server():
    """A server whose settings a test may change."""
    with running_redis(appendonly=True) as server:
        yield server


@pytest.fixture
def app(server):
    with server.client() as client:
        client.flushall()
        # with much air, so that a busy machine is no finding
        yield make_app(server.url(), singlebeat_takeover_grace=9)
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


pytestmark = pytest.mark.redis


def test_warnings_alone_are_no_failure(app):
    # O1, O2
    result = run(app, "doctor", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    found = findings(result)
    assert json.loads(result.stdout)["verdict"] == "warning"
    assert found["leader", None]["verdict"] == "warning"
    assert found["persistence", "store"]["verdict"] == "ok"
    assert found["scripts", "store"]["remedy"] is None


def test_the_documented_example_has_the_shape_of_the_answer(app):
    (block,) = page("doctor.md").blocks("json")
    example, found = json.loads(block.text), json.loads(run(app, "doctor", "--json").stdout)
    assert list(example) == list(found)
    assert {tuple(finding) for finding in example["findings"]} == {tuple(found["findings"][0])}
    checks = {(one["check"], one["subject"]) for one in found["findings"]}
    assert {(one["check"], one["subject"]) for one in example["findings"]} <= checks


def test_a_failure_is_named_with_its_remedy_and_is_exit_code_1(app, server):
    # O2, O3
    with server.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    result = run(app, "doctor")
    assert result.exit_code == 1
    assert result.stderr == "Error: 1 failure: maxmemory-policy (store)\n"
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "maxmemory-policy" in line)
    assert lines[at].split()[:3] == ["failure", "maxmemory-policy", "(store)"]
    assert "allkeys-lru, maxmemory 105 MB" in lines[at]
    assert "remedy: CONFIG SET maxmemory-policy noeviction" in lines[at + 1]
    assert lines[-1].startswith("1 failure, 1 warning, ")
    found = findings(run(app, "doctor", "--json"))
    assert found["maxmemory-policy", "store"]["verdict"] == "failure"


def test_a_task_that_waits_for_longer_than_the_broker_does_is_found(app):
    @app.task(name="proj.slow", shared=False, default_retry_delay=7200)
    def slow():
        pass

    result = run(app, "doctor", "--json")
    assert result.exit_code == 1
    found = findings(result)["backoff", None]
    assert found["verdict"] == "failure"
    assert "proj.slow (7200 s)" in found["found"]
    app.conf.broker_transport_options = {"visibility_timeout": 7201}
    assert findings(run(app, "doctor", "--json"))["backoff", None]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ({"singlebeat_lease_ttll": 3}, "did you mean singlebeat_lease_ttl?"),
        ({"singlebeat_dispatch": "atomic"}, "singlebeat_dispatch='atomic'"),
        ({"imports": ["missing_module"]}, "missing_module"),
    ],
    ids=["misspelt", "not atomic", "no module"],
)
def test_settings_that_cannot_work_are_one_line_and_exit_code_2(conf, line):
    # O2, O3
    result = run(make_app(**conf), "doctor", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert line in told


def test_a_store_that_is_away_is_exit_code_3_and_the_rest_is_judged_all_the_same():
    # O2, O3, O4
    result = run(make_app(AWAY), "doctor", "--json")
    assert result.exit_code == 3
    assert result.stderr == "Error: the store and the broker cannot be reached; see above\n"
    found = findings(result)
    assert found["reachability", "store"]["verdict"] == found["broker", None]["verdict"] == "failure"
    assert ("latency", "store") not in found
    assert ("leader", None) not in found
    assert found["tasks", None]["verdict"] == "ok"
    assert "hidden" not in result.output


def test_a_broker_that_is_away_is_exit_code_3(app, server):
    # O2, O4
    app = make_app("amqp://u:hidden-1@127.0.0.1:1//", singlebeat_redis_url=server.url())
    result = run(app, "doctor", "--json")
    assert result.exit_code == 3
    assert result.stderr == "Error: the broker cannot be reached; see above\n"
    found = findings(result)
    assert found["reachability", "store"]["verdict"] == "ok"
    assert found["outbox", None]["verdict"] == "ok"
    assert ("dead-letters", None) not in found
    assert "hidden" not in result.output


def test_a_redis_broker_beside_the_store_is_looked_at_as_well(app, server):
    app = make_app(server.url(1), singlebeat_redis_url=server.url(2))
    found = findings(run(app, "doctor", "--json"))
    assert found["maxmemory-policy", "broker"]["verdict"] == "ok"
    assert found["maxmemory-policy", "store"]["verdict"] == "ok"
    assert ("scripts", "broker") not in found
    assert "dispatch outbox" in found["settings", None]["found"]


def test_what_may_not_be_read_is_unknown_and_not_a_crash(app, server):
    # O2
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">hidden-1", "~other:*", "+@all")
    app = make_app(server.url().replace("redis://", "redis://app:hidden-1@"))
    with pytest.raises(StoreUnavailable):
        wire(app).beat_store().overview()
    result = run(app, "doctor", "--json")
    assert result.exit_code == 1
    found = findings(result)
    assert found["scripts", "store"]["verdict"] == "failure"
    assert found["leader", None]["verdict"] == "unknown"
    assert found["dead-letters", None]["verdict"] == "unknown"
    assert "hidden" not in result.output


@pytest.mark.process
def test_the_real_command_sees_beats_and_a_password_is_in_no_output(project, locked_redis):
    # O1, O2, O4
    project.beat()
    project.beat()

    def well():
        done = project.singlebeat("doctor", "--json")
        found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
        verdicts = {found[name]["verdict"] for name in ("leader", "beats", "entries") if name in found}
        return done.returncode == 0 and verdicts == {"ok"} and (done, found)

    done, found = wait_until(well, 30)
    assert "standbys: 1" in found["leader"]["found"]
    with locked_redis.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        client.config_set("maxmemory", "100mb")
        table = project.singlebeat("doctor")
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
    assert table.returncode == 1
    assert "maxmemory-policy (store)" in table.stderr
    assert len(table.stderr.splitlines()) == 1
    assert "\x1b" not in table.stdout
    for output in (done.stdout, done.stderr, table.stdout, table.stderr):
        assert PASSWORD not in output


@pytest.mark.process
def test_the_real_command_ends_with_one_line_when_redis_is_away(project):
    # O2, O3, O4
    done = project.singlebeat("doctor", PROJ_BROKER=f"redis://:{PASSWORD}@127.0.0.1:1/0")
    assert done.returncode == 3
    assert done.stderr == "Error: the store and the broker cannot be reached; see above\n"
    assert "reachability (store)" in done.stdout
    assert PASSWORD not in done.stdout


@pytest.mark.process
def test_where_scripts_may_not_call_pubsub_it_says_so_and_a_killed_leader_is_replaced(server, tmp_path):
    with server.client() as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", "-pubsub")
    project = Project(tmp_path, server.url().replace("redis://", "redis://app:pw@"))
    try:
        project.beat()
        project.beat()
        before = wait_until(lambda: (found := status(project))["leader"] and found["standbys"] and found, 30)
        found = findings(project.singlebeat("doctor", "--json"))
        assert found["crash-detector", "store"]["verdict"] == "warning"
        assert found["subscriptions", "store"]["verdict"] == "ok"
        assert "0.3 s overdue" in found["crash-detector", "store"]["found"]
        leader = next(beat for beat in project.processes if beat.pid == before["leader"]["pid"])
        leader.kill()
        after = wait_until(
            lambda: (found := status(project))["elections"] > before["elections"] and found, 30
        )
        assert after["leader"]["pid"] == before["standbys"][0]["pid"]
        wait_until(lambda: status(project)["dispatched"] > after["dispatched"], 30)
    finally:
        project.end()
