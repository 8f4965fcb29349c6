"""A real server, looked at: what it says, what it allows, and what it forbids."""

import pytest
import redis

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.moments import Monotonic
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.redis_server import RedisServerStore
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import free_port
from tests.support.missing import running_redis

pytestmark = pytest.mark.redis

KEYS = Keys("looked")


@pytest.fixture(scope="module")
def server():
    """A server whose settings and users a test may change."""
    with running_redis() as server:
        yield server


@pytest.fixture
def changed(server):
    """Change settings of the server until the test ends."""
    before = {}
    with server.client(decode_responses=True) as client:

        def change(name, value):
            before.setdefault(name, client.config_get(name)[name])
            client.config_set(name, value)

        yield change
        for name, value in before.items():
            client.config_set(name, value)


@pytest.fixture
def user(server):
    """A user who may do everything but what the rules say."""
    with server.client() as client:

        def restrict(*rules):
            client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", *rules)
            return {"username": "app", "password": "pw"}

        yield restrict
        client.execute_command("ACL", "DELUSER", "app")


def look(server, *, keys=KEYS, clock=None, **options):
    def connect():
        return server.client(decode_responses=True, **options)

    store = RedisServerStore(connect, subject="store", place="here", clock=clock or SystemClock(), keys=keys)
    return store.look()


def test_a_server_that_is_well_is_seen_as_it_is(server):
    found = look(server)
    assert (found.subject, found.place, found.problem) == ("store", "here", "")
    assert found.product in {"Redis", "Valkey"}
    assert int(found.version.partition(".")[0]) >= 6
    assert found.is_cluster is False
    assert len(found.round_trips) == 20
    assert all(0 < trip < 5 for trip in found.round_trips)
    assert (found.memory.policy, found.memory.maximum) == ("noeviction", 0)
    assert found.memory.used > 0
    assert (found.persistence.append_only, found.persistence.snapshots) == (False, False)
    assert (found.replication.is_replica, found.replication.replicas) == (False, 0)
    assert found.replication.minimum == 0


def test_a_store_is_tried_and_nothing_is_left_of_that(server):
    probe = look(server).probe
    assert (probe.script_problem, probe.subscribe_problem, probe.presence_problem) == ("", "", "")
    assert (probe.presence, probe.heard) == (1, True)
    with server.client() as client:
        assert client.keys("*") == []
        wait_until(lambda: client.pubsub_channels() == [], 5)


def test_a_broker_is_not_tried(server):
    assert look(server, keys=None).probe is None


def test_the_clocks_are_compared_within_the_round_trip(server):
    low, high = look(server).clock_ahead
    assert low <= 0 <= high  # both read the clock of one machine
    assert high - low < 5


def test_a_clock_that_is_wrong_is_seen():
    class Ahead(SystemClock):
        def now(self):
            return super().now().replace(year=super().now().year + 1, day=1)

    with running_redis() as server:
        low, high = look(server, clock=Ahead()).clock_ahead
    assert 300 * 86_400 < low <= high


def test_what_is_changed_in_the_configuration_is_seen(server, changed):
    changed("maxmemory", "100mb")
    changed("maxmemory-policy", "allkeys-lru")
    changed("save", "3600 1")
    changed("appendfsync", "always")
    changed("min-replicas-to-write", "2")
    found = look(server)
    assert (found.memory.policy, found.memory.maximum) == ("allkeys-lru", 100 * 1024 * 1024)
    assert (found.persistence.snapshots, found.persistence.fsync) == (True, "always")
    assert found.replication.minimum == 2
    assert "NOREPLICAS" in found.probe.script_problem


def test_a_full_server_refuses_the_probe(server, changed):
    changed("maxmemory", "1")
    found = look(server)
    assert "maxmemory" in found.probe.script_problem
    assert found.memory.used > found.memory.maximum


def test_evicted_keys_are_counted():
    with running_redis("--maxmemory-policy", "allkeys-lru") as server, server.client() as client:
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1")
        with pytest.raises(redis.ResponseError):
            client.set("more", "x")
        assert look(server).memory.evicted == 1


