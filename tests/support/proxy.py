"""A loopback TCP proxy whose faults a test switches on and off, for any protocol that a client begins.

It needs no root and no kernel module, and it can do what neither a firewall nor a frozen server can: let a
request through and lose its reply. The proxy runs in a thread of its own; its methods are plain calls and
have taken effect when they return.

Bytes from the client are called requests, bytes that come back are called replies. What one `send` of the
client brought counts as one request, which is true of clients that wait for each reply.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import TypeVar

from typing_extensions import Self

from celery_singlebeat.testing.processes import wait_until

T = TypeVar("T")

_LOOPBACK = "127.0.0.1"


class Treatment(Enum):
    PASS = "pass"
    DROP = "drop"  # read and forget
    HOLD = "hold"  # read, and deliver when healed


class _Direction:
    """How one direction is treated now, over all connections."""

    def __init__(self) -> None:
        self.treatment = Treatment.PASS
        self.delay = 0.0
        self.forwarded = 0


class _Flow:
    """The bytes of one connection in one direction, in order, each with the moment when it may go on."""

    def __init__(self, link: _Link, direction: _Direction) -> None:
        self.link = link
        self.direction = direction
        self.target: asyncio.Transport | None = None
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.ended = False
        self.timer: asyncio.TimerHandle | None = None

    def feed(self, data: bytes) -> None:
        if self.direction.treatment is Treatment.DROP:
            self.link.lossy = True
            return
        self.waiting.append((self.link.loop.time() + self.direction.delay, data))
        self.pump()

    def end(self) -> None:
        self.ended = True
        self.pump()

    def hurry(self) -> None:
        now = self.link.loop.time()
        self.waiting = deque((now, data) for _, data in self.waiting)
        self.pump()

    def pump(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.target is None or self.direction.treatment is Treatment.HOLD:
            return
        if self.target.is_closing():
            self.waiting.clear()
        while self.waiting:
            due, data = self.waiting[0]
            if due > self.link.loop.time():
                self.timer = self.link.loop.call_at(due, self.pump)
                return
            self.waiting.popleft()
            self.direction.forwarded += 1
            self.target.write(data)
            self.link.passed(self, data)
        if self.ended:
            self.target.close()


class _Link:
    """One client's connection and the one to the server behind it."""

    def __init__(self, proxy: FaultProxy, loop: asyncio.AbstractEventLoop) -> None:
        self.proxy = proxy
        self.loop = loop
        self.requests = _Flow(self, proxy.requests)
        self.replies = _Flow(self, proxy.replies)
        self.lossy = False
        self.doomed = False
        self.dead = False
        self.open_ends = 0
        self.opening: asyncio.Task[None] | None = None

    def passed(self, flow: _Flow, data: bytes) -> None:
        if flow is self.requests and self.proxy.is_last_request(data):
            self.doomed = True

    def answered(self, data: bytes) -> None:
        if self.doomed:  # the server has acted, and nobody will hear of it
            self.proxy.reset_all()
        else:
            self.replies.feed(data)

    def reset(self) -> None:
        self.dead = True
        for transport in (self.replies.target, self.requests.target):
            if transport is not None:
                _reset(transport)

    def end_opened(self) -> None:
        self.open_ends += 1
        self.proxy.links.add(self)

    def end_lost(self) -> None:
        """Forget the link when both ends are gone, and not before: one may still have held bytes to come."""
        self.open_ends -= 1
        if not self.open_ends:
            self.proxy.links.discard(self)


class _ClientSide(asyncio.Protocol):
    def __init__(self, link: _Link) -> None:
        self.link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        proxy = self.link.proxy
        if proxy.refusing:
            _reset(transport)
            return
        self.link.replies.target = transport
        self.link.end_opened()
        self.link.end_opened()  # the one that is being opened
        self.link.opening = self.link.loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self.link.loop.create_connection(
                lambda: _ServerSide(self.link), _LOOPBACK, self.link.proxy.upstream_port
            )
        except OSError:
            self.link.end_lost()
            self.link.reset()

    def data_received(self, data: bytes) -> None:
        self.link.requests.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.link.replies.target is not None:
            self.link.requests.end()
            self.link.end_lost()


