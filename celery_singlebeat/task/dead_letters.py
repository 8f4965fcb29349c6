"""`DeadLetters`: read what failed for good, and send it again."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from celery import Celery
from dateutil.parser import isoparse
from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from celery_singlebeat.errors import LetterNotFound, ReplayRefused
from celery_singlebeat.events import TaskReplayed
from celery_singlebeat.policy import dead_letters
from celery_singlebeat.store.letter_ports import LetterStore, Parcel
from celery_singlebeat.wiring import wire

Letter = dict[str, Any]
Letters = list[Letter]


class DeadLetters:
    """The dead letters of an app, oldest first.

    A letter is a dict of id, task, args, kwargs, queue, reason, exception, message, traceback, attempts,
    first_failed_at, died_at, entry, slot and replays. Where the arguments cannot be decoded, `args` and
    `kwargs` are None. Every method raises `StoreUnavailable` when the broker does not answer.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._wiring = wire(app)

    def list(
        self,
        task: str | None = None,
        reason: str | None = None,
        since: datetime | str | None = None,
        limit: int | None = None,
    ) -> Letters:
        """The letters of this task, with this reason, that died since this moment; at most `limit`."""
        return [letter for _, _, letter in self._chosen(task, reason, since, limit)]

    def get(self, id: str) -> Letter:  # noqa: A002 - the letter's own word
        """One letter by its task id; raises `LetterNotFound`."""
        return self._read(self._find(id)[1])

    def count(self) -> int:
        """How many letters there are."""
        return sum(store.number() for store in self._wiring.letter_stores())

    def replay(self, id: str) -> Letter:  # noqa: A002
        """Send a letter's message to its original queue under its original id, and return the letter.

        The call starts anew: all its attempts are before it, and it does not expire. Raises
        `LetterNotFound`, and `ReplayRefused` if somebody else took the letter meanwhile or it does not
        say where it came from.
        """
        store, parcel = self._find(id)
        letter = self._read(parcel)
        queue = letter["queue"]
        if not queue or not letter["task"]:
            raise ReplayRefused(id, "it does not say which queue it came from")
        headers = dead_letters.restored(parcel.headers, letter["replays"])
        message = Parcel(
            body=parcel.body,
            content_type=parcel.content_type,
            content_encoding=parcel.content_encoding,
            headers=headers,
            properties=parcel.properties,
        )
        if not store.replay(parcel, message, queue):
            raise ReplayRefused(id, "somebody else replayed or removed it just now")
        replays = headers[dead_letters.REPLAYS]
        self._wiring.tell(TaskReplayed(task=letter["task"], task_id=id, queue=queue, replays=replays))
        return letter

    def purge(
        self,
        task: str | None = None,
        reason: str | None = None,
        since: datetime | str | None = None,
        limit: int | None = None,
    ) -> int:
        """Throw away the letters that `list` would return; how many went. Their calls are lost."""
        chosen: dict[int, tuple[LetterStore, list[Parcel]]] = {}
        for store, parcel, _ in self._chosen(task, reason, since, limit):
            chosen.setdefault(id(store), (store, []))[1].append(parcel)
        return sum(store.remove(parcels) for store, parcels in chosen.values())

    # -- inside ---------------------------------------------------------------------------------

    def _chosen(
        self, task: str | None, reason: str | None, since: datetime | str | None, limit: int | None
    ) -> Iterator[tuple[LetterStore, Parcel, Letter]]:
        earliest = _moment(since) if since is not None else None
        left = limit
        for store, parcel in self._parcels():
            if left == 0:
                return
            letter = self._read(parcel)
            if task is not None and letter["task"] != task:
                continue
            if reason is not None and letter["reason"] != reason:
                continue
            if earliest is not None and not _died_since(letter, earliest):
                continue
            left = None if left is None else left - 1
            yield store, parcel, letter

    def _parcels(self) -> Iterator[tuple[LetterStore, Parcel]]:
        for store in self._wiring.letter_stores():
            for parcel in store.letters():
                yield store, parcel

    def _find(self, task_id: str) -> tuple[LetterStore, Parcel]:
        for store, parcel in self._parcels():
            if parcel.headers.get("id") == task_id:
                return store, parcel
        raise LetterNotFound(task_id)

    def _read(self, parcel: Parcel) -> Letter:
        try:
            args, kwargs = self._arguments(parcel)
        except Exception:  # a letter that cannot be decoded is still a letter
            args = kwargs = None
        return dead_letters.shown(parcel.headers, args, kwargs)

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
        return list(args), dict(kwargs)


def _moment(value: datetime | str) -> datetime:
    moment = isoparse(value) if isinstance(value, str) else value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def _died_since(letter: Letter, earliest: datetime) -> bool:
    try:
        return _moment(str(letter["died_at"])) >= earliest
    except ValueError:
        return False
