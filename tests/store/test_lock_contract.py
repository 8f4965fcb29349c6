"""What every store of locks promises (N1 to N10 of `store.lock_ports`), asked of each of them."""

import itertools
import threading
import time
from functools import partial

import pytest
import redis

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.store.backed_locks import BackedLockStore
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.lock_ports import (
    Caller,
    Finished,
    Granted,
    Lease,
    Outcome,
    Poison,
    Renewal,
    Replaced,
    Ruling,
    Stale,
    Taken,
    Turn,
)
from celery_singlebeat.store.memory_locks import MemoryLockStore
from celery_singlebeat.store.redis_locks import RedisLockStore
from celery_singlebeat.store.redlock import RedlockBackend
from celery_singlebeat.testing import FakeClock

_prefixes = (f"locks{number}" for number in itertools.count(1))


class LockBench:
    """One store under test, whichever it is, with a way to let its time pass."""

    def __init__(self, store, wait, client=None, keys=None):
        self.store = store
        self.wait = wait
        self.client = client
        self.keys = keys

    def caller(self, task_id, **about):
        return Caller(**{"task": "t", "task_id": task_id, "host": "h", "pid": 1, **about})

    def acquire(self, key, token, task_id=None, *, ttl=60.0, limit=5, **about):
        turn = {name: about.pop(name) for name in ("turn", "hold") if name in about}
        caller = self.caller(task_id or f"call-{token}", **about)
        return self.store.acquire(key, token, ttl=ttl, caller=caller, poison_limit=limit, **turn)

    def release(self, key, token, task_id=None, outcome=Outcome.SUCCESS, **given):
        times = {name: given.pop(name) for name in ("hold", "dedupe_ttl", "settle") if name in given}
        caller = self.caller(task_id or f"call-{token}", **given)
        return self.store.release(key, token, caller=caller, outcome=outcome, **times)

    def renew(self, key, token, task_id=None, *, ttl=60.0):
        return self.store.renew([Lease(key, token, task_id or f"call-{token}")], ttl=ttl)[0]

    def holder(self, key):
        found = [record.holder.task_id for record in self.store.locks() if record.key == key]
        return found[0] if found else None

    def total(self, name):
        if self.client is None:
            return self.store.counters.get(name, 0)
        return int(self.client.hget(self.keys.counters, name) or 0)


def _redis_bench(url):
    keys = Keys(next(_prefixes))

    def connect():
        return redis.Redis.from_url(url, decode_responses=True, socket_timeout=5)

    return LockBench(RedisLockStore(connect, keys), time.sleep, connect(), keys)


def _backed(bench, backend, *, both=False):
    """The same record, with a backend that decides."""
    name = "redis+postgresql" if both else type(backend).__name__
    store = BackedLockStore(name, bench.store, backend, both=both)
    return LockBench(store, bench.wait, bench.client, bench.keys)


@pytest.fixture
def redis_bench(redis_url):
    yield from _open(_redis_bench(redis_url))


@pytest.fixture
def redlock_bench(redis_bench, lock_servers):
    connects = [partial(server.client, decode_responses=True) for server in lock_servers]
    keys = redis_bench.keys
    backend = RedlockBackend(connects, keys, patience=0.5, clock=SystemClock())
    yield _backed(redis_bench, backend)
    backend.close()


@pytest.fixture
def postgresql_bench(redis_bench, postgres_backend):
    return _backed(redis_bench, postgres_backend)


@pytest.fixture
def both_bench(redis_bench, postgres_backend):
    return _backed(redis_bench, postgres_backend, both=True)


_redis, _postgresql = pytest.mark.redis, pytest.mark.postgresql


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis", marks=_redis),
        pytest.param("redlock", marks=_redis),
        pytest.param("postgresql", marks=(_redis, _postgresql)),
        pytest.param("both", marks=(_redis, _postgresql)),
    ]
)
def bench(request):
    if request.param == "memory":
        clock = FakeClock()
        return LockBench(MemoryLockStore(clock), clock.advance)
    return request.getfixturevalue(f"{request.param}_bench")


