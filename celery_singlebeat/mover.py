"""The thread that passes on calls whose wait is over, and drops dead letters that are too old.

It runs in the beats, of which the leader moves, and in the workers, which move while no beat does. However
many move at once, each call is passed on once: the store sees to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cached_property

from kombu import Connection, Producer

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.logs import logger
from celery_singlebeat.messages import confirming_connection, send_record, throw_away
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.store.letter_ports import Parcel, Verdict
from celery_singlebeat.store.ports import Keep
from celery_singlebeat.store.waiting_ports import MOST, Moved, Rank
from celery_singlebeat.wiring import Wiring

#: Seconds between two looks. A call that begins to wait after a look, and for less than this, is late by
#: the rest.
LOOK_EVERY = {Rank.BEAT: 0.1, Rank.WORKER: 0.5}
#: Seconds of rest after trouble, and between two lines about it.
TRY_AGAIN, REMIND = 1.0, 60.0
#: Seconds between two looks for letters that are too old.
TRIM_EVERY = 60.0


class Mover:
    """Moves what is due, as often as `may` says yes."""

    def __init__(self, wiring: Wiring, rank: Rank, may: Callable[[], bool] = lambda: True) -> None:
        self._wiring = wiring
        self._rank = rank
        self._may = may
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._reminded_at = Monotonic(float("-inf"))
        self._trim_at = Monotonic(float("-inf"))

    def start(self) -> None:
        """Start the thread in this process if this app needs it; a second call does nothing."""
        if self._thread is None and self._is_needed():
            self._thread = threading.Thread(target=self._run, name="singlebeat-mover", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 0.5) -> None:
        """End the thread; what is not passed on goes on waiting."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def turn(self) -> float:
        """Move what is due; seconds until the next look."""
        look_every = LOOK_EVERY[self._rank]
        if not self._may():
            return look_every
        self._trim()
        if not self._moves:
            return TRIM_EVERY
        moved = self._wiring.waiting_store().move(self._rank)
        for record in moved.taken:
            self._publish(record)
        if moved.refused:
            self._complain(f"{moved.refused} queues do not take their messages: a key of another type?")
        return self._rest(moved, look_every)

    def _rest(self, moved: Moved, look_every: float) -> float:
        if moved.rests:
            return max(look_every, moved.due_in or 0.0)
        if moved.number + len(moved.taken) >= MOST:
            return 0.0
        return look_every if moved.due_in is None else min(look_every, moved.due_in)

    @cached_property
    def _moves(self) -> bool:
        return self._wiring.keeps_waiting_calls

    def _is_needed(self) -> bool:
        return self._moves or self._wiring.settings.dead_letter_max_age is not None

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                pause = self.turn()
            except StoreUnavailable as error:
                self._complain(str(error))
                pause = TRY_AGAIN
            except Exception:
                # Without this thread the calls would wait for good.
                logger.exception("moving calls whose wait is over failed, and goes on")
                pause = TRY_AGAIN
        self._disconnect()

    def _publish(self, record: Keep) -> None:
        """Send a record, then forget it: after a crash in between it goes out again, under its id."""
        app, store = self._wiring.app, self._wiring.waiting_store()
        try:
            if self._producer is None:
                self._connection = confirming_connection(app)
                self._producer = app.amqp.Producer(self._connection, auto_declare=False)
            send_record(app, self._producer, record.payload)
        except Exception as error:  # kombu wraps, drivers do not; every error means: not confirmed
            self._disconnect()
            store.put_off(record, TRY_AGAIN)
            self._complain(f"the broker does not take them: {type(error).__name__}: {error}")
            return
        store.done(record)

    def _trim(self) -> None:
        age, clock = self._wiring.settings.dead_letter_max_age, self._wiring.clock
        if age is None or clock.monotonic() < self._trim_at:
            return
        self._trim_at = later(clock.monotonic(), TRIM_EVERY)
        before = clock.now() - timedelta(seconds=age)
        dropped = 0
        for letters in self._wiring.letter_stores():
            dropped += sum(swept.done for swept in letters.sweep(lambda letter: _age(letter, before)))
        if dropped:
            self._wiring.lock_store().count("dead_letters_trimmed", dropped)

    def _complain(self, problem: str) -> None:
        now = self._wiring.clock.monotonic()
        if now - self._reminded_at >= REMIND:
            self._reminded_at = now
            logger.warning("calls that are due for another attempt go on waiting: %s", problem)

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        throw_away(connection)


def _age(letter: Parcel, before: datetime) -> Verdict:
    """Letters lie in the order of their deaths, so that the first young one ends the search."""
    died_at = dead_letters.died_at(letter.headers)
    if died_at is None:
        return Verdict.KEEP
    return Verdict.DROP if died_at < before else Verdict.STOP
