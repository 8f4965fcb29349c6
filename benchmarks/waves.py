"""Dispatch rate: many entries due at once, from the start of the tick until the queue holds them all.

Each contender lives in a process of its own, which waits while another one is measured. Whatever a
scheduler loads or connects before anything is due, it has loaded and connected: one entry, the
forerunner, comes due a second earlier and sends its message through the same producer.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import redis
from celery import Celery, beat, signals
from kombu import Producer

from benchmarks.figures import Spread
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.testing.servers import EmbeddedRedis

PLAIN, OURS, REDBEAT, STOCK = "plain", "singlebeat", "redbeat", "stock"
CONTENDERS = (PLAIN, OURS, REDBEAT, STOCK)
#: Since kombu 5.7. Before, the upper bound is what plain Celery can do one by one.
BATCHES = hasattr(Producer, "batch")
TITLES = {
    PLAIN: "plain apply_async in producer.batch()" if BATCHES else "plain apply_async, one by one",
    OURS: "SingleBeatScheduler, atomic",
    REDBEAT: "RedBeatScheduler, lock held",
    STOCK: "celery.beat.Scheduler",
}

QUEUE, TASK, FORERUNNER = "celery", "benchmarks.job", "forerunner"
PERIOD = 3600
#: Seconds from making the entries due at one moment until that moment, forerunner included.
AHEAD = 2.2
PATIENCE = 180.0
#: Rounds that include stock beat, which takes ten seconds for each: it compares whole schedules in each tick.
MOST_OF_STOCK = 2


class Wave(NamedTuple):
    """Seconds that a wave took: of time, and of the dispatching process's own processor time."""

    wall: float
    cpu: float


class Contender(Protocol):
    """One way to dispatch."""

    def wave(self) -> Wave: ...


class Rates(NamedTuple):
    """By contender, one value for each round: messages a second; processor milliseconds for 1,000 of them."""

    rates: dict[str, list[float]]
    costs: dict[str, list[float]]


def measure(
    server: EmbeddedRedis, *, entries: int, rounds: int, names: tuple[str, ...] = CONTENDERS
) -> Rates:
    """Measure each contender in each round; the rounds are interleaved."""
    found = Rates({name: [] for name in names}, {name: [] for name in names})
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    try:
        for database, name in enumerate(names, start=1):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, name, server.url(database), entries), daemon=True
            )
            process.start()
            processes.append(process)
            theirs.close()
            pipes[name] = ours
        for name in names:
            _answer(pipes[name])
        for number in range(rounds):
            # every other round backwards: whoever comes last is not always the same
            for name in names if number % 2 == 0 else reversed(names):
                if name == STOCK and number >= MOST_OF_STOCK:
                    continue
                pipes[name].send("wave")
                wave: Wave = _answer(pipes[name])
                found.rates[name].append(entries / wave.wall)
                found.costs[name].append(wave.cpu * 1e6 / entries)
    finally:
        for pipe in pipes.values():
            pipe.close()
        for process in processes:
            process.join(5)
            process.kill()
    return found


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE):
        raise TimeoutError(f"a contender gave no answer for {PATIENCE:g} s")
    answer = pipe.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def ratios(rates: Mapping[str, Sequence[float]], of: str, to: str) -> Spread:
    """The ratio of two contenders, taken within each round that both were in."""
    return Spread.of([ours / theirs for ours, theirs in zip(rates[of], rates[to], strict=False)])


# -- in the contender's process -----------------------------------------------------------------


def _serve(pipe: Connection, name: str, url: str, entries: int) -> None:
    """Prepare a contender and measure a wave each time the pipe asks for one, until it is closed."""
    try:
        contender = _KINDS[name](url, entries)
        pipe.send("ready")
        while pipe.recv():
            pipe.send(contender.wave())
    except EOFError:
        return
    except Exception as error:
        pipe.send(RuntimeError(f"{name}: {type(error).__name__}: {error}"))
        raise


