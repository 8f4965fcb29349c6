"""A node's subscriptions in Redis.

The presence channel is what makes a crash visible at once: when a process dies, its kernel closes
the connection, Redis drops the subscription, and the bid script counts nobody listening. It says
nothing about a process that is paused; the overdue slot does.
"""

from __future__ import annotations

from typing import Any

import redis

from celery_singlebeat.store.keys import Keys
from celery_singlebeat.store.scripts import answers


class RedisEars:
    """`Ears` over a connection of its own."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._pubsub: Any = None
        self._nonce = ""

    def listen(self, nonce: str) -> bool:
        if self._pubsub is not None and self._nonce == nonce:
            return True
        with answers("listen"):
            if self._pubsub is None:
                client: Any = self._client  # `pubsub` has no annotations
                self._pubsub = client.pubsub(ignore_subscribe_messages=False)
                self._pubsub.subscribe(self._keys.events)
            elif self._nonce:
                self._pubsub.unsubscribe(self._keys.presence + self._nonce)
            wanted = self._keys.presence + nonce
            self._pubsub.subscribe(wanted)
            self._nonce = nonce
            # The lease must not become visible before the presence is: wait for the confirmation.
            for _ in range(8):
                message = self._pubsub.get_message(timeout=1.0)
                if message and message["type"] == "subscribe" and _text(message["channel"]) == wanted:
                    return True
        self.close()
        return False

    def hear(self, timeout: float) -> str | None:
        if self._pubsub is None:
            return None
        with answers("hear"):
            message = self._pubsub.get_message(timeout=timeout)
        if message is None or message["type"] != "message":
            return None
        return _text(message["data"])

    def close(self) -> None:
        pubsub, self._pubsub, self._nonce = self._pubsub, None, ""
        if pubsub is not None:
            with answers("close"):
                pubsub.close()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
