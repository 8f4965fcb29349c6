"""What every store of waiting calls promises (W1 to W5 of `store.waiting_ports`), asked of each of them."""

import itertools
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.memory_waiting import MemoryWaitingStore
from celery_singlebeat.store.ports import Keep, Publish, Push
from celery_singlebeat.store.redis_waiting import RedisWaitingStore
from celery_singlebeat.store.waiting_ports import BEAT_COUNTS, CLAIM, PUT_OFF, Rank
from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.servers import free_port

_prefixes = (f"waiting{number}" for number in itertools.count(1))


class WaitingBench:
    """One store under test; `wait` lets its time pass."""

    def __init__(self, store, wait, client=None, keys=None):
        self.store = store
        self.wait = wait
        self.client = client
        self.keys = keys

    def taken(self, rank=Rank.WORKER):
        return [record.payload for record in self.store.move(rank).taken]


def _redis_bench(url):
    keys = Keys(next(_prefixes))
    client = redis.Redis.from_url(url, decode_responses=True)

    def wait(seconds):
        """What is due so many seconds earlier, and the beat's word so much older."""
        for record in client.zrange(keys.waiting, 0, -1):
            client.zincrby(keys.waiting, -seconds * 1000, record)
        left = client.pttl(keys.mover) - seconds * 1000
        if left > 0:
            client.pexpire(keys.mover, int(left))
        else:
            client.delete(keys.mover)

    store = RedisWaitingStore(lambda: redis.Redis.from_url(url, decode_responses=True), keys)
    return WaitingBench(store, wait, client, keys)


@pytest.fixture
def redis_bench(redis_url):
    bench = _redis_bench(redis_url)
    yield bench
    bench.store.close()
    bench.client.close()


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def bench(request):
    if request.param == "memory":
        clock = FakeClock()
        return WaitingBench(MemoryWaitingStore(clock), clock.advance)
    return request.getfixturevalue("redis_bench")


def test_a_record_waits_until_it_is_due(bench):  # W2, guard: due
    bench.store.park([Keep("a")], 10)
    bench.store.park([Keep("b")], 5)
    assert bench.taken() == []
    assert 4.5 < bench.store.move(Rank.WORKER).due_in <= 5
    bench.wait(5)
    assert bench.taken() == ["b"]
    bench.wait(5)
    assert bench.taken() == ["a"]


def test_a_record_is_there_until_it_was_passed_on(bench):  # W1, W3
    bench.store.park([Keep("a")], 1)
    bench.wait(1)
    (record,) = bench.store.move(Rank.WORKER).taken
    assert bench.store.number() == 1
    assert bench.taken() == []
    bench.wait(CLAIM)  # whoever took it has gone
    assert bench.taken() == ["a"]
    bench.store.done(record)
    assert bench.store.number() == 0
    assert bench.store.move(Rank.WORKER).due_in is None


def test_a_record_that_its_broker_does_not_take_comes_again_soon(bench):  # W3
    bench.store.park([Keep("a"), Keep("b")], 1)
    bench.wait(1)
    first, _ = bench.store.move(Rank.WORKER).taken
    bench.store.put_off(first, 1)
    bench.wait(1)
    assert bench.taken() == [first.payload]


def test_parking_a_record_again_changes_nothing(bench):  # W1
    bench.store.park([Keep("a")], 5)
    bench.store.park([Keep("a")], 500)
    assert bench.store.number() == 1
    bench.wait(5)
    assert bench.taken() == ["a"]


def test_a_worker_rests_while_a_beat_moves(bench):  # W4, guard: rank
    bench.store.park([Keep("a")], 1)
    assert not bench.store.move(Rank.BEAT).rests
    bench.wait(1)
    resting = bench.store.move(Rank.WORKER)
    assert (resting.rests, list(resting.taken)) == (True, [])
    assert 0 < resting.due_in <= BEAT_COUNTS
    bench.wait(BEAT_COUNTS)
    assert bench.taken() == ["a"]


def test_a_message_moves_into_its_own_queue_as_it_was_parked(redis_bench):  # W1, W3
    payload = '{"body": "\\u0000 \x01ä", "n": 0.1}'
    redis_bench.store.park([Push("mine:celery\x06\x163", payload), Publish("channel", "hello")], 1)
    listener = redis_bench.client.pubsub()
    listener.subscribe("channel")
    listener.get_message(timeout=5)
    redis_bench.wait(1)
    moved = redis_bench.store.move(Rank.WORKER)
    assert (moved.number, list(moved.taken), moved.due_in) == (2, [], None)
    assert redis_bench.client.lrange("mine:celery\x06\x163", 0, -1) == [payload]
    assert listener.get_message(timeout=5)["data"] == "hello"
    assert redis_bench.store.number() == 0
    listener.close()


def test_movers_at_the_same_moment_move_each_message_once(redis_bench):  # W3
    number, movers = 2_000, 8
    for chunk in range(0, number, 500):
        redis_bench.store.park([Push("queue", f"{n}") for n in range(chunk, chunk + 500)], 0)
    start = threading.Barrier(movers)
    moved = []

    def move():
        start.wait()
        while (step := redis_bench.store.move(Rank.WORKER)).number:
            moved.append(step.number)

    threads = [threading.Thread(target=move) for _ in range(movers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(moved) == number
    assert sorted(map(int, redis_bench.client.lrange("queue", 0, -1))) == list(range(number))


def test_a_queue_that_takes_nothing_holds_up_no_other(redis_bench):  # W5
    redis_bench.client.set("broken", "not a list")
    redis_bench.store.park([Push("broken", "a")], 0)
    redis_bench.store.park([Push("queue", "b")], 0.001)
    time.sleep(0.002)
    moved = redis_bench.store.move(Rank.WORKER)
    assert (moved.number, moved.refused) == (1, 1)
    assert redis_bench.client.lrange("queue", 0, -1) == ["b"]
    redis_bench.client.delete("broken")
    redis_bench.wait(PUT_OFF)
    assert redis_bench.store.move(Rank.WORKER).number == 1
    assert redis_bench.client.lrange("broken", 0, -1) == ["a"]


def test_a_store_that_is_away_is_no_answer():
    port, at_once = free_port(), Retry(NoBackoff(), 0)
    store = RedisWaitingStore(lambda: redis.Redis(port=port, retry=at_once), Keys("away"))
    for ask in (lambda: store.park([Keep("a")], 1), lambda: store.move(Rank.BEAT), store.number):
        with pytest.raises(StoreUnavailable):
            ask()