@pytest.fixture(params=["memory", pytest.param("redis", marks=_redis)])
def record_bench(request):
    """The stores that keep the record."""
    if request.param == "memory":
        clock = FakeClock()
        return LockBench(MemoryLockStore(clock), clock.advance)
    return request.getfixturevalue("redis_bench")


def _open(bench):
    yield bench
    bench.store.close()
    bench.client.close()


# One token holds a key (N1, N3)


def test_a_free_key_goes_to_whoever_asks(bench):  # N1
    assert isinstance(bench.acquire("k", "a"), Granted)
    assert bench.holder("k") == "call-a"


def test_a_held_key_goes_to_nobody_else_and_the_answer_names_the_holder(bench):  # N1
    bench.acquire("k", "a", host="alpha", pid=7)
    answer = bench.acquire("k", "b")
    assert isinstance(answer, Taken)
    assert (answer.holder.task_id, answer.holder.host, answer.holder.pid) == ("call-a", "alpha", 7)
    assert not answer.same_call
    assert 50 < answer.remaining <= 60
    assert bench.total("lock_conflicts:t") == 1


def test_different_keys_do_not_meet(bench):
    bench.acquire("k", "a")
    assert isinstance(bench.acquire("l", "b"), Granted)


def test_asking_again_with_the_own_token_returns_the_same_grant(bench):  # N1, N6
    first = bench.acquire("k", "a")
    assert bench.acquire("k", "a") == first
    assert bench.total("lock_conflicts:t") == 0


def test_only_the_exact_token_renews(bench):  # N3, guard: owner
    bench.acquire("k", "a", ttl=60)
    assert bench.renew("k", "a")
    assert not bench.renew("k", "b")
    assert not bench.renew("other", "a")


def test_a_renewal_with_a_foreign_token_extends_nothing(bench):  # N3, guard: owner
    bench.acquire("k", "a", ttl=0.2)
    bench.renew("k", "b", ttl=60)
    bench.wait(0.3)
    assert isinstance(bench.acquire("k", "c"), Granted)


def test_only_the_exact_token_releases(bench):  # N3, guard: owner
    bench.acquire("k", "a")
    assert not bench.release("k", "b").held
    assert bench.holder("k") == "call-a"
    assert bench.release("k", "a").held
    assert bench.holder("k") is None


def test_a_holder_whose_lock_was_taken_over_neither_deletes_nor_extends_the_new_one(bench):  # N3
    bench.acquire("k", "a", ttl=0.1)
    bench.wait(0.2)
    new = bench.acquire("k", "b", ttl=60)
    assert isinstance(new, Granted)
    assert not bench.renew("k", "a", ttl=600)
    assert not bench.release("k", "a").held
    assert bench.holder("k") == "call-b"
    assert bench.renew("k", "b")


def test_a_release_says_when_another_copy_of_the_same_call_took_over(bench):
    bench.acquire("k", "a", "call", ttl=0.1)
    bench.wait(0.2)
    bench.acquire("k", "b", "call", ttl=60)
    released = bench.release("k", "a", "call", Outcome.FAILURE)
    assert (released.held, released.same_call) == (False, True)
    assert bench.holder("k") == "call"


# Fences (N2)


def test_every_grant_has_a_larger_fence(bench):  # N2
    fences = []
    for number in range(20):
        key = f"k{number % 3}"
        fences.append(bench.acquire(key, f"t{number}").fence)
        bench.release(key, f"t{number}")
    assert fences == sorted(set(fences))


def test_fences_grow_after_everything_was_lost(redis_bench):  # N2
    first = redis_bench.acquire("k", "a").fence
    redis_bench.client.flushdb()
    assert redis_bench.acquire("k", "b").fence > first


# Expiry (N4)


def test_a_lock_without_a_living_holder_frees_itself(bench):  # N4
    bench.acquire("k", "a", ttl=0.5)
    assert isinstance(bench.acquire("k", "b"), Taken)
    bench.wait(0.6)
    assert isinstance(bench.acquire("k", "b"), Granted)


