"""From due lines to claims, with a clock that is moved and a store that fails."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from kombu.exceptions import OperationalError

from celery_singlebeat.beat.dispatcher import BATCH_LINES, Dispatcher
from celery_singlebeat.beat.dynamic import Dynamic
from celery_singlebeat.beat.elector import Elector, Timing
from celery_singlebeat.beat.lines import MOST_COUNTED, Agenda, make_line
from celery_singlebeat.beat.watch import MOST_WATCHED, Watch
from celery_singlebeat.errors import Deposed, NotLeader, StoreUnavailable
from celery_singlebeat.events import EntryParked, SlotDispatched, SlotRefused, SlotSkipped
from celery_singlebeat.messages import current_tray
from celery_singlebeat.policy.entries import EntryRules
from celery_singlebeat.policy.slots import Misfire, MissedRules
from celery_singlebeat.store.ports import Candidate, Push
from celery_singlebeat.testing import FakeClock, FaultyStore, MemoryBeatStore

APP = Celery("dispatch", broker="memory://", set_as_current=False)


class Beat:
    """The parts of one beat process, without threads: what the mixin puts together."""

    def __init__(self, name, clock, store):
        self.clock = clock
        self.told = []
        self.sent = []
        self.trouble = {}
        self.store = FaultyStore(store, clock)
        self.ears = store.ears()
        candidate = Candidate(node=name, host="h", pid=1)
        timing = Timing(ttl=100_000, renew_every=3, grace=0.3)
        self.elector = Elector(self.store, candidate, timing, clock=clock, tell=self.told.append)
        self.agenda = Agenda(self.told.append, self.elector.due_now)
        self.dispatcher = Dispatcher(
            self.agenda,
            self.store,
            self.elector,
            send=self.send,
            prefix="test",
            tell=self.told.append,
            kept=lambda records: None,
            drain=lambda: None,
            pulse=lambda: None,
            changes=Dynamic(self.store.schedule, self.line, clock),
            clock=clock,
            patience=0.1,
        )
        self.watch = Watch(self.agenda, self.store, self.elector, grace=0.3, clock=clock)

    def line(self, name, record):
        raise NotImplementedError  # these tests add no dynamic entry, so nothing may ask for one

    def schedule(self, parked=None, rules=None, **entries):
        lines = []
        for name, when in entries.items():
            when.app = APP
            entry = ScheduleEntry(name, "task", schedule=when, options={"headers": {"own": 1}}, app=APP)
            line_rules = (rules or {}).get(name) or EntryRules(missed=MissedRules())
            lines.append(make_line(name, entry, line_rules))
        self.agenda.fill(lines, parked or {})
        self.elector.describe(self.agenda.digest())
        self.watch.start_over()
        self.dispatcher.forget()

    def send(self, entry):
        tray = current_tray()
        self.sent.append(entry)
        if entry.name in self.trouble:
            tray.error = self.trouble[entry.name]
            return
        tray.writes.append(Push("q", entry.options["task_id"]))

    def step(self):
        self.elector.step(turning=True, listens=self.ears.listen(self.elector.nonce))

    def lead(self, *, renew=True):
        """A renewal, which also samples the store's clock, and one tick of a leader."""
        if renew:
            self.step()
        grant = self.elector.term().grant
        try:
            self.dispatcher.adopt(grant)
            self.dispatcher.turn(grant)
        except StoreUnavailable:
            pass  # the machine comes back at its next turn

    def slots(self, kind=SlotDispatched):
        return [(event.entry, event.slot) for event in self.told if isinstance(event, kind)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return MemoryBeatStore(clock)


@pytest.fixture
def beat(clock, store):
    made = Beat("a", clock, store)
    made.step()
    return made


def every(seconds):
    return schedule(seconds)


def test_a_new_entry_runs_a_period_after_it_was_first_seen(beat, clock, store):
    beat.schedule(report=every(10))
    start = clock.now()
    beat.lead()
    clock.advance(9.9)
    beat.lead()
    assert beat.slots() == []
    clock.advance(0.1)
    beat.lead()
    assert beat.slots() == [("report", start + timedelta(seconds=10))]
    assert len(store.queues["q"]) == 1


def test_a_message_carries_its_slot_epoch_and_a_deterministic_id(beat, clock):
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    (entry,) = beat.sent
    headers = entry.options["headers"]
    assert headers["singlebeat_entry"] == "report"
    assert headers["singlebeat_slot"] == "2026-03-02T12:00:10+00:00"
    assert headers["singlebeat_epoch"] == beat.elector.term().epoch
    assert headers["singlebeat_trigger"] == "schedule"
    assert headers["own"] == 1
    twin = Beat("b", clock, MemoryBeatStore(clock))
    twin.step()
    clock.advance(-10)
    twin.schedule(report=every(10))
    twin.lead()
    clock.advance(10)
    twin.lead()
    assert twin.sent[0].options["task_id"] == entry.options["task_id"]


def test_the_users_options_are_not_touched_and_an_own_task_id_wins(beat, clock):
    beat.schedule(report=every(10))
    line = next(iter(beat.agenda))
    line.entry.options = {"task_id": "mine", "queue": "x"}
    beat.lead()
    clock.advance(10)
    beat.lead()
    assert beat.sent[0].options["task_id"] == "mine"
    assert line.entry.options == {"task_id": "mine", "queue": "x"}


def test_an_unanswered_emission_is_repeated_as_the_same_slot(beat, clock, store):  # B3, M3
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    beat.store.lose_reply_once("emit")
    beat.lead()
    assert beat.slots() == []
    beat.lead()
    assert len(store.queues["q"]) == 1
    assert len(beat.sent) == 1
    assert len(beat.slots()) == 1


def test_a_slot_that_was_not_emitted_stays_due(beat, clock, store):  # B3
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    beat.store.cut_off()
    beat.lead()
    assert "q" not in store.queues
    beat.store.heal()
    beat.lead()
    assert len(store.queues["q"]) == 1


def test_a_deposed_leader_is_refused_and_stands_down(beat, clock, store):  # B1, B2
    beat.schedule(report=every(10))
    beat.lead()
    grant = beat.elector.term().grant
    store.release(grant)
    other = Beat("b", clock, store)
    other.step()
    clock.advance(10.1)
    beat.lead(renew=False)
    assert beat.slots(SlotRefused) == [("report", clock.now() - timedelta(seconds=0.1))]
    with pytest.raises(NotLeader):
        beat.elector.term()
    assert "q" not in store.queues


def test_a_new_leader_goes_on_where_the_old_one_stood(beat, clock, store):
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    beat.elector.close()
    clock.advance(5)
    other = Beat("b", clock, store)
    other.schedule(report=every(10))
    other.step()
    other.lead()
    assert other.slots() == []
    clock.advance(5)
    other.lead()
    assert other.slots() == [("report", clock.now())]


def test_restarting_more_often_than_the_interval_starves_nothing(clock, store):  # T1
    start = clock.now()
    for number in range(11):
        beat = Beat(f"n{number}", clock, store)
        beat.schedule(weekly=every(10))
        beat.step()
        beat.lead()
        clock.advance(3)
        beat.lead()
        beat.elector.close()
    assert list(store.queues["q"]) == list(dict.fromkeys(store.queues["q"]))
    assert len(store.queues["q"]) == 3
    assert store.remember().marks["weekly"] == start + timedelta(seconds=30)


def test_a_leader_looks_again_after_the_store_was_silent(beat, clock, store):  # G1
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    lost = clock.now()
    beat.lead()
    # the server comes back without its newest writes: the mark and the message are gone together
    store.forget("report")
    beat.store.lose_reply_once("renew")
    clock.advance(1)
    beat.lead()
    assert beat.slots() == [("report", lost)] * 2
    assert len(store.queues["q"]) == 1


@pytest.mark.parametrize("noticed_by", ["the next slot", "a renewal"])
def test_a_loss_that_no_error_announces_is_noticed(beat, clock, store, noticed_by):  # G1
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    lost = clock.now()
    beat.lead()
    store.forget("report")
    if noticed_by == "the next slot":
        clock.advance(10.1)
        beat.lead(renew=False)
        beat.lead(renew=False)
        assert [slot for _, slot in beat.slots()] == [lost, lost, lost + timedelta(seconds=10)]
    else:
        clock.advance(1)
        beat.lead()
        assert [slot for _, slot in beat.slots()] == [lost, lost]
    assert len(store.queues["q"]) == len(beat.slots()) - 1


def test_a_leader_goes_on_where_it_stands_when_the_store_has_lost_everything(beat, clock, store):
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    store.forget()
    beat.elector.silences += 1
    beat.step()  # the lease is gone as well
    clock.advance(1)
    beat.lead()
    clock.advance(9)
    beat.lead()
    assert [slot.second for _, slot in beat.slots()] == [10, 20]


def test_a_store_that_has_lost_everything_learns_where_entries_stand_for_the_other_nodes(beat, clock, store):
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    store.forget()
    beat.elector.silences += 1
    beat.step()
    clock.advance(1)
    beat.lead()
    other = Beat("b", clock, store)
    other.schedule(report=every(10))
    store.release(beat.elector.term().grant)
    other.step()
    clock.advance(9)
    other.lead()
    assert [slot.second for _, slot in other.slots()] == [20]


def test_what_a_standby_only_believes_dispatched_is_due_when_the_store_has_lost_everything(
    beat, clock, store
):
    names = [f"e{n}" for n in range(2 * MOST_WATCHED)]
    beat.schedule(**{name: every(10) for name in names})
    beat.lead()
    standby = Beat("b", clock, store)
    standby.schedule(**{name: every(10) for name in names})
    standby.step()
    standby.watch.turn()
    clock.advance(10.31)  # nobody has dispatched anything
    standby.watch.turn()
    store.forget()
    standby.step()
    standby.lead()
    assert {name for name, _ in standby.slots()} == set(names)


def test_an_entry_that_is_switched_on_starts_from_now(beat, clock):
    off = {"report": EntryRules(missed=MissedRules(), enabled=False)}
    beat.schedule(report=every(10), rules=off)
    beat.lead()
    clock.advance(25)
    beat.schedule(report=every(10))
    beat.lead()
    assert beat.slots() == []
    clock.advance(10)
    beat.lead()
    assert beat.slots() == [("report", clock.now())]


def test_a_changed_rule_starts_from_now(beat, clock, store):
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    clock.advance(3)
    beat.schedule(report=every(60))
    beat.lead()
    clock.advance(59)
    beat.lead()
    assert len(beat.slots()) == 1
    clock.advance(1)
    beat.lead()
    assert len(beat.slots()) == 2


def test_changed_arguments_reset_nothing(beat, clock):
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(6)
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(4)
    beat.lead()
    assert len(beat.slots()) == 1


@pytest.mark.parametrize(
    ("misfire", "sent", "missed"), [(Misfire.LATEST, 1, 11), (Misfire.ALL, 12, 0), (Misfire.SKIP, 0, 12)]
)
def test_missed_slots_follow_the_policy_and_are_counted(beat, clock, store, misfire, sent, missed):  # S1
    rules = {"report": EntryRules(missed=MissedRules(misfire=misfire))}
    beat.schedule(report=every(60), rules=rules)
    beat.lead()
    beat.elector.close()
    clock.advance(12 * 60 + 25)
    after = Beat("b", clock, store)
    after.schedule(report=every(60), rules=rules)
    after.step()
    after.lead()
    assert len(after.slots()) == sent
    assert len(after.slots(SlotSkipped)) == missed
    counters = store.overview().counters
    assert (counters.get("dispatched", 0), counters.get("missed", 0)) == (sent, missed)
    clock.advance(35)
    after.lead()
    assert len(after.slots()) == sent + 1


@pytest.mark.parametrize("period", [1, 0.333333])
def test_a_very_long_stop_is_caught_up_at_once_and_counted(beat, clock, store, period):  # S1
    every_period = every(period)
    beat.schedule(report=every_period)
    beat.lead()
    beat.elector.close()
    clock.advance(400 * 24 * 3600)
    after = Beat("b", clock, store)
    after.schedule(report=every_period)
    after.step()
    after.lead()
    assert (clock.now() - after.slots()[-1][1]).total_seconds() < period
    counters = store.overview().counters
    assert counters["dispatched"] + counters["missed"] == 400 * 24 * 3600 // period


@pytest.mark.slow
def test_each_slot_of_a_long_stop_is_counted_while_other_entries_run_on_time(beat, clock, store):  # S1
    entries, month = {"report": crontab(), "pulse": every(1)}, timedelta(days=30)
    beat.schedule(**entries)
    beat.lead()
    began = clock.now()
    beat.elector.close()
    clock.advance(month.total_seconds())
    after = Beat("b", clock, store)
    after.schedule(**entries)
    after.step()
    turns = 0
    while "report" not in dict(after.slots()):
        clock.advance(turns and 1)
        after.lead()
        turns += 1
        assert ("pulse", clock.now()) in after.slots()
    assert turns > month // timedelta(minutes=1) // MOST_COUNTED / 2
    counters, due = store.overview().counters, clock.now() - began
    assert counters["dispatched"] + counters["missed"] == due // timedelta(seconds=1) + due // timedelta(
        minutes=1
    )
    clock.advance(60)
    after.lead()
    assert [slot for name, slot in after.slots() if name == "report"] == [
        began + month,
        began + month + timedelta(minutes=1),
    ]


