"""Which Redis, and how to reach it.

URLs are read by kombu, so that every form that works as `broker_url` works here, and means the same
server and the same database number.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
from kombu import Connection
from kombu.utils.url import url_to_parts
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_singlebeat.errors import SettingsError

#: Transport options of a Redis broker that mean something to the client as well.
_SHARED_OPTIONS = frozenset(
    {"master_name", "sentinel_kwargs", "min_other_sentinels", "socket_keepalive"}
    | {"socket_keepalive_options", "credential_provider"}
)
_OWN_OPTIONS = frozenset({"master_name", "sentinel_kwargs", "min_other_sentinels", "cluster"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One Redis database, before anything is connected. Its text never shows a password."""

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    path: str | None = None
    sentinels: tuple[tuple[str, int], ...] = ()
    master: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, Any] | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        if self.sentinels:
            hosts = ",".join(f"{host}:{port}" for host, port in self.sentinels)
            return f"{self.master} of sentinels {hosts}, db {self.db}"
        return f"{self.path or f'{self.host}:{self.port}'}, db {self.db}"

    def is_same_database(self, other: Address) -> bool:
        """Whether both name the same database of the same server, in the same words."""
        return self._place() == other._place()

    def _place(self) -> tuple[object, ...]:
        if self.sentinels:
            return (frozenset(self.sentinels), self.master, self.db)
        local = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}
        return (self.path or (local.get(self.host, self.host), self.port), self.db)


def address_of(connection: Connection) -> Address | None:
    """The address that a kombu connection stands for; None unless it is one Redis.

    Several alternatives that are not sentinels of one master are several Redis servers, so None.
    """
    scheme = str(connection.transport_cls).rpartition(":")[0] or str(connection.transport_cls)
    alternatives = [str(url) for url in connection.alt or ()]
    options = dict(connection.transport_options or {})
    common: dict[str, Any] = {
        "username": connection.userid,
        "password": connection.password,
        "tls": connection.ssl if isinstance(connection.ssl, Mapping) else None,
        "options": {name: value for name, value in options.items() if name in _SHARED_OPTIONS},
    }
    if scheme == "sentinel":
        urls = alternatives or [f"sentinel://{connection.hostname}:{connection.port or 26379}"]
        parts = [url_to_parts(url) for url in urls]
        return Address(
            sentinels=tuple((part.hostname or "127.0.0.1", part.port or 26379) for part in parts),
            master=options.get("master_name"),
            db=_database(connection.virtual_host),
            **common,
        )
    if scheme not in ("redis", "rediss") or len(alternatives) > 1:
        return None
    host = connection.hostname or "127.0.0.1"
    if "://" in host:
        parts_of_socket = url_to_parts(host)
        common |= {"username": parts_of_socket.username, "password": parts_of_socket.password}
        database = parts_of_socket.query.get("virtual_host", parts_of_socket.query.get("db"))
        return Address(path=f"/{parts_of_socket.path or ''}", db=_database(database), **common)
    return Address(host=host, port=connection.port or 6379, db=_database(connection.virtual_host), **common)


def address_from(url: str, options: Mapping[str, Any], *, setting: str) -> Address:
    """The address in a URL that kombu can read; raises `SettingsError` naming `setting`."""
    known = _OWN_OPTIONS | set(inspect.signature(redis.Redis.__init__).parameters)
    for name in options:
        if name not in known:
            raise SettingsError(f"singlebeat_redis_options: redis-py has no option {name!r}: leave it out")
    if options.get("cluster"):
        raise SettingsError("singlebeat_redis_options: this version has no 'cluster' yet; leave it out")
    try:
        address = address_of(Connection(url, transport_options=dict(options)))
    except (ValueError, TypeError, KeyError, LookupError) as error:
        # the text of the error may quote the URL, and with it the password
        raise SettingsError(
            f"{setting} cannot be read ({type(error).__name__}): give redis://user:password@host:port/db, "
            "with special characters of the password percent-encoded"
        ) from None
    if address is None:
        raise SettingsError(f"{setting} names several servers: give one, or sentinels of one master")
    demand_master(address, setting, "singlebeat_redis_options")
    extra = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    return Address(
        **{name: getattr(address, name) for name in Address.__dataclass_fields__ if name != "options"},
        options={**address.options, **extra, **{n: options[n] for n in _OWN_OPTIONS & options.keys()}},
    )


def demand_master(address: Address, setting: str, options: str) -> Address:
    """The address itself, unless it names sentinels without their master; raises `SettingsError`."""
    if address.sentinels and not address.master:
        raise SettingsError(
            f"{setting} names sentinels: say which master, as in {options}={{'master_name': 'mymaster'}}"
        )
    return address


def connect(address: Address, *, timeout: float, decode: bool = True, name: str = "") -> redis.Redis:
    """A client for `address` that tries each command once and waits at most `timeout` seconds.

    Nothing is sent again behind the caller's back: whoever asks decides whether asking again is safe.
    The socket timeout is explicit because beat sets a process-wide default of 30 s. Bytes that are no text
    are read as text all the same: what cannot be read is one value then, and not the answer that holds it.
    """
    options = {key: value for key, value in address.options.items() if key not in _OWN_OPTIONS}
    settings: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_keepalive": True,
        **options,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "decode_responses": decode,
        "encoding_errors": "backslashreplace" if decode else "strict",
        "retry": Retry(NoBackoff(), 0),
        **_quiet(),
        "client_name": name or None,
    }
    if address.tls is not None:
        settings |= {"ssl": True, **address.tls}
    if address.sentinels:
        sentinels: Any = Sentinel  # its constructor has no annotations
        sentinel = sentinels(
            list(address.sentinels),
            min_other_sentinels=address.options.get("min_other_sentinels", 0),
            sentinel_kwargs={
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
                **(address.options.get("sentinel_kwargs") or {}),
            },
        )
        client: redis.Redis = sentinel.master_for(str(address.master), redis.Redis, **settings)
        return client
    if address.path is not None:
        del settings["socket_keepalive"]
        return redis.Redis(unix_socket_path=address.path, **settings)
    return redis.Redis(host=address.host, port=address.port, **settings)


def _quiet() -> dict[str, Any]:
    """Switch off what newer clients ask each new connection about a vendor's maintenance windows."""
    if importlib.util.find_spec("redis.maint_notifications") is None:
        return {}
    module = importlib.import_module("redis.maint_notifications")
    return {"maint_notifications_config": module.MaintNotificationsConfig(enabled=False)}


def _database(virtual_host: object) -> int:
    text = str(virtual_host or "0").strip("/") or "0"
    if not text.isdigit():
        raise ValueError(f"database {text!r} is not a number")
    return int(text)
