"""A leader, a standby and their store, each with a clock of its own, of which some are set to another time.

No threads: time passes in small steps, on all clocks at once. What is sent is judged by a clock that nobody
sets.
"""

import itertools
from collections import Counter
from datetime import timedelta

import pytest
from celery.schedules import crontab, schedule

from celery_singlebeat.errors import NotLeader
from celery_singlebeat.events import SlotDispatched, SlotRefused
from celery_singlebeat.policy.entries import EntryRules
from celery_singlebeat.policy.slots import Misfire, MissedRules
from celery_singlebeat.testing import FakeClock, MemoryBeatStore
from tests.beat.test_dispatcher import Beat

STEP = 0.05
HOUR = 3600.0
#: Seconds. A slot may be overdue for 0.3 s, the takeover grace; then a standby bids within a tenth of one.
PROMPT = 1.0
EVERY = timedelta(seconds=1)
ALL = EntryRules(missed=MissedRules(misfire=Misfire.ALL, limit=100_000))


class Decided(schedule):
    """A schedule that decides itself when it is due."""

    def is_due(self, last_run_at):
        return super().is_due(last_run_at)


class Scene:
    """Two replicas and the store; `true` is the clock by which they are judged."""

    def __init__(self, **entries):
        self.true = FakeClock()
        self.clocks = {name: FakeClock() for name in ("leader", "standby", "store")}
        store = MemoryBeatStore(self.clocks["store"])
        self.sent = []
        self.beats = {}
        for name in ("leader", "standby"):
            beat = self.beats[name] = Beat(name, self.clocks[name], store)
            beat.schedule(
                rules=dict.fromkeys(entries, ALL), **{key: make(beat) for key, make in entries.items()}
            )
        self._due = dict.fromkeys(self.beats, 0.0)
        self._passed = 0.0
        self.pass_time(0.0)
        assert self.leads("leader")

    def leads(self, name):
        try:
            self.beats[name].elector.term()
        except NotLeader:
            return False
        return True

    def set(self, *names, hours):
        for name in names:
            self.clocks[name].step_wall(hours * HOUR)

    def set_while_a_message_is_made(self, *names, hours):
        """The clocks are set in the midst of the next tick that dispatches."""
        for beat in self.beats.values():
            beat.dispatcher._send = self._between(beat, names, hours)

    def _between(self, beat, names, hours):
        def send(entry):
            for each in self.beats.values():
                each.dispatcher._send = each.send
            self.set(*names, hours=hours)
            beat.send(entry)

        return send

    def pass_time(self, seconds):
        for _ in range(round(seconds / STEP) + 1):
            for name, beat in self.beats.items():
                self._turn(name, beat)
            self._passed += STEP
            for clock in (self.true, *self.clocks.values()):
                clock.advance(STEP)

    def _turn(self, name, beat):
        told = len(beat.told)
        if self._due[name] <= self._passed:
            listens = beat.ears.listen(beat.elector.nonce)
            self._due[name] = self._passed + beat.elector.step(turning=True, listens=listens)
        if self.leads(name):
            beat.lead(renew=False)
        else:
            beat.dispatcher.forget()
            beat.watch.turn()
        now = self.true.now()
        events = [event for event in beat.told[told:] if isinstance(event, SlotDispatched)]
        self.sent += [(event.entry, event.slot, now) for event in events]

    def refused(self):
        return sum(isinstance(event, SlotRefused) for beat in self.beats.values() for event in beat.told)

    def assert_every_slot_was_sent_once(self, entry, *, latest):
        """In order, none early, none later than so many seconds."""
        found = [(slot, at) for name, slot, at in self.sent if name == entry]
        slots = [slot for slot, _ in found]
        assert [slot for slot, count in Counter(slots).items() if count > 1] == []
        assert {later - earlier for earlier, later in itertools.pairwise(slots)} == {EVERY}
        lateness = [(at - slot).total_seconds() for slot, at in found]
        assert min(lateness) >= 0
        assert max(lateness) <= latest


def tick(_):
    return schedule(EVERY)


WHEN = [Scene.set, Scene.set_while_a_message_is_made]


