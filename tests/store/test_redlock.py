"""Locks by majority, through the loss of servers (Q1 to Q5 of `store.backend_ports`)."""

import threading
import time

import pytest

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.backed_locks import BackedLockStore
from celery_singlebeat.store.backend_ports import Lost, Won
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.lock_ports import Caller, Granted, Lease, Outcome, Taken
from celery_singlebeat.store.redis_locks import RedisLockStore
from celery_singlebeat.store.redlock import RedlockBackend
from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis

pytestmark = [pytest.mark.redis, pytest.mark.fault]

KEYS = Keys("votes")
PATIENCE = 0.3


@pytest.fixture(scope="module")
def five(redis_server):
    servers = [EmbeddedRedis().start() for _ in range(5)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def servers(five):
    """Five servers that run and are empty."""
    for server in five:
        if server.running:
            server.resume()
        else:
            server.start()
        with server.client() as client:
            client.flushall()
    return five


@pytest.fixture
def make_backend(servers):
    made = []

    def make():
        connects = [
            lambda server=server: server.client(
                decode_responses=True, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE
            )
            for server in servers
        ]
        made.append(RedlockBackend(connects, KEYS, patience=PATIENCE, clock=SystemClock()))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def records(redis_url, redis_server):
    store = RedisLockStore(
        lambda: redis_server.client(db=int(redis_url.rsplit("/")[-1]), decode_responses=True), KEYS
    )
    yield store
    store.close()


def holds(server, key):
    with server.client(decode_responses=True) as client:
        return client.get(KEYS.vote(key))


def renew(backend, key, token, *, ttl=60.0, fence=1):
    return backend.renew([Lease(key, token, "call", fence)], ttl=ttl)[0]


# What a minority cannot do


def test_two_killed_servers_of_five_change_nothing(servers, make_backend):  # Q2
    servers[0].kill()
    servers[3].kill()
    one, two = make_backend(), make_backend()
    assert isinstance(one.acquire("k", "a", ttl=60), Won)
    assert isinstance(two.acquire("k", "b", ttl=60), Lost)
    assert renew(one, "k", "a")
    assert not renew(two, "k", "b")
    assert one.release("k", "a")
    assert isinstance(two.acquire("k", "b", ttl=60), Won)


def test_two_frozen_servers_of_five_keep_nobody_waiting(servers, make_backend):  # Q2
    servers[1].pause()
    servers[2].pause()
    backend = make_backend()
    started = time.monotonic()
    for number in range(20):
        assert isinstance(backend.acquire(f"k{number}", "a", ttl=60), Won)
    assert time.monotonic() - started < 20 * PATIENCE


def test_with_two_killed_and_one_frozen_nobody_holds_until_it_goes_on(servers, make_backend):  # Q4
    servers[0].kill()
    servers[1].kill()
    servers[2].pause()
    backend = make_backend()
    with pytest.raises(StoreUnavailable, match="no majority"):
        backend.acquire("k", "a", ttl=60)
    servers[2].resume()
    wait_until(lambda: not any(holds(server, "k") for server in servers[2:]))  # nothing is left behind
    assert isinstance(backend.acquire("k", "b", ttl=60), Won)


def test_a_holder_through_two_killed_and_one_frozen_keeps_its_lock_and_nobody_else_gets_it(
    servers, make_backend
):  # Q2, Q4
    one, two = make_backend(), make_backend()
    one.acquire("k", "a", ttl=60)
    wait_until(lambda: all(holds(server, "k") for server in servers))  # a majority was enough for the answer
    servers[0].kill()
    servers[1].kill()
    servers[2].pause()
    assert renew(one, "k", "a") is None  # unknown: it goes on as long as it trusts the last answer
    with pytest.raises(StoreUnavailable):
        two.acquire("k", "b", ttl=60)
    servers[2].resume()
    assert wait_until(lambda: renew(one, "k", "a"))
    assert isinstance(two.acquire("k", "b", ttl=60), Lost)


def test_with_three_killed_nobody_holds(servers, make_backend):  # Q4
    for server in servers[:3]:
        server.kill()
    backend = make_backend()
    for number in range(3):
        with pytest.raises(StoreUnavailable, match="no majority"):
            backend.acquire("k", f"t{number}", ttl=60)
    wait_until(lambda: not any(holds(server, "k") for server in servers[3:]))


def test_two_votes_of_five_are_no_lock_and_are_given_back(servers, make_backend):  # Q2, Q4
    for server in servers[:3]:
        with server.client() as client:
            client.set(KEYS.vote("k"), "other", px=60_000)
    assert make_backend().acquire("k", "a", ttl=60) == Lost(sure=True)
    wait_until(lambda: not any(holds(server, "k") for server in servers[3:]))


def test_only_the_exact_token_renews_and_releases(servers, make_backend):  # N3, Q1
    one, two = make_backend(), make_backend()
    assert isinstance(one.acquire("k", "a", ttl=60), Won)
    wait_until(lambda: all(holds(server, "k") == "a" for server in servers))
    assert isinstance(two.acquire("k", "b", ttl=60), Lost)
    assert not renew(two, "k", "b")
    assert not two.release("k", "b")
    assert all(holds(server, "k") == "a" for server in servers)
    assert renew(one, "k", "a")


def test_a_majority_that_forgot_the_lock_is_a_loss(servers, make_backend):  # Q2
    backend = make_backend()
    backend.acquire("k", "a", ttl=60)
    wait_until(lambda: all(holds(server, "k") for server in servers))
    for server in servers[:3]:
        with server.client() as client:
            client.flushall()
    wait_until(lambda: renew(backend, "k", "a") is False)  # before that, perhaps no answer in time


def test_servers_that_come_back_empty_are_given_the_lock_again(servers, make_backend):
    backend = make_backend()
    backend.acquire("k", "a", ttl=60)
    wait_until(lambda: all(holds(server, "k") for server in servers))
    for server in servers[:2]:
        server.restart(keep_data=False)
    assert renew(backend, "k", "a")
    wait_until(lambda: all(holds(server, "k") == "a" for server in servers))
    servers[3].kill()
    servers[4].kill()
    assert renew(backend, "k", "a")


def test_a_release_reaches_also_the_server_that_gave_no_answer(servers, make_backend):  # Q4
    backend = make_backend()
    servers[4].pause()
    backend.acquire("k", "a", ttl=60)
    assert backend.release("k", "a")
    servers[4].resume()
    wait_until(lambda: not any(holds(server, "k") for server in servers))


@pytest.mark.parametrize(("taken", "kind"), [(47, Won), (48, Lost)])
def test_a_lock_counts_from_before_the_first_request_less_the_drift(servers, taken, kind):  # Q3
    clock = FakeClock()

    def connect(server):
        clock.advance(taken / 5)  # what the first request to each server waits for
        return server.client(decode_responses=True)

    connects = [lambda server=server: connect(server) for server in servers]
    backend = RedlockBackend(connects, KEYS, patience=60, clock=clock)
    assert isinstance(backend.acquire("k", "a", ttl=50), kind)
    if kind is Lost:
        wait_until(lambda: not any(holds(server, "k") for server in servers))
    backend.close()


def test_locks_without_renewal_free_themselves_on_every_server(servers, make_backend):  # Q3
    one, two = make_backend(), make_backend()
    one.acquire("k", "a", ttl=0.2)
    assert isinstance(two.acquire("k", "b", ttl=60), Lost)
    wait_until(lambda: isinstance(two.acquire("k", "b", ttl=60), Won), 2)


# One holder at a time


def test_however_servers_come_and_go_two_never_hold_at_once(servers, make_backend, records):  # Q2
    inside, highest, entered, stop = [0], [0], [0], threading.Event()
    guard = threading.Lock()

    def contend(number):
        store = BackedLockStore("redlock", records, make_backend())
        turn = 0
        while not stop.is_set():
            turn += 1
            token = f"{number}-{turn}"
            caller = Caller(task="t", task_id=token, host="h", pid=number + 1)
            asked = time.monotonic()
            try:
                answer = store.acquire("k", token, ttl=5, caller=caller, poison_limit=5)
            except StoreUnavailable:
                continue
            if not isinstance(answer, Granted):
                time.sleep(0.01 * (number + 1))
                continue
            with guard:
                inside[0] += 1
                entered[0] += 1
                highest[0] = max(highest[0], inside[0])
            time.sleep(0.005)
            assert time.monotonic() - asked < 4, "the test machine is too slow for this ttl"
            with guard:
                inside[0] -= 1
            store.release("k", token, caller=caller, outcome=Outcome.SUCCESS)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for victims in ((0, 1), (2, 3), (4, 0)):
            servers[victims[0]].pause()
            servers[victims[1]].pause()
            before = entered[0]
            wait_until(lambda before=before: entered[0] > before + 1, 30)  # available
            for victim in victims:
                servers[victim].resume()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert highest[0] == 1


# Fences


@pytest.fixture
def store(records, make_backend):
    return BackedLockStore("redlock", records, make_backend())


def fence(store, token):
    caller = Caller(task="t", task_id=token, host="h", pid=1)
    granted = store.acquire("k", token, ttl=60, caller=caller, poison_limit=5)
    store.release("k", token, caller=caller, outcome=Outcome.SUCCESS)
    return granted.fence


def test_fences_grow_after_the_record_and_a_minority_lost_their_data(servers, store, redis_client):  # N2, Q5
    redis_client.set(KEYS.fence, 2**52)  # as by a clock that was far ahead
    high = fence(store, "a")
    assert high > 2**52
    redis_client.flushdb()
    for server in servers[:2]:
        server.restart(keep_data=False)
    assert fence(store, "b") == high + 1


def test_a_grant_whose_fence_no_majority_notes_does_not_count(servers, store, records):  # Q5
    class Deaf:
        """The record, in whose moment three servers die."""

        def __getattr__(self, name):
            return getattr(records, name)

        def acquire(self, *args, **given):
            answer = records.acquire(*args, **given)
            for server in servers[:3]:
                server.kill()
            return answer

    store._records = Deaf()
    caller = Caller(task="t", task_id="call", host="h", pid=1)
    with pytest.raises(StoreUnavailable, match="noted the fence"):
        store.acquire("k", "a", ttl=60, caller=caller, poison_limit=5)
    assert records.locks() == []


# What the record says of a decision


def test_whoever_holds_a_key_for_a_moment_is_no_conflict(make_backend, records):  # Q1
    intruder = make_backend()
    intruder.acquire("k", "x", ttl=60)  # a copy that is about to hear that its call has finished
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            intruder.release("k", "x")

    store = BackedLockStore("redlock", records, make_backend(), pause=pause)
    caller = Caller(task="t", task_id="call", host="h", pid=1)
    assert isinstance(store.acquire("k", "a", ttl=60, caller=caller, poison_limit=5), Granted)
    assert len(pauses) == 2
    assert 0 < sum(pauses) < 1


def test_a_split_vote_is_no_conflict(servers, make_backend, records):  # Q4
    for number, server in enumerate(servers):
        with server.client() as client:
            client.set(KEYS.vote("k"), f"somebody-{number}", px=60_000)
    store = BackedLockStore("redlock", records, make_backend(), pause=lambda _: None)
    caller = Caller(task="t", task_id="call", host="h", pid=1)
    with pytest.raises(StoreUnavailable, match="agrees"):
        store.acquire("k", "a", ttl=60, caller=caller, poison_limit=5)


def test_the_votes_of_a_holder_that_nobody_describes_are_a_conflict(servers, make_backend, records):
    make_backend().acquire("k", "ghost", ttl=60)
    store = BackedLockStore("redlock", records, make_backend(), pause=lambda _: None)
    caller = Caller(task="t", task_id="call", host="h", pid=1)
    answer = store.acquire("k", "a", ttl=60, caller=caller, poison_limit=5)
    assert isinstance(answer, Taken)
    assert [(lock.key, lock.holder.host) for lock in store.locks()] == [("k", "")]
    assert store.break_lock("k") is not None
    assert isinstance(store.acquire("k", "a", ttl=60, caller=caller, poison_limit=5), Granted)