class _Field:
    """What all contenders share: the app, the entries, the queue and the stop-watch."""

    def __init__(self, url: str, entries: int) -> None:
        self.entries = entries
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.client.flushdb()
        self.app = Celery("bench", broker=url)
        self.app.conf.update(
            task_ignore_result=True,
            result_expires=None,  # or stock beat adds an entry of its own
            singlebeat_redis_url=url,
            redbeat_redis_url=url,
            redbeat_lock_timeout=60,
        )
        self.app.task(name=TASK)(_job)
        self.app.set_current()
        self.app.finalize()
        self.names = [f"entry {number:05d}" for number in range(entries)]

    def arguments(self, number: int) -> tuple[list[Any], dict[str, Any]]:
        return [number, f"tenant-{number:05d}"], {"force": False}

    def schedule(self) -> dict[str, dict[str, Any]]:
        schedule = {}
        for number, name in enumerate([*self.names, FORERUNNER]):
            args, kwargs = self.arguments(number)
            schedule[name] = {"task": TASK, "schedule": float(PERIOD), "args": args, "kwargs": kwargs}
        return schedule

    def service(self, scheduler: type[beat.Scheduler]) -> beat.Service:
        """Beat's service, up to where it begins to tick."""
        service = beat.Service(self.app, scheduler_cls=scheduler)
        _ = service.scheduler
        signals.beat_init.send(sender=service)
        return service

    @contextmanager
    def stopped(self) -> Iterator[list[Wave]]:
        """An empty queue and a collected heap before, a stop-watch around, all the messages after."""
        self.client.delete(QUEUE)
        gc.collect()
        waves: list[Wave] = []
        begun, used = time.perf_counter(), time.process_time()
        yield waves
        waves.append(Wave(time.perf_counter() - begun, time.process_time() - used))
        found: Any = self.client.llen(QUEUE)
        if found != self.entries:
            raise AssertionError(f"{found} messages in the queue instead of {self.entries}")

    def drive(self, scheduler: beat.Scheduler) -> Wave:
        """Tick as beat's service does until the queue is full; the ticks alone are timed."""
        deadline = time.monotonic() + PATIENCE
        with self.stopped() as waves:
            while time.monotonic() < deadline:
                nap = scheduler.tick()
                if nap and nap > 0:  # with 0 it has more to send
                    if self.client.llen(QUEUE) >= self.entries:
                        break
                    time.sleep(nap)
        return waves[0]

    def idle(self, scheduler: beat.Scheduler, until: float) -> None:
        """Tick and sleep as beat's service does, up to a moment of wall time."""
        while (left := until - time.time()) > 0:
            nap = scheduler.tick()
            time.sleep(max(0.0, min(nap or 0.0, left, until - time.time())))

    def wave_at(self, scheduler: beat.Scheduler, due: float) -> Wave:
        """A wave of entries that are all due at `due`."""
        self.idle(scheduler, due - 0.1)
        if not self.client.llen(QUEUE):
            raise AssertionError("the forerunner was not sent")
        time.sleep(max(0.0, due + 0.02 - time.time()))
        return self.drive(scheduler)


def _job(number: int, tenant: str, *, force: bool) -> None: ...


class Plain(_Field):
    """Nothing but Celery and kombu: the messages that our scheduler makes, in kombu's own batches."""

    def __init__(self, url: str, entries: int) -> None:
        super().__init__(url, entries)
        self.producer: Any = self.app.amqp.Producer(self.app.connection_for_write(), auto_declare=False)
        self.batch: Any = self.producer.batch if BATCHES else nullcontext
        if BATCHES and not self.producer.channel.supports_batch_publish:
            raise AssertionError("kombu does not batch here")

    def wave(self) -> Wave:
        task: Any = self.app.tasks[TASK]
        slot = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        calls = []
        for number, name in enumerate(self.names):
            headers = {
                "singlebeat_entry": name,
                "singlebeat_slot": slot,
                "singlebeat_epoch": 1_700_000_000_000,
                "singlebeat_trigger": "schedule",
                "celery_beat_task": True,
            }
            calls.append((*self.arguments(number), str(uuid.uuid4()), headers))
        task.apply_async(*self.arguments(0), producer=self.producer)  # the connection is warm now
        with self.stopped() as waves, self.batch():
            for args, kwargs, task_id, headers in calls:
                task.apply_async(args, kwargs, producer=self.producer, task_id=task_id, headers=headers)
        return waves[0]


