"""What each fault does, as a generator: it yields the seconds to wait, and undoes its harm before it ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator

from celery_singlebeat.testing.processes import wait_until
from tests.support.proxy import FaultProxy
from tests.torture.plan import Fault
from tests.torture.site import Replica, Server, Site
from tests.torture.tap import Tap

Wait = Generator[float, None, None]

HOUR = 3600
#: Seconds within which a beat that got SIGTERM has to be gone; on a busy machine.
_FAREWELL = 20.0

#: What `lease_bid.lua` does for whoever wins a lease that has just ended.
_USURP = """
local t = redis.call('TIME')
local epoch = math.max(redis.call('INCR', KEYS[2]), t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('SET', KEYS[2], string.format('%d', epoch))
redis.call('SET', KEYS[1], string.format('%d', epoch) .. ':' .. ARGV[1], 'PX', ARGV[2])
"""


class Faults:
    """Begins faults at a site. `now` is the storm's clock in seconds."""

    def __init__(self, site: Site, tap: Tap, *, seed: int, spared: int, now: Callable[[], float]) -> None:
        self._site = site
        self._tap = tap
        self._seed = seed
        self._spared = spared
        self._now = now

    def begin(self, fault: Fault, target: int) -> Wait:
        """The course of one fault."""
        replica = self._site.replicas[target]
        course = getattr(self, "_" + fault.name.replace(" ", "_"), None)
        if course is not None:
            found: Wait = course(fault, replica)
            return found
        return self._treated(fault, replica)

    # -- processes ------------------------------------------------------------------------------

    def _kill(self, fault: Fault, replica: Replica) -> Wait:
        replica.kill(self._now())
        yield fault.seconds
        replica.start(self._now())

    def _term(self, fault: Fault, replica: Replica) -> Wait:
        yield from self._ended(replica)
        yield fault.seconds
        replica.start(self._now())

    def _stop(self, fault: Fault, replica: Replica) -> Wait:
        replica.process.pause()
        yield fault.seconds
        replica.process.resume()

    def _ended(self, replica: Replica) -> Wait:
        replica.ask_to_end()
        deadline = time.monotonic() + _FAREWELL
        while not replica.has_ended(self._now()):
            if time.monotonic() > deadline:
                self._site.history.write(
                    "trouble",
                    self._now(),
                    what=f"{replica.name} did not end within {_FAREWELL:g} s of SIGTERM",
                )
                replica.kill(self._now())
                return
            yield 0.02

    def _roll(self, fault: Fault, _replica: Replica) -> Wait:
        site = self._site
        version = site.next_version(self._seed, self._now())
        first = int(fault.dice * len(site.replicas))
        order = [*site.replicas[first:], *site.replicas[:first]]
        for replica in order:
            if replica.index != self._spared:
                yield from self._renewed(replica, version)
                yield fault.seconds
        yield from self._renewed(site.replicas[self._spared], version)

    def _renewed(self, replica: Replica, version: int) -> Wait:
        yield from self._ended(replica)
        replica.version = version
        replica.start(self._now())

    # -- the network ----------------------------------------------------------------------------

    def _treated(self, fault: Fault, replica: Replica) -> Wait:
        proxy = replica.proxy
        late = 0.02 + 0.4 * fault.dice
        acts: dict[str, Callable[[], None]] = {
            "refuse": proxy.refuse,
            "slow": lambda: proxy.delay(requests=late, replies=0.42 - late),
            "slow replies": lambda: proxy.delay(replies=late),
            "lose replies": lambda: proxy.drop(replies=True),
            "lose requests": lambda: proxy.drop(requests=True),
            "blackhole": proxy.blackhole,
            "late requests": lambda: proxy.hold(requests=True),
            "late replies": lambda: proxy.hold(replies=True),
        }
        acts[fault.name]()
        yield fault.seconds
        proxy.heal()

    def _cut(self, fault: Fault, replica: Replica) -> Wait:
        yield from self._cut_off(replica.proxy, fault.seconds)

    @staticmethod
    def _cut_off(proxy: FaultProxy, seconds: float) -> Wait:
        proxy.refuse()
        proxy.reset()
        yield seconds
        proxy.heal()

    def _lost_reply(self, fault: Fault, replica: Replica) -> Wait:
        yield from self._cut_when_answered(replica.proxy, fault.seconds, 1, b"torture.tick")

    def _lost_answer(self, fault: Fault, replica: Replica) -> Wait:
        yield from self._cut_when_answered(replica.proxy, fault.seconds, 1 + int(20 * fault.dice), b"")

    @staticmethod
    def _cut_when_answered(proxy: FaultProxy, seconds: float, requests: int, match: bytes) -> Wait:
        cuts, deadline = proxy.cuts, time.monotonic() + seconds
        proxy.cut_after(requests, match=match)
        while proxy.cuts == cuts and time.monotonic() < deadline:
            yield 0.02
        yield 0.02
        proxy.heal()

    def _deaf(self, fault: Fault, replica: Replica) -> Wait:
        replica.proxy.refuse()
        self._site.client.client_kill_filter(_type="pubsub", skipme=True)
        yield fault.seconds
        replica.proxy.heal()

    # -- the server -----------------------------------------------------------------------------

    def _kill_connections(self, _fault: Fault, _replica: Replica) -> Wait:
        self._site.client.client_kill_filter(_type="normal", skipme=True)
        yield 0.0

    def _kill_ears(self, _fault: Fault, _replica: Replica) -> Wait:
        self._site.client.client_kill_filter(_type="pubsub", skipme=True)
        yield 0.0

    def _usurp(self, fault: Fault, _replica: Replica) -> Wait:
        keys = self._tap.keys
        life = max(1, round(1000 * fault.seconds))
        self._site.client.eval(_USURP, 2, keys.lease, keys.epoch, f"usurper{fault.number}", life)
        yield fault.seconds

    def _freeze(self, fault: Fault, _replica: Replica) -> Wait:
        self._site.away = True
        self._site.server.pause()
        yield fault.seconds
        self._site.server.resume()
        self._site.away = False

    def _crash(self, fault: Fault, _replica: Replica) -> Wait:
        yield from self._down(fault.seconds)
        self._up()

    def _restart(self, fault: Fault, _replica: Replica) -> Wait:
        self._site.away = True
        self._site.server.process.kill(signal.SIGTERM)
        self._site.server.process.wait(20)
        yield fault.seconds
        self._up()

    def _truncate(self, fault: Fault, _replica: Replica) -> Wait:
        yield from self._rest(fault)
        yield from self._down(fault.seconds)
        log = self._site.server.log()
        size = log.stat().st_size
        lost = int(min(size, 400_000) * fault.dice**2)
        with log.open("r+b") as file:
            file.truncate(size - lost)
        self._up()
        self._site.resting = False
        self._tap.after_loss(self._now(), f"{lost} of {size} bytes of the log")

    def _empty(self, fault: Fault, _replica: Replica) -> Wait:
        yield from self._down(fault.seconds)
        self._site.server._forget()
        self._up()
        self._tap.after_loss(self._now(), "everything")

    def _failover(self, fault: Fault, _replica: Replica) -> Wait:
        site, old = self._site, self._site.server
        new = Server(site.clocks.env("redis"))
        try:
            with FaultProxy(old.port) as line, new.start().client(decode_responses=True) as client:
                client.replicaof("127.0.0.1", line.port)
                while client.info("replication")["master_link_status"] != "up":
                    yield 0.05
                line.hold(replies=True)
                yield from self._rest(fault)
                yield fault.seconds
                site.away = True
                old.kill()
                client.replicaof("NO", "ONE")
        except BaseException:  # the storm ended, or another fault was stronger
            new.stop()
            raise
        site.move_to(new)
        self._tap.use(site.client)
        site.away = site.resting = False
        self._tap.after_loss(self._now(), f"what a replica had not got in {fault.seconds:.2f} s")

    def _rest(self, fault: Fault) -> Wait:
        """Every other time, take no messages for a while: some will be lost that nobody has taken."""
        self._site.resting = fault.number % 2 == 0
        yield fault.dice if self._site.resting else 0.0

    def _down(self, seconds: float) -> Wait:
        self._site.away = True
        self._site.server.kill()
        yield seconds

    def _up(self) -> None:
        self._site.server.start()
        self._site.away = False
        wait_until(lambda: _answers(self._site), 20, "the server does not answer")

    # -- clocks ---------------------------------------------------------------------------------

    def _beat_clock(self, fault: Fault, replica: Replica) -> Wait:
        yield from self._stepped(replica.name, fault)

    def _redis_clock(self, fault: Fault, _replica: Replica) -> Wait:
        yield from self._stepped("redis", fault)

    def _stepped(self, name: str, fault: Fault) -> Wait:
        self._site.clocks.step(name, HOUR if fault.dice < 0.5 else -HOUR)
        yield fault.seconds
        self._site.clocks.step(name, 0)

    # -- the broker -----------------------------------------------------------------------------

    def _broker_freeze(self, fault: Fault, _replica: Replica) -> Wait:
        assert self._site.rabbit is not None
        self._site.rabbit.pause()
        yield fault.seconds
        self._site.rabbit.resume()

    def _broker_cut(self, fault: Fault, replica: Replica) -> Wait:
        assert replica.broker_proxy is not None
        yield from self._cut_off(replica.broker_proxy, fault.seconds)

    def _broker_blackhole(self, fault: Fault, replica: Replica) -> Wait:
        assert replica.broker_proxy is not None
        replica.broker_proxy.blackhole()
        yield fault.seconds
        replica.broker_proxy.heal()


def _answers(site: Site) -> bool:
    try:
        return bool(site.client.ping())
    except Exception:  # its old connection is broken; the next call makes another
        return False
