"""When a call has failed for good, and what its letter says.

D1  A call that fails for good gets one reason: `conflict_timeout`, `poison`, `max_retries`, or else
    `not_retryable`.
D2  A call is poison when as many deliveries as `poison_limit` ended without an outcome.
D3  The history has one record for each attempt and each lost delivery, oldest first, also of those before a
    replay. It travels in a header, so it is bounded: the first record and the newest ones stay, and the
    tracebacks of the newest.
D4  Texts in a letter are bounded, in bytes: a message at its end, a traceback in its middle. All of a letter
    has to fit into the header of a message, and RabbitMQ takes 128 KiB of those.
D5  A letter can be sent again: nothing that names the failure stays in the message that is replayed but
    its history, and it has all its attempts before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from dateutil.parser import isoparse

VERSION = 1

#: The header of a letter.
LETTER = "singlebeat_letter"
#: The header in which the history travels between attempts.
ATTEMPTS = "singlebeat_attempts"
#: The header that counts replays.
REPLAYS = "singlebeat_replays"
#: The header of a call that a worker on the dead-letter queue took up: if it fails, it does not go back.
RERUN = "singlebeat_rerun"
#: The header that says since when a call waits for its lock, in seconds since 1970.
WAITING = "singlebeat_waiting_since"

#: How the headers begin in which RabbitMQ notes where a message has been, and how often.
_NOTES = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")

MAX_RETRIES = "max_retries"
NOT_RETRYABLE = "not_retryable"
POISON = "poison"
CONFLICT_TIMEOUT = "conflict_timeout"
UNDECODABLE = "undecodable"

#: In records; the others in bytes.
LONGEST_HISTORY = 50
LONGEST_MESSAGE = 2_000
LONGEST_TRACEBACK = 16_000
#: Of one attempt in the history, and of how many attempts.
LONGEST_SHORT_TRACEBACK, MOST_TRACEBACKS = 600, 10

Record = dict[str, Any]


def reason_of(
    *,
    waited_for_lock: bool = False,
    lost: bool = False,
    retryable: bool = False,
    retries: int = 0,
    max_retries: int | None = None,
) -> str:
    """Why a call failed for good (D1)."""
    if waited_for_lock:
        return CONFLICT_TIMEOUT
    if lost:
        return POISON
    if retryable and max_retries is not None and retries >= max_retries:
        return MAX_RETRIES
    return NOT_RETRYABLE


def is_poison(deliveries: int, limit: int) -> bool:
    """Whether so many deliveries without an outcome are too many (D2)."""
    return deliveries >= limit


def record(
    *,
    attempt: int,
    failed_at: str,
    exception: str,
    message: str = "",
    host: str = "",
    pid: int | None = None,
    traceback: str = "",
    replays: int = 0,
    wait: float | None = None,
) -> Record:
    """One attempt, as it stands in the history; `wait` is how many seconds followed it."""
    kept: Record = {
        "attempt": attempt,
        "failed_at": failed_at,
        "exception": exception,
        "message": shorten(message, 300),
        "host": host,
        "pid": pid,
    }
    if traceback:
        kept["traceback"] = shorten(traceback, LONGEST_SHORT_TRACEBACK, middle=True)
    if replays:
        kept["replay"] = replays
    if wait is not None:
        kept["wait"] = round(wait, 3)
    return kept


def add(history: Sequence[Record], new: Record) -> list[Record]:
    """The history with one more record (D3)."""
    longer = [*history, new]
    if len(longer) > LONGEST_HISTORY:
        longer = [longer[0], *longer[-LONGEST_HISTORY + 1 :]]
    for old in longer[:-MOST_TRACEBACKS]:
        old.pop("traceback", None)
    return longer


def since_replay(history: Sequence[Record], replays: int) -> list[Record]:
    """The part of the history that belongs to this replay of the call, or to the time before the first."""
    return [item for item in history if item.get("replay", 0) == replays]


def read_history(header: object) -> list[Record]:
    """The history in a header; whatever else stands there counts as none."""
    if not isinstance(header, (list, tuple)):
        return []
    return [dict(item) for item in header if isinstance(item, Mapping)]


def last_wait(history: Sequence[Record]) -> float | None:
    """The wait before the attempt that runs now, in seconds."""
    value = history[-1].get("wait") if history else None
    return float(value) if isinstance(value, (int, float)) else None


def read_replays(header: object) -> int:
    """How often a message was replayed already; whatever is no count is none."""
    return header if isinstance(header, int) and not isinstance(header, bool) and header > 0 else 0


def shorten(text: str, longest: int, *, middle: bool = False) -> str:
    """At most `longest` bytes of a text, saying how many were left out (D4)."""
    whole = text.encode("utf-8", "surrogatepass")
    if len(whole) <= longest:
        return text
    mark = f"\n... {len(whole) - longest} bytes left out ...\n"
    room = max(0, longest - len(mark))
    if not middle:
        return whole[:room].decode("utf-8", "ignore") + mark.rstrip()
    begin, end = whole[: room // 2], whole[len(whole) - (room - room // 2) :]
    return begin.decode("utf-8", "ignore") + mark + end.decode("utf-8", "ignore")


def letter(
    *,
    reason: str,
    exception: str,
    message: str,
    traceback: str,
    history: Sequence[Record],
    died_at: str,
    queue: str,
    exchange: str,
    routing_key: str,
    priority: int | None,
    entry: str | None,
    slot: str | None,
    replays: int,
) -> Record:
    """The header of a letter."""
    return {
        "version": VERSION,
        "reason": reason,
        "exception": exception,
        "message": shorten(message, LONGEST_MESSAGE),
        "traceback": shorten(traceback, LONGEST_TRACEBACK, middle=True),
        "attempts": list(history),
        "first_failed_at": history[0].get("failed_at") if history else died_at,
        "died_at": died_at,
        "queue": queue,
        "exchange": exchange,
        "routing_key": routing_key,
        "priority": priority,
        "entry": entry,
        "slot": slot,
        "replays": replays,
    }


def buried(headers: Mapping[str, Any], letter: Record) -> dict[str, Any]:
    """The headers of a call's message with its letter, which has the history already."""
    return {**{name: value for name, value in headers.items() if name != ATTEMPTS}, LETTER: letter}


