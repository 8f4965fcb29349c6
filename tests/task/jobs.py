"""The app that the workers of these tests run. What a body did is judged by what it left in Redis.

Each body writes to the test's own Redis through `effects`: a list of events, and a gauge of how many
bodies run at once on one name, with the highest value it ever had.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time

import redis
from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_singlebeat import SingleBeatTask

app = Celery("jobs", broker=os.environ.get("JOBS_BROKER", "memory://"))
app.conf.update(
    result_backend=os.environ.get("JOBS_RESULTS"),
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 3600},
)
app.conf.update(json.loads(os.environ.get("JOBS_SETTINGS", "{}")))

TTL = 2.0

_ENTER = """
local now = redis.call('INCR', KEYS[1])
if now > tonumber(redis.call('GET', KEYS[2]) or '0') then redis.call('SET', KEYS[2], now) end
return now
"""


@functools.cache
def effects() -> redis.Redis:
    return redis.Redis.from_url(os.environ["JOBS_EFFECTS"], decode_responses=True)


def note(name, text):
    effects().rpush(f"events:{name}", text)


def await_go(name, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not effects().exists(f"go:{name}"):
        time.sleep(0.01)


class Inside:
    """`with Inside(name)`: one more body runs on this name."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        effects().eval(_ENTER, 2, f"gauge:{self.name}", f"highest:{self.name}")

    def __exit__(self, *_):
        effects().decr(f"gauge:{self.name}")


task = functools.partial(app.task, base=SingleBeatTask, bind=True, lock_ttl=TTL)


@task(lock_on=("name",), on_conflict="retry", conflict_countdown=0.05, retry_jitter=False)
def once_each(self, name, number, seconds=0.0):
    """Counts, on one key for each name."""
    with Inside(name):
        note(name, str(self.lock.fence))
        time.sleep(seconds)
    return number