def test_a_renewed_lock_outlives_its_ttl(bench):  # N4
    bench.acquire("k", "a", ttl=0.6)
    for _ in range(4):
        bench.wait(0.2)
        assert bench.renew("k", "a", ttl=0.6)
    assert isinstance(bench.acquire("k", "b"), Taken)


def test_every_key_but_the_counters_expires(redis_bench):  # N4
    redis_bench.acquire("k", "a")
    redis_bench.acquire("l", "b")
    redis_bench.release("l", "b", dedupe_ttl=60)
    redis_bench.acquire("m", "c")
    redis_bench.release("m", "c", outcome=Outcome.RETRY, hold=5)
    redis_bench.acquire("n", "d", replays=2)
    redis_bench.release("n", "d", outcome=Outcome.FAILURE, replays=2)
    redis_bench.store.buried("call-e", replays=0)
    redis_bench.acquire("k", "f", turn=Turn.REPLACE, hold=5)
    redis_bench.acquire("k", "g", turn=Turn.REPLACE, hold=5)
    redis_bench.release("k", "a", outcome=Outcome.FAILURE)
    lasting = {redis_bench.keys.fence, redis_bench.keys.counters}
    names = list(redis_bench.client.scan_iter(f"{redis_bench.keys.prefix}*"))
    assert len(names) > 6
    assert {name for name in names if redis_bench.client.pttl(name) < 0} == lasting


# Outcomes (N5)


def test_a_finished_call_is_not_granted_again(bench):  # N5
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", dedupe_ttl=60)
    assert bench.acquire("k", "b", "call") == Finished(continued=False)
    bench.store.continued("call")
    assert bench.acquire("k", "b", "call") == Finished(continued=True)
    assert isinstance(bench.acquire("k", "c", "another call"), Granted)


def test_a_finished_call_is_forgotten_in_time(bench):  # N5
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", dedupe_ttl=0.1)
    bench.wait(0.2)
    assert isinstance(bench.acquire("k", "b", "call"), Granted)


def test_without_dedupe_a_finished_call_runs_again(bench):
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", dedupe_ttl=0)
    assert isinstance(bench.acquire("k", "b", "call"), Granted)


def test_a_success_is_noted_also_when_the_lock_was_lost(bench):  # N5
    bench.acquire("k", "a", "call", ttl=0.1)
    bench.wait(0.2)
    assert not bench.release("k", "a", "call", dedupe_ttl=60).held
    assert isinstance(bench.acquire("k", "b", "call"), Finished)


@pytest.mark.parametrize("outcome", [Outcome.FAILURE, Outcome.OTHER])
def test_a_call_that_failed_may_run_again_until_it_is_buried(bench, outcome):  # N5
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", outcome)
    assert isinstance(bench.acquire("k", "b", "call"), Granted)


@pytest.mark.parametrize("attempt", [0, 1])
def test_between_a_failure_and_its_burial_no_copy_runs(bench, attempt):  # N8, guard: settling
    for number in range(attempt):
        bench.acquire("k", f"t{number}", "call", attempt=number)
        bench.release("k", f"t{number}", "call", Outcome.RETRY, attempt=number)
    bench.acquire("k", "a", "call", attempt=attempt)
    bench.release("k", "a", "call", Outcome.FAILURE, attempt=attempt, settle=0.6)
    copy = bench.acquire("k", "b", "call", attempt=attempt)
    assert isinstance(copy, Taken)
    assert copy.same_call
    assert 0 < copy.remaining < 0.601
    assert isinstance(bench.acquire("k", "c", "another"), Granted)
    bench.release("k", "c", "another")
    bench.wait(0.7)
    again = bench.acquire("k", "b", "call", attempt=attempt)
    assert (type(again), again.deliveries) == (Granted, 1)
    bench.release("k", "b", "call", Outcome.FAILURE, attempt=attempt, settle=60)
    bench.store.buried("call", replays=0)
    assert bench.acquire("k", "d", "call", attempt=attempt) == Stale()


