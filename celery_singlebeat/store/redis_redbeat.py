"""What celery-redbeat keeps in its Redis, read and never written.

It has a hash for each entry, `<prefix><name>`, with the fields `definition` and `meta`; the names of those
that it took from the configuration in the set `<prefix>:statics`; and its leader's lock.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_singlebeat.errors import SettingsError
from celery_singlebeat.store.scripts import answers

_PAGE = 500
#: Options that RedBeat reads itself; it gives the others to redis-py.
_OWN_OPTIONS = frozenset(
    {"retry_period", "cluster", "sentinels", "service_name", "sentinel_kwargs", "startup_nodes"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedBeatSettings:
    """Where RedBeat keeps its entries. `lock` is the whole key of its leader's lock."""

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    client_options: Mapping[str, Any] = field(repr=False)
    use_ssl: Any = field(repr=False)
    prefix: str
    lock: str

    @classmethod
    def from_conf(cls, conf: Any, *, broker_url: str) -> RedBeatSettings:
        """Read RedBeat's settings as it does, from an app's configuration; raises `SettingsError`."""

        def given(name: str, default: Any = None) -> Any:
            found = conf.first(f"redbeat_{name}", f"REDBEAT_{name.upper()}")
            return default if found is None else found

        url = given("redis_url", broker_url)
        if not isinstance(url, str) or not url.startswith(("redis", "unix://")):
            raise SettingsError(
                "redbeat_redis_url is not set and the broker is not Redis: give the Redis in which RedBeat "
                "keeps its entries, as in redbeat_redis_url='redis://host:6379/0'"
            )
        prefix = str(given("key_prefix", "redbeat:"))
        lock = str(given("lock_key", f"{prefix}:lock"))
        own = given("redis_options")
        if own is not None and not isinstance(own, Mapping):
            raise SettingsError(f"redbeat_redis_options is a {type(own).__name__}: give a dict")
        options = dict(conf.broker_transport_options if own is None else own)
        return cls(
            url=url,
            options=options,
            # of the broker's it gives none to the client, but reads those that say where the server is
            client_options={}
            if own is None
            else {name: value for name, value in options.items() if name not in _OWN_OPTIONS},
            use_ssl=given("redis_use_ssl", conf.broker_use_ssl),
            prefix=prefix,
            lock=lock if lock.startswith(prefix) else prefix + lock,
        )

    def connect(self, *, timeout: float) -> redis.Redis:
        """A client as RedBeat makes it, with short timeouts; raises `SettingsError`."""
        tls = dict(self.use_ssl) if isinstance(self.use_ssl, Mapping) else {}
        ours = {
            "decode_responses": True,
            "encoding_errors": "backslashreplace",
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
        }
        if self.options.get("cluster") or self.url.startswith("redis-cluster"):
            raise SettingsError(
                "redbeat_redis_url is a Redis Cluster, whose entries cannot be read; add them by hand"
            )
        try:
            if self.url.startswith("redis-sentinel") and self.options.get("sentinels"):
                return self._master({**tls, "ssl": True} if tls else {}, ours)
            theirs = dict(self.client_options)
            if self.url.startswith("rediss"):
                theirs = {"ssl_cert_reqs": ssl.CERT_REQUIRED, **tls, **theirs}
            client = redis.Redis.from_url(self.url, **{**theirs, **ours})
            client.connection_pool.make_connection()  # connects to nothing yet, and refuses unknown options
        except (ValueError, TypeError) as error:
            # the text of the error may quote the URL, and with it the password
            raise SettingsError(
                f"redbeat_redis_url and redbeat_redis_options cannot be read ({type(error).__name__}): "
                "give redbeat_redis_url='redis://host:6379/0', where RedBeat keeps its entries"
            ) from None
        return client

    def _master(self, tls: Mapping[str, Any], ours: Mapping[str, Any]) -> redis.Redis:
        options = self.options
        settings = {name: options[name] for name in ("username", "password") if options.get(name) is not None}
        sentinels: Any = Sentinel  # its constructor has no annotations
        sentinel = sentinels(options["sentinels"], sentinel_kwargs=options.get("sentinel_kwargs"))
        master: redis.Redis = sentinel.master_for(
            options.get("service_name", "master"), db=options.get("db", 0), **settings, **tls, **ours
        )
        return master


@dataclass(frozen=True, slots=True)
class RedBeatEntry:
    """One entry as it is stored. `is_static`: RedBeat took it from the configuration."""

    name: str
    definition: str | None
    meta: str | None
    is_static: bool


class RedisRedBeatStore:
    """Reads RedBeat's entries."""

    def __init__(self, connect: Callable[[], redis.Redis], settings: RedBeatSettings) -> None:
        self._connect = connect
        self._settings = settings

    def entries(self) -> list[RedBeatEntry]:
        """All entries, by name; raises `StoreUnavailable`. It scans the keys page by page."""
        prefix = self._settings.prefix
        with answers("redbeat entries"), closing(self._connect()) as client:
            found: Any = client.smembers(f"{prefix}:statics")
            keys = sorted(set(client.scan_iter(match=f"{_literal(prefix)}*", count=_PAGE, _type="hash")))
            values: list[Any] = []
            for start in range(0, len(keys), _PAGE):
                pipe = client.pipeline(transaction=False)
                for key in keys[start : start + _PAGE]:
                    pipe.hmget(key, "definition", "meta")
                values += pipe.execute()
        names = [key[len(prefix) :] for key in keys]
        return [
            RedBeatEntry(name, definition, meta, name in found)
            for name, (definition, meta) in zip(names, values, strict=True)
        ]

    def leads(self) -> bool:
        """Whether a RedBeat holds its lock."""
        with answers("redbeat lock"), closing(self._connect()) as client:
            return bool(client.exists(self._settings.lock))


def _literal(text: str) -> str:
    """The glob that matches exactly this text."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)
