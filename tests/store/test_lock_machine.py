"""Three clients take, renew, lose and leave one key in any order, over slow and lossy connections (G6).

Time is the machine's own. A real Redis is told of it: what passes is taken off the ttl of each lock there.
"""

import itertools
import os

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.lock_ports import Caller, Granted, Outcome, Renewal, Replaced, Taken, Turn
from celery_singlebeat.store.memory_locks import MemoryLockStore
from celery_singlebeat.store.redis_locks import RedisLockStore
from celery_singlebeat.task.holding import TaskLock
from celery_singlebeat.testing import FakeClock

KEY, TTL, HOLD = "k", 10.0, 5.0

_numbers = itertools.count(1)
clients, numbers = st.sampled_from("ABC"), st.integers(0, 2)
delays = st.sampled_from([*[0.0] * 8, 0.1, 1.0, 4.0, 9.0, 11.0])
outcomes = st.sampled_from([Outcome.SUCCESS, Outcome.FAILURE, Outcome.OTHER, Outcome.NONE])


class MemoryWorld:
    """A store in memory, and its time."""

    def __init__(self, clock):
        self.clock = clock
        self.store = MemoryLockStore(clock)

    def advance(self, seconds):
        self.clock.advance(seconds)


class RedisWorld:
    """A store in Redis, whose locks age when the machine says so."""

    def __init__(self, clock, client):
        self.clock = clock
        self.client = client
        self.keys = Keys(f"machine{next(_numbers)}")
        self.store = RedisLockStore(lambda: client, self.keys)

    def advance(self, seconds):
        self.clock.advance(seconds)
        name = self.keys.lock(KEY)
        left = self.client.pttl(name)
        if left > 0:
            self.client.pexpire(name, max(0, left - round(seconds * 1000)))


