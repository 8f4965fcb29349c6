"""The thread that empties the outbox into the broker.

R1  A record is forgotten only after the broker has confirmed its message; so a message may go out twice,
    always under the same task id, and never not at all.
R2  The tick loop never waits for the broker: a broker that is down, full or swallowing packets leaves
    records, not late slots.
R3  Only a leader publishes; a new one empties first what its predecessor left.
R4  A broker that takes nothing for long is seen from outside this thread, which may itself be stuck in a
    call of the broker.
R5  A message that the broker refuses waits behind all others, and says nothing of the broker.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from celery import Celery
from kombu import Connection, Producer

from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import NotLeader, StoreUnavailable
from celery_singlebeat.events import Listener, PublishFailed
from celery_singlebeat.messages import confirming_connection, send_record, throw_away
from celery_singlebeat.moments import Monotonic
from celery_singlebeat.policy.leases import Term
from celery_singlebeat.store.ports import SlotStore

logger = logging.getLogger(__name__)

#: Seconds between two tries while the broker fails.
TRY_AGAIN = 1.0
#: Seconds between two "the broker does not take them" lines.
REMIND = 60.0

Record = tuple[str, str]


class Publisher:
    """Sends outbox records with confirmation; a daemon thread from the first record on."""

    def __init__(
        self,
        app: Celery,
        store: SlotStore,
        term: Callable[[], Term],
        *,
        clock: Clock,
        tell: Listener,
    ) -> None:
        self._app = app
        self._store = store
        self._term = term
        self._clock = clock
        self._tell = tell
        self._work = threading.Semaphore(0)
        self._fresh: deque[Record] = deque()
        self._must_drain = False
        self._refused: set[str] = set()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._stuck_since: Monotonic | None = None
        self._reminded_at = Monotonic(float("-inf"))

    def send(self, records: Sequence[Record]) -> None:
        """Publish records that were just emitted."""
        self._fresh.extend(records)
        self._wake()

    def drain(self) -> None:
        """Publish whatever the outbox holds: another leader may have left it."""
        self._must_drain = True
        self._wake()

    def stuck_for(self) -> float:
        """Seconds since the broker last took a message, or was given the first of those that wait; 0 while
        none does.
        """
        since = self._stuck_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def stop(self, timeout: float = 0.5) -> None:
        """End the thread; what is not published stays in the outbox."""
        self._stopping = True
        self._work.release()
        if self._thread is not None:
            self._thread.join(timeout)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="singlebeat-publisher", daemon=True)
            self._thread.start()
        self._work.release()

    def _run(self) -> None:
        while not self._stopping:
            self._work.acquire(timeout=TRY_AGAIN if self._must_drain else None)
            try:
                self._turn()
            except Exception:
                # The records stay in the outbox; without this thread they would stay for good.
                logger.exception("the publisher failed and goes on")
                self._must_drain = True
                threading.Event().wait(TRY_AGAIN)
        self._disconnect()

    def _turn(self) -> None:
        fresh = [self._fresh.popleft() for _ in range(len(self._fresh))]
        try:
            self._term()
            if self._must_drain:
                fresh = self._store.outbox()
        except (NotLeader, StoreUnavailable):
            # Another leader empties the outbox; so does this node, if its trust had only lapsed.
            self._must_drain = True
            self._stuck_since = None
            return
        if not fresh:
            self._must_drain = False
            self._stuck_since = None
            return
        fresh.sort(key=lambda record: record[0] in self._refused)  # R5
        sent: list[Record] = []
        if self._stuck_since is None:
            self._stuck_since = self._clock.monotonic()
        try:
            for record in fresh:
                self._term()
                self._publish(record[1])
                self._stuck_since = self._clock.monotonic()
                sent.append(record)
        except NotLeader:
            self._must_drain = True  # see above
            self._stuck_since = None
        except Exception as error:  # kombu wraps, drivers do not; every error means: not confirmed
            self._failed(error, fresh[len(sent) :])
        else:
            self._must_drain = False
            self._stuck_since = None
            self._refused.clear()
        try:
            self._store.confirm(sent)
        except StoreUnavailable:
            self._must_drain = True  # they go out again, under the same ids

    def _publish(self, record: str) -> None:
        if self._producer is None:
            self._connection = confirming_connection(self._app)
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        send_record(self._app, self._producer, record)

    def _failed(self, error: Exception, waiting: Sequence[Record]) -> None:
        connection = self._connection
        if connection is not None and not isinstance(error, connection.connection_errors):  # R5
            self._refused.add(waiting[0][0])
            self._stuck_since = None
        self._disconnect()
        self._must_drain = True
        now = self._clock.monotonic()
        if now - self._reminded_at >= REMIND:
            self._reminded_at = now
            self._tell(PublishFailed(waiting=len(waiting), problem=f"{type(error).__name__}: {error}"))

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        throw_away(connection)
