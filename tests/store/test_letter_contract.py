"""What every store of dead letters promises (R1 to R4 of `store.letter_ports`), asked of each of them."""

import itertools
from dataclasses import replace

import pytest
import redis
from kombu import Connection, Queue

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.broker_letters import BrokerLetterStore
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.letter_ports import TAKEN, Burial, Parcel, Receipt, Send, Verdict
from celery_singlebeat.store.lock_ports import Caller, Outcome, Stale
from celery_singlebeat.store.memory_locks import MemoryLockStore
from celery_singlebeat.store.redis_letters import RedisLetterStore
from celery_singlebeat.store.redis_locks import RedisLockStore
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import free_port
from tests.support.letters import longest_letter

# kombu 5.4 calls redis-py 5.3 in a way that this one deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Call to 'get_connection':DeprecationWarning")

_numbers = itertools.count(1)


class LetterBench:
    def __init__(self, store, locks, connect, queue):
        self.store = store
        self.locks = locks
        self.connect = connect
        self.queue = queue

    def parcel(self, task_id, **headers):
        return Parcel(
            body='[["ä"], {}, {}]',
            content_type="application/json",
            content_encoding="utf-8",
            headers={"id": task_id, "task": "t", **headers},
            properties={"correlation_id": task_id, "priority": 3},
        )

    def bury(self, task_id, *, attempt=0, replays=0, receipt=None, parcel=None, properties=None, **headers):
        parcel = parcel or self.parcel(task_id, **headers)
        burial = Burial(
            parcel=replace(parcel, properties={**parcel.properties, **(properties or {})}),
            task="t",
            task_id=task_id,
            reason="max_retries",
            attempt=attempt,
            replays=replays,
            receipt=receipt,
        )
        return self.store.bury(burial)

    def ids(self):
        return [parcel.headers["id"] for parcel in self.store.letters()]

    def acquire(self, task_id, **about):
        caller = Caller(task="t", task_id=task_id, host="h", pid=1, **about)
        return self.locks.acquire("k", f"token{next(_numbers)}", ttl=60, caller=caller, poison_limit=5)

    def receive(self, queue):
        """Take the next message from a queue, as any consumer would."""
        with self.connect() as connection:
            message = wait_until(lambda: Queue(queue, channel=connection.default_channel).get(), 5)
            message.ack()
            return message


def _broker_bench(url, locks, queue):
    def connect():
        return Connection(url, transport_options={"confirm_publish": True})

    return LetterBench(BrokerLetterStore(connect, locks, queue=queue, limit=5), locks, connect, queue)


def _declare(url, queue, arguments):
    with Connection(url) as connection:
        connection.channel().queue_declare(queue=queue, durable=True, auto_delete=False, arguments=arguments)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("rabbitmq", marks=pytest.mark.rabbitmq),
        pytest.param("quorum", marks=pytest.mark.rabbitmq),
    ]
)
def bench(request):
    queue = f"letters{next(_numbers)}"
    if request.param == "memory":
        yield _broker_bench("memory://", MemoryLockStore(SystemClock()), queue)
    elif request.param in {"rabbitmq", "quorum"}:
        url = request.getfixturevalue("rabbitmq_url")
        if request.param == "quorum":
            _declare(url, queue, {"x-queue-type": "quorum", "x-delivery-limit": 10})
        yield _broker_bench(url, MemoryLockStore(SystemClock()), queue)
    else:
        yield from _redis_bench(request.getfixturevalue("redis_url"), queue)


def _redis_bench(url, queue, prefix=""):
    keys = Keys(f"letters{next(_numbers)}")
    locks = RedisLockStore(lambda: redis.Redis.from_url(url, decode_responses=True), keys)
    store = RedisLetterStore(
        lambda: redis.Redis.from_url(url), keys, queue=queue, limit=5, broker_prefix=prefix
    )
    options = {"global_keyprefix": prefix} if prefix else {}
    yield LetterBench(store, locks, lambda: Connection(url, transport_options=options), queue)
    store.close()
    locks.close()


@pytest.fixture
def redis_bench(redis_url):
    yield from _redis_bench(redis_url, f"letters{next(_numbers)}")


def test_a_letter_holds_the_message_as_it_was(bench):  # R2
    assert bench.store.number() == 0
    assert bench.bury("a", mine=[1, {"x": None}])
    (letter,) = bench.store.letters()
    body = letter.body if isinstance(letter.body, str) else letter.body.decode()
    assert body == '[["ä"], {}, {}]'
    assert (letter.content_type, letter.content_encoding) == ("application/json", "utf-8")
    assert letter.headers == {"id": "a", "task": "t", "mine": [1, {"x": None}]}
    assert letter.properties["correlation_id"] == "a"
    assert bench.store.number() == 1


