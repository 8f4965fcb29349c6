"""Queues that are filled by hand: `apply_async` would be slower than the workers."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence

import redis
from celery import Celery

from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.testing.servers import EmbeddedRedis

_ID, _BODY = "THE-ID", "THE-BODY"


def enqueue(server: EmbeddedRedis, task: str, numbers: Sequence[int]) -> None:
    """One call of `task` for each number, its only argument; they come all at once into the empty queue."""
    template = _message(server, task)
    with server.client() as client, client.pipeline(transaction=False) as pipe:
        for number in numbers:
            body = base64.b64encode(json.dumps([[number], {}, {}]).encode()).decode()
            pipe.lpush("enqueued", template.replace(_ID, str(uuid.uuid4())).replace(_BODY, body))
            if len(pipe) == 1_000:
                pipe.execute()
        pipe.execute()
        client.rename("enqueued", "celery")


def wait_until_empty(client: redis.Redis) -> None:
    """Until each message was acknowledged."""
    wait_until(
        lambda: not client.llen("celery") and not client.hlen("unacked"),
        600,
        "the workers do not end",
        interval=0.1,
    )


def _message(server: EmbeddedRedis, task: str) -> str:
    """A message as Celery sends it, with marks in the place of its id and its body."""
    with Celery("template", broker=server.url(), set_as_current=False) as app, server.client() as client:
        app.send_task(task, (0,), task_id=_ID, queue="template")
        message = json.loads(client.rpop("template"))  # type: ignore[arg-type]
    message["body"] = _BODY
    message["properties"]["delivery_tag"] = _ID
    message["properties"]["delivery_info"]["routing_key"] = "celery"
    return json.dumps(message)
