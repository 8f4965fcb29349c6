"""Locks that are PostgreSQL sessions, through whatever happens to a session."""

import itertools
import os
import socket
import struct
import threading
import time

import pytest

from celery_singlebeat.clock import SystemClock
from celery_singlebeat.errors import SettingsError, StoreUnavailable
from celery_singlebeat.store.backed_locks import BackedLockStore
from celery_singlebeat.store.backend_ports import Lost, Won
from celery_singlebeat.store.lock_ports import Caller, Granted, Lease, Taken
from celery_singlebeat.store.memory_locks import MemoryLockStore
from celery_singlebeat.store.postgres_locks import PostgresBackend
from celery_singlebeat.store.postgres_session import read_dsn
from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.processes import wait_until
from tests.support.proxy import FaultProxy

pytestmark = [pytest.mark.postgresql, pytest.mark.fault]

_numbers = itertools.count()


@pytest.fixture
def postgres_proxy(postgres_server):
    with FaultProxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def make_backend(postgres_server):
    # A session that has just been closed holds its keys for another moment, so each test has its own.
    made, own = [], f"faults {next(_numbers)}"

    def make(port=None, *, patience=5.0, prefix=own, **changes):
        parameters = read_dsn(postgres_server.dsn, setting="dsn") | changes
        parameters["port"] = str(port or postgres_server.port)
        made.append(PostgresBackend(parameters, prefix, patience=patience, clock=SystemClock()))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def renew(backend, key, token, *, ttl=60.0):
    return backend.renew([Lease(key, token, "call")], ttl=ttl)[0]


def sessions(backend):
    """How many connections to the server are this backend's."""
    with_one_more = backend._session(backend._deadline())
    [(count,)] = with_one_more.ask(
        "select count(*) from pg_stat_activity where application_name like $1",
        f"singlebeat {backend._tag} %",
        until=backend._deadline(),
    )
    backend._park(with_one_more)
    return int(count)


# The end of a connection


def test_the_key_of_a_cut_connection_is_free_at_once_and_its_holder_learns(
    postgres_proxy, make_backend
):  # Q3
    one, two = make_backend(postgres_proxy.port), make_backend()
    one.acquire("k", "a", ttl=600)
    assert isinstance(two.acquire("k", "b", ttl=60), Lost)
    postgres_proxy.reset()
    cut = time.monotonic()
    wait_until(lambda: isinstance(two.acquire("k", "b", ttl=60), Won), 5, interval=0.001)
    assert time.monotonic() - cut < 5
    assert renew(one, "k", "a", ttl=600) is False
    assert one.release("k", "a") is False
    assert renew(two, "k", "b")


def test_a_restart_of_the_server_frees_every_lock_and_their_holders_learn(postgres_server, make_backend):
    one, two = make_backend(), make_backend()
    one.acquire("k", "a", ttl=600)
    postgres_server.restart()
    assert renew(one, "k", "a") is False
    assert isinstance(two.acquire("k", "b", ttl=60), Won)


def test_a_connection_that_lives_and_holds_the_key_no_more_is_no_holder(make_backend):  # N3, Q2
    one, two = make_backend(), make_backend()
    one.acquire("k", "a", ttl=60)
    deadline = one._deadline()
    one._held["a"].session.ask("select pg_advisory_unlock_all()", until=deadline)
    assert isinstance(two.acquire("k", "b", ttl=60), Won)
    assert renew(one, "k", "a") is False
    assert one.release("k", "a") is False
    assert renew(two, "k", "b")


def test_a_holder_that_is_cut_off_keeps_its_key_for_its_ttl(postgres_proxy, make_backend):  # Q3
    one, two = make_backend(postgres_proxy.port), make_backend()
    one.acquire("k", "a", ttl=1.5)
    two.acquire("warm", "w", ttl=60)
    postgres_proxy.blackhole()
    one._patience = 0.1
    assert renew(one, "k", "a", ttl=1.5) is None
    assert isinstance(two.acquire("k", "b", ttl=60), Lost)
    wait_until(lambda: isinstance(two.acquire("k", "b", ttl=60), Won), 5)


