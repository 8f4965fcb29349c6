"""Direct and eager calls (T7): no Redis, no settings; and every shape that a task may have."""

import functools
import pickle
import threading
import uuid
from decimal import Decimal

import pytest
from celery import Celery, shared_task
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry

from celery_singlebeat import LockConflict, LockKeyError, LockLost, SingleBeatTask, signals, was_skipped


def key_of(task, *args, **kwargs):
    return task.apply(args, kwargs).get()


def test_a_direct_call_just_runs_the_body(app):  # T7
    @app.task(base=SingleBeatTask, bind=True)
    def add(self, x, y=1):
        self.lock.check()
        return x + y, self.lock.held, self.lock.fence, self.slot, self.entry

    assert add(1) == (2, False, 0, None, None)
    assert add.run(1, y=2) == (3, False, 0, None, None)


def test_an_eager_call_holds_a_lock(app):  # T7
    @app.task(base=SingleBeatTask, bind=True)
    def look(self, x):
        self.lock.check()
        return self.lock.key, self.lock.token, self.lock.fence, self.lock.held

    (key, token, fence, held), (_, other_token, later_fence, _) = key_of(look, 1), key_of(look, 1)
    assert key.startswith(f"{look.name}:")
    assert token != other_token
    assert 0 < fence < later_fence
    assert held


def test_a_nested_eager_call_with_the_same_key_is_a_conflict(app):
    @app.task(base=SingleBeatTask, bind=True)
    def outer(self, x, depth=0):
        return outer.apply((x,)).get() if depth == 0 else depth

    result = outer.apply((1,)).get()
    assert was_skipped(result)
    assert result["skipped"] == "conflict"
    assert set(result["holder"]) == {"task_id", "host", "pid", "since"}


def test_signals_tell_of_a_lock_and_of_a_conflict_with_its_holder(app):
    app.conf.singlebeat_redis_url = "memory://"
    heard = []

    def hear(signal, **about):
        heard.append((signal.name, {name: about[name] for name in signal.providing_args}))

    @app.task(base=SingleBeatTask)
    def outer(x):
        return outer.apply((x,)).get()

    for signal in (signals.lock_acquired, signals.lock_conflict):
        signal.connect(hear)
    try:
        result = outer.apply((1,))
        skipped = result.get()
    finally:
        for signal in (signals.lock_acquired, signals.lock_conflict):
            signal.disconnect(hear)
    (first, acquired), (second, conflict) = heard
    assert (first, second) == ("lock_acquired", "lock_conflict")
    assert (acquired["task_id"], acquired["key"]) == (result.id, skipped["key"])
    assert acquired["fence"] > 0
    assert (conflict["key"], conflict["holder"]) == (skipped["key"], skipped["holder"])
    assert conflict["policy"] == "skip"
    assert conflict["holder"]["task_id"] == result.id


@pytest.mark.parametrize("policy", ["fail", "retry", "queue", "replace"])
def test_an_eager_conflict_that_cannot_be_skipped_fails(app, policy):
    @app.task(base=SingleBeatTask, on_conflict=policy, autoretry_for=())
    def outer(x):
        return outer.apply((x,)).get()

    with pytest.raises(LockConflict):
        outer.apply((1,)).get()


def test_always_eager_works_without_settings(app):
    app.conf.task_always_eager = True

    @app.task(base=SingleBeatTask)
    def add(x):
        return x + 1

    assert add.delay(1).get() == 2


def test_an_eager_retry_runs_again_at_once(app):
    @app.task(base=SingleBeatTask, bind=True)
    def flaky(self, x):
        if self.request.retries < 3:
            raise ValueError(x)
        return self.request.retries, len(self.request.headers["singlebeat_attempts"])

    assert flaky.apply((1,)).get() == (3, 3)


def test_an_eager_call_that_fails_for_good_raises_its_own_exception(app):
    @app.task(base=SingleBeatTask, max_retries=2)
    def fails():
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        fails.apply().get()


@pytest.mark.parametrize("how", [Ignore, Reject, KeyError, SystemExit, None])
def test_however_an_eager_body_ends_its_lock_is_free(app, how):  # T1
    @app.task(base=SingleBeatTask, lock_on=(), dont_autoretry_for=(KeyError,))
    def ends(how=None):
        if how is not None:
            raise how
        return "ran"

    if how is SystemExit:
        with pytest.raises(SystemExit):
            ends.apply((how,))
    else:
        ends.apply((how,))
    assert ends.apply().get() == "ran"


def test_a_retry_that_a_body_asks_for_passes_through(app):
    seen = []

    @app.task(base=SingleBeatTask, bind=True, max_retries=1)
    def asks(self, x):
        seen.append((x, self.request.retries))
        if x == 1:
            raise self.retry(args=(2,), countdown=7)
        return "done"

    assert asks.apply((1,)).get() == "done"
    assert seen == [(1, 0), (2, 1)]