def test_a_copy_from_before_a_retry_is_stale(bench):  # N5
    bench.acquire("k", "a", "call", attempt=0)
    bench.release("k", "a", "call", Outcome.RETRY, attempt=0)
    assert bench.acquire("k", "b", "call", attempt=0) == Stale()
    assert isinstance(bench.acquire("k", "b", "call", attempt=1), Granted)
    assert bench.total("retries:t") == 1


def test_a_call_that_was_replaced_under_its_own_id_may_run(bench):  # Task.replace
    bench.acquire("k", "a", "call", attempt=0)
    bench.release("k", "a", "call", Outcome.RETRY, attempt=0)
    bench.acquire("k", "b", "call", attempt=1)
    bench.release("k", "b", "call", Outcome.OTHER, attempt=1)
    assert isinstance(bench.acquire("other", "c", "call", attempt=0), Granted)


def test_a_buried_call_is_stale_until_it_is_replayed(bench):  # N5
    bench.acquire("k", "a", "call", attempt=2)
    bench.release("k", "a", "call", Outcome.FAILURE, attempt=2)
    assert bench.store.may_bury("call", attempt=2, replays=0)
    bench.store.buried("call", replays=0)
    assert not bench.store.may_bury("call", attempt=2, replays=0)
    assert bench.acquire("k", "b", "call", attempt=2) == Stale()
    assert isinstance(bench.acquire("k", "b", "call", attempt=0, replays=1), Granted)
    assert bench.store.may_bury("call", attempt=0, replays=1)
    assert not bench.store.may_bury("call", attempt=5, replays=0)
    assert bench.acquire("k", "c", "call", attempt=5, replays=0) == Stale()


def test_a_call_with_a_later_attempt_may_not_be_buried(bench):  # N5
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", Outcome.RETRY)
    assert not bench.store.may_bury("call", attempt=0, replays=0)
    assert bench.store.may_bury("call", attempt=1, replays=0)


# Deliveries (N6)


def test_deliveries_without_an_outcome_are_counted_up_to_poison(bench):  # N6
    for number in range(3):
        answer = bench.acquire("k", f"t{number}", "call", limit=3, ttl=0.05)
        assert (type(answer), answer.deliveries) == (Granted, number + 1)
        bench.wait(0.1)
    assert bench.acquire("k", "t9", "call", limit=3) == Poison(3)
    assert bench.holder("k") is None


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILURE, Outcome.RETRY, Outcome.OTHER])
def test_an_outcome_clears_the_count(bench, outcome):  # N6
    for number in range(6):
        answer = bench.acquire("k", f"t{number}", "call", limit=2, attempt=number)
        assert (type(answer), answer.deliveries) == (Granted, 1)
        bench.release("k", f"t{number}", "call", outcome, attempt=number)


def test_a_process_that_ends_within_the_body_leaves_no_outcome(bench):  # N6
    for number in range(2):
        bench.acquire("k", f"t{number}", "call", limit=2)
        assert bench.release("k", f"t{number}", "call", Outcome.NONE).held
    assert bench.acquire("k", "t9", "call", limit=2) == Poison(2)


def test_a_refused_delivery_does_not_count(bench):  # N6
    bench.acquire("k", "a", "call")
    for number in range(9):
        answer = bench.acquire("k", f"copy{number}", "call", limit=2)
        assert isinstance(answer, Taken)
        assert answer.same_call
    bench.release("k", "a", "call", Outcome.FAILURE)
    assert bench.acquire("k", "b", "call", limit=2).deliveries == 1
    assert bench.total("lock_conflicts:t") == 0


def test_what_never_ran_is_taken_back_and_nothing_else_of_its_call(bench):  # N5, N6
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", Outcome.RETRY)
    bench.acquire("k", "lost", "call", attempt=1, ttl=0.05)
    bench.wait(0.1)
    bench.acquire("k", "b", "call", attempt=1)
    assert bench.release("k", "b", "call", Outcome.UNDONE, attempt=1).held
    assert bench.holder("k") is None
    assert bench.acquire("k", "copy", "call", attempt=0) == Stale()
    assert bench.acquire("k", "c", "call", attempt=1).deliveries == 2


