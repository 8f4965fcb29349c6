"""A store that fails the way networks fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.store.ports import BeatStore
from celery_singlebeat.testing.clock import FakeClock


class FaultyStore:
    """Wraps a beat store. Each fault is armed for one call, or until `heal`.

    It offers every method of the wrapped store; a method that meets a fault raises
    `StoreUnavailable`, as the real ones do when they get no answer.
    """

    def __init__(self, inner: BeatStore, clock: FakeClock) -> None:
        self._inner = inner
        self._clock = clock
        self._delay = 0.0
        self._lost_reply: str | None = None
        self._down = False

    def be_slow_once(self, seconds: float) -> None:
        """The next call happens at once, and its answer takes so many seconds."""
        self._delay = seconds

    def lose_reply_once(self, method: str = "") -> None:
        """The next call (of `method`, if given) happens, and its caller never hears of it."""
        self._lost_reply = method

    def cut_off(self) -> None:
        """Nothing arrives until `heal`."""
        self._down = True

    def heal(self) -> None:
        """Every call arrives and is answered."""
        self._down, self._lost_reply, self._delay = False, None, 0.0

    def farewell(self) -> FaultyStore:
        """Over the same network."""
        return self

    @property
    def schedule(self) -> Any:
        """The dynamic schedule, over the same network."""
        return _Behind(self._inner.schedule, self._through)

    def __getattr__(self, name: str) -> Any:
        return self._through(name, getattr(self._inner, name))

    def _through(self, name: str, method: Any) -> Any:
        if not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._down:
                raise StoreUnavailable(name, "cut off")
            answer = method(*args, **kwargs)
            delay, self._delay = self._delay, 0.0
            if delay:
                self._clock.advance(delay)
            if self._lost_reply is not None and self._lost_reply in ("", name):
                self._lost_reply = None
                raise StoreUnavailable(name, "reply lost")
            return answer

        return call


class _Behind:
    """The methods of another store behind the same faults."""

    def __init__(self, inner: object, through: Callable[[str, Any], Any]) -> None:
        self._inner = inner
        self._through = through

    def __getattr__(self, name: str) -> Any:
        return self._through(name, getattr(self._inner, name))