@pytest.mark.parametrize(
    ("body", "encoding"),
    [(b"\xff\x00\x80", "utf-8"), ("ä".encode("latin-1"), "latin-1"), (b"\x80\x04.", "binary")],
)
def test_a_body_of_any_kind_is_kept_byte_for_byte(bench, body, encoding):  # R2
    bench.bury("a", parcel=replace(bench.parcel("a"), body=body, content_encoding=encoding))
    received = bench.receive(bench.queue)
    assert (received.body if isinstance(received.body, bytes) else received.body.encode(encoding)) == body
    assert received.content_encoding == encoding


def test_reading_letters_takes_none(bench):
    for task_id in "abc":
        bench.bury(task_id)
    assert bench.ids() == ["a", "b", "c"]
    assert bench.ids() == ["a", "b", "c"]
    assert bench.store.number() == 3


def test_reading_again_and_again_takes_none(bench):
    for task_id in "abc":
        bench.bury(task_id)
    for number in range(30):  # a quorum queue with a limit of ten deliveries would drop them on the way
        assert sorted(bench.ids()) == ["a", "b", "c"], number
        assert not list(bench.store.sweep(lambda _: Verdict.KEEP))
    assert bench.store.number() == 3


def test_a_call_has_one_letter_for_each_count_of_replays(bench):  # R1, guard: letter
    assert bench.bury("a")
    assert not bench.bury("a")
    assert bench.bury("a", replays=1)
    assert not bench.bury("a", replays=0)
    assert bench.ids() == ["a", "a"]


def test_a_call_with_a_later_attempt_gets_no_letter(bench):  # R1, guard: letter
    grant_token = "token"
    caller = Caller(task="t", task_id="a", host="h", pid=1)
    bench.locks.acquire("k", grant_token, ttl=60, caller=caller, poison_limit=5)
    bench.locks.release("k", grant_token, caller=caller, outcome=Outcome.RETRY)
    assert not bench.bury("a", attempt=0)
    assert bench.bury("a", attempt=1)


def test_a_buried_call_is_not_granted_a_lock(bench):  # N5
    bench.bury("a")
    assert bench.acquire("a") == Stale()


def test_the_oldest_letters_go_beyond_the_limit(bench):
    for number in range(8):
        bench.bury(f"call{number}")
    assert bench.ids() == [f"call{number}" for number in range(3, 8)]


def test_a_replay_moves_one_letter_into_its_queue(bench):  # R3
    for task_id in "abc":
        bench.bury(task_id, failure="why")
    letter = next(parcel for parcel in bench.store.letters() if parcel.headers["id"] == "b")
    queue = f"{bench.queue}-target"
    if bench.connect().transport.driver_type == "amqp":
        with bench.connect() as connection:
            connection.channel().queue_declare(queue=queue, durable=True, auto_delete=False)
    message = Parcel(
        body=letter.body,
        content_type=letter.content_type,
        content_encoding=letter.content_encoding,
        headers={"id": "b", "task": "t"},
        properties={**letter.properties, "priority": 0},
    )
    done = [swept.done for swept in bench.store.sweep(_sends(letter, message, queue))]
    assert done == [True]
    assert not list(bench.store.sweep(_sends(letter, message, queue)))
    assert sorted(bench.ids()) == ["a", "c"]
    received = bench.receive(queue)
    assert received.payload == [["ä"], {}, {}]
    assert received.headers == {"id": "b", "task": "t"}
    assert received.properties["correlation_id"] == "b"


def test_the_letter_of_a_call_that_expires_does_not_expire_and_neither_does_its_replay(bench):  # R1, R3
    bench.bury("a", properties={"expiration": "0", "user_id": "nobody"})  # RabbitMQ would drop it, or refuse
    assert bench.store.number() == 1
    (letter,) = bench.store.letters()
    queue = f"{bench.queue}-target"
    if bench.connect().transport.driver_type == "amqp":
        _declare(bench.connect().as_uri(include_password=True), queue, {})
    message = replace(letter, properties={**letter.properties, "expiration": "0", "priority": 0})
    assert [swept.done for swept in bench.store.sweep(_sends(letter, message, queue))] == [True]
    assert bench.receive(queue).headers["id"] == "a"


def test_the_longest_letter_fits_into_a_message(bench):  # G7
    headers = longest_letter("🙂")
    assert bench.bury("a", **{name: value for name, value in headers.items() if name not in {"id", "task"}})
    (letter,) = bench.store.letters()
    assert letter.headers == headers


