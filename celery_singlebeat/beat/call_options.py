"""The options of `apply_async` that an entry may have, as far as they can be judged before a message is made.

What Celery gives to `apply_async` itself is no option of an entry. An option of Celery's own has a value from
which a message can be made, and a name that is nearly one of Celery's is taken for a mistake. What is none of
Celery's passes: transports and routers have options of their own.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from datetime import datetime

from kombu import serialization
from kombu.compression import get_encoder

from celery_singlebeat.errors import EntryError

Check = Callable[[object], bool]

_SERIALIZERS: Mapping[str, str] = serialization.registry.name_to_type  # type: ignore[attr-defined]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_moment(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value.replace("Z", "+00:00")))
    except ValueError:
        return False


def _is_compression(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(get_encoder(value))
    except KeyError:
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_signature(value: object) -> bool:
    return isinstance(value, Mapping) and _is_text(value.get("task"))


_BOOL: tuple[Check, str] = (lambda value: isinstance(value, bool), "true or false")
_TEXT: tuple[Check, str] = (_is_text, "text")
_ANY_TEXT: tuple[Check, str] = (lambda value: isinstance(value, str), "text")
_NUMBER: tuple[Check, str] = (_is_number, "a number of seconds")
_MOMENT: tuple[Check, str] = (_is_moment, "a moment such as 2026-03-02T12:00:00+00:00")
_DICT: tuple[Check, str] = (lambda value: isinstance(value, Mapping), "an object")
_WHOLE: tuple[Check, str] = (_is_whole, "a whole number")
_CALLS: tuple[Check, str] = (
    lambda value: all(map(_is_signature, value if isinstance(value, (list, tuple)) else [value])),
    "a signature such as {'task': 'proj.work'}, or a list of them",
)
_KNOWN: Mapping[str, tuple[Check, str]] = {
    "queue": _TEXT,
    "exchange": _ANY_TEXT,  # "" is the default exchange of AMQP
    "exchange_type": _TEXT,
    "routing_key": _ANY_TEXT,  # and some exchanges need none
    "task_id": _TEXT,
    "reply_to": _TEXT,
    "shadow": _TEXT,
    "root_id": _TEXT,
    "parent_id": _TEXT,
    "serializer": (
        lambda value: _is_text(value) and value in _SERIALIZERS,
        "the name of a serializer, such as 'json'",
    ),
    "compression": (_is_compression, "the name of a compression, such as 'gzip'"),
    "priority": _WHOLE,
    "delivery_mode": (
        lambda value: _is_whole(value) or value in ("transient", "persistent"),
        "'transient', 'persistent' or their numbers",
    ),
    "replaced_task_nesting": _WHOLE,
    "countdown": _NUMBER,
    "eta": _MOMENT,
    "expires": (
        lambda value: _is_number(value) or _is_moment(value),
        "a number of seconds, or a moment such as 2026-03-02T12:00:00+00:00",
    ),
    "time_limit": _NUMBER,
    "soft_time_limit": _NUMBER,
    "headers": _DICT,
    "retry_policy": _DICT,
    "link": _CALLS,
    "link_error": _CALLS,
    "retry": _BOOL,
    "ignore_result": _BOOL,
    "add_to_parent": _BOOL,
    "mandatory": _BOOL,
}
#: What beat and `apply_async` fill in themselves.
_NOT_GIVEN = frozenset(
    {"args", "kwargs", "name", "body", "producer", "publisher", "connection", "router", "declare"}
    | {"app", "self", "advance", "entry", "task_type", "result_cls"}
)


def check_options(entry: str, options: Mapping[str, object]) -> None:
    """Raise `EntryError` for the first option from which no message can be made."""
    for name, value in options.items():
        if name in _NOT_GIVEN:
            raise EntryError(entry, f"its options cannot have {name!r}; leave it out")
        if name in _KNOWN:
            is_right, remedy = _KNOWN[name]
            if value is not None and not is_right(value):
                # what may hold more than a word may hold a secret
                is_word = isinstance(value, (str, int, float)) and is_right not in {_DICT[0], _CALLS[0]}
                shown = repr(value) if is_word else f"a {type(value).__name__}"
                raise EntryError(entry, f"its options have {name}={shown}; give {remedy}")
            continue
        near = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.8)
        if near:
            raise EntryError(entry, f"its options have {name!r}; did you mean {near[0]!r}?")