def test_a_retry_limit_given_by_hand_is_not_forgotten_and_not_written_to_the_task(app):  # T5
    runs = []

    @app.task(base=SingleBeatTask, bind=True, max_retries=5)
    def asks(self):
        runs.append(self.request.retries)
        raise self.retry(exc=ValueError("no"), max_retries=1)

    with pytest.raises(ValueError, match="no"):
        asks.apply().get()
    assert runs == [0, 1]
    assert not hasattr(asks, "override_max_retries")


def test_a_retry_without_an_exception_ends_as_celery_says(app):
    @app.task(base=SingleBeatTask, bind=True, max_retries=1)
    def asks(self):
        raise self.retry()

    with pytest.raises(MaxRetriesExceededError):
        asks.apply().get()


def test_a_retry_in_a_direct_call_raises_what_went_wrong(app):
    @app.task(base=SingleBeatTask, bind=True)
    def asks(self, exc=None):
        self.retry(exc=exc)

    with pytest.raises(ValueError, match="mine"):
        asks(ValueError("mine"))
    with pytest.raises(Retry):
        asks()


def test_a_bad_key_fails_the_call_and_shows_no_argument(app):  # K4
    ran = []

    @app.task(base=SingleBeatTask)
    def take(thing):
        ran.append(thing)

    with pytest.raises(LockKeyError) as caught:
        take.apply((object(),)).get()
    assert not ran
    assert "'thing'" in str(caught.value)
    assert "0x" not in str(caught.value)


def test_the_same_call_has_one_key_however_it_is_written(app):  # K1
    @app.task(base=SingleBeatTask, bind=True)
    def bound(self, a, b=2, *rest, c=3, **more):
        return self.lock.key

    keys = {
        key_of(bound, 1),
        key_of(bound, 1, 2),
        key_of(bound, a=1),
        key_of(bound, b=2, a=1),
        key_of(bound, 1, c=3),
    }
    assert len(keys) == 1
    assert key_of(bound, 1, 2, 5) != key_of(bound, 1, 2)
    assert key_of(bound, 1, x=1, y=2) == key_of(bound, 1, y=2, x=1)
    assert key_of(bound, (1, 2)) == key_of(bound, [1, 2])
    assert key_of(bound, uuid.UUID(int=1)) != key_of(bound, uuid.UUID(int=2))
    assert key_of(bound, Decimal("1.5")) != key_of(bound, Decimal("1.6"))


def test_lock_on_names_the_parameters_that_count(app):
    @app.task(base=SingleBeatTask, bind=True, lock_on=["b"])
    def some(self, a, b=2):
        return self.lock.key

    @app.task(base=SingleBeatTask, bind=True, lock_on=())
    def none(self, a):
        return self.lock.key

    assert key_of(some, 1) == key_of(some, 5, b=2) != key_of(some, 1, 3)
    assert key_of(none, 1) == key_of(none, 2)


@pytest.mark.parametrize(
    "lock_key",
    [
        "tenant:{tenant_id}",
        lambda tenant_id: f"tenant:{tenant_id}",
        lambda tenant_id, **_: f"tenant:{tenant_id}",
        lambda arguments: f"tenant:{arguments['tenant_id']}",
        lambda **arguments: f"tenant:{arguments['tenant_id']}",
    ],
    ids=["template", "by name", "by name and more", "dict", "all by name"],
)
def test_lock_key_is_the_whole_key_for_every_task_that_has_it(app, lock_key):  # K5
    @app.task(base=SingleBeatTask, bind=True, lock_key=lock_key, name="one")
    def one(self, tenant_id, payload=None):
        return self.lock.key

    @app.task(base=SingleBeatTask, bind=True, lock_key=lock_key, name="two")
    def two(self, payload=None, *, tenant_id):
        return self.lock.key

    assert key_of(one, 7) == key_of(two, tenant_id=7) == "tenant:7"


def test_a_lock_key_that_raises_fails_the_call_and_shows_no_argument(app):  # K4
    @app.task(base=SingleBeatTask, lock_key=lambda a: {}[a])
    def take(a):
        return a

    with pytest.raises(LockKeyError) as caught:
        take.apply(("hush",)).get()
    assert "hush" not in str(caught.value)


def test_without_exclusion_only_copies_of_one_call_exclude_each_other(app):
    @app.task(base=SingleBeatTask, exclusive=False, bind=True)
    def nest(self, depth):
        return nest.apply((depth - 1,)).get() if depth else self.lock.key

    assert key_of(nest, 2) != key_of(nest, 2)


# Shapes of tasks


def test_a_class_based_task_locks_and_retries(app):
    class Counts(SingleBeatTask):
        name = "counts"

        def run(self, x):
            if self.request.retries < 2:
                raise ValueError
            return self.request.retries, self.lock.held, x

    task = app.register_task(Counts())
    assert task.apply((5,)).get() == (2, True, 5)