def test_a_late_answer_costs_no_lock_and_lengthens_none(postgres_proxy, make_backend):  # Q4
    one = make_backend(postgres_proxy.port)
    one.acquire("k", "a", ttl=60)
    one._patience = 0.1
    postgres_proxy.hold(replies=True)
    assert renew(one, "k", "a") is None
    one._patience = 2
    threading.Timer(0.2, postgres_proxy.heal).start()
    assert renew(one, "k", "a") is None  # the answer to the first question is not one to this
    wait_until(lambda: renew(one, "k", "a"))
    assert one.release("k", "a")


def test_one_connection_without_an_answer_does_not_keep_the_others_waiting(postgres_proxy, make_backend):
    far, near = make_backend(postgres_proxy.port), make_backend()
    far.acquire("far", "f", ttl=60)
    near.acquire("near", "n", ttl=60)
    far._patience = near._patience = 0.5
    near._held["f"] = far._held["f"]  # one process whose first connection is cut off
    postgres_proxy.blackhole()
    leases = [Lease("far", "f", ""), Lease("near", "n", "")]
    assert near.renew(leases, ttl=60) == [None, True]
    del near._held["f"]


def test_the_lost_answer_to_an_acquisition_is_asked_for_again(
    postgres_server, postgres_proxy, make_backend
):  # Q4
    one, other = make_backend(postgres_proxy.port), make_backend()
    one.acquire("warm", "w", ttl=60)
    one.release("warm", "w")
    one._patience = 0.5
    postgres_proxy.hold(replies=True)

    def cut():
        wait_until(lambda: other.held([]))  # the server has taken the lock, and nobody hears of it
        postgres_proxy.hold(requests=True, replies=True)

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(StoreUnavailable):
        one.acquire("k", "a", ttl=600)
    cutting.join()
    one._parameters["port"] = str(postgres_server.port)  # another way is open, and the old session lives
    assert isinstance(other.acquire("k", "b", ttl=600), Lost)
    assert isinstance(one.acquire("k", "a", ttl=600), Won)
    assert renew(one, "k", "a")


def test_a_server_that_cannot_be_reached_is_no_answer(postgres_proxy, make_backend):  # Q4
    one = make_backend(postgres_proxy.port, patience=0.2)
    postgres_proxy.refuse()
    with pytest.raises(StoreUnavailable):
        one.acquire("k", "a", ttl=60)
    postgres_proxy.heal()
    postgres_proxy.blackhole()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="in time"):
        one.acquire("k", "a", ttl=60)
    assert time.monotonic() - started < 2


# Forks


def test_a_child_leaves_the_connections_of_its_parent_alone(make_backend):
    parent, other = make_backend(), make_backend()
    parent.acquire("k", "a", ttl=60)
    child = os.fork()
    if not child:
        code = 1
        try:
            own = isinstance(parent.acquire("mine", "c", ttl=60), Won) and parent.release("mine", "c")
            code = 0 if own and renew(parent, "k", "a") is False else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert renew(parent, "k", "a")
    assert isinstance(other.acquire("k", "b", ttl=60), Lost)


def test_the_death_of_a_holder_frees_its_key_although_its_child_lives(make_backend):
    other = make_backend()
    ready, done = os.pipe(), os.pipe()
    holder = os.fork()
    if not holder:
        mine = make_backend()
        mine.acquire("k", "a", ttl=600)
        if os.fork() == 0:
            os.write(ready[1], b"x")
            os.close(done[1])
            os.read(done[0], 1)  # outlives the holder
            os._exit(0)
        time.sleep(600)
    try:
        os.read(ready[0], 1)
        assert isinstance(other.acquire("k", "b", ttl=60), Lost)
        os.kill(holder, 9)
        os.waitpid(holder, 0)
        wait_until(lambda: isinstance(other.acquire("k", "b", ttl=60), Won), 5)
    finally:
        for pipe in (*ready, *done):
            os.close(pipe)


# What is refused, and what is never shown


