"""Every setting with its default and its reason, in one frozen value.

X1  Three spellings are one setting: `singlebeat_x`, `SINGLEBEAT_X`, and `<NAMESPACE>_SINGLEBEAT_X`
    where the app reads its configuration under a namespace (Django's `CELERY`).
X2  Numbers given as text, as environment variables are, are converted.
X3  A misspelt name, an impossible value and an impossible combination stop the process at start,
    with one line that names the setting, the value and the remedy. Secrets are not shown.
"""

from __future__ import annotations

import difflib
import math
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import tzinfo
from typing import Any

from celery_singlebeat.errors import SettingsError

PREFIX = "singlebeat_"

#: Fewer cannot lose one and go on.
_FEWEST_LOCK_SERVERS = 3
#: Seconds. With less, a slow moment of Redis or of the process costs a lock.
LEAST_LOCK_TTL = 0.5
#: What to say of less.
MORE_LOCK_TTL = f"a lock is renewed every third of it, so give {LEAST_LOCK_TTL:g} or more"
_SINGLE_SCHEMES = ("redis://", "rediss://", "redis+socket://")
_REDIS_SCHEMES = ("redis://", "rediss://", "redis+socket://", "sentinel://")


def _node() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose. Durations are seconds."""

    #: Where the lease, the slots, the locks and the counts live; the broker's URL if that is Redis.
    redis_url: str = field(repr=False)
    #: Passed to redis-py; also `master_name` and `sentinel_kwargs` for Sentinel.
    redis_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: Start of every key: two apps on one Redis do not meet.
    prefix: str = "singlebeat:celery"
    #: How this process appears in `status`.
    node: str = field(default_factory=_node)
    #: How long a leader that cannot be heard keeps the lease, at most.
    lease_ttl: float = 10.0
    #: How often the leader renews; three tries fit into one lease.
    renew_every: float = 10.0 / 3
    #: How long a due slot may stay undispatched before a standby takes over.
    takeover_grace: float = 0.3
    #: "atomic": claim and enqueue in one script (the broker is the same Redis); "outbox": any
    #: broker; "auto" picks.
    dispatch: str = "auto"
    #: "latest", "all" or "skip": which missed slots run, for entries that say nothing.
    misfire: str = "latest"
    #: A slot that is later than this never runs; None: no bound.
    misfire_grace: float | None = None
    #: How many missed slots of one entry "all" dispatches at most.
    catch_up_limit: int = 100
    #: After how long a dead holder's lock frees itself; a living holder renews.
    lock_ttl: float = 30.0
    #: Who decides which call holds a lock: "redis", "redlock", "postgresql" or "redis+postgresql".
    lock_backend: str = "redis"
    #: The independent Redis servers of "redlock": an odd number, at least three.
    lock_urls: tuple[str, ...] = field(default=(), repr=False)
    #: The database of "postgresql" and "redis+postgresql".
    postgres_dsn: str | None = field(default=None, repr=False)
    #: How long the id of a successful call is remembered, so that a redelivered copy does not run.
    dedupe_ttl: float = 3600.0
    #: Where a call waits for its next attempt: "eta" is Celery's countdown; "redis" is a sorted set
    #: in Redis, from which the leader (or a worker, if no beat runs) moves it to its queue when due.
    retry_store: str = "eta"
    #: Queue for calls that failed for good; None: off.
    dead_letter_queue: str | None = "dead_letters"
    #: How many dead letters are kept; the oldest beyond it are trimmed, and counted.
    dead_letter_limit: int = 100_000
    #: After how long a dead letter is dropped, and counted; None: never.
    dead_letter_max_age: float | None = None
    #: Bury messages that Celery would drop: undecodable ones, and those of unregistered tasks.
    bury_undecodable: bool = True
    #: Deliveries without an outcome (worker killed, out of memory) before a call is buried.
    poison_limit: int = 5
    #: "text" or "json": one JSON object a line.
    log_format: str = "text"

    def __post_init__(self) -> None:
        for name in ("lease_ttl", "renew_every", "takeover_grace", "lock_ttl"):
            _demand(getattr(self, name) > 0, name, getattr(self, name), "give a number above 0")
        _demand(self.lock_ttl >= LEAST_LOCK_TTL, "lock_ttl", self.lock_ttl, MORE_LOCK_TTL)
        for name in ("dedupe_ttl", "catch_up_limit", "dead_letter_limit"):
            _demand(getattr(self, name) >= 0, name, getattr(self, name), "give a number, 0 or larger")
        _demand(self.poison_limit >= 1, "poison_limit", self.poison_limit, "give 1 or more")
        _demand(
            self.misfire_grace is None or self.misfire_grace > 0,
            "misfire_grace",
            self.misfire_grace,
            "give a number above 0, since no slot is on time to the microsecond, or None for no bound",
        )
        _demand(
            self.dead_letter_max_age is None or self.dead_letter_max_age > 0,
            "dead_letter_max_age",
            self.dead_letter_max_age,
            "give a number above 0, or None for no limit",
        )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            _demand(value in choices, name, value, f"give one of {', '.join(map(repr, choices))}")
        self.demand_backend(self.lock_backend, f"{PREFIX}lock_backend={self.lock_backend!r}")
        if self.renew_every * 2 >= self.lease_ttl:
            raise SettingsError(
                f"{PREFIX}renew_every={self.renew_every:g} leaves no second try within "
                f"{PREFIX}lease_ttl={self.lease_ttl:g}: lower it below {self.lease_ttl / 2:g} "
                "or leave it out"
            )
        if self.takeover_grace >= self.lease_ttl:
            raise SettingsError(
                f"{PREFIX}takeover_grace={self.takeover_grace:g} is not below "
                f"{PREFIX}lease_ttl={self.lease_ttl:g}, so it could never act: lower it"
            )
        if not self.redis_url.startswith((*_REDIS_SCHEMES, "memory://")):
            scheme = self.redis_url.partition("://")[0] if "://" in self.redis_url else "none"
            raise SettingsError(
                f"{PREFIX}redis_url has the scheme {scheme!r}: give redis://, rediss://, "
                "redis+socket://, sentinel:// or, for tests, memory://"
            )

    def demand_backend(self, backend: str, what: str) -> None:
        """Raise `SettingsError` if a setting is missing that `backend` needs; `what` asked for it."""
        urls = self.lock_urls
        if backend == "redlock" and (len(urls) < _FEWEST_LOCK_SERVERS or len(urls) % 2 == 0):
            raise SettingsError(
                f"{what} needs {PREFIX}lock_urls: an odd number of independent Redis servers, "
                f"{_FEWEST_LOCK_SERVERS} or more; it names {len(urls)}"
            )
        if backend == "redlock" and len(set(urls)) < len(urls):
            raise SettingsError(f"{what}: {PREFIX}lock_urls names a server twice; give each of them once")
        for number, url in enumerate(urls):
            if not url.startswith(_SINGLE_SCHEMES):
                raise SettingsError(
                    f"{PREFIX}lock_urls[{number}] is not one Redis server: "
                    "give redis://, rediss:// or redis+socket://"
                )
        if "postgresql" in backend and not self.postgres_dsn:
            raise SettingsError(
                f"{what} needs {PREFIX}postgres_dsn: "
                "give the database, as in 'postgresql://user:password@host:5432/database'"
            )

    @classmethod
    def from_conf(
        cls,
        conf: Mapping[str, Any],
        *,
        main: str | None = None,
        namespace: str | None = None,
        broker_url: str | None = None,
    ) -> Settings:
        """Read the settings from Celery's configuration, however it spells them (X1).

        `main` is the app's name and makes the default prefix; `broker_url` is the default of
        `redis_url`. Raises `SettingsError`.
        """
        given = _given(conf, namespace)
        values = {name: _convert(name, value) for name, value in given.items() if value is not None}
        for name in ("misfire_grace", "dead_letter_queue", "dead_letter_max_age", "postgres_dsn"):
            if name in given and given[name] in (None, ""):
                values[name] = None
        values.setdefault("prefix", f"singlebeat:{main or 'celery'}")
        if "redis_url" not in values:
            values["redis_url"] = _store_url(broker_url)
        if "lease_ttl" in values:
            values.setdefault("renew_every", values["lease_ttl"] / 3)
        return cls(**values)


_CHOICES = {
    "dispatch": ("auto", "atomic", "outbox"),
    "misfire": ("latest", "all", "skip"),
    "lock_backend": ("redis", "redlock", "postgresql", "redis+postgresql"),
    "retry_store": ("eta", "redis"),
    "log_format": ("text", "json"),
}
#: Names of the settings that later versions read; giving them now is an error, not a typing mistake.
_LATER = ("http",)

_NUMBERS: dict[str, type[int | float]] = {
    "lease_ttl": float,
    "renew_every": float,
    "takeover_grace": float,
    "misfire_grace": float,
    "catch_up_limit": int,
    "lock_ttl": float,
    "dedupe_ttl": float,
    "dead_letter_limit": int,
    "dead_letter_max_age": float,
    "poison_limit": int,
}


_FLAGS = ("bury_undecodable",)
_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _flag(name: str, value: Any) -> bool:
    found = value if isinstance(value, bool) else _WORDS.get(str(value).strip().lower())
    if found is None:
        raise SettingsError(f"{PREFIX}{name}={value!r}: give True or False")
    return found


def cron_starting_deadline(conf: Mapping[str, Any]) -> float | None:
    """Celery's `beat_cron_starting_deadline`, seconds; raises `SettingsError`."""
    value = conf["beat_cron_starting_deadline"]
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not 0 < number < math.inf:
        raise SettingsError(
            f"beat_cron_starting_deadline={value!r}: give a number of seconds above 0, or None"
        )
    return number


