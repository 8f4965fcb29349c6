"""Retries and burials inside chains, groups and chords end as Celery's users expect."""

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_singlebeat import DeadLetters
from celery_singlebeat.testing.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.redis]

JOBS = "tests.task.jobs"
STORES = pytest.mark.parametrize("task", ["fails", "parks"], ids=["eta", "redis"])


def call(crew, task, *args, **kwargs):
    return crew.app.signature(f"{JOBS}.{task}", args=args, kwargs=kwargs)


def collects(crew, name):
    return crew.app.signature("jobs.collects", kwargs={"name": name})


@STORES
def test_a_chain_goes_on_when_an_attempt_succeeds(crew, name, task):
    result = chain(call(crew, task, name, until=1), collects(crew, f"{name}c")).apply_async()
    assert result.get(timeout=20) == "done"
    assert crew.events(f"{name}c") == ['"done"']
    assert len(crew.events(name)) == 2


@STORES
def test_a_chain_ends_where_a_call_is_buried_and_goes_on_when_it_is_replayed(crew, name, task):
    attempts = 4 if task == "fails" else 3
    result = chain(call(crew, task, name, until=attempts), collects(crew, f"{name}c")).apply_async()
    first = result.parent
    letter = crew.letter(first.id, timeout=20)
    assert letter["reason"] == "max_retries"
    with pytest.raises(ValueError, match="does not work"):
        first.get(timeout=10)
    assert crew.events(f"{name}c") == []
    crew.redis.set(f"works:{name}", 1)
    DeadLetters(crew.app).replay(first.id)
    crew.await_events(f"{name}c", 1, timeout=20)
    assert crew.events(f"{name}c") == ['"done"']


@STORES
def test_in_a_group_the_others_have_their_results(crew, name, task):
    members = group(call(crew, task, name), call(crew, "adds", 1, 2), call(crew, task, f"{name}b", until=1))
    result = members.apply_async()
    crew.letter(result.children[0].id, timeout=20)
    assert result.children[1].get(timeout=10) == 3
    assert result.children[2].get(timeout=20) == "done"
    wait_until(result.ready, 10)
    assert result.failed()


@STORES
def test_a_chord_waits_for_the_attempts_of_its_members(crew, name, task):
    header = [call(crew, task, name, until=1), call(crew, "adds", 1, 2)]
    result = chord(header)(collects(crew, f"{name}c"))
    assert result.get(timeout=20) == ["done", 3]
    assert len(crew.events(f"{name}c")) == 1


@STORES
def test_a_chord_with_a_buried_member_fails_once(crew, name, task):
    header = [call(crew, task, name), call(crew, "adds", 1, 2)]
    result = chord(header)(collects(crew, f"{name}c"))
    assert isinstance(result.get(timeout=20, propagate=False), ChordError)
    wait_until(lambda: len(DeadLetters(crew.app).list(task=f"{JOBS}.{task}")) > 0, 10, crew.logs)
    assert crew.events(f"{name}c") == []


def test_an_errback_is_called_once_in_the_end(crew, name):
    errback = crew.app.signature("jobs.notes_error", kwargs={"name": f"{name}e"})
    result = call(crew, "fails", name).apply_async(link_error=errback)
    crew.letter(result.id, timeout=20)
    crew.await_events(f"{name}e", 1)
    assert crew.events(f"{name}e") == [result.id]