def test_the_lock_of_a_dead_process_is_freed_for_its_call_alone(bench):  # N3, guard: owner
    bench.acquire("k", "a", "call", host="h", pid=5)
    assert not bench.store.release_orphan("call", host="h", pid=6).freed
    assert not bench.store.release_orphan("call", host="other", pid=5).freed
    assert not bench.store.release_orphan("another call", host="h", pid=5).freed
    assert bench.holder("k") == "call"
    orphan = bench.store.release_orphan("call", host="h", pid=5)
    assert (orphan.freed, orphan.deliveries) == (True, 1)
    assert (orphan.key, orphan.token) == ("k", "a")
    assert bench.holder("k") is None
    assert bench.acquire("k", "b", "call").deliveries == 2


def test_the_death_of_an_old_process_does_not_free_the_lock_of_a_new_one(bench):  # N3
    bench.acquire("k", "a", "call", pid=5, ttl=0.1)
    bench.wait(0.2)
    bench.acquire("k", "b", "call", pid=6)
    assert not bench.store.release_orphan("call", host="h", pid=5).freed
    assert bench.holder("k") == "call"


# Holding through a retry (N7)


def test_a_lock_kept_through_a_backoff_is_for_the_next_attempt_of_its_call_alone(bench):  # N7
    first = bench.acquire("k", "a", "call")
    assert bench.release("k", "a", "call", Outcome.RETRY, hold=60).held
    answer = bench.acquire("k", "b", "another")
    assert isinstance(answer, Taken)
    assert (answer.holder.task_id, answer.same_call) == ("call", False)
    again = bench.acquire("k", "c", "call", attempt=1)
    assert isinstance(again, Granted)
    assert again.fence > first.fence
    assert not bench.renew("k", "a", "call")
    assert bench.renew("k", "c", "call")


def test_a_kept_lock_frees_itself_when_the_next_attempt_does_not_come(bench):  # N4, N7
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", Outcome.RETRY, hold=0.15)
    bench.wait(0.3)
    assert isinstance(bench.acquire("k", "b"), Granted)


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILURE, Outcome.OTHER, Outcome.NONE])
def test_nothing_but_a_retry_keeps_a_lock(bench, outcome):  # N7
    bench.acquire("k", "a")
    bench.release("k", "a", outcome=outcome, hold=60)
    assert bench.holder("k") is None


def test_a_waiting_lock_is_no_orphan(bench):  # N7
    bench.acquire("k", "a", "call", pid=5)
    bench.release("k", "a", "call", Outcome.RETRY, hold=60, pid=5)
    assert not bench.store.release_orphan("call", host="h", pid=5).freed
    assert bench.holder("k") == "call"


# The record of locks that are decided elsewhere


def _ruled(bench, granted, key, token, task_id=None, fence=0, turn=Turn.NONE, **about):
    ruling = Ruling(backend="elsewhere", granted=granted, fence=fence)
    caller = bench.caller(task_id or f"call-{token}", **about)
    return bench.store.acquire(
        key, token, ttl=60, caller=caller, poison_limit=5, turn=turn, hold=60, ruling=ruling
    )


def test_a_grant_from_elsewhere_replaces_a_holder_that_is_still_described(record_bench):
    first = _ruled(record_bench, True, "k", "a")
    second = _ruled(record_bench, True, "k", "b")
    assert second.fence > first.fence
    assert record_bench.holder("k") == "call-b"
    assert [record.backend for record in record_bench.store.locks()] == ["elsewhere"]
    assert not record_bench.renew("k", "a")


def test_a_grant_from_elsewhere_has_the_fence_that_is_asked_for(record_bench):  # N2
    high = _ruled(record_bench, True, "k", "a", fence=2**52).fence
    assert high == 2**52
    assert _ruled(record_bench, True, "l", "b").fence == high + 1


