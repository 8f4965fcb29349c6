"""Classes with a `__call__` of their own, and what instruments tasks: the body stays under its lock (T1)."""

import functools

import pytest
from celery import Celery, Task
from celery.app import trace

from celery_singlebeat import SettingsError, SingleBeatTask, was_skipped


def through_self(self, *args, **kwargs):
    return self.run(*args, **kwargs)


def through_the_class(self, *args, **kwargs):
    return type(self).run(self, *args, **kwargs)


def through_the_copy(self, *args, **kwargs):
    return self.__wrapped__(*args, **kwargs)


def through_ours(self, *args, **kwargs):
    return SingleBeatTask.__call__(self, *args, **kwargs)


def through_task(self, *args, **kwargs):
    return Task.__call__(self, *args, **kwargs)


WAYS = [through_self, through_the_class, through_the_copy, through_ours, through_task]


def base_class(call):
    return type("Base", (SingleBeatTask,), {"__call__": call, "abstract": True})


def mixin_in_front(call):
    mixin = type("Mixin", (), {"__call__": call})
    return type("Base", (mixin, SingleBeatTask), {"abstract": True})


def declare(app, base, **options):
    """A task that says whether it held its lock, and what became of a call that it made on its own key."""

    @app.task(base=base, bind=True, name="look", max_retries=0, **options)
    def look(self, x):
        return self.lock.held, was_skipped(look.apply((x,)).get())

    app.finalize()
    return app.tasks["look"]


LOCKED = (True, True)


@pytest.mark.parametrize("place", [base_class, mixin_in_front])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_way_a_call_of_its_own_takes_to_the_body_the_lock_is_on_it(app, place, way):  # T1
    look = declare(app, place(way))
    assert look.apply((1,)).get() == LOCKED
    assert look.apply(kwargs={"x": 1}).get() == LOCKED