def demand_timezone(app: Any) -> None:
    """Raise `SettingsError` unless Celery's `timezone` is a time zone."""
    try:
        found = isinstance(app.timezone, tzinfo)
    except (KeyError, ValueError, OSError):
        found = False
    if not found:
        raise SettingsError(
            f"timezone={app.conf.timezone!r}: give an IANA name such as 'Europe/Berlin', or a tzinfo"
        )


def _demand(holds: bool, name: str, value: object, remedy: str) -> None:
    if not holds:
        raise SettingsError(f"{PREFIX}{name}={value!r}: {remedy}")


def _given(conf: Mapping[str, Any], namespace: str | None) -> dict[str, Any]:
    known = {item.name for item in fields(Settings)}
    openings = {PREFIX, f"celery_{PREFIX}", f"{(namespace or 'celery').lower()}_{PREFIX}"}
    given: dict[str, Any] = {}
    for key in conf:
        lowered = str(key).lower()
        opening = next((start for start in openings if lowered.startswith(start)), None)
        if opening is None:
            continue
        name = lowered[len(opening) :]
        value = conf[key]
        if name in _LATER:
            if value:
                raise SettingsError(f"{PREFIX}{name}: this version does not have it yet; leave it out")
        elif name not in known:
            raise SettingsError(_unknown(str(key), name, known))
        else:
            given[name] = value
    return given