class Bypassing(SingleBeatTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        return type(self).run(self, *args, **kwargs)


class InFront:
    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


class Mixed(InFront, SingleBeatTask):
    abstract = True


_bypassing = {"bind": True, "lock_ttl": TTL, "lock_on": ("name",), "on_conflict": "retry"}


@app.task(base=Bypassing, conflict_countdown=0.05, **_bypassing)
def bypasses(self, name, number):
    with Inside(name):
        note(name, str(self.lock.fence))


@app.task(base=Mixed, conflict_countdown=0.05, **_bypassing)
def mixes(self, name, number):
    with Inside(name):
        note(name, str(self.lock.fence))


@task(max_retries=0)
def tells_key(self, name, tenant, amount=1, *, options=None):
    note(name, self.lock.key)
    if effects().delete(f"kill:{name}"):
        os.kill(os.getpid(), signal.SIGKILL)


@task(lock_on=("name",))
def hold(self, name, seconds, who=""):
    """Holds its lock until `seconds` are over or the key `go:<name>` is there."""
    note(name, f"start {who} {self.lock.fence}")
    with Inside(name):
        await_go(name, seconds)
    note(name, f"end {who} {self.lock.held}")
    return self.lock.fence


@task(lock_on=("name",), on_lock_lost="abort", autoretry_for=(Exception,), retry_backoff=0.05)
def careful(self, name, seconds):
    note(name, "start")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        self.lock.check()
        time.sleep(0.01)
    note(name, "end")


@task(lock_on=("name",))
def nests(self, name, depth):
    """Makes an eager call on its own key and one on another."""
    if not depth:
        return self.lock.key
    return [nests.apply((each, 0)).result for each in (name, f"{name}b")]


@task(lock_on=("name",), on_lock_lost="abort")
def watches(self, name):
    note(name, f"start {self.lock.fence}")
    while not effects().exists(f"go:{name}"):
        self.lock.check()
        time.sleep(0.01)
    note(name, f"end {self.lock.fence}")
    return self.lock.fence


@task(lock_on=("name",), on_lock_lost="abort", dont_autoretry_for=(KeyError,))
def stumbles(self, name):
    note(name, f"start {self.lock.fence}")
    while not effects().exists(f"go:{name}"):
        if not self.lock.held:
            raise KeyError("fell over the loss")
        time.sleep(0.01)
    note(name, f"end {self.lock.fence}")
    return self.lock.fence


@task(lock_on=("name",), hold_during_retry=False, retry_backoff=30, retry_jitter=False, max_retries=1)
def lets_go(self, name, fails):
    note(name, f"ran {fails}")
    if fails:
        raise ValueError("it does not work")


@task(lock_on=("name",), retry_backoff=0.1, retry_jitter=False, max_retries=3)
def fails(self, name, secret="", until=99):
    note(name, f"{self.request.retries} {time.time()}")
    if self.request.retries < until and not effects().exists(f"works:{name}"):
        raise ValueError("it does not work")
    return "done"


@task(lock_on=("name",), retry_backoff=3, retry_backoff_max=3, retry_jitter=False, max_retries=2)
def slow_to_retry(self, name):
    note(name, f"{self.request.retries} {time.time()}")
    raise ValueError("it does not work")


@task(lock_on=("name",), retry_backoff=0.3, retry_jitter=False, max_retries=2, retry_store="redis")
def parks(self, name, until=99, secret=""):
    note(name, f"{self.request.retries} {time.time()}")
    if self.request.retries < until and not effects().exists(f"works:{name}"):
        raise ValueError("it does not work")
    return "done"


@task(lock_on=("name",), retry_backoff=1.5, retry_jitter=False, max_retries=2)
def delays(self, name):
    note(name, f"{self.request.retries} {time.time()}")
    if not effects().exists(f"works:{name}"):
        raise ValueError("it does not work")
    return "done"


def _storm(self, name, until):
    note(name, f"{self.request.retries}")
    time.sleep(0.02)
    if self.request.retries < until:
        raise ValueError("it does not work")
    return "done"


@task(lock_on=("name",), retry_backoff=0.5, max_retries=2)
def storms(self, name, until):
    return _storm(self, name, until)


@task(lock_on=("name",), retry_backoff=0.5, max_retries=2, retry_store="redis")
def storms_parked(self, name, until):
    return _storm(self, name, until)


@task(lock_on=("name",), retry_backoff=8, retry_jitter=False, max_retries=1, retry_store="redis")
def parks_long(self, name):
    note(name, f"{self.request.retries} {time.time()}")
    raise ValueError("it does not work")


@task(lock_key="shared:{name}", on_conflict="retry", conflict_countdown=1, retry_store="redis")
def parks_for_lock(self, name):
    note(name, "ran")


@task(lock_on=("name",), retry_backoff=0.3, retry_jitter=False, max_retries=None, retry_for=1.0)
def fails_for_a_second(self, name):
    note(name, f"{self.request.retries} {time.time()}")
    raise ValueError("it does not work")


class TooManyRequests(Exception):
    retry_after = 1.5


@task(lock_on=("name",), retry_backoff=0.01, retry_jitter=False, max_retries=1)
def is_told_to_wait(self, name, countdown=None):
    note(name, f"{self.request.retries} {time.time()}")
    error = TooManyRequests("slow down")
    if countdown is not None:
        raise self.retry(exc=error, countdown=countdown)
    raise error


@task(lock_on=("name",), retry_backoff=0.05, retry_jitter=False, max_retries=3)
def changes_its_mind(self, name, number):
    note(name, f"{number}")
    if number < 3:
        raise self.retry(args=(name, number + 1), kwargs={})
    return number


class OddError(Exception):
    """Neither its text nor its pickle works."""

    def __init__(self, need):
        super().__init__()
        self.need = need
        self.lock = threading.Lock()

    def __str__(self):
        raise RuntimeError("no text")


@task(lock_on=("name",), retry_backoff=0.05, retry_jitter=False, max_retries=1)
def fails_oddly(self, name):
    note(name, "ran")
    raise OddError("it")


@task(lock_on=("name",), retry_backoff=0.05, retry_jitter=False, max_retries=1)
def retries_with_an_object(self, name):
    note(name, "ran")
    raise self.retry(args=(object(),), countdown=0.05)


@task(lock_on=("name",), conflict_countdown=0.3)
def waits_out(self, name):
    note(name, f"{self.request.retries}")


@task(lock_on=("name",), on_lock_error="run")
def insists(self, name):
    self.lock.check()
    note(name, "locked" if self.lock.held else "unlocked")


@task(lock_on=("name",), on_lock_error="fail")
def gives_up(self, name):
    note(name, "ran")


@task(lock_on=("name",), dont_autoretry_for=(KeyError,))
def refuses(self, name):
    note(name, "ran")
    raise KeyError("never again")


@task(lock_on=("name",), retry_backoff=0.2, retry_jitter=False, on_conflict="skip")
def by_hand(self, name):
    note(name, f"{self.request.retries} {time.time()}")
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


@task(lock_on=("name",), retry_backoff=0.1, retry_jitter=False, max_retries=3)
def fails_by_hand(self, name):
    note(name, f"{self.request.retries} {time.time()}")
    raise self.retry(exc=ValueError("it does not work"))


@task(lock_on=("name",))
def ends(self, name, how):
    note(name, how)
    if how == "ignore":
        raise Ignore
    if how == "reject":
        raise Reject("no", requeue=False)
    if how == "fail":
        raise KeyError("no")
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        raise MemoryError("too much")
    return how


ends.dont_autoretry_for = (KeyError, MemoryError)


@task(lock_on=("name",), time_limit=1, max_retries=0)
def overruns(self, name):
    note(name, "start")
    time.sleep(30)
    note(name, "end")


@task(lock_on=("name",), soft_time_limit=1, max_retries=0)
def overruns_softly(self, name):
    note(name, "start")
    time.sleep(30)


@task(lock_on=("name",), poison_limit=3)
def deadly(self, name):
    note(name, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@task(lock_on=("name",), poison_limit=2)
def deadly_to_workers(self, name):
    note(name, "start")
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@task(lock_key="shared:{name}")
def shares(self, name, seconds):
    note(name, "shares")
    await_go(name, seconds)


@task(lock_key="shared:{name}", on_conflict="retry", conflict_countdown=0.1, conflict_timeout=0.5)
def waits(self, name):
    note(name, "waits")


@task(lock_on=(), on_conflict="fail")
def alone(self, name, seconds=0.0):
    note(name, "ran")
    await_go(name, seconds)


@task(bind=True, lock_on=("name",))
def scheduled(self, name):
    note(name, f"{self.entry} {self.slot and self.slot.isoformat()}")


@app.task(name="jobs.collects")
def collects(values, name):
    note(name, json.dumps(values, sort_keys=True))
    return values


@app.task(name="jobs.notes_error")
def notes_error(task_id, *, name):  # Celery 5.4 calls one with two positional parameters otherwise
    note(name, task_id)


@app.task(base=SingleBeatTask)
def adds(x, y=1):
    return x + y


@app.task(name="jobs.plain")
def plain(x):
    return x


@app.task(base=SingleBeatTask, name="jobs.guarded")
def guarded(x):
    return x


@task(lock_on=("name",), on_conflict="queue", conflict_countdown=0.2)
def queues(self, name, who, seconds=0.0, fails=False):
    with Inside(name):
        note(name, f"start {who}")
        await_go(name, seconds)
        if fails:
            raise KeyError(who)
        note(name, f"end {who}")
    return who


queues.dont_autoretry_for = (KeyError,)


@task(lock_on=("name",), on_conflict="replace", conflict_countdown=0.2, retry_backoff=1, retry_jitter=False)
def replaces(self, name, who, seconds=0.0, checks=True):
    with Inside(name):
        note(name, f"start {who}")
        if seconds < 0:
            raise ValueError(who)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if checks:
                self.lock.check()
            time.sleep(0.01)
        note(name, f"end {who}")
    return who
