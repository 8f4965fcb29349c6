"""Condemns or acquits a history. Pure: it knows nothing but the records.

H1  Each (entry, slot) is enqueued at most once. Again only if its first message had been taken within a
    suffix that the store lost since (then the claim vanished with it).
H2  Each slot of a rule, from the enrolled anchor on, is enqueued, unless its entry says "latest" and a later
    slot went out so late that this one was superseded: more than the failover window after it was due. What a
    replaced rule had not dispatched yet is dropped with it; and what nobody had taken from a queue when all
    data were lost is gone, since the leader remembers that it had enqueued it.
H3  Nothing is enqueued before its time, by the true clock and, unless that is stepped, by the store's.
H4  The slots of an entry are enqueued in their order; and nothing under an older epoch than that of the
    newest lease that was seen before, or of a message before it in its queue; but for what H1 allows.
H5  A slot is named by its entry's rule, the one that is enrolled now, and its task id by entry and slot.
H6  The store's own totals agree with the messages.
H7  Something goes out at least every half minute: no fault lasts that long, and some entry is always due.

With another broker than the store's Redis the records are executions: H1 is then about executions, and order
and epochs say nothing, because messages may come twice and late (G2).
"""

from __future__ import annotations

import math
import uuid
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.torture.timetable import rule_of

