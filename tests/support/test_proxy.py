"""Each fault of the proxy is the fault that it is called."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import redis

from celery_singlebeat.testing.processes import wait_until


@pytest.fixture
def through(redis_proxy, redis_db):
    """A client behind the proxy that gives up after a fifth of a second, already connected."""
    kwargs = {"socket_timeout": 0.2, "socket_connect_timeout": 0.2, "retry": None, "decode_responses": True}
    with redis.Redis(port=redis_proxy.port, db=redis_db, **kwargs) as client:
        client.ping()
        yield client


def test_without_a_fault_everything_passes(through, redis_client):
    through.set("key", "x" * 1_000_000)
    assert redis_client.strlen("key") == 1_000_000
    assert len(through.get("key")) == 1_000_000


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_a_delay_delays(redis_proxy, through, direction):
    redis_proxy.delay(**{direction: 0.05})
    start = time.monotonic()
    through.ping()
    assert time.monotonic() - start >= 0.05
    redis_proxy.heal()
    start = time.monotonic()
    through.ping()
    assert time.monotonic() - start < 0.05


def test_a_black_hole_answers_nothing_until_it_is_healed(redis_proxy, through):
    redis_proxy.blackhole()
    with pytest.raises(redis.TimeoutError):
        through.get("key")
    redis_proxy.heal()
    assert through.ping()


def test_a_dropped_request_never_reaches_the_server(redis_proxy, through, redis_client):
    redis_proxy.drop(requests=True)
    with pytest.raises(redis.TimeoutError):
        through.set("key", "value")
    redis_proxy.heal()
    assert redis_client.get("key") is None


def test_a_dropped_reply_leaves_the_server_acting(redis_proxy, through, redis_client):
    redis_proxy.drop(replies=True)
    with pytest.raises(redis.TimeoutError):
        through.set("key", "value")
    assert redis_client.get("key") == "value"
    redis_proxy.heal()
    assert through.get("key") == "value"


def test_a_healed_connection_that_lost_bytes_is_reset_and_not_out_of_step(
    redis_proxy, redis_db, redis_client
):
    """A client without a timeout would else take the next reply for the one that was lost."""
    redis_client.set("key", "value")
    with redis.Redis(port=redis_proxy.port, db=redis_db, retry=None) as patient:
        patient.ping()
        redis_proxy.drop(replies=True)
        answers = []

        def ask() -> None:
            try:
                answers.append(patient.get("key"))
            except redis.ConnectionError as error:
                answers.append(error)

        forwarded = redis_proxy.requests.forwarded
        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: redis_proxy.requests.forwarded > forwarded and redis_proxy.links)
        wait_until(lambda: any(link.lossy for link in redis_proxy.links.copy()))
        redis_proxy.heal()
        thread.join(5)
    assert isinstance(answers[0], redis.ConnectionError)


def test_a_held_request_arrives_late(redis_proxy, through, redis_client):
    redis_proxy.hold(requests=True)
    with pytest.raises(redis.TimeoutError):
        through.set("key", "late")
    assert redis_client.get("key") is None
    redis_proxy.heal()
    wait_until(lambda: redis_client.get("key") == "late", message="what was held did not arrive")


def test_a_refusing_proxy_resets_new_connections_only(redis_proxy, through, redis_db):
    redis_proxy.refuse()
    assert through.ping()
    newcomer = redis.Redis(port=redis_proxy.port, db=redis_db, retry=None)
    with pytest.raises(redis.ConnectionError):
        newcomer.ping()
    redis_proxy.heal()
    assert newcomer.ping()
    newcomer.close()


def test_a_reset_breaks_open_connections(redis_proxy, redis_db):
    connection = redis.Connection(port=redis_proxy.port, db=redis_db, retry=None)
    connection.connect()
    redis_proxy.reset()
    with pytest.raises(redis.ConnectionError):  # noqa: PT012 - the kernel may accept one send after the RST
        for _ in range(10):
            connection.send_command("PING")
            connection.read_response()
    connection.disconnect()


def test_a_cut_comes_when_the_server_has_acted_and_its_client_cannot_know(redis_proxy, through, redis_client):
    redis_proxy.cut_after(2)
    through.set("first", "1")
    with pytest.raises(redis.ConnectionError):
        through.set("second", "2")
    assert redis_client.mget("first", "second") == ["1", "2"]
    assert redis_proxy.cuts == 1
    through.set("third", "3")  # one cut, not more


def test_a_cut_may_wait_for_a_certain_request(redis_proxy, through, redis_client):
    redis_proxy.cut_after(match=b"INCR")
    through.set("counter", "41")
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert redis_client.get("counter") == "42"


def test_a_server_that_is_away_looks_like_one(redis_proxy, redis_server, through):
    redis_server.kill()
    with contextlib.suppress(redis.TimeoutError), pytest.raises(redis.ConnectionError):
        through.ping()
    redis_server.start()
    assert through.ping()
