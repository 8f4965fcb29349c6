"""One command over a pooled connection, whatever happens in the middle of it."""

from typing import ClassVar

import pytest
import redis

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.scripts import Scripts

pytestmark = pytest.mark.redis

RENEW = ("lock_renew", ["{s}lock", "{s}call"], ["token", 1000, 1000])
BREAK = ("lock_break", ["{s}lock", "{s}counters"], [])


class Struck(redis.Connection):
    """A connection whose caller is struck after it has sent a command, once for each blow."""

    blows: ClassVar[list[BaseException]] = []

    def read_response(self, *args, **options):
        if self.blows:
            raise self.blows.pop()
        return super().read_response(*args, **options)


@pytest.fixture
def scripts(redis_url):
    pool = redis.ConnectionPool.from_url(redis_url, connection_class=Struck, decode_responses=True)
    scripts = Scripts(redis.Redis(connection_pool=pool))
    assert [scripts.run(*RENEW), scripts.run(*BREAK)] == [0, []]
    yield scripts
    pool.disconnect()


@pytest.mark.parametrize("blow", [TimeoutError(), KeyboardInterrupt(), redis.ConnectionError()])
def test_nobody_gets_the_answer_of_a_script_that_was_interrupted_before_it_was_read(scripts, redis_url, blow):
    with redis.Redis.from_url(redis_url) as other:
        other.execute_command("CLIENT", "PAUSE", "200", "ALL")  # so that the answer comes late
    Struck.blows.append(blow)
    with pytest.raises((StoreUnavailable, KeyboardInterrupt)):
        scripts.run(*RENEW)
    assert scripts.run(*BREAK) == []
    assert scripts.run(*RENEW) == 0


def test_a_refusal_keeps_its_connection(scripts, redis_url):
    (connection,) = scripts.client.connection_pool._available_connections
    socket = connection._sock
    with redis.Redis.from_url(redis_url) as other:
        other.script_flush()
    assert scripts.run(*BREAK) == []
    with pytest.raises(StoreUnavailable):
        scripts.run("lock_renew", [], [])
    assert connection._sock is socket