def restored(headers: Mapping[str, Any], replays: int) -> dict[str, Any]:
    """The headers of a letter as its call first had them, with one replay more (D5).

    `expires` goes too: it said until when the first sending made sense, and the operator says otherwise.
    """
    kept = {name: value for name, value in headers.items() if name not in (LETTER, ATTEMPTS, WAITING, RERUN)}
    history = read_history(_about(headers).get("attempts"))
    if history:
        kept[ATTEMPTS] = history
    return {**kept, "retries": 0, "eta": None, "expires": None, REPLAYS: replays + 1}


def unnoted(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that somebody sent, without what RabbitMQ noted since.

    It would take a message that is sent with its notes for one that goes round in circles, and drop it.
    """
    return {name: value for name, value in headers.items() if not name.startswith(_NOTES)}


def shown(headers: Mapping[str, Any], args: Any, kwargs: Any) -> Record:
    """A letter as people and programs read it."""
    about = _about(headers)
    return {
        "id": letter_id(headers),
        "task": str(headers.get("task") or about.get("task") or ""),
        "args": args,
        "kwargs": kwargs,
        "queue": about.get("queue"),
        "reason": about.get("reason"),
        "exception": about.get("exception"),
        "message": about.get("message"),
        "traceback": about.get("traceback"),
        "attempts": read_history(about.get("attempts")),
        "first_failed_at": about.get("first_failed_at"),
        "died_at": about.get("died_at"),
        "entry": about.get("entry"),
        "slot": about.get("slot"),
        "replays": read_replays(about.get("replays")),
    }


def letter_id(headers: Mapping[str, Any]) -> str:
    """The id of a letter: its call's, or what it got when it was buried without; "" if it has none."""
    return str(headers.get("id") or _about(headers).get("id") or "")


def died_at(headers: Mapping[str, Any]) -> datetime | None:
    """When the call of a letter died; None if the letter does not say."""
    try:
        moment = isoparse(str(_about(headers)["died_at"]))
    except (KeyError, ValueError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def unfit(headers: Mapping[str, Any]) -> str:
    """Why a letter cannot be sent again; "" if it can."""
    about = _about(headers)
    version = about.get("version", VERSION)
    if not about:
        return "it says nothing of itself, so somebody else may have put it there"
    if not isinstance(version, int) or version > VERSION:
        return f"it is written in format {version!r}, and this version reads {VERSION}: use a newer one"
    if not about.get("queue"):
        return "it does not say which queue it came from"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which letters; None: any. `since` and `before` bound the moment of death."""

    task: str | None = None
    reason: str | None = None
    exception: str | None = None
    entry: str | None = None
    since: datetime | None = None
    before: datetime | None = None

    def takes(self, headers: Mapping[str, Any]) -> bool:
        """Whether this letter is one of them. One that does not say when it died has no place in time."""
        about = _about(headers)
        wanted = (
            (self.task, headers.get("task") or about.get("task")),
            (self.reason, about.get("reason")),
            (self.exception, about.get("exception")),
            (self.entry, about.get("entry")),
        )
        if any(wish is not None and wish != found for wish, found in wanted):
            return False
        if self.since is None and self.before is None:
            return True
        moment = died_at(headers)
        if moment is None:
            return False
        return (self.since is None or moment >= self.since) and (self.before is None or moment < self.before)


def _about(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    header = headers.get(LETTER)
    return header if isinstance(header, Mapping) else {}
