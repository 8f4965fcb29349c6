"""The parts of one beat together, over a store in memory and with their real threads."""

from dataclasses import replace
from datetime import timedelta

import pytest
from celery import Celery, signals

from celery_singlebeat import Schedule, SingleBeatScheduler
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.moments import Monotonic
from celery_singlebeat.policy.leases import begin_term
from celery_singlebeat.testing.processes import wait_until


@pytest.fixture
def scheduler():
    app = Celery("machine", broker="memory://", set_as_current=False)
    app.conf.update(
        beat_schedule={"tick": {"task": "tick", "schedule": 3600}},
        result_expires=None,
        task_ignore_result=True,
        singlebeat_prefix="machine",
        singlebeat_renew_every=0.05,
    )
    made = SingleBeatScheduler(app)
    wait_until(lambda: made.tick() and made._machine.dispatcher.is_adopted, 10, "never led")
    yield made
    made.close()


@pytest.fixture
def published():
    """What Celery has made messages of; the first one finds trust gone, as after a late renewal."""
    found, hooks = [], []

    def hear(headers=None, **_):
        found.append(headers["singlebeat_slot"])
        while hooks:
            hooks.pop()()

    signals.before_task_publish.connect(hear, weak=False)
    yield found, hooks
    signals.before_task_publish.disconnect(hear)


def test_trust_that_lapses_between_making_a_message_and_emitting_it_costs_no_slot(scheduler, published):  # B2
    machine, (found, hooks) = scheduler._machine, published
    (line,) = machine.agenda
    line.anchor = line.last = machine.elector.due_now() - timedelta(seconds=3601)
    machine.agenda.put(line)
    anchor = line.anchor

    def lapse():
        grant = machine.elector.term().grant
        machine.elector._term = begin_term(grant, asked_at=Monotonic(0.0), ttl=1)

    hooks.append(lapse)
    scheduler.tick()
    assert len(found) == 1
    assert line.mark is None
    wait_until(machine._may_lead, 10, "the heartbeat did not renew")  # before the loop has noticed anything
    # the store knows the anchor of the first tick; give it the one of this test
    machine._store._kept.entries["tick"] = type(machine._store._kept.entries["tick"])(anchor, line.rule)
    wait_until(lambda: scheduler.tick() and line.mark is not None, 10, "the slot was lost")
    assert len(set(found)) == 1


@pytest.mark.parametrize("fault", ["no answer", "damaged"])
def test_an_added_entry_whose_state_cannot_be_read_runs_all_the_same(scheduler, published, fault):  # G8
    machine, (found, _) = scheduler._machine, published
    schedule = Schedule(scheduler.app)
    remember = machine._store.remember

    def once(names=None):
        machine._store.remember = remember
        if fault == "no answer":
            raise StoreUnavailable("remember")
        return replace(remember(names), unreadable=tuple(names))

    machine._store.remember = once
    schedule.add("new", "tick", 0.05)
    wait_until(lambda: scheduler.tick() and len(found) >= 3, 10, "it does not run")
    assert len(set(found)) == len(found)