def test_a_password_is_in_no_message(make_backend):
    backend = make_backend(password="s3cret", user="nobody-of-that-name")
    with pytest.raises(StoreUnavailable) as caught:
        backend.acquire("k", "a", ttl=60)
    assert "nobody-of-that-name" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    for dsn in (
        "postgresql://u:s3cret@h:port/d",
        "postgresql://u:s3cret@[h/d",
        "u:s3cret",
        "mysql://u:s3cret@h/d",
    ):
        with pytest.raises(SettingsError) as refused:
            read_dsn(dsn, setting="singlebeat_postgres_dsn")
        assert "s3cret" not in str(refused.value)
        assert "postgresql://user:password@host" in str(refused.value)


class Pooler:
    """Does what every pooler does with a new session: it sends a process id of its own invention."""

    def __init__(self, upstream_port):
        self._upstream = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            threading.Thread(target=self._copy, args=(client, server), daemon=True).start()
            while data := server.recv(65536):
                at = data.find(b"K\x00\x00\x00\x0c")
                if at >= 0:
                    data = data[: at + 5] + struct.pack("!i", 7) + data[at + 9 :]
                client.sendall(data)

    def _copy(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self):
        self._listener.close()


def test_a_pooler_is_refused(postgres_server, make_backend):
    pooler = Pooler(postgres_server.port)
    with pytest.raises(StoreUnavailable, match="pooler"):
        make_backend(pooler.port, gssencmode="disable", sslmode="disable").acquire("k", "a", ttl=60)
    pooler.close()


# Operators


def test_taking_a_lock_away_ends_its_connection_and_no_other(make_backend):
    one, operator = make_backend(), make_backend()
    one.acquire("k", "a", ttl=60)
    one.acquire("l", "b", ttl=60)
    assert operator.break_lock("k")
    assert not operator.break_lock("k")
    assert renew(one, "k", "a") is False
    assert renew(one, "l", "b")


def test_a_lock_that_nobody_describes_is_listed_with_what_is_known_and_can_be_taken_away(make_backend):
    one, operator = make_backend(), make_backend()
    one.acquire("k", "a", ttl=60)
    store = BackedLockStore("postgresql", MemoryLockStore(FakeClock()), operator, pause=lambda _: None)
    caller = Caller(task="t", task_id="call", host="h", pid=1)
    assert isinstance(store.acquire("k", "b", ttl=60, caller=caller, poison_limit=5), Taken)
    [lock] = store.locks()
    assert lock.key.startswith("postgresql ")
    assert (lock.holder.pid, lock.holder.host) == (os.getpid(), socket.gethostname()[: len(lock.holder.host)])
    assert store.break_lock(lock.key) is not None
    assert isinstance(store.acquire("k", "b", ttl=60, caller=caller, poison_limit=5), Granted)


def test_the_locks_of_another_app_in_the_same_database_are_not_ours(make_backend):
    one, other = make_backend(prefix="one"), make_backend(prefix="other")
    assert isinstance(one.acquire("k", "a", ttl=60), Won)
    assert isinstance(other.acquire("k", "b", ttl=60), Won)
    assert len(one.held([])) == 1


def test_connections_are_used_again_and_are_no_more_than_the_locks_held_at_once(make_backend):
    backend = make_backend(prefix="flat")
    for number in range(50):
        backend.acquire(f"k{number}", f"t{number}", ttl=60)
        backend.release(f"k{number}", f"t{number}")
    assert sessions(backend) == 1
    for number in range(12):
        backend.acquire(f"k{number}", f"t{number}", ttl=60)
    for number in range(12):
        backend.release(f"k{number}", f"t{number}")
    wait_until(lambda: sessions(backend) <= 8)


def test_what_nobody_released_is_forgotten_after_its_ttl(make_backend):  # Q3
    backend = make_backend(prefix="forgotten")
    for number in range(5):
        backend.acquire(f"k{number}", f"t{number}", ttl=0.05)
    time.sleep(0.1)
    backend.acquire("k", "t", ttl=60)
    assert set(backend._held) == {"t"}