def _unknown(key: str, name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {PREFIX}{close[0]}?" if close else "see the list of settings in the documentation"
    return f"unknown setting {key}; {hint}"


def _convert(name: str, value: Any) -> Any:
    kind = _NUMBERS.get(name)
    if kind is None:
        if name == "redis_options":
            if not isinstance(value, Mapping):
                raise SettingsError(f"{PREFIX}{name} is a {type(value).__name__}: give a dict")
            return dict(value)
        if name in _FLAGS:
            return _flag(name, value)
        if name == "lock_urls":
            return _texts(name, value)
        if not isinstance(value, str):
            raise SettingsError(f"{PREFIX}{name} is a {type(value).__name__}: give text")
        return value.strip()
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise SettingsError(f"{PREFIX}{name}={value!r}: give a number")
    if kind is int and number != int(number):
        raise SettingsError(f"{PREFIX}{name}={value!r}: give a whole number")
    return kind(number)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Several texts: a list, or one text with commas, as it comes from an environment variable."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise SettingsError(f"{PREFIX}{name} is a {type(value).__name__}: give a list of texts")
    return tuple(part.strip() for part in parts if part.strip())


def _store_url(broker_url: str | None) -> str:
    if broker_url and broker_url.startswith(_REDIS_SCHEMES):
        return broker_url
    if broker_url and broker_url.startswith("memory://"):
        return "memory://"
    raise SettingsError(
        f"{PREFIX}redis_url is not set and the broker is not Redis: "
        f"give the Redis that keeps the lease, as in {PREFIX}redis_url='redis://host:6379/0'"
    )
