"""`DeadLetters`: read what failed for good, and send it again."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from celery import Celery
from dateutil.parser import isoparse
from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from celery_singlebeat.errors import LetterNotFound, ReplayRefused
from celery_singlebeat.events import TaskReplayed
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.policy.dead_letters import Choice
from celery_singlebeat.store.letter_ports import TAKEN, LetterStore, Parcel, Send, Verdict
from celery_singlebeat.wiring import wire

Letter = dict[str, Any]
Letters = list[Letter]
When = datetime | str

YOUNG = "it was buried after this began"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A letter that was to be replayed to `queue`. `problem`: why it was not."""

    letter: Letter = field(repr=False)
    queue: str
    problem: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether another operator was faster."""
        return self.problem == TAKEN

    @property
    def is_young(self) -> bool:
        """Whether it was buried after the operation began."""
        return self.problem == YOUNG


class DeadLetters:
    """The dead letters of an app, oldest first.

    A letter is a dict of id, task, args, kwargs, queue, reason, exception, message, traceback, attempts,
    first_failed_at, died_at, entry, slot and replays. Where the arguments cannot be decoded, `args` and
    `kwargs` are None. `since` and `before` are moments of death, as datetime or ISO 8601, in UTC unless they
    say otherwise. Every method raises `StoreUnavailable` when the broker does not answer.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._wiring = wire(app)

    def list(
        self,
        task: str | None = None,
        reason: str | None = None,
        since: When | None = None,
        limit: int | None = None,
        *,
        exception: str | None = None,
        entry: str | None = None,
        before: When | None = None,
    ) -> Letters:
        """The letters of this task, with this reason and so on; at most `limit`."""
        chosen = {"task": task, "reason": reason, "exception": exception, "entry": entry}
        return [*self.each(since=since, before=before, limit=limit, **chosen)]

    def each(
        self,
        *,
        since: When | None = None,
        before: When | None = None,
        limit: int | None = None,
        **chosen: Any,
    ) -> Iterator[Letter]:
        """What `list` returns, one by one: however many there are, few are in memory."""
        choice = _choice(since, before, chosen)
        if limit == 0:
            return
        number = 0
        for store in self._wiring.letter_stores():
            for parcel in store.letters():
                if choice.takes(parcel.headers):
                    yield self._read(parcel)
                    number += 1
                    if number == limit:
                        return

    def get(self, id: str) -> Letter:  # noqa: A002 - the letter's own word
        """One letter by its task id; raises `LetterNotFound`."""
        for store in self._wiring.letter_stores():
            for parcel in store.letters():
                if _id(parcel) == id:
                    return self._read(parcel)
        raise LetterNotFound(id)

    def count(self) -> int:
        """How many letters there are."""
        return sum(store.number() for store in self._wiring.letter_stores())

    def replay(self, id: str, *, queue: str | None = None) -> Letter:  # noqa: A002
        """Send a letter's message to its original queue under its original id, and return the letter.

        The call starts anew: all its attempts are before it, and it does not expire. `queue` sends it
        elsewhere. Raises `LetterNotFound`, and `ReplayRefused` if somebody else took the letter meanwhile or
        it cannot be sent.
        """
        for replayed in self.replay_each([id], queue=queue):
            if replayed.problem:
                raise ReplayRefused(id, replayed.problem)
            return replayed.letter
        raise LetterNotFound(id)

    def replay_each(
        self,
        ids: Collection[str] | None = None,
        *,
        since: When | None = None,
        before: When | None = None,
        limit: int | None = None,
        rate: float | None = None,
        queue: str | None = None,
        **chosen: Any,
    ) -> Iterator[Replayed]:
        """Replay the letters with these ids, or those that `list` would return, and yield each.

        At most `limit`, at most `rate` a second. Those that are buried while it runs are left alone, so that
        a call which fails again is not sent again and again. A caller that stops early leaves the rest.
        """
        plan = _Plan(
            choice=_choice(since, before, chosen),
            queue=queue,
            left=limit,
            ids=None if ids is None else set(ids),
            began=self._wiring.clock.now(),
        )
        for store in self._wiring.letter_stores():
            for replayed in self._sweep(store, plan, step=100 if rate is None else 1):
                yield replayed
                if rate is not None:
                    time.sleep(1 / rate)

    def purge(
        self,
        task: str | None = None,
        reason: str | None = None,
        since: When | None = None,
        limit: int | None = None,
        *,
        exception: str | None = None,
        entry: str | None = None,
        before: When | None = None,
        ids: Collection[str] | None = None,
    ) -> int:
        """Throw away the letters that `list` would return; how many went. Their calls are lost."""
        chosen = {"task": task, "reason": reason, "exception": exception, "entry": entry}
        plan = _Plan(choice=_choice(since, before, chosen), left=limit, ids=None if ids is None else set(ids))

        def decide(parcel: Parcel) -> Verdict:
            if plan.is_done:
                return Verdict.STOP
            if not plan.takes(parcel):
                return Verdict.KEEP
            plan.took(parcel)
            return Verdict.DROP

        stores = self._wiring.letter_stores()
        return sum(swept.done for store in stores for swept in store.sweep(decide))

    # -- inside ---------------------------------------------------------------------------------

    def _sweep(self, store: LetterStore, plan: _Plan, *, step: int) -> Iterator[Replayed]:
        left: list[Replayed] = []

        def decide(parcel: Parcel) -> Send | Verdict:
            if plan.is_done:
                return Verdict.STOP
            if not plan.takes(parcel):
                return Verdict.KEEP
            if plan.is_too_young(parcel):
                left.append(Replayed(self._read(parcel), "", YOUNG))
                return Verdict.KEEP
            plan.took(parcel)
            if problem := dead_letters.unfit(parcel.headers):
                left.append(Replayed(self._read(parcel), "", problem))
                return Verdict.KEEP
            return Send(_restored(parcel), plan.queue or self._queue_of(parcel))

        for swept in store.sweep(decide, step=step):
            letter = self._read(swept.letter)
            queue = plan.queue or str(letter["queue"])
            if swept.done:
                self._wiring.tell(
                    TaskReplayed(
                        task=letter["task"], task_id=letter["id"], queue=queue, replays=letter["replays"] + 1
                    )
                )
            yield Replayed(letter, queue, swept.problem)
        yield from left

    @staticmethod
    def _queue_of(parcel: Parcel) -> str:
        return str(parcel.headers[dead_letters.LETTER]["queue"])

    def _read(self, parcel: Parcel) -> Letter:
        try:
            args, kwargs = self._arguments(parcel)
        except Exception:  # a letter that cannot be decoded is still a letter
            args = kwargs = None
        return {**dead_letters.shown(parcel.headers, args, kwargs), "id": _id(parcel)}

    def _arguments(self, parcel: Parcel) -> tuple[Any, Any]:
        body = parcel.body
        encoding = parcel.properties.get("body_encoding")
        if encoding == "base64" and isinstance(body, str):
            body = base64.b64decode(body)
        if parcel.headers.get("compression"):
            body = decompress(body, parcel.headers["compression"])
        args, kwargs, _ = loads(
            body,
            str(parcel.content_type),
            str(parcel.content_encoding),
            accept=prepare_accept_content(self._app.conf.accept_content),
        )
        return [*args], dict(kwargs)


