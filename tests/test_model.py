"""Every state of a small world: see `tests/model/__init__.py` for what is believed.

`python -m tests.model` walks larger worlds, and prints how many states there were.
"""

from __future__ import annotations

import re

import pytest
import redis

from celery_singlebeat.store import scripts
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.redis_beat import RedisBeatStore
from tests.model.conformance import memory_store, random_walks, redis_store, replay, short_walks
from tests.model.faults import FAULTS, FINDINGS
from tests.model.scopes import SMALL
from tests.model.search import walk
from tests.model.server import Guards
from tests.model.world import Scope


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_no_order_of_steps_sends_a_slot_twice_loses_it_or_gets_stuck(name):  # G1 G2 B1 B3 L4 M1 M3
    seen = SMALL[name].walk()
    assert not seen.broken, seen.told()
    assert seen.complete


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_guard_that_is_taken_out_is_missed_or_only_costs_elections(fault):  # G1 G2 G5
    seen = fault.walk()
    assert bool(seen.broken) == bool(fault.costs), seen.told()
    assert seen.broken.startswith(fault.costs), seen.told()


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
def test_a_loss_that_no_error_announces_is_noticed(finding):  # G1 G2
    seen = finding.walk()
    assert seen.broken.startswith(finding.costs), seen.told()
    assert bool(seen.broken) == bool(finding.costs), seen.told()


def test_one_lost_connection_does_not_cost_a_leader_its_lease():
    seen = walk(Scope(nodes=2, slots=1, strays=0, flaps=1))
    assert not seen.broken, seen.told()


def test_tokens_that_are_never_named_again_may_be_taken_for_one():
    """The reduction of `canonical` hides nothing: without it there are more states, and the same verdict."""
    scope = Scope(nodes=2, slots=1, strays=0)
    reduced, whole = walk(scope, liveness=True), walk(scope, liveness=True, dead=False)
    assert not whole.broken, whole.told()
    assert (reduced.broken, reduced.complete) == (whole.broken, whole.complete)
    assert reduced.states < whole.states


def test_a_trace_is_told_so_that_a_reader_can_follow():
    told = walk(Scope(nodes=2, strays=0), Guards(mark=False)).told()
    assert "A      sends an emission of p1" in told
    assert told.endswith("=> G1: a slot's message is enqueued twice")


# Conformance: the model's server is the oracle


def test_the_memory_store_does_what_the_model_does():  # M5
    for ops in [*short_walks(2), *random_walks(300, 25)]:
        replay(memory_store(), ops)


@pytest.fixture
def fresh_redis_store(redis_url):
    """Make an emptied store for each walk, over one client."""
    client = redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=5)
    keys = Keys("model")
    store = RedisBeatStore(lambda _hasty: redis.Redis.from_url(redis_url, decode_responses=True), keys)
    yield lambda: redis_store(client, store, keys)
    store.close()
    client.close()


@pytest.mark.redis
def test_the_scripts_do_what_the_model_does(fresh_redis_store):  # M1 M5
    for ops in [*short_walks(2), *random_walks(150, 20)]:
        replay(fresh_redis_store(), ops)


@pytest.mark.redis
@pytest.mark.parametrize(
    ("script", "guard"),
    [("slots_emit", "token"), ("slots_emit", "mark"), ("slots_emit", "time"), ("lease_release", "owner"),
     ("lease_renew", "owner")],
)  # fmt: skip
def test_the_model_notices_when_a_script_loses_a_guard(fresh_redis_store, monkeypatch, script, guard):  # M1
    whole = scripts.source

    def without(name):
        text = whole(name)
        return (
            re.sub(rf"-- guard: {guard}\n.*?-- end guard", "", text, flags=re.DOTALL)
            if name == script
            else text
        )

    monkeypatch.setattr(scripts, "source", without)

    def walks():
        for ops in [*short_walks(2), *random_walks(20, 25)]:
            replay(fresh_redis_store(), ops)

    with pytest.raises(AssertionError, match="and the model says"):
        walks()