class SingleBeat(_Field):
    """A first leader enrolls the entries; before each wave their anchors are moved in the store, to one
    period before the wave, and a fresh scheduler takes over."""

    def __init__(self, url: str, entries: int) -> None:
        super().__init__(url, entries)
        self.app.conf.update(beat_schedule=self.schedule(), singlebeat_dispatch="atomic")
        self.keys = Keys("singlebeat:bench")
        scheduler = self._scheduler()
        deadline = time.monotonic() + 30
        while self.client.hlen(self.keys.entries) <= entries and time.monotonic() < deadline:
            time.sleep(scheduler.tick())
        scheduler.close()

    def _scheduler(self) -> beat.Scheduler:
        from celery_singlebeat import SingleBeatScheduler  # noqa: PLC0415 - each process loads its own

        scheduler: beat.Scheduler = self.service(SingleBeatScheduler).scheduler
        return scheduler

    def wave(self) -> Wave:
        scheduler = self._scheduler()
        due = time.time() + AHEAD
        moved = {}
        known: Any = self.client.hgetall(self.keys.entries)
        for name, enrolled in known.items():
            _, _, rule = enrolled.partition(" ")
            anchor = due - PERIOD - (1 if name == FORERUNNER else 0)
            moved[name] = f"{round(anchor * 1000)} {rule}"
        self.client.hset(self.keys.entries, mapping=moved)
        try:
            return self.wave_at(scheduler, due)
        finally:
            scheduler.close()


class RedBeat(_Field):
    """Entries saved, lock held; the forerunner is sent, then all entries become overdue at once.

    Not "due in two seconds": RedBeat would file such an entry as due long ago, and load it in each tick.
    """

    def __init__(self, url: str, entries: int) -> None:
        from redbeat import RedBeatScheduler  # noqa: PLC0415 - its receiver of beat_init is for itself

        super().__init__(url, entries)
        self.app.conf.update(beat_schedule=self.schedule())
        self.scheduler: Any = self.service(RedBeatScheduler).scheduler
        if self.scheduler.lock is None:
            raise AssertionError("RedBeat has no lock")
        self.rows = {name: self._row(name) for name in [*self.names, FORERUNNER]}
        for row in self.rows.values():
            row.reschedule(self.app.now())

    def _row(self, name: str) -> Any:
        return self.scheduler.Entry.from_key(self.scheduler.Entry.generate_key(self.app, name), app=self.app)

    def wave(self) -> Wave:
        before = self.app.now() - timedelta(seconds=PERIOD + 1)
        self.rows[FORERUNNER].reschedule(before)
        self.scheduler.tick()
        if not self.client.llen(QUEUE):
            raise AssertionError("the forerunner was not sent")
        for name in self.names:
            self.rows[name].reschedule(before)
        return self.drive(self.scheduler)


class Stock(_Field):
    """In memory; entries last ran one period before the wave."""

    def wave(self) -> Wave:
        due = time.time() + AHEAD
        schedule = self.schedule()
        for name, entry in schedule.items():
            last = due - PERIOD - (1 if name == FORERUNNER else 0)
            entry["last_run_at"] = datetime.fromtimestamp(last, timezone.utc)
        self.app.conf.update(beat_schedule=schedule)
        scheduler = self.service(beat.Scheduler).scheduler
        try:
            return self.wave_at(scheduler, due)
        finally:
            scheduler.close()


_KINDS: dict[str, Callable[[str, int], Contender]] = {
    PLAIN: Plain,
    OURS: SingleBeat,
    REDBEAT: RedBeat,
    STOCK: Stock,
}