@pytest.mark.parametrize("step", WHEN, ids=["between ticks", "during a tick"])
@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize(
    "names",
    [("leader",), ("standby",), ("store",), ("leader", "standby")],
    ids=["leader", "standby", "store", "every replica"],
)
def test_a_clock_that_is_set_and_set_right_sends_nothing_early_or_twice(names, hours, step):  # G5, C3
    scene = Scene(tick=tick)
    scene.pass_time(3)
    step(scene, *names, hours=hours)
    away = 6.0
    scene.pass_time(away)
    waits = hours < 0 and names not in [("leader",), ("standby",)]
    assert (len(scene.sent) <= 5) == waits
    step(scene, *names, hours=-hours) if not waits else scene.set(*names, hours=-hours)
    scene.pass_time(6)
    scene.assert_every_slot_was_sent_once(
        "tick", latest=PROMPT + (away + EVERY.total_seconds() if waits else 0)
    )
    assert len(scene.sent) >= 14


def test_a_leader_whose_clock_was_set_back_is_replaced_as_soon_as_a_slot_is_overdue():  # G5
    scene = Scene(tick=tick)
    scene.pass_time(3)
    scene.set("leader", hours=-1)
    scene.pass_time(1 + PROMPT)
    assert scene.leads("standby")


def test_a_store_whose_clock_was_set_back_is_not_asked_without_end():  # G5
    """Neither in the tick that notices, nor until the step is known by the next renewal."""
    scene = Scene(tick=tick)
    scene.pass_time(3)
    beat, asked = scene.beats["leader"], []
    emit = beat.store.emit

    def counted(*args, **kwargs):
        asked.append(scene.true.now())
        if len(asked) > 1000:
            raise AssertionError("it asks without end")
        return emit(*args, **kwargs)

    beat.store.emit = counted
    scene.set_while_a_message_is_made("store", hours=-1)
    scene.pass_time(10)
    assert max(Counter(asked).values()) == 1
    assert scene.refused() <= 3 / STEP


@pytest.mark.parametrize("hours", [0, 1, -1])
@pytest.mark.parametrize("name", ["leader", "store"])
def test_a_schedule_that_decides_itself_does_so_by_both_clocks(name, hours):  # G5, T4
    scene = Scene(
        own=lambda beat: Decided(EVERY, nowfun=beat.clock.now),
        cron=lambda beat: DecidedCron(minute="*", nowfun=beat.clock.now),
    )
    scene.pass_time(3)
    scene.set(name, hours=hours)
    scene.pass_time(70)
    scene.set(name, hours=-hours)
    scene.pass_time(70)
    times = {entry: [at for each, _, at in scene.sent if each == entry] for entry in ("own", "cron")}
    gaps = [later - earlier for earlier, later in itertools.pairwise(times["own"])]
    assert min(gaps) >= EVERY
    assert all(at.second < 35 for at in times["cron"])
    assert len({at.minute for at in times["cron"]}) == len(times["cron"])
    if hours >= 0:
        assert len(times["own"]) >= 120
        assert len(times["cron"]) == 2


class DecidedCron(crontab):
    """A crontab of which the same is true."""

    def is_due(self, last_run_at):
        return super().is_due(last_run_at)


def test_a_schedule_that_decides_itself_is_not_asked_while_nothing_can_be_claimed():  # T4
    """It may change itself when it says yes, and the slot would be refused."""
    asked = []

    class Noted(Decided):
        def is_due(self, last_run_at):
            asked.append(last_run_at)
            return super().is_due(last_run_at)

    scene = Scene(own=lambda beat: Noted(EVERY, nowfun=beat.clock.now))
    scene.pass_time(5)
    scene.set("store", hours=-1)
    scene.pass_time(4)  # until the step is known
    asked.clear()
    scene.pass_time(20)
    assert asked == []


def test_asking_leaves_the_clock_of_such_a_schedule_as_it_was():  # T4
    scene = Scene(own=lambda beat: Decided(EVERY, nowfun=beat.clock.now))
    scene.set("leader", hours=1)
    scene.pass_time(3)
    (line,) = scene.beats["leader"].agenda
    assert "now" not in vars(line.entry.schedule)
    assert line.entry.schedule.now() == scene.clocks["leader"].now()
