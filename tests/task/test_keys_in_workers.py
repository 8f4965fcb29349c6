"""One call has one key, whoever sends it and however it comes to a worker (K1, K2)."""

import uuid
from datetime import datetime, timezone
from decimal import Decimal

import pytest
from celery import chain

from celery_singlebeat import Schedule
from tests.task import jobs

pytestmark = [pytest.mark.process, pytest.mark.redis]

TENANT = {
    "id": uuid.UUID(int=7),
    "owes": Decimal("1.50"),
    "since": datetime(2026, 1, 2, 3, tzinfo=timezone.utc),
    "tags": ("a", "b"),
    "nested": {"y": {"b": 2, "a": [1, {"d": None, "c": 1.5}]}, "x": "ü"},
    "document": "x" * 100_000,
}
#: The same, written by somebody else.
AGAIN = {
    "document": "x" * 100_000,
    "nested": {"x": "ü", "y": {"a": [1, {"c": 1.5, "d": None}], "b": 2}},
    "tags": ["a", "b"],
    "since": datetime(2026, 1, 2, 3, tzinfo=timezone.utc),
    "owes": Decimal("1.50"),
    "id": uuid.UUID(int=7),
}
PLAIN = {"b": [1, {"y": None, "x": 1.5}], "a": "ü"}
JOB = "tests.task.jobs.tells_key"


@pytest.mark.fault
def test_the_same_call_has_one_key_from_every_sender_and_at_every_delivery(
    make_crew, name, monkeypatch
):  # K1, K2
    crew = make_crew()
    crew.start()
    crew.beat()
    crew.ready()
    tells_key = crew.app.tasks[JOB]
    crew.redis.set(f"kill:{name}", 1)  # the child of the first delivery, so that there is a second
    senders = [
        lambda: tells_key.delay(name, TENANT),
        lambda: tells_key.delay(amount=1, tenant=AGAIN, name=name),
        lambda: tells_key.apply_async((name, AGAIN), {"options": None}, countdown=0.1),
        lambda: crew.app.send_task(JOB, (name,), {"tenant": TENANT, "amount": 1}),
        lambda: chain(crew.app.signature("jobs.plain", (name,)), tells_key.s(TENANT)).apply_async(),
    ]
    for number, send in enumerate(senders):
        send()
        crew.await_events(name, number + 2, timeout=20)
    monkeypatch.setenv("JOBS_EFFECTS", crew.url)
    jobs.effects.cache_clear()
    tells_key.apply((name, TENANT)).get()  # in this very process
    jobs.effects.cache_clear()
    assert len(crew.events(name)) == len(senders) + 2
    assert len(set(crew.events(name))) == 1

    scheduled = f"{name}s"
    tells_key.delay(scheduled, PLAIN)
    crew.await_events(scheduled, 1)
    schedule = Schedule(crew.app)
    schedule.add("tells", JOB, 3600, args=(scheduled,), kwargs={"tenant": dict(reversed(PLAIN.items()))})
    schedule.run("tells")
    by_hand, by_beat = crew.await_events(scheduled, 2)
    assert by_hand == by_beat


def test_a_call_without_a_key_fails_and_does_not_run(crew, name):  # K4
    misfit = crew.app.send_task("tests.task.jobs.hold", (name, 1), {"nobody": 1})
    letter = crew.letter(misfit.id)
    assert (letter["reason"], letter["exception"]) == ("not_retryable", "LockKeyError")
    assert crew.events(name) == []
