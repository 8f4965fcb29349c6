"""Locks by the majority of several independent Redis: Redlock, as redis.io describes it.

Each server has one vote for each key. A lock is held while a majority has given its votes to one token, and
two majorities share a server. Beyond the description:

* A server is asked by one thread over one connection, so that a release never overtakes its acquisition, and
  nobody waits for a server that is not needed for the decision, or that was silent when it was asked last.
* A server that lost a vote while the majority still stands, because it was restarted empty or was away, is
  given the lock again. It does not count in the renewal that finds this.
* Each server keeps the largest fence that it was told, and a grant counts once a majority has noted its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import redis

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.policy.leases import margin
from celery_singlebeat.store.backend_ports import Lost, Verdict, Won
from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.lock_ports import Lease, LockRecord, unknown_holder
from celery_singlebeat.store.scripts import Scripts, answers, matching, source

T = TypeVar("T")

_PAGE = 500

#: A server's answer about one key: whether the vote is ours, whose it is otherwise, the fence it was told.
Vote = tuple[int, str, str]


class _Server:
    """One server, asked by one thread over one connection: requests arrive in the order of asking."""

    def __init__(self, client: redis.Redis, clock: Clock) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="singlebeat-redlock")
        #: Whether the last question had an answer.
        self.is_heard = True

    def ask(self, question: Callable[[Scripts], T], until: Monotonic) -> Future[T]:
        """Ask, unless its turn comes after `until`: then nobody waits for the answer any more."""
        return self._thread.submit(self._answer, question, until)

    def _answer(self, question: Callable[[Scripts], T], until: Monotonic) -> T:
        try:
            answer = self._ask(question, until)
        except StoreUnavailable:
            self.is_heard = False
            raise
        self.is_heard = True
        return answer

    def _ask(self, question: Callable[[Scripts], T], until: Monotonic) -> T:
        if self._clock.monotonic() >= until:
            raise StoreUnavailable("a lock server", "it is busy with earlier requests")
        try:
            return question(self._scripts)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, redis.TimeoutError):
                raise
            # The connection may have broken while it was idle; every question can be asked twice.
            return question(self._scripts)

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._client.close()


class RedlockBackend:
    """`LockBackend` over an odd number of servers that know nothing of each other.

    `patience` is how long one server may take, in seconds; no method takes much more than twice that.
    """

    notes_fences = True

    def __init__(
        self, connect: Sequence[Callable[[], redis.Redis]], keys: Keys, *, patience: float, clock: Clock
    ) -> None:
        self._connect = connect
        self._keys = keys
        self._patience = patience
        self._clock = clock
        self._majority = len(connect) // 2 + 1
        self._servers: dict[int, list[_Server]] = {}

    def acquire(self, key: str, token: str, *, ttl: float) -> Verdict:
        asked_at = self._clock.monotonic()
        votes = self._await(self._tell_all(self._vote(key, token, ttl)), self._is_elected)
        given = [vote for vote in votes if vote is not None and vote[0]]
        if len(given) >= self._majority and self._clock.monotonic() < later(asked_at, ttl - margin(ttl)):
            return Won(1 + max(int(fence) for _, _, fence in given))
        self._tell_all(self._without_vote(key, token))
        if len([vote for vote in votes if vote is not None]) < self._majority:
            raise StoreUnavailable("lock_acquire", "no majority of the lock servers answers")
        return Lost(sure=_largest(votes) >= self._majority)

    def _is_elected(self, votes: list[Vote]) -> bool:
        given = len([vote for vote in votes if vote[0]])
        return given >= self._majority or len(votes) - given > len(self._connect) - self._majority

    def renew(self, leases: Sequence[Lease], *, ttl: float) -> list[bool | None]:
        if not leases:
            return []
        script, millis = source("redlock_renew"), _ms(ttl)

        def question(scripts: Scripts) -> list[int]:
            with answers("redlock_renew"):
                pipe = scripts.client.pipeline(transaction=False)
                for lease in leases:
                    about = [lease.token, str(millis), str(lease.fence)]
                    pipe.eval(script, 2, self._keys.vote(lease.key), self._keys.told_fence, *about)
                return [int(answer) for answer in pipe.execute()]

        def verdicts(ballots: Sequence[list[int]]) -> list[bool | None]:
            return [self._verdict([ballot[n] for ballot in ballots]) for n in range(len(leases))]

        futures = self._tell_all(question)
        ballots = self._await(futures, lambda found: None not in verdicts(found))
        kept = verdicts([ballot for ballot in ballots if ballot is not None])
        for server, future in zip(self._all(), futures, strict=True):
            future.add_done_callback(partial(self._complete, server, leases, kept, ttl))
        return kept

    def _verdict(self, ballot: list[int]) -> bool | None:
        if ballot.count(1) >= self._majority:
            return True
        refused = len(ballot) - ballot.count(1)
        return False if refused > len(self._connect) - self._majority else None

    def _complete(
        self,
        server: _Server,
        leases: Sequence[Lease],
        kept: Sequence[bool | None],
        ttl: float,
        ballot: Future[list[int]],
    ) -> None:
        """Give a lock that the majority has also to a server where its key is free."""
        if ballot.exception() is not None:
            return
        for lease, is_kept, answer in zip(leases, kept, ballot.result(), strict=True):
            if is_kept and answer == -1:
                with suppress(RuntimeError):  # it was closed meanwhile
                    server.ask(self._vote(lease.key, lease.token, ttl), self._deadline())

    def release(self, key: str, token: str) -> bool | None:
        """Free the key on every server, also on those that gave no answer when it was taken."""
        futures = self._tell_all(self._without_vote(key, token))
        done = self._await(futures, lambda found: self._verdict(found) is not None)
        return self._verdict([answer for answer in done if answer is not None])

    def break_lock(self, key: str) -> bool:
        def question(scripts: Scripts) -> int:
            with answers("lock_break"):
                return int(scripts.client.delete(self._keys.vote(key)))

        return any(self._majority_of(question, "lock_break"))

    def held(self, records: Sequence[LockRecord]) -> list[LockRecord]:
        prefix = self._keys.vote("")

        def question(scripts: Scripts) -> dict[str, str]:
            with answers("locks"):
                names: list[Any] = list(scripts.client.scan_iter(match=matching(prefix), count=_PAGE))
                tokens: list[Any] = scripts.client.mget(names) if names else []
            return {name: token for name, token in zip(names, tokens, strict=True) if token}

        count = Counter(vote for found in self._majority_of(question, "locks") for vote in found.items())
        keys = {name[len(prefix) :] for (name, _), votes in count.items() if votes >= self._majority}
        described = {record.key: record for record in records if record.key in keys}
        return [
            described.get(key)
            or LockRecord(key=key, holder=unknown_holder(), ttl=0.0, fence=0, backend="redlock")
            for key in sorted(keys)
        ]

    def close(self) -> None:
        for server in self._servers.pop(os.getpid(), []):
            server.close()

    # -- inside ---------------------------------------------------------------------------------

    def _vote(self, key: str, token: str, ttl: float) -> Callable[[Scripts], Vote]:
        keys = [self._keys.vote(key), self._keys.told_fence]

        def question(scripts: Scripts) -> Vote:
            given, owner, fence = scripts.run("redlock_acquire", keys, [token, _ms(ttl)])
            return int(given), owner, fence

        return question

    def _without_vote(self, key: str, token: str) -> Callable[[Scripts], int]:
        return lambda scripts: int(scripts.run("redlock_release", [self._keys.vote(key)], [token]))

    def _majority_of(self, question: Callable[[Scripts], T], operation: str) -> list[T]:
        """The answers of all servers that answer; raises `StoreUnavailable` if that is no majority."""
        answers_of_all = self._await(self._tell_all(question), lambda _: False)
        found = [answer for answer in answers_of_all if answer is not None]
        if len(found) < self._majority:
            raise StoreUnavailable(operation, "no majority of the lock servers answers")
        return found

    def _await(self, futures: Sequence[Future[T]], is_decided: Callable[[list[T]], bool]) -> list[T | None]:
        """Wait until the answers decide, all are in, or time is up. None: no answer of that server."""
        until = self._deadline()
        # One that was silent before is waited for only where it is needed for a majority.
        heard = {future for server, future in zip(self._all(), futures, strict=True) if server.is_heard}
        pending = heard if len(heard) >= self._majority else set(futures)
        while pending and not is_decided([found for found in map(_answer, futures) if found is not None]):
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            _, pending = wait(pending, timeout=left, return_when=FIRST_COMPLETED)
        return [_answer(future) for future in futures]

    def _tell_all(self, question: Callable[[Scripts], T]) -> list[Future[T]]:
        until = self._deadline()
        return [server.ask(question, until) for server in self._all()]

    def _deadline(self) -> Monotonic:
        return later(self._clock.monotonic(), 2 * self._patience)

    def _all(self) -> list[_Server]:
        """The servers, with threads of this process: those of a parent do not survive a fork."""
        found = self._servers.get(os.getpid())
        if found is None:
            fresh = [_Server(connect(), self._clock) for connect in self._connect]
            found = self._servers.setdefault(os.getpid(), fresh)
        return found


def _answer(future: Future[T]) -> T | None:
    return future.result() if future.done() and future.exception() is None else None


def _largest(votes: Sequence[Vote | None]) -> int:
    """How many votes another token has at least."""
    owners = Counter(vote[1] for vote in votes if vote is not None and not vote[0])
    return max(owners.values(), default=0)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
