"""Every way in which people start a beat, and what a process that cannot work says."""

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from celery.beat import Service

from celery_singlebeat import SingleBeatScheduler
from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from tests.support.nodes import REPOSITORY

PERIOD = 0.2

APP = """
import os
from celery import Celery
from celery_singlebeat import SingleBeatScheduler

app = Celery("ways", broker=os.environ["URL"])
app.conf.update(
    beat_schedule={"tick": {"task": "tick", "schedule": 0.2}},
    task_ignore_result=True,
    result_expires=None,
    singlebeat_prefix="fleet",
    SETTINGS
)


@app.task(name="tick")
def tick():
    pass
"""


@pytest.fixture
def run(tmp_path):
    """Start a celery command in a project whose app has the given settings."""
    started = []

    def start(url, settings, *arguments):
        (tmp_path / "ways.py").write_text(APP.replace("SETTINGS", settings))
        process = ManagedProcess(
            [sys.executable, "-m", "celery", "-A", "ways", *arguments],
            cwd=tmp_path,
            env={"URL": url, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])},
            name="celery",
        ).start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


BEAT = ("beat", "-l", "INFO", "--pidfile=")


@pytest.mark.process
@pytest.mark.parametrize(
    "setting",
    [
        'beat_scheduler="celery_singlebeat:SingleBeatScheduler"',
        'beat_scheduler="celery_singlebeat.SingleBeatScheduler"',
        "beat_scheduler=SingleBeatScheduler",
    ],
)
def test_the_scheduler_may_be_named_or_given(run, redis_url, redis_client, setting):
    beat = run(redis_url, setting, *BEAT)
    wait_until(lambda: redis_client.llen("celery") >= 2, 20, beat.logs)
    assert beat.terminate() == 0


@pytest.mark.process
def test_the_short_name_works_where_the_package_is_installed(run, redis_url, redis_client):
    beat = run(redis_url, "", *BEAT, "-S", "singlebeat")
    wait_until(lambda: redis_client.llen("celery") >= 2, 20, beat.logs)
    assert beat.terminate() == 0


@pytest.mark.process
def test_beats_embedded_in_every_worker_make_one_stream(run, redis_url, redis_client):
    workers = [
        run(
            redis_url,
            'beat_scheduler="celery_singlebeat:SingleBeatScheduler"',
            *("worker", "-B", "-s", f"never{number}", "-P", "prefork", "-c", "1", "-l", "INFO"),
            *("-n", f"w{number}@localhost", "--without-gossip", "--without-mingle", "-Q", "elsewhere"),
        )
        for number in range(2)
    ]

    def logs():
        return "\n".join(worker.logs() for worker in workers)

    wait_until(lambda: redis_client.hlen("fleet:{sb}:nodes") == 2, 20, logs)
    wait_until(lambda: redis_client.llen("celery") >= 6, 20, logs)
    assert redis_client.hget("fleet:{sb}:counters", "elections") == "1"
    leader = redis_client.hget("fleet:{sb}:leader", "node")
    first = next(worker for worker in workers if f"leading as {leader}" in worker.logs())
    before = redis_client.get("fleet:{sb}:epoch")
    first.terminate(20)
    wait_until(lambda: redis_client.get("fleet:{sb}:epoch") != before, 20, logs)
    assert not (Path.cwd() / "never0").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("singlebeat_lease_tll=5", "did you mean singlebeat_lease_ttl?"),
        ("singlebeat_renew_every=9", "singlebeat_renew_every=9"),
        ('singlebeat_redis_url="redis://:s3cret@host/notanumber"', "singlebeat_redis_url cannot be read"),
    ],
)
def test_a_beat_that_cannot_work_stops_with_one_line(run, redis_url, settings, words):  # X3
    beat = run(redis_url, settings, *BEAT, "-S", "celery_singlebeat:SingleBeatScheduler")
    assert beat.wait(20) == 2
    lines = [line for line in beat.logs().splitlines() if words in line]
    assert len(lines) == 1
    assert "Traceback" not in beat.logs()
    assert "s3cret" not in beat.logs()


def test_what_the_broker_says_of_certificates_serves_the_lease(tls_redis_server):
    app = Celery("tls", broker=tls_redis_server.url, set_as_current=False)
    app.conf.update(
        broker_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": str(tls_redis_server.ca_path)},
        beat_schedule={"tick": {"task": "tick", "schedule": 0.1}},
        task_ignore_result=True,
        result_expires=None,
    )
    scheduler = SingleBeatScheduler(app)
    try:
        with tls_redis_server.server.client() as client:
            wait_until(lambda: scheduler.tick() and client.llen("celery") >= 2, 20, "nothing was sent")
    finally:
        scheduler.close()


def test_celerys_own_service_builds_it_twice_and_closes_it_twice():  # B6
    app = Celery("twice", broker="memory://", set_as_current=False)
    service = Service(app, scheduler_cls=SingleBeatScheduler)
    banner = service.get_scheduler(lazy=True)
    assert "dispatch" in banner.info
    banner.close()
    real = service.scheduler
    wait_until(lambda: real.tick() and real._machine.dispatcher.is_adopted, 10, "never led")
    real.close()
    real.close()
    assert real.tick() > 0


def test_importing_the_package_loads_neither_redis_nor_beat():
    code = (
        "import sys, celery_singlebeat, celery_singlebeat.cli;"
        "print({'redis', 'celery.beat'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
