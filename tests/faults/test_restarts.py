"""Beats that are restarted again and again, and beats that find stored state which they cannot read."""

import time

import pytest

from celery_singlebeat.testing.processes import wait_until
from tests.faults.conftest import PREFIX

PERIOD = 3.0
#: What an entry's field may have become: another version's, cut short, from the year 9999, of another type.
NOT_TEXT = b"\xff\xfe"
MARKS = ['{"v": 2, "at": 1}', "17963", "253402300799000", "99999999999999999999", "12.5", "-7", "", "soon"]
MARKS += ["nan", "inf", "-inf", "-7.5", NOT_TEXT]
ENROLMENTS = ["1", "", "17963", '{"v": 2}', "99999999999999999999 rule", "253402300799000 rule", "soon rule"]
ENROLMENTS += ["nan rule", "-7 rule", NOT_TEXT]
RUNS = ["many", "", "1.5", "99999999999999999999", '{"v": 2}', "nan", NOT_TEXT]


#: Where a schedule's state is.
KEYS = ["lease", "epoch", "leader", "marks", "entries", "runs", "counters", "outbox", "schedule", "paused"]
KEYS += ["running", "changes", "nodes", "gone"]

DAMAGE = {"marks": MARKS, "entries": ENROLMENTS, "runs": RUNS}
NAMES = ["sound", *(f"{kind} {number}" for kind, values in DAMAGE.items() for number in range(len(values)))]
NAMES.append("far anchor")


@pytest.fixture
def celery_settings(celery_settings):
    entries = {name: {"task": "tests.tick", "schedule": 0.5} for name in NAMES}
    tick = {"task": "tests.tick", "schedule": PERIOD, "misfire": "all"}
    return {**celery_settings, "beat_schedule": {"tick": tick, **entries}}


def test_restarts_more_often_than_the_interval_starve_and_repeat_nothing(fleet):  # T1, G1
    deadline = time.monotonic() + 90
    while len(fleet.slots()) < 3 and time.monotonic() < deadline:
        before = len(fleet.slots("sound"))
        beat = fleet.start(wait=False)
        fleet.wait_for_slots(before + 1, "sound")
        assert beat.terminate() == 0
    assert len(fleet.slots()) >= 3
    fleet.assert_one_stream(PERIOD)
    for entry in (f"marks {number}" for number in range(3)):
        slots = fleet.slots(entry)
        assert len(set(slots)) == len(slots)


def test_whatever_the_stored_state_of_an_entry_has_become_all_entries_run(fleet):  # G8, B4
    beat = fleet.start()
    fleet.wait_for_slots(1, "sound")
    beat.kill()
    anchor = fleet.client.hget(fleet.key("entries"), "sound")
    for kind, values in DAMAGE.items():
        for number, value in enumerate(values):
            fleet.client.hset(fleet.key(kind), f"{kind} {number}", value)
    rule = anchor.partition(" ")[2]  # the same for all of them
    fleet.client.hset(fleet.key("entries"), "far anchor", f"253402300799000 {rule}")
    fleet.client.hdel(fleet.key("marks"), "far anchor")
    fleet.client.delete("celery")
    fleet.start()

    def idle():
        return [name for name in NAMES if len(fleet.slots(name)) < 2]

    wait_until(lambda: not idle(), 20, lambda: f"{idle()} do not run\n{fleet.logs()}")
    fleet.assert_one_stream(0.5, "sound")
    assert fleet.client.hget(fleet.key("entries"), "sound") == anchor


def test_state_that_is_damaged_or_evicted_under_a_leader_stops_and_repeats_nothing(fleet):  # G8
    fleet.start()
    fleet.wait_for_slots(1, "sound")
    for number, value in enumerate(MARKS):
        fleet.client.hset(fleet.key("marks"), f"marks {number}", value)
    names = [f"marks {number}" for number in range(len(MARKS))]
    before = {name: len(fleet.slots(name)) for name in names}
    wait_until(lambda: all(len(fleet.slots(name)) > before[name] + 1 for name in names), 20, fleet.logs)
    fleet.assert_one_stream(0.5, "sound")
    for name, value in zip(names, MARKS, strict=True):
        slots = fleet.slots(name)
        # a smaller number is what a server has that lost its newest writes, and the message with them
        assert len(set(slots)) == len(slots) or value == "17963"
    for name in ("marks", "entries", "leader"):
        fleet.client.delete(fleet.key(name))
        slots = fleet.wait_for_slots(len(fleet.slots("sound")) + 2, "sound")
    assert len(set(slots)) == len(slots)
    assert fleet.client.hget(fleet.key("counters"), "elections") == "1"


def test_keys_of_another_type_are_put_aside_and_all_entries_run(fleet):  # G8
    beat = fleet.start()
    fleet.wait_for_slots(1, "sound")
    beat.kill()
    for name in KEYS:
        fleet.client.delete(fleet.key(name))
        fleet.client.rpush(fleet.key(name), "a list")
    fleet.start()
    fleet.wait_for_slots(3, "sound")
    for name in ("marks", "changes", "counters"):  # under a leader
        fleet.client.set(fleet.key(name), "a string")
    fleet.wait_for_slots(len(fleet.slots("sound")) + 2, "sound")
    slots = fleet.slots("sound")
    assert len(set(slots)) == len(slots)
    aside = [key.split(":")[2] for key in fleet.client.scan_iter(f"{PREFIX}:*:damaged:*")]
    assert set(aside) == set(KEYS)
    assert len(aside) == len(KEYS) + 3
