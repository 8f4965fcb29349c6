"""What operators are told of leadership, and how it is handed over."""

import uuid
from datetime import datetime

import pytest
from celery import Celery

from celery_singlebeat import Leadership, ResignRefused
from celery_singlebeat.store.ports import Candidate, NodeReport
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.wiring import wire
from tests.support.projects import SOURCE, Project

STUCK = (
    SOURCE
    + """

from kombu.exceptions import OperationalError


def route(name, args, kwargs, options, task=None, **_):
    if name == "proj.stuck":
        raise OperationalError("the broker does not say where this goes")


app.conf.task_routes = (route,)
app.conf.beat_schedule["stuck"] = {"task": "proj.stuck", "schedule": 0.5}
app.conf.beat_schedule["bad"] = {"task": "proj.tick", "schedule": "soon"}
"""
)


@pytest.fixture
def app():
    app = Celery("leadership", broker="memory://", set_as_current=False)
    app.conf.singlebeat_prefix = f"leadership:{uuid.uuid4()}"
    return app


@pytest.fixture
def store(app):
    return wire(app).beat_store()


def lead(store, node="a", pid=1):
    return store.bid("nonce", ttl=60, candidate=Candidate(node=node, host="h", pid=pid)).grant


def report(store, node, *, role="standby", pid=1, tick_age=0.0, **facts):
    facts = {"node": node, "host": "h", "pid": pid, "role": role, "tick_age": tick_age, **facts}
    store.report(NodeReport(**facts), keep=3600)


def standbys(app):
    return [node["node"] for node in Leadership(app).status()["standbys"]]


# Status


def test_the_leader_is_whoever_holds_the_lease(app, store):
    grant = lead(store)
    leader = Leadership(app).status()["leader"]
    assert leader.keys() == {"node", "host", "pid", "epoch", "since", "lease_remaining"}
    assert (leader["node"], leader["host"], leader["pid"], leader["epoch"]) == ("a", "h", 1, grant.epoch)
    assert datetime.fromisoformat(leader["since"]).utcoffset().total_seconds() == 0
    assert 50 < leader["lease_remaining"] <= 60


def test_a_beat_that_does_not_hold_the_lease_stands_by_whatever_it_said_last(app, store):
    """Reports are up to a second old: the new leader may still call itself a standby, and the old one not."""
    lead(store, "a")
    report(store, "a", role="standby")
    report(store, "b", role="leader", pid=2)
    assert standbys(app) == ["b"]


def test_two_beats_of_one_name_are_two_beats(app, store):
    lead(store, "a", pid=1)
    report(store, "a", pid=2)
    assert standbys(app) == ["a"]


def test_a_wedged_beat_does_not_stand_by(app, store):
    lead(store, "a")
    report(store, "b", pid=2, tick_age=10.5)
    assert standbys(app) == []


def test_the_leader_speaks_for_the_schedule(app, store):
    lead(store, "a")
    report(store, "a", entries=2, faulty={"x": "bad"}, overdue=("y",))
    report(store, "b", pid=2, entries=5, faulty={"z": "bad"}, overdue=("z",))
    found = Leadership(app).status()
    assert (found["entries"], found["faulty"], found["overdue"]) == (2, ["x"], ["y"])


def test_without_a_leader_the_standbys_speak(app, store):
    report(store, "a", entries=2, faulty={"x": "bad"})
    report(store, "b", pid=2, entries=2, overdue=("y",))
    found = Leadership(app).status()
    assert found["leader"] is None
    assert (found["entries"], found["faulty"], found["overdue"]) == (2, ["x"], ["y"])


def test_totals_are_those_of_the_store(app, store):
    lead(store)
    found = Leadership(app).status()
    assert [found[name] for name in ("dispatched", "refused", "missed", "elections")] == [0, 0, 0, 1]


