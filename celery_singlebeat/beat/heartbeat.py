"""The thread that talks to the store about the lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery_singlebeat.beat.elector import Elector
from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.store.ports import Ears, NodeReport, NodeStore

logger = logging.getLogger(__name__)

#: Seconds between two reports of a node, after which a silent node's report goes, and between two looks
#: for such: reading the reports of all nodes is not for every second of every node.
REPORT_EVERY, KEEP_REPORTS, SWEEP_EVERY = 1.0, 3600.0, 60.0


class Pulse:
    """Whether the tick loop turns: it says when it will be back, and is believed for a while longer."""

    def __init__(self, clock: Clock, *, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._back_at = clock.monotonic()

    def beat(self, away: float = 0.0) -> None:
        """The tick loop is alive, and away for so many seconds."""
        self._back_at = later(self._clock.monotonic(), away)

    def age(self) -> float:
        """Seconds since the tick loop wanted to be back; 0 while it is not late."""
        return max(0.0, self._clock.monotonic() - self._back_at)

    def is_turning(self) -> bool:
        return self.age() < self._patience


class Heartbeat:
    """Steps the elector, listens, and reports; a daemon thread from `start` to `stop`."""

    def __init__(
        self,
        elector: Elector,
        ears: Callable[[], Ears],
        nodes: NodeStore,
        pulse: Pulse,
        report: Callable[[], NodeReport],
        *,
        hear: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._elector = elector
        self._hear = hear
        self._make_ears = ears
        self._nodes = nodes
        self._pulse = pulse
        self._report = report
        self._clock = clock
        self._ears: Ears | None = None
        self._reported_at = self._swept_at = Monotonic(float("-inf"))
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread in this process; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="singlebeat-heartbeat", daemon=True)
            self._thread.start()

    def tell_to_stop(self) -> None:
        """Ask the thread to end. Writes one attribute, so a signal handler may call it."""
        self._stopping = True

    def stop(self, timeout: float = 0.5) -> None:
        """Ask the thread to end, and wait for it at most `timeout` seconds."""
        self.tell_to_stop()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.turn()
            except Exception:
                # Without this thread there is no lease and no failover, so nothing may end it.
                logger.exception("the heartbeat failed and goes on")
                self._wait(1.0)
        self._hang_up()

    def turn(self) -> None:
        """One turn: listen, step, report, wait."""
        turning = self._pulse.is_turning()
        pause = self._elector.step(turning=turning, listens=self._listen())
        if self._clock.monotonic() - self._reported_at >= REPORT_EVERY:
            self._send_report()
        if pause > 0 and not self._stopping:
            self._wait(min(pause, REPORT_EVERY))

    def _listen(self) -> bool:
        try:
            if self._ears is None:
                self._ears = self._make_ears()
            return self._ears.listen(self._elector.nonce)
        except StoreUnavailable:
            self._hang_up()
            return False

    def _wait(self, seconds: float) -> None:
        """Wait, but not beyond an event that calls for a step; without a connection, just wait."""
        if self._ears is None:
            threading.Event().wait(seconds)
            return
        until = later(self._clock.monotonic(), seconds)
        try:
            while (event := self._ears.hear(seconds)) is not None and not self._hear(event):
                seconds = max(0.0, until - self._clock.monotonic())
        except StoreUnavailable:
            self._hang_up()

    def _hang_up(self) -> None:
        ears, self._ears = self._ears, None
        if ears is not None:
            try:
                ears.close()
            except StoreUnavailable:
                pass  # it is gone already

    def _send_report(self) -> None:
        self._reported_at = self._clock.monotonic()
        sweeps = self._reported_at - self._swept_at >= SWEEP_EVERY
        if sweeps:
            self._swept_at = self._reported_at
        try:
            self._nodes.report(self._report(), keep=KEEP_REPORTS if sweeps else None)
        except StoreUnavailable:
            pass  # the elector says so already
