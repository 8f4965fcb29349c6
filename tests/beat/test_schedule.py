"""The dynamic schedule: changed through `Schedule`, followed by beats on a real Redis, judged by messages."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from celery_singlebeat import EntryError, EntryNotFound, Schedule, SingleBeatScheduler, SingleBeatTask
from celery_singlebeat.beat import dynamic, records
from celery_singlebeat.policy.jitter import delay
from celery_singlebeat.schedules import clocked
from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.processes import wait_until

pytestmark = pytest.mark.redis

_names = (f"dynamic{number}" for number in itertools.count(1))


class Bench:
    """An app with a queue of its own on a shared Redis, and beats of it that turn when they are told to."""

    def __init__(self, url):
        self.name = next(_names)
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.app = Celery(self.name, broker=url, set_as_current=False)
        self.app.conf.update(
            task_default_queue=self.name,
            result_expires=None,
            beat_schedule={"static": {"task": "static", "schedule": 3600}},
        )
        self.schedule = Schedule(self.app)
        self.beats = []

    def start(self):
        beat = SingleBeatScheduler(self.app)
        self.beats.append(beat)
        self.turn_until(lambda: beat._machine.dispatcher.is_adopted or len(self.beats) > 1)
        return beat

    def turn_until(self, condition, timeout=15):
        """Let every beat tick until something holds."""

        def turn():
            for beat in self.beats:
                beat.tick()
            return condition()

        return wait_until(turn, timeout, self.messages)

    def turn_for(self, seconds):
        end = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        self.turn_until(lambda: datetime.now(timezone.utc) >= end)

    def messages(self, entry=None):
        """(slot, trigger, task id) of the messages in the queue, oldest first."""
        found = [json.loads(text)["headers"] for text in reversed(self.client.lrange(self.name, 0, -1))]
        return [
            (datetime.fromisoformat(h["singlebeat_slot"]), h["singlebeat_trigger"], h["id"])
            for h in found
            if entry is None or h["singlebeat_entry"] == entry
        ]

    def slots(self, entry):
        return [slot for slot, trigger, _ in self.messages(entry) if trigger == "schedule"]

    def row(self, name):
        return next(row for row in self.schedule.list() if row["name"] == name)

    def close(self):
        for beat in self.beats:
            beat.close()
        self.client.close()


@pytest.fixture
def bench(redis_url):
    made = Bench(redis_url)
    yield made
    made.close()


def assert_one_stream(slots, period):
    """Every slot from the first to the last, once, in order."""
    gaps = {round((after - before).total_seconds(), 6) for before, after in itertools.pairwise(slots)}
    assert gaps == {period}


# Changes


def test_an_entry_runs_from_when_it_was_added_and_ends_when_it_is_removed(bench):
    bench.start()
    before = datetime.now(timezone.utc)
    assert bench.schedule.add("new", "work", 0.1, args=(1,)) == "added"
    bench.turn_until(lambda: len(bench.slots("new")) >= 5)
    first = bench.slots("new")[0]
    assert timedelta(seconds=0.09) <= first - before <= timedelta(seconds=1)
    bench.schedule.remove("new")
    removed = len(bench.slots("new"))
    bench.turn_for(0.5)
    assert len(bench.slots("new")) == removed
    assert_one_stream(bench.slots("new"), 0.1)


def test_a_change_of_arguments_moves_no_slot(bench):
    bench.start()
    bench.schedule.add("e", "work", 0.1)
    for number in range(5):
        bench.turn_until(lambda n=number: len(bench.slots("e")) >= 3 * n)
        assert bench.schedule.add("e", "work", 0.1, args=(number + 1,)) == "changed"
    bench.turn_until(lambda: len(bench.slots("e")) >= 20)
    assert_one_stream(bench.slots("e"), 0.1)


def test_a_storm_of_changes_delays_and_repeats_no_slot(bench):
    bench.start()
    bench.schedule.add_all({name: {"task": "work", "schedule": 0.1} for name in ("changed", "steady")})
    store = bench.schedule._wiring.schedule_store()
    rule, text = records.write("changed", {"task": "work", "schedule": 0.1})
    for number in range(500):
        store.put({"changed": (rule, text.replace('"args": []', f'"args": [{number}]'))})
        bench.beats[0].tick()
    before = len(bench.slots("changed"))
    bench.turn_until(lambda: len(bench.slots("changed")) >= before + 3)
    for name in ("changed", "steady"):
        assert_one_stream(bench.slots(name), 0.1)


def test_an_entry_for_a_task_that_only_workers_know_goes_where_routes_send_it(bench):
    bench.app.conf.task_routes = {"elsewhere": {"queue": f"{bench.name}-routed"}}
    bench.start()
    bench.schedule.add("routed", "elsewhere", 0.1)
    bench.schedule.add("named", "work", 0.1, options={"queue": f"{bench.name}-named"})
    bench.turn_until(lambda: all(bench.client.llen(f"{bench.name}-{name}") for name in ("routed", "named")))
    assert bench.messages() == []


def test_a_changed_rule_starts_from_now(bench):
    bench.start()
    bench.schedule.add("e", "work", 0.1)
    bench.turn_until(lambda: len(bench.slots("e")) >= 3)
    changed = datetime.now(timezone.utc)
    bench.schedule.add("e", "work", 0.4)
    before = len(bench.slots("e"))
    bench.turn_until(lambda: len(bench.slots("e")) >= before + 3)
    after = bench.slots("e")[before:]
    assert after[0] - changed >= timedelta(seconds=0.39)
    assert_one_stream(after, 0.4)


def test_an_entry_that_is_removed_and_added_again_repeats_nothing(bench):
    bench.start()
    bench.schedule.add("e", "work", 0.1)
    bench.turn_until(lambda: len(bench.slots("e")) >= 3)
    bench.schedule.remove("e")
    bench.turn_for(0.5)
    again = datetime.now(timezone.utc)
    before = len(bench.slots("e"))
    bench.schedule.add("e", "work", 0.1)
    bench.turn_until(lambda: len(bench.slots("e")) >= before + 3)
    assert bench.slots("e")[before] > again


def test_a_clocked_entry_runs_once(bench):
    bench.start()
    at = datetime.now(timezone.utc) + timedelta(seconds=2)
    bench.schedule.add("once", "work", clocked(at))
    bench.turn_until(lambda: bench.slots("once"))
    bench.turn_for(0.3)
    assert len(bench.slots("once")) == 1
    assert bench.row("once")["next"] is None
    assert bench.start()  # another beat that reads it is not troubled
    bench.turn_for(0.2)
    assert bench.schedule.list()
    assert len(bench.slots("once")) == 1


def test_a_time_to_come_is_not_lost_when_the_clock_of_redis_is_ahead(bench, monkeypatch):
    bench.start()
    behind = FakeClock(datetime.now(timezone.utc) - timedelta(seconds=5))
    at = clocked(behind.now() + timedelta(seconds=2))
    with monkeypatch.context() as patch:
        patch.setattr(bench.schedule._wiring, "clock", behind)
        assert bench.schedule.add("once", "work", at) == "added"
        assert bench.schedule.add("once", "work", at) == "same"
        assert bench.schedule.add("once", "work", at, args=[1]) == "changed"
    bench.turn_until(lambda: bench.slots("once"))
    bench.turn_for(0.2)
    assert bench.slots("once") == [at.at]


def test_a_standby_has_the_dynamic_entries_when_it_takes_over(bench):
    leader = bench.start()
    standby = bench.start()
    bench.schedule.add("e", "work", 0.1)
    bench.turn_until(lambda: len(bench.slots("e")) >= 3 and len(standby._machine.agenda) == 2)
    leader.close()
    bench.beats.remove(leader)
    before = len(bench.slots("e"))
    bench.turn_until(lambda: len(bench.slots("e")) >= before + 5)
    assert_one_stream(bench.slots("e"), 0.1)


def test_a_big_change_delays_no_slot_of_another_entry(bench, monkeypatch):  # Y1
    bench.start()
    bench.schedule.add("steady", "work", 0.05)
    bench.turn_until(lambda: bench.slots("steady"))
    monkeypatch.setattr(dynamic, "BUILD_FOR", 0.0)  # one line a turn
    bench.schedule.add_all({f"e{n}": {"task": "work", "schedule": 3600} for n in range(200)})
    machine = bench.beats[0]._machine
    while len(machine.agenda) < 202:
        size = len(machine.agenda)
        bench.beats[0].tick()
        assert len(machine.agenda) <= size + 1
    assert machine.dynamic.cursor == bench.schedule._wiring.schedule_store().changes().cursor
    assert_one_stream(bench.slots("steady"), 0.05)


def test_a_change_is_seen_while_a_big_one_is_still_taken_in(bench, monkeypatch):  # Y1, Y2
    bench.start()
    bench.schedule.add("e", "work", 0.1)
    bench.turn_until(lambda: bench.slots("e"))
    monkeypatch.setattr(dynamic, "BUILD_FOR", 0.0)  # one line a turn
    machine = bench.beats[0]._machine
    machine.dynamic.turn(lambda: None)
    big = {f"big {n}": {"task": "work", "schedule": 0.1} for n in range(300)}
    bench.schedule.add_all(big)
    bench.turn_until(lambda: machine.dynamic.is_building)
    bench.schedule.add("late", "work", 0.01)
    bench.schedule.add("e", "work", 0.1, args=("new",))
    bench.turn_until(lambda: bench.slots("late") and machine.dynamic.holds("e") is False)
    assert machine.dynamic.is_building
    assert all(machine.agenda.line(name) is None for name in big if machine.dynamic.holds(name))


def test_what_was_read_and_is_not_built_yet_sends_nothing_of_its_former_self(bench, monkeypatch):  # Y2
    bench.start()
    bench.schedule.add_all({name: {"task": "old", "schedule": 0.05} for name in ("gone", "changed")})
    bench.turn_until(lambda: bench.slots("gone") and bench.slots("changed"))
    bench.schedule.remove("gone")
    bench.schedule.add("changed", "new", 0.05)
    built = []
    monkeypatch.setattr(dynamic.Dynamic, "_build", lambda self, *found: built.append(found))
    machine = bench.beats[0]._machine
    update = machine.dynamic.turn(lambda: None)
    machine.dynamic._pending.update({name: record for name, record, _ in built})
    assert not update
    bench.client.delete(bench.name)
    monkeypatch.setattr(machine.dynamic, "turn", lambda pulse: update)
    bench.turn_for(0.3)
    assert bench.messages() == []


def test_the_configuration_hides_a_dynamic_entry_of_the_same_name(bench):  # Y3
    bench.schedule.add("e", "dynamic", 0.1)
    bench.app.conf.beat_schedule["e"] = {"task": "static", "schedule": 0.1}
    bench.start()
    bench.turn_until(lambda: len(bench.slots("e")) >= 3)
    tasks = {json.loads(text)["headers"]["task"] for text in bench.client.lrange(bench.name, 0, -1)}
    assert tasks == {"static"}
    with pytest.raises(EntryError, match="the configuration has an entry of this name"):
        bench.schedule.add("e", "dynamic", 0.1)


def test_a_static_entry_that_comes_later_hides_a_dynamic_one_that_runs(bench):  # Y3
    beat = bench.start()
    bench.schedule.add("e", "dynamic", 0.1)
    bench.turn_until(lambda: len(bench.slots("e")) >= 3)
    beat.update_from_dict({"e": {"task": "static", "schedule": 0.2}})
    bench.turn_until(lambda: len(bench.slots("e")) >= 10)
    newest = [json.loads(text)["headers"]["task"] for text in bench.client.lrange(bench.name, 0, 3)]
    assert set(newest) == {"static"}


def stored(**changed):
    record = {"v": 1, "task": "work", "schedule": {"every": 0.1}, "args": [], "kwargs": {}, "options": {}}
    return f"1 r {json.dumps({**record, 'keys': {}, **changed})}".encode()


DAMAGED = {
    "cut": b"1 r {",
    "no record": b"nonsense",
    "no text": b"1 r \xff\xfe",
    "far ahead": b"253000000000000" + stored()[1:],
    "nested": b"1 r " + b"[" * 100_000,
    "newer": stored(v=2),
    "headers": stored(options={"headers": [1]}),
    "options": stored(options=[1]),
    "task": stored(task=["work"], keys={"overlap": "skip"}),
    "cron": stored(schedule={"cron": {"minute": "abc"}}),
    "rule": stored(schedule={"rrule": "FREQ=DAILY;INTERVAL=0", "start": "2026-01-01T00:00", "zone": "UTC"}),
    "key": stored(keys={"misfire": {}}),
}


def test_damaged_entries_stop_neither_the_others_nor_a_command(bench):  # G8
    bench.schedule.add("good", "work", 0.1)
    for name, value in DAMAGED.items():
        bench.client.hset(bench.schedule._wiring.keys.schedule, name, value)
    beat = bench.start()
    bench.turn_until(lambda: len(bench.slots("good")) >= 3)
    assert set(beat._machine.agenda.parked) == set(DAMAGED)
    assert not any("\n" in problem for problem in beat._machine.agenda.parked.values())
    assert [row["name"] for row in bench.schedule.list()] == ["good", "static"]
    assert bench.schedule.next(1, "good")
    for name in DAMAGED:
        with pytest.raises(EntryError):
            bench.schedule.run(name)
        assert bench.schedule.pause(name)
        assert bench.schedule.resume(name)
        bench.schedule.remove(name)
    bench.turn_until(lambda: not beat._machine.agenda.parked)
    assert bench.schedule.add("far ahead", "work", 3600) == "added"


@pytest.mark.parametrize(
    "fields",
    [{"options": {"headers": [1]}}, {"options": [1]}, {"task": ["work"]}, {"task": 5, "overlap": "skip"}],
    ids=str,
)
def test_an_entry_of_the_configuration_of_which_no_call_can_be_made_is_parked_alone(bench, fields):  # G8
    bench.app.conf.beat_schedule["good"] = {"task": "work", "schedule": 0.1}
    bench.app.conf.beat_schedule["bad"] = {"task": "work", "schedule": 0.1, **fields}
    beat = bench.start()
    bench.turn_until(lambda: len(bench.slots("good")) >= 3)
    assert list(beat._machine.agenda.parked) == ["bad"]


@pytest.mark.parametrize(("name", "shown"), [(5, "5"), (None, "None"), ("\udcff", "\udcff")], ids=ascii)
def test_a_name_that_no_store_can_keep_parks_its_entry(bench, name, shown):  # G8
    bench.app.conf.beat_schedule["good"] = {"task": "work", "schedule": 0.1}
    bench.app.conf.beat_schedule[name] = {"task": "work", "schedule": 0.1}
    beat = bench.start()
    bench.turn_until(lambda: len(bench.slots("good")) >= 3)
    assert list(beat._machine.agenda.parked) == [shown]
    assert [row["name"] for row in bench.schedule.list()] == ["good", "static"]


# Pauses


@pytest.mark.parametrize("name", ["e", "static"])
def test_a_paused_entry_dispatches_nothing_and_goes_on_with_its_next_slot(bench, name):
    bench.app.conf.beat_schedule["static"]["schedule"] = 0.1
    bench.start()
    bench.schedule.add("e", "work", 0.1)
    bench.turn_until(lambda: len(bench.slots(name)) >= 3)
    assert bench.schedule.pause(name)
    paused = len(bench.slots(name))
    bench.turn_for(0.5)
    assert len(bench.slots(name)) == paused
    assert bench.row(name)["paused"]
    before = datetime.now(timezone.utc)
    assert bench.schedule.resume(name)
    bench.turn_until(lambda: len(bench.slots(name)) >= paused + 3)
    assert bench.slots(name)[paused] > before
    assert_one_stream(bench.slots(name)[paused:], 0.1)


def test_a_paused_entry_stays_paused_through_restart_and_its_slots_are_skipped(bench):
    bench.start().close()
    bench.beats.clear()
    bench.schedule.add("e", "work", 0.1)
    bench.schedule.pause("e")
    bench.start()
    bench.turn_for(0.4)
    assert bench.slots("e") == []
    bench.beats.pop().close()
    end = datetime.now(timezone.utc) + timedelta(seconds=0.3)
    wait_until(lambda: datetime.now(timezone.utc) > end, 5)
    resumed = datetime.now(timezone.utc)
    bench.schedule.resume("e")  # nobody has judged its latest slots yet
    bench.start()
    bench.turn_until(lambda: len(bench.slots("e")) >= 3)
    assert bench.slots("e")[0] > resumed - timedelta(milliseconds=50)


def test_the_pause_of_an_entry_outlives_a_dynamic_one_that_it_hides(bench):
    bench.schedule.add("e", "dynamic", 0.1)
    bench.app.conf.beat_schedule["e"] = {"task": "static", "schedule": 0.1}
    bench.schedule.pause("e")
    assert bench.schedule.is_dynamic("e")
    bench.schedule.remove("e")
    assert bench.row("e")["paused"]
    assert not bench.schedule.is_dynamic("e")


def test_the_pause_of_an_entry_that_is_gone_can_be_ended(bench):
    bench.app.conf.beat_schedule["e"] = {"task": "static", "schedule": 0.1}
    bench.schedule.pause("e")
    del bench.app.conf.beat_schedule["e"]
    with pytest.raises(EntryNotFound):
        bench.schedule.pause("e")
    assert bench.schedule.resume("e")
    with pytest.raises(EntryNotFound):
        bench.schedule.resume("f")


def test_two_who_change_one_entry_at_once_leave_no_half_of_it(bench):
    bench.schedule.add("e", "work", 3600)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            tasks = [
                *(partial(bench.schedule.add, "e", "work", 3600, args=(number,)) for number in range(3)),
                *(partial(act, "e") for act in (bench.schedule.pause, bench.schedule.resume)),
                *(partial(bench.schedule.remove, "e") for _ in range(2)),
            ]
            outcomes = [future.exception() for future in [pool.submit(task) for task in tasks]]
            assert {type(error) for error in outcomes} <= {type(None), EntryNotFound}
            there = [row for row in bench.schedule.list() if row["name"] == "e"]
            paused = bench.schedule._wiring.schedule_store().changes().pauses
            assert there or "e" not in paused
            if not there:
                bench.schedule.add("e", "work", 3600)


# Dispatch by hand


def test_a_run_is_a_call_of_its_own_and_moves_no_slot(bench):
    bench.start()
    bench.schedule.add("e", "work", 3600, args=(7,), options={"task_id": "fixed"})
    bench.turn_for(0.1)
    planned = bench.row("e")["next"]
    ids = {bench.schedule.run("e"), bench.schedule.run("e"), bench.schedule.run("static")}
    found = bench.messages()
    assert len(ids) == 3
    assert {task_id for _, _, task_id in found} == ids
    assert {trigger for _, trigger, _ in found} == {"run"}
    assert bench.row("e")["next"] == planned


def test_a_backfill_dispatches_the_slots_in_between_and_has_the_same_ids_again(bench):
    bench.app.conf.beat_schedule["hourly"] = {"task": "work", "schedule": crontab(minute=0)}
    start = datetime(2026, 3, 29, tzinfo=timezone.utc)
    end = start + timedelta(hours=5)
    slots = [start + timedelta(hours=n) for n in range(5)]
    assert bench.schedule.backfill("hourly", start, end, dry_run=True) == slots
    assert bench.messages() == []
    assert bench.schedule.backfill("hourly", start, end) == slots
    first = bench.messages("hourly")
    assert [(slot, trigger) for slot, trigger, _ in first] == [(slot, "backfill") for slot in slots]
    bench.schedule.backfill("hourly", start, end, rate=1000)
    assert bench.messages("hourly")[5:] == first


def test_a_backfill_of_an_interval_reaches_behind_the_moment_when_it_was_added(bench):
    bench.start()
    bench.schedule.add("e", "work", 60)
    now = datetime.now(timezone.utc)
    start, end = now - timedelta(minutes=10), now - timedelta(minutes=5)
    slots = bench.schedule.backfill("e", start, end, dry_run=True)
    assert len(slots) == 5
    assert {after - before for before, after in itertools.pairwise(slots)} == {timedelta(minutes=1)}
    assert slots == bench.schedule.backfill("e", start - timedelta(hours=1), end, dry_run=True)[-5:]
    coming = datetime.fromisoformat(bench.row("e")["next"])
    assert (coming - slots[0]) % timedelta(minutes=1) == timedelta(0)


def test_a_backfill_that_was_interrupted_sends_the_same_calls_again(bench):
    bench.app.conf.beat_schedule["hourly"] = {"task": "work", "schedule": crontab(minute=0)}
    start = datetime(2026, 3, 1, tzinfo=timezone.utc)
    out = []

    def tell(slot):
        out.append(slot)
        if len(out) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.schedule.backfill("hourly", start, start + timedelta(hours=5), tell=tell)
    first = bench.messages("hourly")
    assert [slot for slot, _, _ in first] == out
    bench.schedule.backfill("hourly", start, start + timedelta(hours=5))
    assert bench.messages("hourly")[3:6] == first


def test_a_backfill_has_an_upper_bound(bench):
    bench.schedule.add("e", "work", crontab())
    start = datetime(2020, 1, 1, tzinfo=timezone.utc)
    with pytest.raises(EntryError, match="more than 100000 slots; give a shorter time"):
        bench.schedule.backfill("e", start, start + timedelta(days=70), dry_run=True)
    assert len(bench.schedule.backfill("e", start, start + timedelta(minutes=1000), dry_run=True)) == 1000


@pytest.mark.parametrize(
    ("start", "end", "rate", "words"),
    [
        (1, 2, float("nan"), "rate=nan"),
        (1, 2, float("inf"), "rate=inf"),
        (1, 2, 1e-300, "rate=1e-300"),
        (-90_000, 2, None, "is not within the years"),
        (2, 1, None, "is not after the start"),
        (1, 1, None, "is not after the start"),
        (1, 10**6, None, "lies in the future"),
        (1, 2, 0, "rate=0"),
        (None, 2, None, "no offset"),
    ],
)
def test_a_backfill_that_cannot_be_meant_sends_nothing(bench, start, end, rate, words):
    day = datetime(2026, 1, 1, tzinfo=timezone.utc)
    moments = [datetime(2026, 1, 1) if n is None else day + timedelta(days=n) for n in (start, end)]
    with pytest.raises(EntryError, match=words):
        bench.schedule.backfill("static", *moments, rate=rate)
    assert bench.messages() == []


# Reading, and what is refused


def test_the_list_tells_all_of_both_sources(bench):
    bench.start()
    bench.schedule.add("e", "work", 0.1)
    bench.turn_until(lambda: len(bench.slots("e")) >= 3)
    mine, static = bench.schedule.list()
    keys = {"name", "task", "schedule", "next", "last", "runs", "enabled", "paused", "source"}
    assert set(mine) == set(static) == keys
    assert (mine["source"], static["source"]) == ("dynamic", "config")
    assert mine["runs"] == len(bench.slots("e"))
    assert datetime.fromisoformat(mine["last"]) == bench.slots("e")[-1]
    assert datetime.fromisoformat(mine["next"]) > datetime.fromisoformat(mine["last"])


def test_the_coming_slots_are_those_that_come(bench):
    bench.start()
    bench.schedule.add("e", "work", 0.2)
    bench.turn_until(lambda: bench.slots("e"))
    coming = [datetime.fromisoformat(row["slot"]) for row in bench.schedule.next(3, "e")]
    bench.turn_until(lambda: bench.slots("e")[-1] >= coming[-1])
    assert [slot for slot in bench.slots("e") if coming[0] <= slot <= coming[-1]] == coming


def test_a_name_that_is_not_there_is_answered_with_the_nearest(bench):
    for ask in (bench.schedule.pause, bench.schedule.resume, bench.schedule.run, bench.schedule.remove):
        with pytest.raises(EntryNotFound, match="did you mean 'static'"):
            ask("statik")
    with pytest.raises(EntryNotFound, match="did you mean 'static'"):
        bench.schedule.next(1, "statik")


def test_one_entry_that_cannot_work_keeps_all_of_a_change_out(bench):
    good, bad = {"task": "work", "schedule": 1}, {"task": "work", "schedule": 1, "timezone": "Mars"}
    with pytest.raises(EntryError, match="timezone='Mars'"):
        bench.schedule.add_all({"good": good, "bad": bad})
    with pytest.raises(EntryError, match="is over"):
        bench.schedule.add("late", "work", clocked(datetime.now(timezone.utc) - timedelta(seconds=1)))
    with pytest.raises(EntryError, match="remove it there"):
        bench.schedule.remove("static")
    assert [row["name"] for row in bench.schedule.list()] == ["static"]


# Overlap and jitter


def test_overlap_is_refused_for_a_task_that_does_not_tell_its_end(bench):
    def work():
        """Nothing calls it."""

    bench.app.task(name="plain", shared=False)(work)
    bench.app.task(name="ours", base=SingleBeatTask, shared=False)(work)
    with pytest.raises(EntryError, match="base=SingleBeatTask"):
        bench.schedule.add("e", "plain", 1, overlap="skip")
    assert bench.schedule.add("e", "ours", 1, overlap="skip") == "added"
    assert bench.schedule.add("f", "elsewhere", 1, overlap="queue") == "added"


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_slots_that_come_while_the_run_goes_on_do_not_pile_up(bench, overlap):
    bench.start()
    bench.schedule.add("e", "work", 0.1, overlap=overlap)
    bench.turn_until(lambda: bench.slots("e"))
    bench.turn_for(0.5)
    ((slot, _, task_id),) = bench.messages("e")
    judged = datetime.fromisoformat(bench.row("e")["last"])
    assert (judged > slot) is (overlap == "skip")
    bench.schedule._wiring.schedule_store().finish("e", task_id)
    bench.turn_until(lambda: len(bench.slots("e")) == 2)
    assert bench.slots("e")[1] > judged


def test_jitter_delays_messages_and_leaves_their_slots(bench):
    bench.start()
    names = [f"e{n}" for n in range(20)]
    bench.schedule.add_all({name: {"task": "work", "schedule": 1, "jitter": 0.9} for name in names})
    arrivals = {}

    def note():
        for name in names:
            for slot, _, task_id in bench.messages(name):
                arrivals.setdefault(task_id, (name, slot, datetime.now(timezone.utc)))
        return len(arrivals) >= len(names)

    bench.turn_until(note)
    for entry, slot, at in arrivals.values():
        following = slot + timedelta(seconds=1)
        assert at >= slot + delay(entry, slot, jitter=0.9, following=following)
    assert len({slot for _, slot, _ in arrivals.values()}) <= 2
