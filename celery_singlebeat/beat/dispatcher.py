"""From due lines to messages in queues: prepare, emit, take note.

A *parcel* is one line with the claims that it has now. Parcels are prepared without the store and
emitted together. If the store gives no answer, nobody knows which of them it took; then the marks are read
again before anything else is prepared, and what they do not cover is due still (B3).

A leader with a backlog must be seen to emit, or the standbys call it overdue and the backlog grows. So a
batch ends after a part of the grace, whatever it holds by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kombu.exceptions import OperationalError

from celery_singlebeat.beat.calls import call_of
from celery_singlebeat.beat.dynamic import Dynamic
from celery_singlebeat.beat.elector import Elector
from celery_singlebeat.beat.lines import PLAUSIBLE, Agenda, Line
from celery_singlebeat.clock import Clock
from celery_singlebeat.errors import Deposed, StoreUnavailable
from celery_singlebeat.events import Listener, SlotDispatched, SlotRefused, SlotSkipped, SlotsSkipped
from celery_singlebeat.messages import Tray, collected
from celery_singlebeat.moments import Monotonic, later, whole
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.policy.slots import Dispatch, Skip, Verdict, judge
from celery_singlebeat.policy.tombstones import KEPT, absences
from celery_singlebeat.store.ports import Claim, Keep, Memory, Outcome, SlotStore, record_id

logger = logging.getLogger(__name__)

#: How many lines one script handles, and how many of the characters of their messages.
BATCH_LINES, BATCH_SIZE = 200, 2_000_000
#: How many new lines one script takes.
BATCH_ENROLLED = 1000
#: Seconds until a line is looked at again that the store called early, or whose message failed for
#: reasons that pass.
EARLY, TRY_AGAIN = 0.01, 1.0
#: Seconds until a line is looked at again whose newest run goes on.
BUSY_AGAIN = 0.5
#: What the store did nothing about, and seconds until its line is looked at again; None: after a new read.
_UNDONE = {"early": EARLY, "changed": EARLY, "busy": BUSY_AGAIN, "forgotten": None}
#: Most skipped slots of one line that are told one by one.
MOST_TOLD = 20


@dataclass(slots=True)
class Parcel:
    """What one line has to be claimed now, in order, and the slot it stands at afterwards."""

    line: Line
    turn: datetime  # the time by which its slots were found due
    claims: list[Claim] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # task id of each claim; "" for a skipped slot
    skipped: list[Skip] = field(default_factory=list)
    omitted: int = 0  # how many slots before the first of these are skipped as well
    is_part: bool = False  # more slots are due after these


class Dispatcher:
    """Works off the due lines of an agenda under the elector's term."""

    def __init__(
        self,
        agenda: Agenda,
        store: SlotStore,
        elector: Elector,
        *,
        send: Callable[[Any], None],
        prefix: str,
        tell: Listener,
        kept: Callable[[Sequence[tuple[str, str]]], None],
        drain: Callable[[], None],
        pulse: Callable[[], None],
        changes: Dynamic,
        clock: Clock,
        patience: float,
    ) -> None:
        self._agenda = agenda
        self._store = store
        self._elector = elector
        self._send = send
        self._prefix = prefix
        self._tell = tell
        self._kept = kept
        self._drain = drain
        self._pulse = pulse
        self._changes = changes
        self._clock = clock
        self._patience = patience
        self._adopted: Grant | None = None
        self._silences = 0
        self._unanswered: list[Parcel] = []
        self._newest: datetime | None = None  # the latest slot with a verdict

    @property
    def is_adopted(self) -> bool:
        """Whether the schedule was taken over under some grant and not given up since."""
        return self._adopted is not None

    def forget(self) -> None:
        """Stop being the leader: what is due is the next leader's."""
        self._adopted = None
        self._unanswered = []

    def is_current(self, grant: Grant) -> bool:
        """Whether the schedule was taken over under this grant, and the store was never silent since."""
        return self._adopted == grant and self._silences == self._elector.silences

    def adopt(self, grant: Grant) -> None:
        """Take over the schedule under a new grant, or look again after the store was silent.

        Raises `StoreUnavailable` or `Deposed`.
        """
        if self.is_current(grant):
            return
        if self._adopted != grant:
            self._unanswered = []
        # The store was silent, or somebody else led: it may know more slots than this node does, or fewer,
        # if it lost its newest writes. What it remembers counts.
        silences = self._elector.silences
        memory = self._store.remember()
        unknown = self._agenda.settle(memory)
        plausible = (mark for mark in memory.marks.values() if mark <= self._elector.due_now() + PLAUSIBLE)
        self._newest = max(plausible, default=None)
        self._enroll(grant, unknown)
        self._drain()
        is_new = self._adopted != grant
        self._adopted, self._silences = grant, silences
        self._tell_answered(memory, grant)
        if is_new:
            self._tidy(memory, grant)

    def enroll(self, grant: Grant, lines: Sequence[Line]) -> None:
        """Let lines begin now that the store does not know, after the schedule was taken over.

        Raises `StoreUnavailable` or `Deposed`; then the whole schedule has to be taken over again.
        """
        try:
            self._enroll(grant, lines)
        except StoreUnavailable:
            self.forget()
            raise

    def _enroll(self, grant: Grant, lines: Sequence[Line]) -> None:
        if not lines:
            return
        # A clock that is behind must not give a new entry a past: the newest mark is later than that.
        now = whole(self._elector.due_now())
        now = max(now, self._newest or now)
        for start in range(0, len(lines), BATCH_ENROLLED):
            some = lines[start : start + BATCH_ENROLLED]
            enrolment = self._agenda.enrolment(some, now)
            self._store.enroll(grant, enrolment)
            for line in some:
                line.stand_at(enrolment[line.name].anchor, line.mark)
                self._agenda.put(line)
            self._pulse()

    def _tidy(self, memory: Memory, grant: Grant) -> None:
        """What is kept of entries that nobody has any more is not kept for ever."""
        known = {*memory.marks, *memory.runs, *memory.entries, *memory.unreadable}
        present = {*self._agenda.parked, *(line.name for line in self._agenda)}
        now = self._elector.due_now()
        found = absences(known, present, memory.gone, marks=memory.marks, now=now)
        if found:
            self._store.tidy(grant, found, keep=KEPT.total_seconds())

    def turn(self, grant: Grant) -> None:
        """Emit what is due at this moment, batch by batch, or until the term ends."""
        now = self._elector.due_now()
        while True:
            self._elector.term()
            until = later(self._clock.monotonic(), self._patience)
            lines = self._agenda.take_due(now, BATCH_LINES)
            if not lines:
                return
            parcels: list[Parcel] = []
            size = 0
            for position, line in enumerate(lines):
                if line.since is not None and self._changes.holds(line.name):
                    self._agenda.put(line, at=now + timedelta(seconds=EARLY))
                    continue
                parcel = self._prepare(line, now, grant, until)
                if parcel is not None:
                    parcels.append(parcel)
                    size += sum(len(write.payload) for claim in parcel.claims for write in claim.writes)
                if size > BATCH_SIZE or self._clock.monotonic() > until:
                    for rest in lines[position + 1 :]:
                        self._agenda.put(rest, at=rest.next or now)
                    break
            self._pulse()
            if parcels and not self._emit(grant, parcels):
                return

    # -- prepare --------------------------------------------------------------------------------

    def _prepare(self, line: Line, now: datetime, grant: Grant, until: Monotonic) -> Parcel | None:
        try:
            due = line.due(now, own=self._clock.now())
        except Exception as error:
            # The schedule object is the user's; whatever it raises concerns this entry alone (B4).
            self._agenda.park(line.name, f"its schedule raises {type(error).__name__}: {error}")
            self._agenda.put(line, at=now + timedelta(seconds=30))
            return None
        if not due.slots:
            self._agenda.put(line)
            return None
        # To know what is due may have taken long by itself; some messages have to follow in any case.
        until = max(until, later(self._clock.monotonic(), self._patience / 2))
        parcel = Parcel(line, now, omitted=due.older, is_part=due.is_part)
        missed = due.older
        verdicts = self._verdicts(line, due.slots, now)
        for verdict in verdicts[:1] if due.is_part else verdicts:
            if isinstance(verdict, Skip):
                parcel.skipped.append(verdict)
                missed += 1
                continue
            tray, call_id = self._collect(line, verdict, grant)
            if tray.error is None:
                overlap = "" if line.rules.overlap == "allow" else line.rules.overlap
                writes = tray.sealed()
                claim = Claim(line.name, verdict.slot, writes, missed, line.mark, overlap, call_id)
                parcel.claims.append(claim)
                parcel.ids.append(call_id)
                missed = 0
                if self._clock.monotonic() > until:
                    break  # its other slots are due still, and come with a later batch
            elif _passes(tray.error):
                # the broker cannot be asked how to route; the slot stays due
                self._agenda.put(line, at=now + timedelta(seconds=TRY_AGAIN))
                return parcel if parcel.claims else None
            else:
                parcel.skipped.append(Skip(verdict.slot, "error"))
                missed += 1
        if missed:
            parcel.claims.append(Claim(line.name, parcel.skipped[-1].slot, (), missed, line.mark))
            parcel.ids.append("")
        return parcel

    def _verdicts(self, line: Line, due: Sequence[datetime], now: datetime) -> list[Verdict]:
        pause = self._agenda.pauses.get(line.name)
        paused = {slot for slot in due if pause is not None and pause.covers(slot)}
        others = [slot for slot in due if slot not in paused] if paused else due
        verdicts = judge(others, now=now, rules=line.rules.missed, delay=line.delay)
        if not paused:
            return verdicts
        skipped = [Skip(slot, "paused") for slot in paused]
        return sorted([*verdicts, *skipped], key=lambda verdict: verdict.slot)

    def _collect(self, line: Line, verdict: Dispatch, grant: Grant) -> tuple[Tray, str]:
        """Let Celery make the message of a slot, and keep it."""
        try:
            entry, call_id = call_of(
                line, verdict.slot, prefix=self._prefix, epoch=grant.epoch, trigger="schedule"
            )
        except Exception as error:  # the entry is the user's, and may have changed itself (B4)
            problem = f"{type(error).__name__}: {error}"
            logger.warning("entry %r: its message cannot be made: %s", line.name, problem)
            tray = Tray()
            tray.error = error
            return tray, ""
        with collected() as tray:
            self._send(entry)
        return tray, call_id

    # -- emit -----------------------------------------------------------------------------------

    def _emit(self, grant: Grant, parcels: list[Parcel]) -> bool:
        """One script for all parcels; False if the turn is over."""
        claims = [claim for parcel in parcels for claim in parcel.claims]
        self._elector.term()
        try:
            now, outcomes = self._store.emit(grant, claims, cursor=self._changes.cursor)
        except StoreUnavailable as error:
            logger.debug("emission unanswered, the marks will tell: %s", error)
            self._elector.silences += 1
            self._unanswered = parcels
            return False
        except Deposed as error:
            self._elector.stand_down(grant, "deposed")
            for claim in claims:
                self._refused(claim, error.epoch, "deposed")
            self.forget()
            return False
        self._elector.emitted = now
        answers = iter(outcomes)
        records: list[tuple[str, str]] = []
        for parcel in parcels:
            self._take_note(parcel, [next(answers) for _ in parcel.claims], now, grant, records)
        if records:
            self._kept(records)
        if any(outcome.kind == "forgotten" for outcome in outcomes):
            # The store lost what it had acknowledged: look again before anything is built on it.
            self._elector.silences += 1
            return False
        return True

    def _tell_answered(self, memory: Memory, grant: Grant) -> None:
        """Tell of the slots whose emission got no answer, and which have their mark all the same."""
        parcels, self._unanswered = self._unanswered, []
        for parcel in parcels:
            mark = memory.marks.get(parcel.line.name)
            if mark is None:
                continue
            for claim, call_id in zip(parcel.claims, parcel.ids, strict=True):
                # Of a slot that must not overlap, the mark does not tell whether it was dispatched.
                if call_id and claim.slot <= mark and not claim.overlap:
                    self._dispatched(parcel.line, claim, grant, self._elector.due_now())
            self._tell_skipped(parcel, mark, grant.epoch)

    def _dispatched(self, line: Line, claim: Claim, grant: Grant, now: datetime) -> None:
        lateness = max(0.0, (now - claim.slot - line.delay(claim.slot)).total_seconds())
        self._tell(
            SlotDispatched(
                entry=claim.entry,
                slot=claim.slot,
                epoch=grant.epoch,
                lateness=lateness,
                task_id=claim.task_id,
            )
        )

    def _take_note(
        self,
        parcel: Parcel,
        outcomes: list[Outcome],
        now: datetime,
        grant: Grant,
        records: list[tuple[str, str]],
    ) -> None:
        line = parcel.line
        again: datetime | None = None
        for claim, call_id, outcome in zip(parcel.claims, parcel.ids, outcomes, strict=True):
            if outcome.kind in _UNDONE:
                wait = _UNDONE[outcome.kind]
                # not in this turn, even if the store's clock was set back meanwhile
                again = None if wait is None else max(now, parcel.turn) + timedelta(seconds=wait)
                if outcome.kind == "early":
                    self._refused(claim, grant.epoch, "early")
                elif outcome.kind == "changed":
                    self._changes.tell()
                break
            line.mark = claim.slot
            self._newest = max(self._newest or claim.slot, claim.slot)
            line.last = max(line.last or claim.slot, claim.slot)
            if outcome.kind == "overlap":
                parcel.skipped.append(Skip(claim.slot, "overlap"))
            elif outcome.kind == "error":
                logger.error("entry %r: its queue refused the message: %s", line.name, outcome.text)
                self._refused(claim, grant.epoch, "error")
            elif call_id:
                self._dispatched(line, claim, grant, now)
                records += self._kept_of(claim, outcome)
        if line.mark is not None:
            self._tell_skipped(parcel, line.mark, grant.epoch)
        # The rest of a long count comes in another turn: what has become due meanwhile does not wait for it.
        rest = parcel.turn + timedelta(seconds=EARLY) if parcel.is_part else None
        self._agenda.put(line, at=again, earliest=rest)

    def _kept_of(self, claim: Claim, outcome: Outcome) -> list[tuple[str, str]]:
        """The outbox record that this node has to publish now."""
        kept = [write.payload for write in claim.writes if isinstance(write, Keep)]
        if kept and outcome.kind == "sent":
            return [(record_id(claim), kept[-1])]
        if kept:
            self._drain()
        return []

    def _tell_skipped(self, parcel: Parcel, mark: datetime, epoch: int) -> None:
        """Tell of the slots whose verdict the store has taken: the newest one by one, the others together."""
        if parcel.claims[0].slot > mark:
            return
        taken = [skip for skip in parcel.skipped if skip.slot <= mark]
        older, newest = taken[:-MOST_TOLD], taken[-MOST_TOLD:]
        if older or parcel.omitted:
            reasons = [skip.reason for skip in (*older[-1:], *newest[:1])] or ["limit"]
            self._tell(
                SlotsSkipped(
                    entry=parcel.line.name,
                    slot=newest[0].slot if newest else parcel.claims[0].slot,
                    count=len(older) + parcel.omitted,
                    epoch=epoch,
                    reason=reasons[0],
                )
            )
        for skip in newest:
            self._tell(SlotSkipped(entry=parcel.line.name, slot=skip.slot, epoch=epoch, reason=skip.reason))

    def _refused(self, claim: Claim, epoch: int, reason: str) -> None:
        self._tell(SlotRefused(entry=claim.entry, slot=claim.slot, epoch=epoch, reason=reason))


def _passes(error: Exception) -> bool:
    """Whether an error of making a message is the broker's and will pass, not the entry's."""
    return isinstance(error, (OperationalError, ConnectionError, TimeoutError))