def test_a_letter_that_two_operators_chose_is_sent_once(redis_bench, redis_client):  # R3, guard: letter
    for task_id in "abc":
        redis_bench.bury(task_id)
    queue = f"{redis_bench.queue}-target"
    other = []

    def decide(letter):
        if not other:  # between this operator's look at the letters and its step, another takes them all
            other.extend(redis_bench.store.sweep(lambda letter: Send(letter, queue)))
        return Send(letter, queue)

    assert [swept.problem for swept in redis_bench.store.sweep(decide)] == [TAKEN] * 3
    assert [swept.done for swept in other] == [True] * 3
    assert sum(redis_client.llen(key) for key in redis_client.keys(f"{queue}*")) == 3  # one list a priority


def _sends(letter, message, queue):
    """Send this one letter."""
    return lambda found: Send(message, queue) if found == letter else Verdict.KEEP


def test_letters_can_be_thrown_away(bench):
    for task_id in "abc":
        bench.bury(task_id)

    def decide(letter):
        return Verdict.KEEP if letter.headers["id"] == "b" else Verdict.DROP

    assert [swept.letter.headers["id"] for swept in bench.store.sweep(decide)] == ["a", "c"]
    assert not list(bench.store.sweep(decide))
    assert bench.ids() == ["b"]


def test_any_consumer_can_read_the_letters(bench):
    bench.bury("a")
    assert bench.receive(bench.queue).payload == [["ä"], {}, {}]
    assert bench.store.number() == 0


def test_burying_acknowledges_the_message_in_the_same_step(redis_bench, redis_client):
    for tag in ("tag", "other"):
        redis_client.hset("unacked", tag, "message")
        redis_client.zadd("unacked_index", {tag: 1})
    redis_bench.bury("a", receipt=Receipt("tag", "unacked", "unacked_index"))
    assert redis_client.hkeys("unacked") == ["other"]
    assert redis_client.zrange("unacked_index", 0, -1) == ["other"]


def test_a_refused_letter_leaves_its_message_where_it_is(redis_bench, redis_client):  # R4
    redis_client.set(redis_bench.queue, "not a list")
    redis_client.hset("unacked", "tag", "message")
    with pytest.raises(StoreUnavailable):
        redis_bench.bury("a", receipt=Receipt("tag", "unacked", "unacked_index"))
    assert redis_client.hkeys("unacked") == ["tag"]
    redis_client.delete(redis_bench.queue)
    assert redis_bench.bury("a", receipt=Receipt("tag", "unacked", "unacked_index"))


def test_a_broker_with_a_key_prefix_finds_its_letters(redis_url, redis_client):
    for bench in _redis_bench(redis_url, "letters", "mine:"):
        bench.bury("a")
        assert redis_client.llen("mine:letters") == 1
        assert bench.receive("letters").payload == [["ä"], {}, {}]


def test_a_broker_that_is_away_is_no_answer():  # R4
    url = f"redis://127.0.0.1:{free_port()}/0"
    for bench in _redis_bench(url, "letters"):
        with pytest.raises(StoreUnavailable):
            bench.bury("a")
    away = _broker_bench(f"amqp://127.0.0.1:{free_port()}//", MemoryLockStore(SystemClock()), "letters")
    with pytest.raises(StoreUnavailable):
        away.bury("a")


def test_many_letters_are_read_page_by_page(redis_bench):
    redis_bench.store._limit = 10_000
    for number in range(450):
        redis_bench.bury(f"call{number}")
    assert redis_bench.ids() == [f"call{number}" for number in range(450)]


def test_a_full_queue_that_refuses_leaves_the_message_where_it_is(rabbitmq_url):  # R4
    bench = _broker_bench(rabbitmq_url, MemoryLockStore(SystemClock()), "letters")
    _declare(rabbitmq_url, "letters", {"x-max-length": 1, "x-overflow": "reject-publish"})
    assert bench.bury("a")
    with pytest.raises(StoreUnavailable):
        bench.bury("b")
    assert bench.ids() == ["a"]
    assert bench.locks.may_bury("b", attempt=0, replays=0)


def test_a_letter_only_moves_although_its_call_is_buried(bench):  # R1
    bench.bury("a")
    (letter,) = bench.store.letters()
    burial = Burial(
        parcel=letter, task="t", task_id="a", reason="max_retries", attempt=0, replays=0, moves=True
    )
    assert bench.store.bury(burial)
    assert bench.ids() == ["a", "a"]
