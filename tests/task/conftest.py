"""Workers of `tests.task.jobs`, as processes; a test judges them by what their bodies left in Redis."""

import functools
import json
import sys
import time
import uuid

import celery
import pytest
from celery import Celery

from celery_singlebeat import DeadLetters, Locks
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis
from tests.support.nodes import REPOSITORY

SLACK = 3.0
#: A Redis broker that soon delivers again what nobody acknowledged. A worker that is killed while it looks
#: for such messages leaves kombu's mutex behind: nobody else looks until it expires, by default in 5 minutes.
IMPATIENT = {"visibility_timeout": 1, "unacked_mutex_expire": 1}
THREADS = pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="the threads pool of older Celery stalls on its own retries"
)


@pytest.fixture
def app():
    """An app whose settings name no Redis at all, and whose tasks no other app gets to see."""
    with Celery("alone", set_as_current=False) as app:
        app.task = functools.partial(app.task, shared=False)
        yield app


class Crew:
    """Some workers on one Redis, and an app of the same name that sends them calls."""

    def __init__(self, server, folder, broker="", **settings):
        self.server = server
        self.folder = folder
        self.settings = settings
        self.url = server.url()
        self.broker = broker or self.url
        self.redis = server.client(decode_responses=True)
        self.app = Celery("jobs", broker=self.broker, backend=self.url, set_as_current=False)
        self.app.conf.update(settings)
        self.workers, self.beats = [], []

    def start(self, *, pool="prefork", concurrency=2, queues=""):
        name = f"worker{len(self.workers) + 1}"
        env = {
            "JOBS_BROKER": self.broker,
            "JOBS_RESULTS": self.url,
            "JOBS_EFFECTS": self.url,
            "JOBS_SETTINGS": json.dumps(self.settings),
        }
        argv = [sys.executable, "-m", "celery", "-A", "tests.task.jobs", "worker"]
        argv += ["-P", pool, "-c", str(concurrency), "-l", "INFO", "-n", f"{name}@%h"]
        argv += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
        argv += ["-Q", queues] if queues else []
        log = self.folder / f"{name}.log"
        worker = ManagedProcess(argv, cwd=REPOSITORY, env=env, name=name, log_path=log).start()
        self.workers.append(worker)
        return worker

    def beat(self):
        """Start a beat without a schedule."""
        argv = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.task.jobs",
            "beat",
            "-S",
            "singlebeat",
            "-l",
            "INFO",
        ]
        argv += ["--pidfile=", "--schedule", str(self.folder / "schedule")]
        env = {
            "JOBS_BROKER": self.broker,
            "JOBS_EFFECTS": self.url,
            "JOBS_SETTINGS": json.dumps(self.settings),
        }
        log = self.folder / "beat.log"
        beat = ManagedProcess(argv, cwd=REPOSITORY, env=env, name="beat", log_path=log).start()
        self.beats.append(beat)
        wait_until(lambda: "leading as" in beat.logs(), 30, beat.logs)
        return beat

    def ready(self):
        for worker in self.workers:
            wait_until(
                lambda worker=worker: " ready." in worker.logs() or not worker.running, 30, worker.logs
            )
            assert " ready." in worker.logs(), worker.logs()
        return self

    def send(self, task, *args, **options):
        return self.app.send_task(f"tests.task.jobs.{task}", args, **options)

    def events(self, name):
        return self.redis.lrange(f"events:{name}", 0, -1)

    def await_events(self, name, number, timeout=15.0):
        return wait_until(
            lambda: (found := self.events(name)) and len(found) >= number and found,
            timeout,
            lambda: f"{name}: {self.events(name)}\n{self.logs()}",
        )

    def highest(self, name):
        return int(self.redis.get(f"highest:{name}") or 0)

    def go(self, name):
        self.redis.set(f"go:{name}", 1, ex=60)

    def lock(self, task, **about):
        """The lock that a task of the jobs holds, by its task or by the id of its call."""
        for lock in self.locks():
            if lock["task"].endswith(f".{task}"):
                wanted = about.get("task_id")
                if wanted is None or lock["holder"]["task_id"] == wanted:
                    return lock
        return None

    def await_end_of(self, lock, timeout):
        """Wait until this grant of a lock is over, whoever has the next."""
        wait_until(lambda: lock["fence"] not in {each["fence"] for each in self.locks()}, timeout)

    def locks(self):
        """All locks; asked for again as long as no majority of several servers answers in its short time."""

        def answer():
            try:
                return (Locks(self.app).list(),)
            except StoreUnavailable:
                return None

        return wait_until(answer)[0]

    def await_renewal(self, key):
        """Wait until the lock of this key is to end later than it was."""

        def ends():
            return time.monotonic() + self.redis.pttl(f"singlebeat:jobs:{{sb}}:lock:{key}") / 1000

        before = ends()
        wait_until(lambda: ends() > before + 0.1, 5, self.logs)

    def counter(self, name):
        """One of the totals that the store keeps."""
        return int(self.redis.hget("singlebeat:jobs:{sb}:counters", name) or 0)

    def receptions(self, task_id):
        """How often the workers got a message of this call."""
        return sum(worker.logs().count(f"[{task_id}] received") for worker in self.workers)

    def letters(self, task_id):
        return [letter for letter in DeadLetters(self.app).list() if letter["id"] == task_id]

    def letter(self, task_id, timeout=15.0):
        return wait_until(lambda: self.letters(task_id), timeout, self.logs)[0]

    def deliver_again(self):
        """What a worker does with messages older than the visibility timeout, but now."""
        with self.app.connection_for_write() as connection:
            connection.default_channel.qos.restore_visible(num=100, interval=1)

    def unacked(self):
        return self.redis.hlen("unacked")

    def record(self, task_id):
        """What the store knows of a call."""
        return self.redis.hgetall(f"singlebeat:jobs:{{sb}}:call:{task_id}")

    def waiting(self):
        """The calls that wait in Redis for their next attempt."""
        return self.redis.zrange("singlebeat:jobs:{sb}:waiting", 0, -1)

    def logs(self):
        return "\n".join(worker.logs() for worker in self.workers)

    def close(self):
        for worker in self.workers + self.beats:
            if worker.status != "new":
                worker.kill()
        self.redis.close()
        # A result that is collected after its server has gone would try to reconnect for twenty seconds.
        self.app.backend.remove_pending_result = lambda _: None
        self.app.close()


@pytest.fixture(scope="session")
def crew(tmp_path_factory):
    """Two prefork workers with two children each, for every test that does not harm them."""
    with EmbeddedRedis() as server:
        crew = Crew(server, tmp_path_factory.mktemp("crew"))
        try:
            crew.start()
            crew.start()
            yield crew.ready()
        finally:
            crew.close()


@pytest.fixture
def make_crew(tmp_path, redis_server_of_own):
    """A function that makes a crew of this test's own, without workers, on a Redis of its own."""
    made, servers = [], []

    def make(**settings):
        crew = Crew(redis_server_of_own, tmp_path, **settings)
        made.append(crew)
        return crew

    def lock_server():
        """A Redis for locks alone."""
        if not servers:
            servers.append(EmbeddedRedis().start())
        return servers[0]

    make.lock_server = lock_server
    yield make
    for crew in made:
        crew.close()
    for server in servers:
        server.stop()


@pytest.fixture
def redis_server_of_own():
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def name():
    """A name that no other test uses."""
    return uuid.uuid4().hex[:12]
