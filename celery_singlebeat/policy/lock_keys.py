"""What a lock is named after.

K1  The same call has the same key, however it was written: positional or by keyword, with a default
    left out or spelled out, as tuple or list, with the keys of a dict in any order.
K2  Values are taken as they look after transport: what JSON would turn into text is text here too,
    so that a call in a test and the same call in a worker have the same key.
K3  A key made from arguments has a fixed length and shows none of them: `<task>:<32 hex digits>`.
K4  A value that has no one spelling is refused. A call without a key must fail, never run unlocked.
K5  What the user names by `lock_key` is the whole key; only one that is long or strange is hashed.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import string
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

#: A `lock_key` up to this length is kept as it is.
LONGEST = 200
_DEPTH = 64


class Unspeakable(ValueError):
    """A value has no one spelling. The message names its type, never its value."""


def from_arguments(task: str, arguments: Mapping[str, Any]) -> str:
    """The key of a call of `task` with these arguments (K1, K3); raises `Unspeakable`."""
    return f"{task}:{digest(arguments)}"


def from_name(name: str) -> str:
    """The key that a user named (K5)."""
    if name and len(name) <= LONGEST and name.isprintable() and not any(map(str.isspace, name)):
        return name
    return f"named:{_hash(json.dumps(name))}"


def digest(value: Any) -> str:
    """A hash of fixed length of what a value looks like after transport (K2); raises `Unspeakable`."""
    return _hash(spelling(value))


def spelling(value: Any) -> str:
    """The one JSON text of a value; raises `Unspeakable`."""
    return _text(_plain(value, 0))


def pick(arguments: Mapping[str, Any], names: Iterable[str], extra: str | None) -> dict[str, Any]:
    """The arguments with these names; `extra` is the name of the `**kwargs` parameter, if there is one.

    A name that is neither a parameter nor among the extra arguments of this call is left out.
    """
    more = arguments.get(extra, {}) if extra else {}
    chosen = {}
    for name in names:
        if name in arguments:
            chosen[name] = arguments[name]
        elif name in more:
            chosen[name] = more[name]
    return chosen


def template_names(template: str) -> list[str]:
    """The parameters that a format string asks for; raises `ValueError` with the problem."""
    names: list[str] = []
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is None:
            continue
        name = field.partition(".")[0].partition("[")[0]
        if not name or name.isdigit():
            raise ValueError(f"a field without a name in {template!r}; write the name of a parameter in it")
        names.append(name)
        names += template_names(spec or "")
    return names


def fill(template: str, arguments: Mapping[str, Any], extra: str | None) -> str:
    """The format string with the arguments of one call; raises `Unspeakable`, which hides the values."""
    values = {**(arguments.get(extra, {}) if extra else {}), **arguments}
    try:
        return template.format(**{name: _shown(value) for name, value in values.items()})
    except Exception as error:  # a format string may call anything
        raise Unspeakable(f"lock_key={template!r} does not resolve ({type(error).__name__})") from None


def named(value: object) -> str:
    """The key that a callable `lock_key` returned; raises `Unspeakable`."""
    if value is None or value == "":
        raise Unspeakable("lock_key returned nothing; return the name of the lock")
    return from_name(value if isinstance(value, str) else f"named:{digest(value)}")


def _shown(value: Any) -> Any:
    """A UUID formats alike as UUID and as the text that some serialisers make of it; so does all else."""
    return value.value if isinstance(value, Enum) else value


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_text: Callable[[Any], str] = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _plain(value: Any, depth: int) -> Any:
    """The value in JSON's own kinds."""
    if depth > _DEPTH:
        raise Unspeakable(f"a {type(value).__name__} is nested deeper than {_DEPTH} levels")
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    deeper = depth + 1
    if isinstance(value, Mapping):
        return {_field(key): _plain(item, deeper) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, deeper) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, deeper) for item in value), key=_text)
    return _envelope(value, deeper)


def _envelope(value: Any, depth: int) -> Any:
    """A value of a kind that JSON does not have, with the name of its kind."""
    for kind, spell in _SPELLINGS.items():
        if isinstance(value, kind):
            return {"__type__": kind.__name__, "__value__": spell(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return {"__type__": type(value).__qualname__, "__value__": _plain(fields, depth)}
    as_json = getattr(value, "__json__", None)
    if callable(as_json):
        return _plain(as_json(), depth)
    raise Unspeakable(
        f"a {type(value).__name__} has no one spelling; name other parameters with lock_on, or give lock_key"
    )


def _field(key: Any) -> str:
    """The key of a dict as JSON writes it."""
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, (bool, int, float)):
        return json.dumps(key)
    return spelling(key)


def _moment(value: datetime) -> str:
    aware = value.tzinfo is not None and value.utcoffset() is not None
    return (value.astimezone(timezone.utc) if aware else value).isoformat()


#: `datetime` comes before `date`, of which it is a kind.
_SPELLINGS: dict[type, Callable[[Any], str]] = {
    datetime: _moment,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: repr(value.total_seconds()),
    Decimal: str,
    UUID: str,
    bytes: lambda value: base64.b64encode(value).decode(),
    bytearray: lambda value: base64.b64encode(value).decode(),
}