def test_a_subclass_that_calls_its_base_takes_one_lock(app):
    class Base(SingleBeatTask):
        abstract = True

        def run(self, x):
            return [self.lock.key]

    class Middle(Base):
        abstract = True

        def run(self, x):
            return [*super().run(x), self.lock.key]

    class Leaf(Middle):
        name = "leaf"

        def run(self, x):
            return [*super().run(x), self.lock.key]

    keys = app.register_task(Leaf()).apply((1,)).get()
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_an_argument_of_any_size_makes_a_key_of_one_length(app):  # K3
    @app.task(base=SingleBeatTask, bind=True)
    def look(self, document):
        return self.lock.key

    large, other = {"text": "x" * 100_000}, {"text": "x" * 99_999 + "y"}
    assert len(key_of(look, large)) == len(key_of(look, 1))
    assert key_of(look, large) == key_of(look, document=large) != key_of(look, other)


def test_an_argument_that_a_base_class_injects_counts_like_any_other(app):  # K1
    class Injects(SingleBeatTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            return super().__call__(*args, tenant="acme", **kwargs)

    @app.task(base=Injects, bind=True, lock_on=("tenant",))
    def by_tenant(self, number, tenant=None):
        return self.lock.key, tenant

    @app.task(base=Injects, bind=True, lock_on=("number",))
    def by_number(self, number, tenant):
        return self.lock.key

    assert key_of(by_tenant, 1) == key_of(by_tenant, 2)
    assert key_of(by_tenant, 1)[1] == "acme"
    assert key_of(by_number, 1) == key_of(by_number, number=1) != key_of(by_number, 2)


def test_the_whole_app_may_use_it(app):
    app.task_cls = "celery_singlebeat:SingleBeatTask"

    @app.task(bind=True)
    def look(self):
        return self.lock.held

    assert look.apply().get() is True


def test_a_shared_task_locks():
    @shared_task(base=SingleBeatTask, bind=True, name="tests.eager.shared")
    def look(self):
        return self.lock.held

    with Celery("shared") as app:
        assert app.tasks["tests.eager.shared"].apply().get() is True


def test_annotations_count(app):
    app.conf.task_annotations = {"annotated": {"lock_on": ("a",), "max_retries": 0}}

    @app.task(base=SingleBeatTask, bind=True, name="annotated")
    def look(self, a, b):
        return self.lock.key

    assert key_of(look, 1, 2) == key_of(look, 1, 3)
    assert look.max_retries == 0


def test_celery_does_not_install_its_own_autoretry(app):
    runs = []

    @app.task(base=SingleBeatTask, autoretry_for=(ValueError,), max_retries=2, retry_backoff=True)
    def fails():
        runs.append(1)
        raise ValueError

    fails.apply()
    assert len(runs) == 3


def test_a_decorated_function_is_known_by_its_own_parameters(app):  # K1
    def decorate(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)

        return inner

    @app.task(base=SingleBeatTask, bind=True, lock_on=("b",))
    @decorate
    def look(self, a, b=2):
        return self.lock.key

    assert key_of(look, 1) == key_of(look, 1, 2) == key_of(look, 9, b=2)


def test_two_threads_do_not_see_each_others_lock(app):  # T5
    meet = threading.Barrier(2)

    @app.task(base=SingleBeatTask, bind=True)
    def look(self, x):
        before = self.lock.key
        meet.wait(timeout=5)
        return before, self.lock.key

    app.finalize()  # two threads that register one task at once are Celery's own problem
    results = {}
    threads = [
        threading.Thread(target=lambda x=x: results.__setitem__(x, look.apply((x,)).get())) for x in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[1][0] == results[1][1] != results[2][0] == results[2][1]


def test_slot_and_entry_come_from_the_headers(app):
    @app.task(base=SingleBeatTask, bind=True)
    def look(self):
        return self.entry, self.slot and self.slot.isoformat()

    headers = {"singlebeat_entry": "nightly", "singlebeat_slot": "2026-01-01T02:00:00+02:00"}
    assert look.apply(headers=headers).get() == ("nightly", "2026-01-01T00:00:00+00:00")
    assert look.apply(headers={"singlebeat_slot": "nonsense"}).get() == (None, None)


def test_errors_survive_a_journey():
    for error in (LockConflict("k", {"pid": 1}), LockLost("k", 1), LockKeyError("t", "p")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


@pytest.mark.parametrize(
    ("value", "skipped"),
    [
        ({"skipped": "conflict", "key": "k", "holder": {}}, True),
        ({"skipped": "duplicate", "key": "k"}, True),
        ({"skipped": "other", "key": "k"}, False),
        ({"skipped": "conflict"}, False),
        ({}, False),
        (None, False),
        ("skipped", False),
    ],
)
def test_a_skipped_result_is_told_from_any_other(value, skipped):
    assert was_skipped(value) is skipped