@dataclass(slots=True)
class _Plan:
    """Which letters one operation takes, and how many more."""

    choice: Choice
    left: int | None = None
    ids: set[str] | None = None
    queue: str | None = None
    #: Letters that are younger than the operation are not its own.
    began: datetime | None = None

    @property
    def is_done(self) -> bool:
        return self.left == 0 or self.ids == set()

    def takes(self, parcel: Parcel) -> bool:
        if self.ids is not None:
            return _id(parcel) in self.ids
        return self.choice.takes(parcel.headers)

    def is_too_young(self, parcel: Parcel) -> bool:
        if self.began is None or self.ids is not None:
            return False
        died_at = dead_letters.died_at(parcel.headers)
        return died_at is not None and died_at > self.began

    def took(self, parcel: Parcel) -> None:
        if self.left is not None:
            self.left -= 1
        if self.ids is not None:
            self.ids.discard(_id(parcel))


def _choice(since: When | None, before: When | None, chosen: dict[str, Any]) -> Choice:
    return Choice(since=_moment(since), before=_moment(before), **chosen)


def _restored(parcel: Parcel) -> Parcel:
    replays = dead_letters.read_replays(parcel.headers[dead_letters.LETTER].get("replays"))
    return Parcel(
        body=parcel.body,
        content_type=parcel.content_type,
        content_encoding=parcel.content_encoding,
        headers=dead_letters.restored(parcel.headers, replays),
        properties=parcel.properties,
    )


def _id(parcel: Parcel) -> str:
    """The id of a letter. One that has none, since it is half written or no letter at all, gets one of its
    text.
    """
    known = dead_letters.letter_id(parcel.headers)
    if known:
        return known
    body = parcel.body if isinstance(parcel.body, bytes) else str(parcel.body).encode()
    return f"nameless-{hashlib.sha256(body).hexdigest()[:12]}"


def _moment(value: When | None) -> datetime | None:
    if value is None:
        return None
    moment = isoparse(value) if isinstance(value, str) else value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
