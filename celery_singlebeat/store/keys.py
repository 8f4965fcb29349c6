"""Every key, spelled once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one app: all start with its prefix and share one hash tag.

    A prefix that has a hash tag of its own keeps it, so that the owner of a Redis Cluster can choose
    the slot; any other gets the tag `{sb}`.
    """

    prefix: str

    def _key(self, name: str) -> str:
        tagged = "{" in self.prefix and "}" in self.prefix.partition("{")[2]
        return f"{self.prefix}:{name}" if tagged else f"{self.prefix}:{{sb}}:{name}"

    @property
    def lease(self) -> str:
        """String "epoch:nonce", expires with the lease."""
        return self._key("lease")

    @property
    def epoch(self) -> str:
        """Counter, never expires: it is what makes an epoch a fence."""
        return self._key("epoch")

    @property
    def leader(self) -> str:
        """Hash: who holds the newest epoch, since when, and when it last emitted."""
        return self._key("leader")

    @property
    def marks(self) -> str:
        """Hash entry -> high-water mark: the newest slot that has its verdict, in milliseconds."""
        return self._key("marks")

    @property
    def runs(self) -> str:
        """Hash entry -> how many slots were dispatched."""
        return self._key("runs")

    @property
    def entries(self) -> str:
        """Hash entry -> "anchor rule": when the rule was first seen, and its hash."""
        return self._key("entries")

    @property
    def gone(self) -> str:
        """Hash entry -> since when no leader has it in its schedule; 90 days later it is forgotten."""
        return self._key("gone")

    @property
    def outbox(self) -> str:
        """Hash "milliseconds entry" -> message that the broker has not confirmed yet."""
        return self._key("outbox")

    @property
    def counters(self) -> str:
        """Hash of totals: dispatched, refused, missed, elections and their reasons."""
        return self._key("counters")

    @property
    def schedule(self) -> str:
        """Hash dynamic entry -> "since rule text": since when it has its rule, the rule's hash, and JSON."""
        return self._key("schedule")

    @property
    def paused(self) -> str:
        """Hash entry -> "since" while it is paused, "since until" afterwards."""
        return self._key("paused")

    @property
    def running(self) -> str:
        """Hash entry -> "since task_id": the newest run of an entry that must not overlap itself."""
        return self._key("running")

    @property
    def changes(self) -> str:
        """Stream: names of the entries that somebody added, changed, removed, paused or resumed."""
        return self._key("changes")

    @property
    def nodes(self) -> str:
        """Hash node -> its last report, as JSON."""
        return self._key("nodes")

    @property
    def events(self) -> str:
        """Channel: released leases, and requests to resign."""
        return self._key("events")

    @property
    def presence(self) -> str:
        """Start of the channel that a leader listens on for as long as it is connected."""
        return self._key("presence:")

    @property
    def probe(self) -> str:
        """String that `doctor` writes and deletes in one script, to see whether that is allowed."""
        return self._key("probe")

    @property
    def locks(self) -> str:
        """Start of a lock's key."""
        return self._key("lock:")

    def lock(self, key: str) -> str:
        """Hash: token, task, task_id, host, pid, since, fence, and who comes next; expires with the lock."""
        return self.locks + key

    @property
    def fence(self) -> str:
        """Counter of lock acquisitions, never expires."""
        return self._key("fence")

    def vote(self, key: str) -> str:
        """On each server of `singlebeat_lock_urls`: the token that has its vote; expires with the lock."""
        return self._key("vote:") + key

    @property
    def told_fence(self) -> str:
        """On each server of `singlebeat_lock_urls`: the largest fence that it was told, never expires."""
        return self._key("told_fence")

    def call(self, task_id: str) -> str:
        """Hash of one call: deliveries without an outcome, and whether it is finished."""
        return self._key("call:") + task_id

    @property
    def waiting(self) -> str:
        """Sorted set of the calls that wait for their next attempt, by the millisecond of it."""
        return self._key("waiting")

    @property
    def mover(self) -> str:
        """String: a beat passes on the calls whose wait is over; expires."""
        return self._key("mover")