@pytest.mark.parametrize("way", ["self", "class", "copy"])
def test_a_function_without_self_is_locked_as_well(app, way):  # T1
    class Base(SingleBeatTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            ways = {"self": self.run, "class": type(self).run, "copy": self.__wrapped__}
            return ways[way](*args, **kwargs)

    @app.task(base=Base, max_retries=0)
    def look(x):
        return look.lock.held, was_skipped(look.apply((x,)).get())

    assert look.apply((1,)).get() == LOCKED
    assert type(app.tasks[look.name]).run.__name__ == "look"


def test_a_class_method_is_locked_as_well(app):  # T1
    class Look(SingleBeatTask):
        name = "look"
        max_retries = 0

        def __call__(self, *args, **kwargs):
            return type(self).run(*args, **kwargs)

        @classmethod
        def run(cls, x):
            return look.lock.held, was_skipped(look.apply((x,)).get())

    look = app.register_task(Look())
    assert look.apply((1,)).get() == LOCKED


def test_a_callable_that_is_no_function_is_locked_as_well(app):  # T1
    class Callable:
        def __call__(self, x, y=2):
            return look.lock.held, was_skipped(look.apply((x,), {"y": 2}).get())

    class Look(SingleBeatTask):
        name = "look"
        max_retries = 0
        run = Callable()

    look = app.register_task(Look())
    assert look.apply((1,)).get() == LOCKED


def test_a_body_of_a_class_above_is_locked_whoever_names_it(app):  # T1
    class Above(SingleBeatTask):
        abstract = True
        max_retries = 0

        def run(self, x):
            return self.lock.held, was_skipped(self.app.tasks[self.name].apply((x,)).get())

    class Super(Above):
        name = "super"

        def __call__(self, *args, **kwargs):
            return super().run(*args, **kwargs)

    class Named(Above):
        name = "named"

        def __call__(self, *args, **kwargs):
            return Above.run(self, *args, **kwargs)

    assert app.register_task(Super()).apply((1,)).get() == LOCKED
    assert app.register_task(Named()).apply((1,)).get() == LOCKED


def test_a_body_that_comes_from_a_class_beside_is_locked(app):  # T1
    class Beside:
        def run(self, x):
            return self.lock.held, was_skipped(self.app.tasks[self.name].apply((x,)).get())

    class Look(Beside, SingleBeatTask):
        name = "look"
        max_retries = 0
        __call__ = through_the_class

    assert app.register_task(Look()).apply((1,)).get() == LOCKED
    assert type(Beside().run).__name__ == "method"  # its own class is as it was


def test_a_call_that_runs_the_body_twice_takes_the_lock_twice(app):  # T1
    class Twice(SingleBeatTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            return [self.run(*args, **kwargs), self.run(*args, **kwargs)]

    @app.task(base=Twice, bind=True)
    def look(self, x):
        return self.lock.held, self.lock.fence

    (first_held, first), (second_held, second) = look.apply((1,)).get()
    assert first_held
    assert second_held
    assert second > first


def test_a_body_that_runs_itself_stays_under_its_one_lock(app):
    @app.task(base=SingleBeatTask, bind=True)
    def look(self, depth):
        return [self.lock.fence, *(self.run(depth - 1) if depth else [])]

    assert len(set(look.apply((2,)).get())) == 1


def test_a_direct_call_through_the_class_just_runs_the_body(app):  # T7
    class Look(SingleBeatTask):
        name = "look"

        def run(self, x=1):
            return x, isinstance(self, Look) and self.lock.held

    app.register_task(Look())
    assert Look.run(Look(), 2) == (2, False)
    assert Look.run("a stand-in of a test") == (1, False)


# Refused


@pytest.mark.parametrize("place", [base_class, mixin_in_front])
def test_a_call_of_its_own_without_a_body_is_refused_with_one_line(app, place):
    class Look(place(lambda self, x: x)):
        name = "look"

    with pytest.raises(SettingsError) as caught:
        app.register_task(Look())
    assert str(caught.value) == (
        "task look: its __call__ stands in for the body, and so would run without its lock; "
        "name the body run, and call self.run or super().__call__ from __call__"
    )


def test_a_base_class_without_a_body_may_look_at_its_app():  # which binds it
    app = Celery("calls", task_cls=base_class(through_ours), set_as_current=False)
    assert app.Task.app is app


# Instrumentation. Each is what a monitoring package does with the tasks of an app.


def watched(function, seen):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        seen.append("seen")
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("base", [SingleBeatTask, base_class(through_the_class)])
def test_what_wraps_a_task_when_its_tracer_is_built_leaves_the_lock(app, base, monkeypatch):  # as Sentry does
    seen, build = [], trace.build_tracer

    def build_tracer(name, task, *args, **kwargs):
        if trace.task_has_custom(task, "__call__"):
            monkeypatch.setattr(type(task), "__call__", watched(type(task).__call__, seen))
        else:
            monkeypatch.setattr(task, "run", watched(task.run, seen))
        return build(name, task, *args, **kwargs)

    monkeypatch.setattr(trace, "build_tracer", build_tracer)
    assert declare(app, base).apply((1,)).get() == LOCKED
    assert seen


@pytest.mark.parametrize("base", [SingleBeatTask, base_class(through_the_class)])
def test_a_stand_in_for_a_task_that_calls_it_leaves_the_lock(app, base, monkeypatch):  # as New Relic does
    seen, build = [], trace.build_tracer

    class StandIn:
        def __init__(self, task):
            self.__dict__["task"] = task

        def __getattr__(self, name):
            return getattr(self.task, name)

        def __call__(self, *args, **kwargs):
            seen.append("seen")
            return self.task(*args, **kwargs)

        run = __call__

    monkeypatch.setattr(
        trace, "build_tracer", lambda name, task, *args, **kwargs: build(name, StandIn(task), *args, **kwargs)
    )
    assert declare(app, base).apply((1,)).get() == LOCKED
    assert seen


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["run", "__call__"])
def test_what_wraps_a_class_leaves_the_lock(app, name, when):
    seen = []

    class Look(SingleBeatTask):
        max_retries = 0

        def run(self, x):
            return self.lock.held, was_skipped(look.apply((x,)).get())

    Look.name = "look"
    if when == "after":
        look = app.register_task(Look())
    setattr(Look, name, watched(getattr(Look, name), seen))
    if when == "before":
        look = app.register_task(Look())
    assert look.apply((1,)).get() == LOCKED
    assert look.apply(kwargs={"x": 1}).get() == LOCKED
    assert seen


@pytest.mark.parametrize("base", [SingleBeatTask, base_class(through_task)])
def test_what_wraps_the_class_of_all_tasks_leaves_the_lock(app, base, monkeypatch):
    seen = []
    monkeypatch.setattr(Task, "__call__", watched(Task.__call__, seen))
    monkeypatch.setattr(Task.__call__, "__module__", "a monitor")  # by which Celery tells that it is patched
    assert declare(app, base).apply((1,)).get() == LOCKED
    assert seen


@pytest.mark.parametrize("name", ["@run", "@__call__"])
def test_what_annotations_put_around_a_task_leaves_the_lock_and_the_key(app, name):
    seen = []
    app.conf.task_annotations = {"look": {name: lambda function: watched(function, seen), "lock_on": ("x",)}}
    look = declare(app, SingleBeatTask)
    assert look.apply((1,)).get() == LOCKED
    assert seen