class _ServerSide(asyncio.Protocol):
    def __init__(self, link: _Link) -> None:
        self.link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.link.requests.target = transport
        if self.link.dead:
            _reset(transport)
        self.link.requests.pump()

    def data_received(self, data: bytes) -> None:
        self.link.answered(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.link.replies.end()
        self.link.end_lost()


class FaultProxy:
    """Stands between clients and the server at `upstream_port`. Use it as a context manager.

    `ssl_context` makes the proxy speak TLS to its clients, in front of a server that cannot.
    """

    def __init__(self, upstream_port: int, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self.upstream_port = upstream_port
        self.port = 0
        self.requests = _Direction()
        self.replies = _Direction()
        self.refusing = False
        self.links: set[_Link] = set()
        self._ssl_context = ssl_context
        self._countdown: int | None = None
        self._match = b""
        self._cuts = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    # What a test calls

    def start(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            self._loop.create_server(
                lambda: _ClientSide(_Link(self, self._loop)), _LOOPBACK, self.port, ssl=self._ssl_context
            ),
            self._loop,
        )
        self._server = listening.result(5)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._call(self._server.close)
        wait_until(lambda: self._call(self._all_gone), message="the proxy's connections did not close")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def url(self, db: int = 0) -> str:
        """Return the address of a Redis behind this proxy."""
        return f"redis://{_LOOPBACK}:{self.port}/{db}"

    def delay(self, *, requests: float = 0.0, replies: float = 0.0) -> None:
        """Let every byte arrive that many seconds late."""

        def act() -> None:
            self.requests.delay, self.replies.delay = requests, replies

        self._call(act)

    def drop(self, *, requests: bool = False, replies: bool = False) -> None:
        """Swallow one direction, or both. Connections stay open; `heal` resets those that lost bytes."""
        self._treat(Treatment.DROP, requests=requests, replies=replies)

    def blackhole(self) -> None:
        """Swallow everything: the other side seems to be there and never answers."""
        self.drop(requests=True, replies=True)

    def hold(self, *, requests: bool = False, replies: bool = False) -> None:
        """Keep the bytes of one direction, or both, and deliver them after `heal`: a late packet."""
        self._treat(Treatment.HOLD, requests=requests, replies=replies)

    def refuse(self) -> None:
        """Reset every new connection. Open ones live on; see `reset`."""

        def act() -> None:
            self.refusing = True

        self._call(act)

    def reset(self) -> None:
        """Reset every open connection with an RST."""
        self._call(self.reset_all)

    def cut_after(self, requests: int = 1, *, match: bytes = b"") -> None:
        """Forward that many more requests; when the server answers the last one, reset every connection.

        The server has acted, and its client cannot know. With `match`, only requests that contain it count.
        """

        def act() -> None:
            self._countdown, self._match = requests, match

        self._call(act)

    @property
    def cuts(self) -> int:
        """How often `cut_after` has come to its end."""
        return self._cuts

    def heal(self) -> None:
        """End every fault. What was held is delivered now."""

        def act() -> None:
            self.refusing = False
            self._countdown = None
            for direction in (self.requests, self.replies):
                direction.treatment, direction.delay = Treatment.PASS, 0.0
            for link in list(self.links):
                if link.lossy:  # else a client without a timeout would take a later reply for an earlier one
                    link.reset()
                else:
                    link.requests.hurry()
                    link.replies.hurry()

        self._call(act)

    # Inside the loop

    def is_last_request(self, data: bytes) -> bool:
        if self._countdown is None or self._match not in data:
            return False
        self._countdown -= 1
        if self._countdown > 0:
            return False
        self._countdown = None
        self._cuts += 1
        return True

    def _all_gone(self) -> bool:
        self.reset_all()
        return not self.links

    def reset_all(self) -> None:
        for link in list(self.links):
            link.reset()

    # Between the threads

    def _treat(self, treatment: Treatment, *, requests: bool, replies: bool) -> None:
        def act() -> None:
            for direction, chosen in ((self.requests, requests), (self.replies, replies)):
                if chosen:
                    direction.treatment = treatment

        self._call(act)

    def _call(self, act: Callable[[], T]) -> T:
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(5)


def _reset(transport: asyncio.Transport) -> None:
    """Close at once and with an RST, as a crashed machine or a firewall does."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
