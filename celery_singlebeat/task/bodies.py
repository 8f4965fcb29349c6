"""The body of a task class, and the guard that stands in front of it.

The guard is in the class, so whatever calls the body meets it: the tracer of a worker, `self.run`,
`type(self).run(self)`, `super().run()`, `self.__wrapped__`, a `__call__` of the user's own, and what an
instrumentation puts around any of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from celery import Task
from celery._state import get_current_task

#: Called with the task, the body bound to it, and the arguments.
Guard = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
#: Where Celery's decorator keeps the function beside `run`.
_COPY = "__wrapped__"


class GuardedBody:
    """Stands in a class for the body that was defined there."""

    def __init__(self, body: Any, guard: Guard) -> None:
        self.body = body
        self._guard = guard

    def __get__(self, task: Any, kind: type) -> Callable[..., Any]:
        """The body with its guard, bound as the body itself would be."""
        body = self.body.__get__(task, kind)
        return self._of_class(body, kind) if task is None else self._of_task(body, task)

    def _of_task(self, body: Callable[..., Any], task: Any) -> Callable[..., Any]:
        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._guard(task, body, args, kwargs)

        return run

    def _of_class(self, body: Callable[..., Any], kind: type) -> Callable[..., Any]:
        """As a function that gets its task as the first argument, unless the body gets none."""
        is_method = not isinstance(self.body, (staticmethod, classmethod))

        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            if is_method and args:
                return self._guard(args[0], functools.partial(body, args[0]), args[1:], kwargs)
            current = get_current_task()
            return self._guard(current if isinstance(current, kind) else None, body, args, kwargs)

        # Celery's `task_annotations` leave alone what has this attribute.
        del run.__wrapped__
        run.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
        return run


def has_body(task_class: type) -> bool:
    """Whether a task class, or one above it, defines a body."""
    return getattr(task_class, "run", None) is not Task.run


def stands_alone(task_class: type) -> bool:
    """Whether a task has a `__call__` of its own, and no body that it could call."""
    call: Any = getattr(task_class, "__call__")  # noqa: B004, B009 - what a call of its instances does
    # A class without a name is no task, but a base class of some. In a worker Celery puts a function of its
    # own into `Task`.
    is_task = getattr(task_class, "name", None) is not None
    return is_task and not has_body(task_class) and call is not Task.__call__


def body_of(task_class: type) -> Any:
    """What was defined as `run`: a function, a staticmethod or a classmethod."""
    found = inspect.getattr_static(task_class, "run")
    while isinstance(found, GuardedBody):
        found = found.body
    return found


def guard_body(task_class: type, guard: Guard) -> None:
    """Put the guard in front of what `run` of this class is, unless it is there."""
    found = inspect.getattr_static(task_class, "run")
    if isinstance(found, GuardedBody) or not has_body(task_class):
        return
    # A callable that is no function, as a `partial`, gets no task when it is called on one.
    guarded: Any = GuardedBody(found if hasattr(found, "__get__") else staticmethod(found), guard)
    if vars(task_class).get(_COPY) is found:
        setattr(task_class, _COPY, guarded)
    task_class.run = guarded  # type: ignore[attr-defined]
