"""What of the process around the beat has to hold still for a moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import _state


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let SIGTERM and SIGINT wait until the bounded farewell inside is over.

    Celery's handler raises wherever it finds the process, and half a farewell helps nobody. Blocking the
    signals for this thread would only move them to another one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, _frame: came.append(signum))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def nobody_waits_for_results() -> Iterator[None]:
    """Keep result backends from subscribing to the result of each message that goes out inside.

    Nobody in a beat asks for results, and the subscriptions would pile up. Celery's switch for that is one
    for the whole process, so it is left alone where other threads may be waiting for results: in a beat
    that is a thread of a worker.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    state: Any = _state
    before = state.task_join_will_block()
    state._set_task_join_will_block(True)  # noqa: SLF001 - as celery.app.trace does
    try:
        yield
    finally:
        state._set_task_join_will_block(before)  # noqa: SLF001
