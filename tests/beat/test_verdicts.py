"""Each slot has one verdict and is counted once, whatever becomes of the nodes, the store and the broker."""

from dataclasses import replace
from datetime import timedelta

import pytest
from celery.schedules import crontab
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.exceptions import OperationalError

from celery_singlebeat.errors import NotLeader
from celery_singlebeat.events import SlotDispatched, SlotSkipped, SlotsSkipped
from celery_singlebeat.policy.entries import EntryRules
from celery_singlebeat.policy.pauses import Pause
from celery_singlebeat.policy.slots import Misfire, MissedRules
from celery_singlebeat.testing import FakeClock, MemoryBeatStore
from tests.beat.test_dispatcher import Beat, every

SCHEDULES = [lambda: every(1), lambda: every(60.5), crontab, lambda: crontab(minute="*/20")]
RULES = st.builds(
    MissedRules,
    misfire=st.sampled_from(Misfire),
    grace=st.sampled_from([None, 5.0, 100.0]),
    deadline=st.sampled_from([None, 50.0]),
    limit=st.sampled_from([0, 3, 100]),
)
#: What befalls one of two nodes at its turn.
TURNS = [
    "nothing",
    "nothing",
    "its answer is lost",
    "it is cut off",
    "no message",
    "no broker",
    "pause",
    "end",
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.booleans(),  # the other one loses the lease before
        st.sampled_from(TURNS),
        st.sampled_from([0.1, 1, 19, 25, 130, 3000]),
    ),
    max_size=25,
)


class Two:
    """Two nodes that share an entry "e", a store and a clock."""

    def __init__(self, rules, when):
        self.clock = FakeClock()
        self.store = MemoryBeatStore(self.clock)
        self.rules, self.when = rules, when
        self.nodes = {name: self.node(name) for name in "ab"}
        self.pause = None

    def node(self, name):
        made = Beat(name, self.clock, self.store)
        made.schedule(rules={"e": self.rules}, e=self.when())
        return made

    def depose(self, node):
        try:
            self.store.release(node.elector.term().grant)
        except NotLeader:
            pass

    def pause_or_resume(self):
        if self.pause is None or self.pause.until is not None:
            self.pause = Pause(self.clock.now())
        else:
            self.pause = replace(self.pause, until=self.clock.now())
            self.end_run()
        for node in self.nodes.values():
            node.agenda.pauses = {"e": self.pause}

    def end_run(self):
        running = self.store._kept.schedule.running.get("e")
        if running is not None:
            self.store.schedule.finish("e", running[1])

    def turn(self, node, trouble):
        if trouble == "its answer is lost":
            node.store.lose_reply_once("emit")
        elif trouble == "it is cut off":
            node.store.cut_off()
        elif trouble in ("no message", "no broker"):
            node.trouble["e"] = TypeError("bad") if trouble == "no message" else OperationalError("down")
        elif trouble == "pause":
            self.pause_or_resume()
        elif trouble == "end":
            self.end_run()
        try:
            node.step()
            node.lead(renew=False)
        except NotLeader:
            pass
        node.store.heal()
        node.trouble.clear()

    def come_to_rest(self):
        """A third node takes over and leaves nothing undone."""
        if self.pause is not None and self.pause.until is None:
            self.pause_or_resume()
        for node in self.nodes.values():
            self.depose(node)
        last = self.nodes["c"] = self.node("c")
        last.agenda.pauses = {"e": self.pause} if self.pause else {}
        for _ in range(3):
            self.end_run()
            last.step()
            last.lead()
            self.clock.advance(0.3)

    def slots(self):
        """How many slots there are from the anchor up to the mark."""
        memory, line = self.store.remember(), next(iter(self.nodes["c"].agenda))
        if "e" not in memory.marks:
            return 0
        anchor = moment = memory.entries["e"].anchor
        found = 0
        while (moment := line.timetable.after(moment, anchor=anchor)) <= memory.marks["e"]:
            found += 1
        return found

    def told(self, kind):
        return [event for node in self.nodes.values() for event in node.told if isinstance(event, kind)]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    missed=RULES,
    jitter=st.sampled_from([0, 0.5, 5000]),
    overlap=st.sampled_from(["allow", "skip", "queue"]),
    when=st.sampled_from(SCHEDULES),
    steps=STEPS,
)
def test_dispatched_and_missed_slots_together_are_those_that_were_due(missed, jitter, overlap, when, steps):
    # S1
    if overlap == "queue":
        missed = replace(missed, misfire=Misfire.LATEST, failover=0.0)
    two = Two(EntryRules(missed=missed, jitter=jitter, overlap=overlap), when)
    for name, takes_over, trouble, seconds in steps:
        two.clock.advance(seconds)
        if takes_over:
            two.depose(two.nodes["b" if name == "a" else "a"])
        two.turn(two.nodes[name], trouble)
    two.come_to_rest()
    counters, sent = two.store.overview().counters, two.store.queues.get("q", [])
    assert len(sent) == len(set(sent)) == counters.get("dispatched", 0)
    assert counters.get("dispatched", 0) + counters.get("missed", 0) == two.slots()
    assert len(two.told(SlotDispatched)) <= counters.get("dispatched", 0)


@pytest.mark.parametrize("misfire", Misfire)
def test_what_happened_to_slots_is_told_although_the_answer_of_the_store_was_lost(misfire):  # B3
    two = Two(EntryRules(missed=MissedRules(misfire=misfire, limit=2)), lambda: every(60))
    node = two.nodes["a"]
    two.turn(node, "nothing")
    two.clock.advance(3600)
    two.turn(node, "its answer is lost")
    two.turn(node, "nothing")
    counters = two.store.overview().counters
    skipped = len(two.told(SlotSkipped)) + sum(event.count for event in two.told(SlotsSkipped))
    assert skipped == counters["missed"] >= 57
    assert len(two.told(SlotDispatched)) == counters.get("dispatched", 0) == 60 - skipped


def test_as_many_slots_are_caught_up_as_the_limit_says():
    rules = MissedRules(misfire=Misfire.ALL, limit=3000)
    two = Two(EntryRules(missed=rules), lambda: every(10))
    node = two.nodes["a"]
    two.turn(node, "nothing")
    two.clock.advance(5000 * 10)
    two.turn(node, "nothing")
    counters = two.store.overview().counters
    on_time = 3  # within a failover
    assert (counters["dispatched"], counters["missed"]) == (3000 + on_time, 2000 - on_time)
    oldest = two.told(SlotDispatched)[0].slot
    assert two.clock.now() - oldest == timedelta(seconds=(3000 + on_time - 1) * 10)