def test_a_refusal_from_elsewhere_names_the_holder_that_is_described(record_bench):
    nobody = _ruled(record_bench, False, "k", "x")
    assert (nobody.holder.host, nobody.holder.task_id, nobody.same_call) == ("", "", False)
    assert record_bench.holder("k") is None
    _ruled(record_bench, True, "k", "a", host="alpha")
    taken = _ruled(record_bench, False, "k", "b")
    assert (taken.holder.host, taken.holder.task_id, taken.same_call) == ("alpha", "call-a", False)
    assert _ruled(record_bench, False, "k", "c", "call-a").same_call
    assert record_bench.total("lock_conflicts:t") == 1


def test_what_is_known_of_a_call_comes_before_what_is_decided_elsewhere(record_bench):  # N5
    _ruled(record_bench, True, "k", "a", "call")
    record_bench.release("k", "a", "call", dedupe_ttl=60)
    assert _ruled(record_bench, True, "k", "b", "call") == Finished(continued=False)
    assert _ruled(record_bench, False, "k", "b", "call") == Finished(continued=False)


def test_a_key_that_waits_for_an_attempt_is_refused_to_others_whatever_was_decided(record_bench):  # N7
    _ruled(record_bench, True, "k", "a", "call")
    record_bench.release("k", "a", "call", Outcome.RETRY, hold=60)
    assert [record.waiting for record in record_bench.store.locks()] == [True]
    assert _ruled(record_bench, True, "k", "b", "another").holder.task_id == "call"
    own = _ruled(record_bench, False, "k", "c", "call", attempt=1)
    assert (own.holder.host, own.same_call, own.remaining) == ("", True, 0)
    assert isinstance(_ruled(record_bench, True, "k", "c", "call", attempt=1), Granted)


# Turns (N9, N10)


def queue(bench, token, **about):
    return bench.acquire("k", token, turn=Turn.QUEUE, hold=60, **about)


def replace(bench, token, **about):
    return bench.acquire("k", token, turn=Turn.REPLACE, hold=60, **about)


def test_of_those_that_queue_up_the_first_comes_next(bench):  # N9
    bench.acquire("k", "a")
    assert [queue(bench, token).follows for token in "bcbd"] == [True, False, True, False]
    assert bench.holder("k") == "call-a"


def test_a_caller_that_wants_no_turn_gets_none(bench):  # N9
    bench.acquire("k", "a")
    assert not bench.acquire("k", "b").follows
    bench.release("k", "a")
    assert bench.holder("k") is None


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.NONE])
def test_however_the_holder_ends_the_key_is_kept_for_the_one_that_comes_next(bench, outcome):  # N9
    bench.acquire("k", "a")
    queue(bench, "b")
    assert bench.release("k", "a", outcome=outcome).held
    assert bench.holder("k") == "call-b"
    late = queue(bench, "c")
    assert (late.holder.task_id, late.follows) == ("call-b", False)
    granted = queue(bench, "b2", task_id="call-b")
    assert isinstance(granted, Granted)
    bench.release("k", "b2", "call-b")
    assert bench.holder("k") is None


@pytest.mark.parametrize("sees_it_come", [True, False])
def test_a_call_whose_process_dies_goes_before_the_one_that_comes_next(bench, sees_it_come):  # N9
    bench.acquire("k", "a", "call", pid=5)
    queue(bench, "b")
    if sees_it_come:
        assert bench.release("k", "a", "call", Outcome.NONE).held
    else:
        assert bench.store.release_orphan("call", host="h", pid=5).freed
    assert isinstance(bench.acquire("k", "a2", "call"), Granted)
    assert queue(bench, "b").follows


@pytest.mark.parametrize("sees_it_come", [True, False])
def test_whoever_replaces_a_holder_follows_the_death_of_its_process(bench, sees_it_come):  # N10
    bench.acquire("k", "a", "call", pid=5)
    replace(bench, "b")
    if sees_it_come:
        assert bench.release("k", "a", "call", Outcome.NONE).held
    else:
        assert bench.store.release_orphan("call", host="h", pid=5).freed
    assert bench.holder("k") == "call-b"
    assert not bench.store.release_orphan("call-b", host="", pid=0).freed
    assert isinstance(replace(bench, "b"), Granted)


