"""A Redis with a password, and a project that uses it."""

import pytest

from celery_singlebeat.testing.servers import EmbeddedRedis, ServerNotFoundError
from tests.support.missing import miss
from tests.support.projects import Project

PASSWORD = "open-sesame-4711"


@pytest.fixture(scope="session")
def locked_redis():
    """A Redis that wants a password."""
    try:
        server = EmbeddedRedis(password=PASSWORD)
    except ServerNotFoundError as error:
        miss(error)
    with server:
        yield server


@pytest.fixture
def locked_url(locked_redis):
    """The address of the Redis that wants a password, flushed."""
    with locked_redis.client() as client:
        client.flushall()
    return locked_redis.url()


@pytest.fixture
def project(locked_url, tmp_path):
    """A project whose broker is the Redis that wants a password."""
    project = Project(tmp_path, locked_url)
    yield project
    project.end()