@pytest.mark.redis
@pytest.mark.parametrize("overdue", [(), ("one",), ("one", "two")])
def test_a_report_comes_back_from_redis_as_it_was_given(redis_url, overdue):
    app = Celery("reports", broker=redis_url, set_as_current=False)
    store = wire(app).beat_store()
    report(store, "a", faulty={"x": "é"}, overdue=overdue, birth="pid:[1] 7", up=3.5, entries=4)
    (found,) = store.overview().nodes
    assert (found.overdue, found.birth, found.up, found.entries) == (overdue, "pid:[1] 7", 3.5, 4)
    assert found.faulty == {"x": "é"}
    store.close()


# Resign


def test_without_a_leader_nobody_can_hand_over(app):
    with pytest.raises(ResignRefused, match="nobody leads"):
        Leadership(app).resign()


def test_without_a_standby_the_leader_is_not_even_asked(app, store):
    lead(store)
    report(store, "a", role="leader")
    ears = store.ears()
    ears.listen("test")
    with pytest.raises(ResignRefused, match="start another beat first"):
        Leadership(app).resign()
    assert ears.hear(0.01) is None


def test_the_question_is_repeated_until_patience_ends(app, store):
    """A question is a published message: a leader that is just connecting again misses it."""
    grant = lead(store)
    report(store, "b", pid=2)
    ears = store.ears()
    ears.listen("test")
    with pytest.raises(ResignRefused, match="no other beat leads"):
        Leadership(app).resign(timeout=0.6)
    assert [ears.hear(0.01) for _ in range(2)] == [f"resign {grant.epoch}"] * 2


# Real beats


@pytest.fixture
def project(redis_url, tmp_path):
    project = Project(tmp_path, redis_url, source=STUCK)
    yield project
    project.end()


@pytest.fixture
def leadership(redis_url):
    return Leadership(Celery("proj", broker=redis_url, set_as_current=False))


def wait_for(leadership, condition, timeout=30):
    """Wait until the status fulfils the condition, and return that status."""
    return wait_until(
        lambda: condition(found := leadership.status()) and found,
        timeout,
        lambda: f"status: {leadership.status()}",
    )


@pytest.mark.process
@pytest.mark.redis
def test_another_beat_leads_after_the_leader_was_asked_to_resign(project, leadership):
    for _ in range(3):
        project.beat()
    before = wait_for(leadership, lambda found: found["leader"] and len(found["standbys"]) == 2)
    leader = leadership.resign()
    assert leader["node"] in [node["node"] for node in before["standbys"]]
    assert leader["epoch"] > before["leader"]["epoch"]
    after = wait_for(leadership, lambda found: len(found["standbys"]) == 2)
    assert after["leader"]["node"] == leader["node"]
    assert after["elections"] == 2


@pytest.mark.process
@pytest.mark.redis
def test_a_leader_alone_is_not_taken_from_its_work(project, leadership):
    project.beat()
    before = wait_for(leadership, lambda found: found["leader"])
    with pytest.raises(ResignRefused):
        leadership.resign()
    assert leadership.status()["leader"]["epoch"] == before["leader"]["epoch"]


@pytest.mark.process
@pytest.mark.redis
def test_a_killed_standby_is_not_counted_upon_for_long(project, leadership):
    project.beat()
    wait_for(leadership, lambda found: found["leader"])
    standby = project.beat()
    wait_for(leadership, lambda found: found["standbys"])
    standby.kill()
    wait_for(leadership, lambda found: not found["standbys"], 10)


@pytest.mark.process
@pytest.mark.redis
def test_a_slot_that_cannot_be_dispatched_is_overdue_and_a_bad_entry_is_faulty(project, leadership):
    project.beat()
    found = wait_for(leadership, lambda found: found["overdue"])
    assert found["overdue"] == ["stuck"]
    assert found["faulty"] == ["bad"]
    assert found["entries"] == 2
    wait_for(leadership, lambda found: found["dispatched"] > 0)