def test_nobody_comes_next_when_the_holder_expired(bench):  # N4, N9
    bench.acquire("k", "a", ttl=0.1)
    queue(bench, "b")
    bench.wait(0.2)
    assert isinstance(bench.acquire("k", "c"), Granted)
    assert queue(bench, "b").follows


def test_the_key_is_kept_for_so_long_for_the_one_that_comes_next(bench):  # N4, N9
    bench.acquire("k", "a")
    bench.acquire("k", "b", turn=Turn.QUEUE, hold=0.5)
    bench.release("k", "a")
    assert isinstance(bench.acquire("k", "c"), Taken)
    bench.wait(0.6)
    assert isinstance(bench.acquire("k", "c"), Granted)


def test_a_retry_of_the_holder_comes_before_the_one_that_comes_next(bench):  # N7, N9
    bench.acquire("k", "a", "call")
    queue(bench, "b")
    bench.release("k", "a", "call", Outcome.RETRY, hold=60)
    assert queue(bench, "b").follows
    assert isinstance(bench.acquire("k", "a2", "call", attempt=1), Granted)
    assert not queue(bench, "c").follows
    bench.release("k", "a2", "call", attempt=1)
    assert bench.holder("k") == "call-b"


def test_a_call_of_another_task_waits_until_nobody_comes_before_it(bench):  # N9
    bench.acquire("k", "a")
    queue(bench, "b")
    assert queue(bench, "x", task="other").follows
    assert queue(bench, "y", task="other").follows
    bench.release("k", "a")
    assert queue(bench, "x", task="other").follows
    assert isinstance(queue(bench, "b"), Granted)
    assert queue(bench, "x", task="other").follows
    assert not queue(bench, "y", task="other").follows
    bench.release("k", "b")
    assert bench.holder("k") == "call-x"


def test_a_holder_that_is_to_be_replaced_learns_it_and_holds_on_until_it_ends(bench):  # N10
    bench.acquire("k", "a")
    assert bench.renew("k", "a") is Renewal.EXTENDED
    answer = replace(bench, "b")
    assert (answer.holder.task_id, answer.follows) == ("call-a", True)
    assert bench.renew("k", "a") is Renewal.REPLACED
    assert replace(bench, "b").follows
    assert bench.holder("k") == "call-a"
    assert bench.release("k", "a", outcome=Outcome.FAILURE).replaced
    assert bench.holder("k") == "call-b"
    assert isinstance(replace(bench, "b"), Granted)
    assert bench.renew("k", "b") is Renewal.EXTENDED


def test_the_last_that_asks_takes_the_place_of_all_before_it(bench):  # N10
    bench.acquire("k", "a")
    replace(bench, "b")
    replace(bench, "c")
    assert replace(bench, "b") == Replaced()
    bench.release("k", "a", outcome=Outcome.FAILURE)
    late = replace(bench, "d")
    assert isinstance(late, Granted)
    assert replace(bench, "c") == Replaced()


def test_whoever_was_replaced_never_runs_again_and_is_not_buried(bench):  # N5, N10
    bench.acquire("k", "a", "call")
    replace(bench, "b")
    assert not bench.store.may_bury("call", attempt=0, replays=0)
    bench.release("k", "a", "call", Outcome.FAILURE, settle=60)
    assert not bench.store.may_bury("call", attempt=0, replays=0)
    assert bench.acquire("k", "a2", "call") == Replaced()
    assert bench.acquire("k", "a2", "call", attempt=1) == Replaced()
    assert isinstance(bench.acquire("other", "a3", "call", replays=1), Granted)


def test_a_replaced_holder_that_finished_all_the_same_is_finished(bench):  # N5, N10
    bench.acquire("k", "a", "call")
    replace(bench, "b")
    bench.release("k", "a", "call", dedupe_ttl=60)
    assert isinstance(bench.acquire("k", "a2", "call"), Finished)
    assert bench.holder("k") == "call-b"


def test_a_retry_is_replaced_at_once(bench):  # N7, N10
    bench.acquire("k", "a", "call")
    bench.release("k", "a", "call", Outcome.RETRY, hold=60)
    assert isinstance(replace(bench, "b"), Granted)
    assert bench.acquire("k", "a2", "call", attempt=1) == Replaced()
    assert bench.renew("k", "b") is Renewal.EXTENDED


