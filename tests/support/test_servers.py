"""The embedded servers start, stop, fall and come back as the suite expects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import redis
from kombu import Connection

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.moments import later
from celery_singlebeat.store.postgres_session import Session, read_dsn
from celery_singlebeat.testing import programs
from celery_singlebeat.testing.postgres import EmbeddedPostgres, find_postgres
from celery_singlebeat.testing.servers import (
    EmbeddedRedis,
    ServerNotFoundError,
    ServerStartError,
    find_rabbitmq,
    find_redis_server,
    free_port,
)


@pytest.fixture
def own_server(redis_server):  # asked for its marker, and to skip where there is no server
    with EmbeddedRedis() as server:
        yield server


def test_a_restart_keeps_the_port_and_if_wanted_the_data(own_server):
    port, pid = own_server.port, own_server.pid
    own_server.client().set("key", "value")
    own_server.restart()
    assert (own_server.port, own_server.pid == pid) == (port, False)
    assert own_server.client().get("key") == b"value"
    own_server.restart(keep_data=False)
    assert own_server.client().get("key") is None


def test_a_killed_server_comes_back_with_what_its_file_has(redis_server):
    with EmbeddedRedis("--appendfsync", "always", appendonly=True) as server:
        server.client().set("key", "value")
        server.kill()
        assert not server.running
        server.start()
        assert server.client().get("key") == b"value"


def test_a_paused_server_accepts_and_never_answers(own_server):
    client = own_server.client(socket_timeout=0.1)
    own_server.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    own_server.resume()
    assert client.ping()


def test_a_password_is_in_the_address_and_not_in_the_arguments(redis_server):
    with EmbeddedRedis(password="secret") as server:
        assert redis.Redis.from_url(server.url()).ping()
        with pytest.raises(redis.AuthenticationError):
            server.client(password=None).ping()
        assert "secret" not in " ".join(server.process.argv)


def test_stopping_leaves_nothing_behind(redis_server):
    server = EmbeddedRedis().start()
    directory = server.directory
    server.stop()
    server.stop()
    assert not directory.exists()
    assert not server.running


def test_a_server_that_cannot_start_shows_its_own_log(redis_server):
    with pytest.raises(ServerStartError, match="nonsense"):
        EmbeddedRedis("--nonsense", "1").start()


def test_a_postgresql_answers_comes_back_with_its_data_and_leaves_nothing_behind(postgres_server):
    with EmbeddedPostgres("max_connections=20") as server:
        parameters = read_dsn(server.dsn, setting="dsn")
        ask(parameters, "create table kept (n int)")
        port, directory = server.port, server.directory
        server.restart()
        assert server.port == port
        assert ask(parameters, "select count(*) from kept") == [("0",)]
        server.restart(keep_data=False)
        with pytest.raises(StoreUnavailable, match="kept"):
            ask(parameters, "select count(*) from kept")
        assert ask(parameters, "show max_connections") == [("20",)]
    assert not directory.exists()


def ask(parameters, sql):
    clock = SystemClock()
    deadline = later(clock.monotonic(), 10)
    session = Session(parameters, "test", clock=clock, until=deadline)
    try:
        return session.ask(sql, until=deadline)
    finally:
        session.close()


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(own_server):
    with pytest.raises(ServerStartError, match="in use already"):
        EmbeddedRedis(port=own_server.port).start()


def test_a_port_that_was_taken_meanwhile_is_given_up(own_server):
    late = EmbeddedRedis()
    late.port = own_server.port
    with late:
        assert late.port != own_server.port
        assert late.client().ping()


def test_each_test_has_a_flushed_database(redis_client, redis_url, redis_db):
    assert redis_client.dbsize() == 0
    assert redis_url.endswith(f"/{redis_db}")


def test_a_server_speaks_tls(tls_redis_server):
    client = redis.Redis.from_url(tls_redis_server.url, ssl_ca_certs=str(tls_redis_server.ca_path))
    with client:
        assert client.ping()


@pytest.mark.parametrize(
    "find", [find_redis_server, find_rabbitmq, find_postgres], ids=["redis", "rabbitmq", "postgresql"]
)
def test_a_missing_program_is_explained(find, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SINGLEBEAT_REDIS_SERVER", raising=False)
    monkeypatch.delenv("SINGLEBEAT_RABBITMQ_SERVER", raising=False)
    monkeypatch.delenv("SINGLEBEAT_POSTGRES_SERVER", raising=False)
    monkeypatch.setattr(programs, "_POSTGRES_FOLDER", Path("/nowhere"))
    monkeypatch.setattr(programs, "_REDIS_WHEELS", ("no-such-wheel",))
    monkeypatch.setattr(programs, "_RABBITMQ_PROGRAMS", ("/nowhere/rabbitmq-server",))
    with pytest.raises(ServerNotFoundError, match="PATH"):
        find()


def test_the_environment_names_the_program(monkeypatch):
    monkeypatch.setenv("SINGLEBEAT_REDIS_SERVER", sys.executable)
    assert str(find_redis_server()) == sys.executable
    monkeypatch.setenv("SINGLEBEAT_REDIS_SERVER", "/nowhere/redis-server")
    with pytest.raises(ServerNotFoundError, match="/nowhere/redis-server"):
        find_redis_server()


def test_a_free_port_is_a_loopback_port():
    assert 1024 < free_port() < 65536


@pytest.mark.slow
def test_rabbitmq_passes_a_message_also_after_a_restart(rabbitmq_server, rabbitmq_url):
    with Connection(rabbitmq_url) as connection, connection.SimpleQueue("plumbing") as messages:
        messages.put("one")
        assert messages.get(timeout=5).payload == "one"
    rabbitmq_server.kill()
    rabbitmq_server.start()
    with Connection(rabbitmq_url) as connection, connection.SimpleQueue("plumbing") as messages:
        messages.put("two")
        messages.get(timeout=5).ack()