def test_more_lines_than_a_batch_holds_all_go_out(beat, clock, store):  # B7
    entries = {f"e{number}": every(10) for number in range(BATCH_LINES * 2 + 5)}
    beat.schedule(**entries)
    beat.lead()
    clock.advance(10)
    beat.lead()
    assert len(store.queues["q"]) == len(entries)


def test_an_entry_whose_message_cannot_be_made_is_skipped_and_the_others_run(beat, clock, store):  # B4
    beat.schedule(bad=every(10), good=every(10))
    beat.trouble["bad"] = TypeError("not serialisable")
    beat.lead()
    clock.advance(10)
    beat.lead()
    assert [name for name, _ in beat.slots()] == ["good"]
    assert [(event.entry, event.reason) for event in beat.told if isinstance(event, SlotSkipped)] == [
        ("bad", "error")
    ]
    assert store.remember().marks["bad"] == store.remember().marks["good"]


def test_a_broker_that_cannot_be_asked_leaves_the_slot_due(beat, clock, store):  # B4
    beat.schedule(report=every(10))
    beat.trouble["report"] = OperationalError("down")
    beat.lead()
    clock.advance(10)
    beat.lead()
    assert store.remember().marks == {}
    del beat.trouble["report"]
    clock.advance(1)
    beat.lead()
    assert beat.slots() == [("report", clock.now() - timedelta(seconds=1))]