def test_a_holder_that_is_to_be_replaced_keeps_no_key_for_a_retry(bench):  # N10
    bench.acquire("k", "a", "call")
    replace(bench, "b")
    assert bench.release("k", "a", "call", Outcome.RETRY, hold=60).replaced
    assert bench.holder("k") == "call-b"
    assert bench.acquire("k", "a2", "call", attempt=1) == Replaced()


def test_a_replacing_call_of_another_task_waits_for_the_one_that_comes_next(bench):  # N9, N10
    bench.acquire("k", "a")
    queue(bench, "b")
    assert replace(bench, "x", task="other").follows
    assert bench.renew("k", "a") is Renewal.REPLACED
    bench.release("k", "a", outcome=Outcome.FAILURE)
    assert replace(bench, "x", task="other").follows
    assert isinstance(queue(bench, "b"), Granted)


def test_what_was_refused_elsewhere_is_not_entered_but_waited_for(record_bench):  # N9, N10
    assert _ruled(record_bench, False, "k", "b", turn=Turn.REPLACE).follows
    record_bench.acquire("k", "a", "call")
    record_bench.release("k", "a", "call", Outcome.RETRY, hold=60)
    assert _ruled(record_bench, False, "k", "b", turn=Turn.REPLACE).follows
    assert record_bench.acquire("k", "a2", "call", attempt=1) == Replaced()


# Operators


def test_locks_are_listed_by_key_with_their_holders(bench):
    bench.acquire("b", "1", task="proj.b", host="beta", pid=2)
    bench.acquire("a", "2", task="proj.a")
    first, second = bench.store.locks()
    assert (first.key, second.key) == ("a", "b")
    assert (second.holder.task, second.holder.task_id) == ("proj.b", "call-1")
    assert (second.holder.host, second.holder.pid) == ("beta", 2)
    assert 50 < second.ttl <= 60
    assert second.fence < first.fence


def test_many_locks_are_listed_without_keys(redis_bench):
    for number in range(1200):
        redis_bench.acquire(f"k{number}", f"t{number}")
    redis_bench.client.config_resetstat()
    assert len(redis_bench.store.locks()) == 1200
    assert "cmdstat_keys" not in redis_bench.client.info("commandstats")


def test_a_prefix_with_wildcards_lists_only_its_own_locks(redis_url):
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    stores = [
        RedisLockStore(lambda: redis.Redis.from_url(redis_url, decode_responses=True), Keys(prefix))
        for prefix in ("app[1]*", "app1x")
    ]
    for number, store in enumerate(stores):
        caller = Caller(task="t", task_id=f"c{number}", host="h", pid=1)
        store.acquire("k", f"t{number}", ttl=60, caller=caller, poison_limit=5)
    assert [[record.holder.task_id for record in store.locks()] for store in stores] == [["c0"], ["c1"]]
    for store in stores:
        store.close()
    client.close()


def test_an_operator_can_take_a_lock_away(bench):
    bench.acquire("k", "a")
    record = bench.store.break_lock("k")
    assert record is not None
    assert record.holder.task_id == "call-a"
    assert bench.store.break_lock("k") is None
    assert bench.total("locks_broken:t") == 1
    assert not bench.renew("k", "a")
    assert isinstance(bench.acquire("k", "b"), Granted)


def test_several_locks_are_renewed_in_one_round_trip(bench):
    for name in "abc":
        bench.acquire(name, name)
    leases = [Lease(name, name, f"call-{name}") for name in "abc"] + [Lease("a", "x", "call-x")]
    assert bench.store.renew(leases, ttl=60) == [True, True, True, False]
    assert bench.store.renew([], ttl=60) == []


def test_of_many_who_ask_at_once_one_gets_the_key(bench):  # N1
    answers = []
    start = threading.Barrier(16)

    def ask(number):
        start.wait()
        answers.append(bench.acquire("k", f"t{number}"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(answer, Granted) for answer in answers) == 1
    assert bench.total("lock_conflicts:t") == 15