def test_an_append_only_file_is_seen():
    with running_redis(appendonly=True) as server:
        found = look(server).persistence
        assert (found.append_only, found.fsync, found.problems) == (True, "everysec", ())


def test_a_snapshot_that_fails_is_seen(changed, server):
    changed("save", "3600 1")
    (server.directory / "dump.rdb").mkdir()  # no file can take its place
    with server.client() as client:
        client.bgsave()
        found = wait_until(lambda: (found := look(server)).persistence.problems and found, 10)
        assert found.persistence.problems == ("the last snapshot failed",)
        assert "MISCONF" in found.probe.script_problem
        (server.directory / "dump.rdb").rmdir()
        client.bgsave()
        wait_until(lambda: look(server).persistence.problems == (), 10)


def test_a_replica_is_seen_and_refuses_the_probe():
    with running_redis() as primary, running_redis("--replicaof", "127.0.0.1", str(primary.port)) as replica:
        wait_until(lambda: look(primary).replication.replicas == 1, 20)
        found = look(replica)
        assert found.replication.is_replica is True
        assert "read only replica" in found.probe.script_problem


def test_a_cluster_is_seen():
    with running_redis("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        found = look(server)
        assert found.is_cluster is True
        assert "slot not served" in found.probe.script_problem


# What an ACL or a managed server forbids


def test_without_config_everything_that_info_says_is_known(server, changed, user):
    changed("maxmemory-policy", "volatile-lru")
    found = look(server, **user("-config"))
    assert found.memory.policy == "volatile-lru"
    assert found.persistence.append_only is False
    assert (found.persistence.snapshots, found.persistence.fsync) == (None, None)
    assert found.replication.minimum is None
    assert found.probe.heard


def test_without_info_its_facts_are_not_known(server, user):  # V1
    found = look(server, **user("-info"))
    assert (found.version, found.is_cluster, found.memory.policy, found.memory.used) == (None,) * 4
    assert (found.persistence.append_only, found.replication.is_replica) == (None, None)
    assert found.probe.presence == 1


def test_without_time_the_clocks_are_not_compared(server, user):
    assert look(server, **user("-time")).clock_ahead is None


def test_without_pubsub_in_scripts_presence_is_a_problem_and_all_else_works(server, user):
    probe = look(server, **user("-pubsub")).probe
    assert (probe.script_problem, probe.subscribe_problem, probe.heard) == ("", "", True)
    assert probe.presence is None
    assert probe.presence_problem


@pytest.mark.parametrize("rules", [["-subscribe"], ["resetchannels"]])
def test_without_subscriptions_that_is_a_problem(server, user, rules):
    probe = look(server, **user(*rules)).probe
    assert "NoPermissionError" in probe.subscribe_problem
    assert not probe.heard


@pytest.mark.parametrize("rules", [["-@scripting"], ["resetkeys", "~other:*"], ["-publish"], ["-set"]])
def test_without_what_scripts_need_that_is_a_problem(server, user, rules):
    probe = look(server, **user(*rules)).probe
    assert probe.script_problem
    assert probe.subscribe_problem == ""


def test_the_probe_needs_the_keys_and_channels_of_the_prefix_alone(server, user):
    probe = look(server, **user("resetkeys", "~looked:*", "resetchannels", "&looked:*")).probe
    assert (probe.script_problem, probe.subscribe_problem, probe.presence, probe.heard) == ("", "", 1, True)


# No answer


def test_a_server_that_is_away_is_no_answer():  # M2
    with running_redis() as server:
        server.kill()
        with pytest.raises(StoreUnavailable, match="refused"):
            look(server)


def test_a_wrong_password_is_no_answer_and_is_not_shown(server, user):
    user()
    with pytest.raises(StoreUnavailable, match=r"(?i)username-password|authentication") as caught:
        look(server, username="app", password="guessed")
    assert "guessed" not in str(caught.value)


def test_a_slow_server_is_not_asked_too_often(server):
    class Slow(SystemClock):
        passed = 0.0

        def monotonic(self):
            self.passed += 0.5
            return Monotonic(self.passed)

    assert len(look(server, clock=Slow(), keys=None).round_trips) == 4