class Clients(RuleBasedStateMachine):
    """Each client runs one body at a time. A body that lost its lock may go on: it is a ghost then."""

    open_world = MemoryWorld

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.world = type(self).open_world(self.clock)
        self.running = {}
        self.waiting = {}
        self.ghosts = []
        self.fence = 0

    @property
    def store(self):
        return self.world.store

    def record(self):
        return next(iter(self.store.locks()), None)

    @initialize()
    def some_time_has_passed(self):
        self.world.advance(1.0)

    # -- what a client does ---------------------------------------------------------------------

    @rule(
        client=clients,
        turn=st.sampled_from([Turn.NONE, Turn.NONE, Turn.QUEUE, Turn.REPLACE]),
        before=delays,
        after=delays,
        is_lost=st.booleans(),
    )
    def acquire(self, client, turn, before, after, is_lost):
        if client in self.running:
            return
        task_id, turn = self.waiting.pop(client, (f"call{next(_numbers)}", turn))
        token = f"token{next(_numbers)}"
        caller = Caller(task=f"task {turn.value}", task_id=task_id, host=client, pid=1)

        def ask():
            return self.store.acquire(
                KEY, token, ttl=TTL, caller=caller, poison_limit=99, turn=turn, hold=HOLD
            )

        asked_at = self.clock.monotonic()
        self.world.advance(before)
        answer = ask()
        if is_lost:  # the reply never came, and the client asks again
            first, answer = answer, ask()
            if isinstance(first, Granted):
                assert answer == first, "a grant whose reply was lost is not granted again"
        self.world.advance(after)
        if isinstance(answer, Granted):
            assert answer.fence > self.fence
            self.fence = answer.fence
            self.running[client] = TaskLock(
                KEY,
                token,
                answer.fence,
                caller=caller,
                store=self.store,
                clock=self.clock,
                ttl=TTL,
                asked_at=asked_at,
            )
        elif isinstance(answer, Taken):
            assert answer.holder.task_id != task_id
            if answer.follows:
                self.waiting[client] = (task_id, turn)
        else:
            assert isinstance(answer, Replaced)

    @precondition(lambda self: self.running)
    @rule(number=numbers, before=delays, after=delays, is_lost=st.booleans())
    def renew(self, number, before, after, is_lost):
        self.renew_lock(self.running[self.one_of_them(number)], before, after, is_lost)

    @precondition(lambda self: any(lock.held for lock in self.running.values()))
    @rule(after=st.sampled_from([4.0, 9.0]), then=st.sampled_from([0.0, 1.5, 6.5]))
    def renew_with_a_slow_answer(self, after, then):
        lock = next(lock for lock in self.running.values() if lock.held)
        self.renew_lock(lock, 0.0, after, False)
        self.world.advance(then)

    def one_of_them(self, number):
        return sorted(self.running)[number % len(self.running)]

    def renew_lock(self, lock, before, after, is_lost):
        asked_at = self.clock.monotonic()
        self.world.advance(before)
        owner = self.record()
        renewal = self.store.renew([lock.lease], ttl=TTL)[0]
        if owner is not None and owner.fence != lock.fence:
            self.is_untouched(owner)
        assert (renewal is Renewal.GONE) == (owner is None or owner.fence != lock.fence or owner.waiting)
        self.world.advance(after)
        if is_lost:
            return
        # As the heartbeat does.
        if renewal is Renewal.GONE or lock.lapsed:
            lock.lose()
            return
        if renewal is Renewal.REPLACED:
            lock.replace()
        lock.extend(asked_at)

    @precondition(lambda self: self.running)
    @rule(number=numbers, outcome=outcomes, before=delays, is_lost=st.booleans())
    def release(self, number, outcome, before, is_lost):
        lock = self.running.pop(self.one_of_them(number))
        self.world.advance(before)
        self.release_lock(lock, outcome, is_lost)

    def release_lock(self, lock, outcome, is_lost):
        owner = self.record()
        was_held = lock.held
        released = self.store.release(KEY, lock.token, caller=lock.caller, outcome=outcome)
        if was_held:
            assert released.held, "a client that trusted its lock did not have it"
        if is_lost:
            assert not self.store.release(KEY, lock.token, caller=lock.caller, outcome=outcome).held
        if owner is not None and owner.fence != lock.fence:
            self.is_untouched(owner)

    def is_untouched(self, owner):
        now = self.record()
        assert now is not None, "somebody deleted a lock that was not theirs"
        assert (now.fence, now.holder) == (owner.fence, owner.holder)
        assert now.ttl <= owner.ttl, "somebody extended a lock that was not theirs"

    # -- what happens to a client ---------------------------------------------------------------

    @rule(client=clients)
    def crash(self, client):
        """Nothing is heard of it any more."""
        self.running.pop(client, None)
        self.waiting.pop(client, None)

    @precondition(lambda self: self.running)
    @rule(number=numbers)
    def crash_seen_by_its_parent(self, number):
        client = self.one_of_them(number)
        lock = self.running.pop(client)
        orphan = self.store.release_orphan(lock.caller.task_id, host=client, pid=1)
        assert orphan.freed or not lock.held

    @precondition(lambda self: self.running)
    @rule(number=numbers)
    def freeze(self, number):
        """It stops in the middle of its body, and somebody else goes on as that client."""
        self.ghosts.append(self.running.pop(self.one_of_them(number)))

    @precondition(lambda self: self.ghosts)
    @rule(number=st.integers(0, 9), renews=st.booleans(), outcome=outcomes)
    def thaw(self, number, renews, outcome):
        lock = self.ghosts.pop(number % len(self.ghosts))
        if renews:
            self.renew_lock(lock, 0.0, 0.0, False)
        self.release_lock(lock, outcome, False)

    @rule(seconds=delays)
    def pass_time(self, seconds):
        self.world.advance(seconds)

    @rule()
    def expire(self):
        """Nobody renews for as long as a lock and the wait for a turn may last: then the key is free."""
        self.world.advance(TTL + HOLD)
        assert self.record() is None

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def at_most_one_client_trusts_its_lock(self):
        trusting = [lock for lock in [*self.running.values(), *self.ghosts] if lock.held]
        assert len(trusting) <= 1

    @invariant()
    def whoever_trusts_its_lock_has_it(self):
        for lock in [*self.running.values(), *self.ghosts]:
            if lock.held:
                record = self.record()
                assert record is not None
                assert (record.fence, record.holder.task_id) == (lock.fence, lock.caller.task_id)


def check(machine, examples):
    """Deterministic and without shrinking, so that a mutant dies each time, and soon.

    SINGLEBEAT_TESTS_EXAMPLES asks for more, at random, and for the shortest example.
    """
    more = int(os.environ.get("SINGLEBEAT_TESTS_EXAMPLES", "0"))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=more or examples,
            stateful_step_count=40,
            derandomize=not more,
            phases=tuple(Phase) if more else (Phase.generate,),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_three_clients_of_a_store_in_memory(request):  # G6, N1 to N4, N9, N10
    check(Clients, 150)


@pytest.mark.redis
def test_three_clients_of_a_redis(redis_url):  # G6, N1 to N4, N9, N10
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:

        class OnRedis(Clients):
            @staticmethod
            def open_world(clock):
                return RedisWorld(clock, client)

        check(OnRedis, 40)