def test_a_date_that_never_comes_parks_its_entry_alone(beat, clock):  # B4
    never = crontab(minute=0, hour=0, day_of_month=30, month_of_year="1,2")
    never.month_of_year = {2}
    beat.schedule(never=never, good=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    assert beat.agenda.parked == {"never": "its schedule has no next date"}
    assert [name for name, _ in beat.slots()] == ["good"]


class Broken(BaseSchedule):
    def is_due(self, last_run_at):
        raise RuntimeError("the database\nis away")


class Toggled(BaseSchedule):
    due = False

    def is_due(self, last_run_at):
        return schedstate(self.due, 5)


def test_an_entry_whose_schedule_raises_is_parked_and_asked_again(beat, clock):  # B4
    beat.schedule(bad=Broken(app=APP), good=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    assert [name for name, _ in beat.slots()] == ["good"]
    problem = "its schedule raises RuntimeError: the database is away"
    assert beat.agenda.parked == {"bad": problem}
    clock.advance(100)
    beat.lead()
    assert [event for event in beat.told if isinstance(event, EntryParked)] == [
        EntryParked(entry="bad", problem=problem)
    ]


class Answering(BaseSchedule):
    """Names its slots, and gets them wrong after its first one."""

    def __init__(self, answer):
        super().__init__(app=APP)
        self._answer = answer

    def slot_after(self, moment):
        if moment < FIRST:
            return FIRST
        return self._answer(moment)


FIRST = FakeClock().now() + timedelta(seconds=10)
WRONG_SLOTS = {
    "the same moment": lambda moment: moment,
    "an earlier one": lambda moment: moment - timedelta(days=1),
    "a naive one": lambda moment: moment.replace(tzinfo=None) + timedelta(seconds=1),
    "a date": lambda moment: moment.date(),
    "a number": lambda moment: 0.0,
    "the end of time": lambda moment: datetime.max.replace(tzinfo=timezone.utc),
}


@pytest.mark.parametrize("answer", WRONG_SLOTS)
def test_an_entry_that_names_a_wrong_slot_is_parked_and_the_others_run(beat, clock, answer):  # B4, T5, G8
    beat.schedule(bad=Answering(WRONG_SLOTS[answer]), good=every(10))
    beat.lead()
    for _ in range(3):
        clock.advance(10)
        beat.lead()
    assert [slot for name, slot in beat.slots() if name == "good"] == [
        FIRST + timedelta(seconds=n) for n in (0, 10, 20)
    ]
    (parked,) = [event for event in beat.told if isinstance(event, EntryParked)]
    assert parked.problem.startswith("its schedule raises ")


def test_a_slot_between_two_milliseconds_is_not_sent_early(beat, clock):  # T5
    odd = FIRST + timedelta(microseconds=1)
    beat.schedule(odd=Answering(lambda moment: odd if moment < odd else None))
    beat.lead()
    for seconds in (10, 0.001, 10):
        clock.advance(seconds)
        beat.lead()
    assert [slot for _, slot in beat.slots()] == [FIRST, FIRST + timedelta(milliseconds=1)]


def test_a_live_schedule_is_asked_until_it_says_yes(beat, clock):  # T4
    toggled = Toggled(app=APP)
    beat.schedule(mood=toggled)
    beat.lead()
    assert beat.slots() == []
    toggled.due = True
    clock.advance(4)
    beat.lead()
    assert beat.slots() == []
    clock.advance(1)
    beat.lead()
    assert beat.slots() == [("mood", clock.now())]


def test_a_disabled_entry_does_not_run(beat, clock):
    beat.schedule(off=every(10), rules={"off": EntryRules(missed=MissedRules(), enabled=False)})
    beat.lead()
    clock.advance(60)
    beat.lead()
    assert beat.slots() == []


def test_a_slot_is_not_emitted_before_both_clocks_agree(beat, clock, store):  # C3
    beat.schedule(report=every(10))
    beat.lead()
    clock.advance(5)
    clock.step_wall(3600)
    beat.lead(renew=False)
    # the store shares the fake wall clock, so only this process's estimate of it holds the slot back
    assert beat.slots() == []


def test_enrolling_is_refused_to_a_node_that_does_not_lead(beat, store):  # B5
    beat.schedule(report=every(10))
    grant = beat.elector.term().grant
    store.release(grant)
    with pytest.raises(Deposed):
        beat.dispatcher.adopt(grant)
    assert store.remember().entries == {}


def test_a_standby_sees_an_undispatched_slot_and_takes_over(beat, clock, store):  # B5, G4
    standby = Beat("b", clock, store)
    for one in (beat, standby):
        one.schedule(report=every(10), yearly=crontab(minute=0, hour=0, day_of_month=1, month_of_year=1))
    beat.elector.close()
    beat = Beat("a", clock, store)
    beat.schedule(report=every(10), yearly=crontab(minute=0, hour=0, day_of_month=1, month_of_year=1))
    beat.step()
    beat.lead()
    standby.step()
    standby.watch.turn()
    clock.advance(10.1)
    standby.watch.turn()
    standby.step()
    with pytest.raises(NotLeader):
        standby.elector.term()
    clock.advance(0.25)
    standby.watch.turn()
    standby.step()
    standby.lead()
    assert standby.slots() == [("report", clock.now() - timedelta(seconds=0.35))]


def test_a_standby_that_started_before_the_entries_were_enrolled_knows_them_soon(beat, clock, store):  # G4
    standby = Beat("b", clock, store)
    for one in (beat, standby):
        one.schedule(report=every(1))
    standby.step()
    standby.watch.turn()  # nobody has enrolled the entry yet
    beat.step()
    beat.lead()
    clock.advance(1)
    beat.lead()
    standby.watch.turn()
    clock.advance(1.35)
    standby.watch.turn()
    standby.step()
    assert standby.elector.term()


def test_a_leader_with_a_backlog_emits_in_small_batches(beat, clock, store):  # G9
    rules = {f"e{n}": EntryRules(missed=MissedRules(misfire=Misfire.ALL, limit=1000)) for n in range(5)}
    beat.schedule(rules=rules, **{name: every(1) for name in rules})
    beat.lead()
    clock.advance(200)
    send, emissions = beat.send, []

    def slow(entry):
        clock.advance(0.05)
        send(entry)

    beat.dispatcher._send = slow
    emit = store.emit
    store.emit = lambda grant, claims, **_: emissions.append(len(claims)) or emit(grant, claims)
    beat.lead()
    assert sum(emissions) == 1000
    assert max(emissions) <= 4
    assert len(set(beat.slots())) == 1000


def test_a_new_entry_gets_no_past_from_a_clock_that_is_behind(beat, clock, store):  # G5
    beat.schedule(known=every(10))
    beat.lead()
    clock.advance(10)
    beat.lead()
    newest = clock.now()
    clock.step_wall(-3600)
    beat.schedule(known=every(10), fresh=every(10))
    beat.lead()
    assert store.remember().entries["fresh"].anchor == newest


def damage(store, entry, mark):
    if mark is None:  # what a store says of a mark that is no number
        remember = store.remember
        store.remember = lambda: replace(remember(), unreadable=(entry,))
        store._kept.marks.pop(entry)
    else:
        store._kept.marks[entry] = mark


@pytest.mark.parametrize("mark", [None, datetime(3000, 1, 1, tzinfo=timezone.utc)])
def test_damaged_state_of_one_entry_repeats_nothing_and_stops_nobody(beat, clock, store, mark):  # B4, G8
    rules = {name: EntryRules(missed=MissedRules(misfire=Misfire.ALL)) for name in ("bad", "good")}
    beat.schedule(bad=every(10), good=every(10), rules=rules)
    beat.lead()
    for _ in range(5):
        clock.advance(10)
        beat.lead()
    beat.elector.close()
    damage(store, "bad", mark)
    after = Beat("b", clock, store)
    after.schedule(bad=every(10), good=every(10), fresh=every(10), rules=rules)
    after.step()
    after.lead()
    assert after.slots() == []
    store.__dict__.pop("remember", None)
    clock.advance(10)
    after.lead()
    assert sorted(name for name, _ in after.slots()) == ["bad", "fresh", "good"]


def test_state_that_stays_damaged_is_said_once(clock, store, caplog):
    leader, standby = Beat("a", clock, store), Beat("b", clock, store)
    leader.schedule(other=every(10))  # it does not mend what it does not have
    leader.step()
    leader.lead()
    store._kept.marks["bad"] = datetime(3000, 1, 1, tzinfo=timezone.utc)
    standby.schedule(bad=every(10))
    standby.step()
    for _ in range(10):
        clock.advance(6)
        standby.watch.turn()
    assert caplog.text.count("its stored state cannot be read") == 1


def test_a_standby_that_sees_every_slot_dispatched_stays_a_standby(clock, store):  # B5
    leader, standby = Beat("a", clock, store), Beat("b", clock, store)
    for one in (leader, standby):
        one.schedule(report=every(1), other=every(0.7))
    leader.step()
    leader.lead()
    for _ in range(200):
        clock.advance(0.05)
        leader.step()
        leader.lead()
        standby.step()
        standby.watch.turn()
    with pytest.raises(NotLeader):
        standby.elector.term()
    assert standby.told == []