#: How long after the end of a step of the store's clock its readings are not used.
_CLOCK_GRACE = 2.0
#: How long after its end a fault is still held responsible for what is late.
_AFTERMATH = 1.0
#: How long messages that were in the queues at one moment may take to be taken.
_BACKLOG = 10.0
_NAMESPACE = uuid.UUID("6f0a3f0e-5d8e-5c36-9f0b-7c1c5a3f6f5e")
#: Seconds without any message that no fault explains.
_SILENCE = 30.0
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOST = -1


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that may not be; `t` is where in the history to look."""

    kind: str
    t: float
    text: str
    entry: str | None = None


class Spread:
    """How many values of which size, in little memory: buckets that are a twentieth wide."""

    def __init__(self) -> None:
        self.number = 0
        self.most = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self.number += 1
        self.most = max(self.most, seconds)
        self._buckets[math.ceil(math.log(max(seconds, 0.001), 1.05))] += 1

    def quantile(self, share: float) -> float:
        """The value that so large a share does not exceed, within a twentieth."""
        left = share * self.number
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(1.05**bucket, self.most)
        return self.most


@dataclass(slots=True)
class _Term:
    """One enrolment of an entry: the slots that it means, and those that came. Milliseconds."""

    anchor: int
    entry: Mapping[str, Any]
    floor: int
    #: Until when messages of this term may still be taken: they were in the queue when it was replaced.
    until: float = math.inf
    slots: array[int] = field(default_factory=lambda: array("q"))
    arrivals: array[int] = field(default_factory=lambda: array("q"))

    @property
    def period(self) -> int:
        return int(self.entry.get("every") or self.entry["align"])

    def fits(self, slot: int) -> bool:
        return slot > self.anchor and (slot - self._origin()) % self.period == 0

    def after(self, moment: int) -> int:
        """The first slot later than a moment."""
        return moment + self.period - (moment - self._origin()) % self.period

    def _origin(self) -> int:
        return self.anchor if "every" in self.entry else 0


class _Line:
    """Everything that is known of one entry."""

    def __init__(self) -> None:
        self.versions: list[Mapping[str, Any]] = []
        self.terms: dict[tuple[int, str], _Term] = {}
        self.current: _Term | None = None
        self.last = 0
        self.slots = array("q")
        self.batches = array("q")
        #: The newest slot that was taken before each loss of everything, and when that was.
        self.emptied: list[tuple[int, float]] = []

    def replace(self, term: _Term | None, record: Mapping[str, Any]) -> None:
        """Another term begins, or none. What the queues held then may still come from the one before."""
        if self.current is not None:
            self.current.until = record["t"] + (_BACKLOG if record["left"] else 0.0)
        if term is not None:
            term.until = math.inf
        self.current = term

    def forget_after(self, batch: int) -> int:
        """Data were lost: what was taken in later batches counts as not taken. How many."""
        lost = 0
        for position in range(len(self.slots) - 1, -1, -1):
            if self.batches[position] == _LOST:
                continue
            if self.batches[position] <= batch:
                break
            self.batches[position] = _LOST
            lost += 1
        kept = (s for s, b in zip(reversed(self.slots), reversed(self.batches), strict=True) if b != _LOST)
        self.last = next(kept, 0)
        return lost


@dataclass(slots=True)
class Verdict:
    """What the history says."""

    run: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    length: float = 0.0
    messages: int = 0
    slots: int = 0
    skipped: int = 0
    dropped: int = 0
    epochs: int = 0
    idle_epochs: int = 0
    silence: float = 0.0
    losses: list[str] = field(default_factory=list)
    again: int = 0
    vanished: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lateness: dict[str, Spread] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return bool(self.messages) and not self.violations


class Checker:
    """Takes the records of a history one by one."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self._lines: dict[str, _Line] = {}
        self._epochs: dict[int, int] = {}
        self._newest_epoch = 0
        self._all_epochs: set[int] = set()
        self._sending_epochs: set[int] = set()
        self._heard_at: float | None = None
        self._faults: deque[list[Any]] = deque()  # [id, name, begin, end]
        self._store_clock_wrong_until = -math.inf
        self._settled: Mapping[str, Any] | None = None
        self._final: Mapping[str, Any] = {}
        self._versions: dict[int, Mapping[str, Any]] = {}

    def feed(self, record: Mapping[str, Any]) -> None:
        """Take the next record."""
        self.verdict.length = record["t"]
        getattr(self, "_see_" + record["k"], lambda _: None)(record)

    def close(self) -> Verdict:
        """The verdict, after the last record."""
        verdict = self.verdict
        if self._settled is None:
            self._blame("unfinished", verdict.length, "the history has no record that the storm settled")
        else:
            for name, line in self._lines.items():
                self._check_terms(name, line, self._settled)
        self._check_totals()
        verdict.epochs = len(self._all_epochs | self._sending_epochs)
        verdict.idle_epochs = len(self._all_epochs - self._sending_epochs)
        verdict.violations.sort(key=lambda violation: violation.t)
        return verdict

    # -- records --------------------------------------------------------------------------------

    def _see_run(self, record: Mapping[str, Any]) -> None:
        self.verdict.run = record

    def _see_end(self, record: Mapping[str, Any]) -> None:
        self.verdict.end = record

    def _see_version(self, record: Mapping[str, Any]) -> None:
        self._versions[record["number"]] = record["entries"]
        for name, entry in record["entries"].items():
            known = self._lines.setdefault(name, _Line()).versions
            if entry not in known:
                known.append(entry)

    def _see_trouble(self, record: Mapping[str, Any]) -> None:
        self._blame("trouble", record["t"], record["what"])

    def _see_settled(self, record: Mapping[str, Any]) -> None:
        self._settled = record
        self._check_silence(record["t"])
        self._final = self._versions.get(record["version"], {})

    def _see_fault(self, record: Mapping[str, Any]) -> None:
        t = record["t"]
        if record["phase"] == "begin":
            self.verdict.faults[record["name"]] += 1
            self._faults.append([record["id"], record["name"], t, math.inf])
            if record["name"] == "redis clock":
                self._store_clock_wrong_until = math.inf
        elif record["phase"] == "end":
            for fault in self._faults:
                if fault[0] == record["id"]:
                    fault[3] = t
            if record["name"] == "redis clock":
                self._store_clock_wrong_until = t + _CLOCK_GRACE
            while self._faults and self._faults[0][3] < t - 60:
                self._faults.popleft()

    def _see_enrolled(self, record: Mapping[str, Any]) -> None:
        for name in record["gone"]:
            if name in self._lines:
                self._lines[name].replace(None, record)
        for name, (anchor, rule) in record["entries"].items():
            line = self._lines.setdefault(name, _Line())
            term = line.terms.get((anchor, rule))
            if term is None:
                entry = next((one for one in line.versions if rule_of(one) in {rule, None}), None)
                if entry is None:
                    self._blame("rule", record["t"], f"the rule {rule} is in no schedule", name)
                    continue
                term = _Term(anchor, entry, max(anchor, line.last))
                line.terms[anchor, rule] = term
            line.replace(term, record)

    def _see_loss(self, record: Mapping[str, Any]) -> None:
        if record["how"] == "everything":
            for line in self._lines.values():
                line.emptied.append((max(line.slots, default=0), record["t"]))
        again = sum(line.forget_after(record["restored"]) for line in self._lines.values())
        self._epochs.clear()
        self._newest_epoch = 0
        batches = record["known"] - record["restored"]
        self.verdict.losses.append(
            f"at {record['t']:.1f} s {record['how']}: "
            f"{batches} batches with {again} messages were taken in what was lost"
        )

    def _see_lead(self, record: Mapping[str, Any]) -> None:
        epoch = record["epoch"]
        if not epoch:
            return
        self._all_epochs.add(epoch)
        if epoch < self._newest_epoch:
            self._blame("epoch", record["t"], f"epoch {epoch} was given after {self._newest_epoch}")
        self._newest_epoch = epoch

    def _see_m(self, record: Mapping[str, Any]) -> None:
        verdict, t, name, slot = self.verdict, record["t"], record["e"], record["s"]
        verdict.messages += 1
        self._check_silence(t)
        self._sending_epochs.add(record["p"])
        line = self._lines.setdefault(name, _Line())
        self._check_time(record)
        self._check_id(record)
        is_new = self._check_once(line, record)
        if self._is_atomic:
            self._check_epoch(record)
        line.slots.append(slot)
        line.batches.append(record["b"])
        line.last = max(line.last, slot)
        verdict.slots += is_new
        since = t if self._is_atomic else -math.inf  # an execution may come long after its rule was replaced
        terms = [term for term in reversed(line.terms.values()) if since <= term.until]
        term = next((term for term in terms if term.fits(slot)), None)
        if term is None:
            self._blame("unexpected", t, f"{_at(slot)} is no slot of the rule that is enrolled", name)
            return
        term.slots.append(slot)
        term.arrivals.append(min(record["r"], record["w"]))
        self._note_lateness(t, (record["w"] - slot) / 1000)

    # -- judgements -----------------------------------------------------------------------------

    @property
    def _is_atomic(self) -> bool:
        return bool(self.verdict.run.get("broker", "redis") == "redis")

    def _check_time(self, record: Mapping[str, Any]) -> None:
        slot = record["s"]
        if slot > record["w"]:
            early = (slot - record["w"]) / 1000
            self._blame("early", record["t"], f"{_at(slot)} came {early:.3f} s early", record["e"])
        elif slot > record["r"] and record["t"] > self._store_clock_wrong_until:
            early = (slot - record["r"]) / 1000
            self._blame("early", record["t"], f"{_at(slot)} came {early:.3f} s early by Redis", record["e"])

    def _check_id(self, record: Mapping[str, Any]) -> None:
        moment = (_START + timedelta(milliseconds=record["s"])).isoformat()
        prefix = self.verdict.run.get("prefix", "torture")
        expected = str(uuid.uuid5(_NAMESPACE, f"{prefix}\n{record['e']}\n{moment}\nschedule"))
        if record["i"] != expected:
            self._blame("id", record["t"], f"{_at(record['s'])} has the id {record['i']}", record["e"])

    def _check_once(self, line: _Line, record: Mapping[str, Any]) -> bool:
        """Whether this is the slot's first message."""
        slot = record["s"]
        if slot > line.last and self._is_atomic and not self.verdict.losses:
            return True
        before = [batch for one, batch in zip(line.slots, line.batches, strict=True) if one == slot]
        if any(batch != _LOST for batch in before):
            what = "is enqueued" if self._is_atomic else "was executed"
            self._blame("twice", record["t"], f"{_at(slot)} {what} {len(before) + 1} times", record["e"])
        elif before:
            self.verdict.again += 1
        elif slot < line.last and self._is_atomic:
            self._blame("order", record["t"], f"{_at(slot)} came after {_at(line.last)}", record["e"])
        return not before

    def _check_epoch(self, record: Mapping[str, Any]) -> None:
        queue, epoch = record["q"], record["p"]
        newest = max(self._epochs.get(queue, 0), self._newest_epoch)
        if epoch < newest:
            self._blame("epoch", record["t"], f"enqueued under epoch {epoch} after {newest} led", record["e"])
        self._epochs[queue] = max(newest, epoch)

    def _check_silence(self, t: float) -> None:
        """From the first message until the storm has settled."""
        is_over = self._settled is not None and t > self._settled["t"]
        silence = 0.0 if self._heard_at is None or is_over else t - self._heard_at
        self._heard_at = t
        self.verdict.silence = max(self.verdict.silence, silence)
        if silence > _SILENCE:
            self._blame("silence", t, f"nothing went out for {silence:.1f} s")

    def _check_terms(self, name: str, line: _Line, settled: Mapping[str, Any]) -> None:
        for term in line.terms.values():
            came = dict(zip(term.slots, term.arrivals, strict=True))
            slots = sorted(slot for slot in came if slot > term.floor)
            expected = term.after(term.floor)
            for slot in slots:
                while expected < slot:
                    self._missing(name, term, expected, came[slot])
                    expected = term.after(expected)
                expected = term.after(slot)
            is_final = term is line.current and name in self._final
            while expected <= settled["r"] and is_final:
                self._missing(name, term, expected, None)
                expected = term.after(expected)
            if not is_final and slots:
                self.verdict.dropped += 1

    def _missing(self, name: str, term: _Term, slot: int, next_came: int | None) -> None:
        window = self.verdict.run.get("failover", 20.0) * 1000
        is_latest = term.entry["misfire"] == "latest"
        if is_latest and next_came is not None and next_came - slot > window:
            self.verdict.skipped += 1
            return
        emptied = self._lines[name].emptied
        if any(newest < slot and self._when(slot) <= t for newest, t in emptied):
            # Nobody had taken it: it went with the queue, and the leader knows that it had enqueued it.
            self.verdict.vanished += 1
            return
        then = "no later slot came" if next_came is None else f"the next one came {_at(next_came)}"
        rules = f"misfire {term.entry['misfire']}, anchor {_at(term.anchor)}, every {term.period} ms"
        self._blame("lost", self._when(slot), f"{_at(slot)} never came ({rules}; {then})", name)

    def _check_totals(self) -> None:
        verdict = self.verdict
        counters = verdict.end.get("counters")
        if counters is None:
            self._blame("unfinished", verdict.length, "the history has no end")
            return
        if verdict.end.get("outbox"):
            self._blame("outbox", verdict.length, f"{verdict.end['outbox']} messages are left in the outbox")
        if verdict.losses:
            return  # the totals went with the rest
        sent = counters.get("dispatched", 0)
        if sent != verdict.slots:
            self._blame("totals", verdict.length, f"the store counts {sent} slots, {verdict.slots} came")
        missed = counters.get("missed", 0)
        if len(self._versions) == 1 and missed != verdict.skipped:
            self._blame(
                "totals", verdict.length, f"the store skipped {missed} slots, the history {verdict.skipped}"
            )

    # -- lateness -------------------------------------------------------------------------------

    def _note_lateness(self, t: float, seconds: float) -> None:
        due = t - seconds
        names = {name for _, name, begin, end in self._faults if begin <= t and end + _AFTERMATH >= due}
        for name in ("all", *(names or {"calm"})):
            self.verdict.lateness.setdefault(name, Spread()).add(max(0.0, seconds))

    def _when(self, slot: int) -> float:
        """Where in the history a slot was due."""
        return self._settled["t"] - (self._settled["w"] - slot) / 1000 if self._settled else 0.0

    def _blame(self, kind: str, t: float, text: str, entry: str | None = None) -> None:
        self.verdict.violations.append(Violation(kind, t, text, entry))


def check(records: Iterable[Mapping[str, Any]]) -> Verdict:
    """The verdict over a whole history."""
    checker = Checker()
    for record in records:
        checker.feed(record)
    return checker.close()


def _at(millis: int) -> str:
    return (_START + timedelta(milliseconds=millis)).strftime("%H:%M:%S.") + f"{millis % 1000:03d}"
