"""From a call of a task to the key of its lock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_singlebeat.errors import LockKeyError, SettingsError
from celery_singlebeat.policy import lock_keys
from celery_singlebeat.policy.lock_keys import Unspeakable
from celery_singlebeat.task.bodies import body_of

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a task's body, without `self`.

    Where a decorator hides the original function behind `functools.wraps`, the original's names count;
    a call that does not fit them is bound to the outer function's.
    """

    original: inspect.Signature
    outer: inspect.Signature

    @property
    def names(self) -> list[str]:
        """In the order of the signature."""
        return list(self.original.parameters)

    @property
    def extra(self) -> str | None:
        """The name of `**kwargs`, if there is one."""
        kinds = self.original.parameters.values()
        return next((item.name for item in kinds if item.kind is inspect.Parameter.VAR_KEYWORD), None)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument by its parameter's name, defaults included; raises `TypeError`."""
        try:
            bound = self.original.bind(*args, **kwargs)
        except TypeError:
            if self.outer == self.original:
                raise
            bound = self.outer.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)


def _blamed(arguments: Mapping[str, Any]) -> Unspeakable | None:
    """The problem with the first of the arguments that has one, by its name."""
    for name, value in arguments.items():
        try:
            lock_keys.spelling(value)
        except Unspeakable as error:
            return Unspeakable(f"parameter {name!r}: {error}")
    return None


def parameters_of(task_class: type) -> Parameters:
    """The parameters of the `run` that a task class defines."""
    run = body_of(task_class)
    is_method = not isinstance(run, staticmethod)
    function = run if is_method else run.__func__
    return Parameters(
        _signature(function, is_method=is_method, follow=True),
        _signature(function, is_method=is_method, follow=False),
    )


def _signature(function: Any, *, is_method: bool, follow: bool) -> inspect.Signature:
    if isinstance(function, classmethod):
        function = function.__func__
    signature = inspect.signature(function, follow_wrapped=follow)
    items = list(signature.parameters.values())
    if is_method and items and items[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        items = items[1:]
    return signature.replace(parameters=items, return_annotation=inspect.Signature.empty)


class KeyRule:
    """How a task's calls are named. Raises `SettingsError` for a rule that can never work."""

    def __init__(
        self, task: str, parameters: Parameters, *, lock_on: Any = None, lock_key: Any = None
    ) -> None:
        self._task = task
        self._parameters = parameters
        self._name_of: Callable[[dict[str, Any]], str]
        if lock_key is None:
            self._name_of = self._from_arguments(lock_on)
        elif lock_on is not None:
            raise SettingsError(f"task {task}: lock_on and lock_key are both given; give one")
        elif isinstance(lock_key, str):
            self._name_of = self._from_template(lock_key)
        elif callable(lock_key):
            self._name_of = self._from_callable(lock_key)
        else:
            raise SettingsError(
                f"task {task}: lock_key={lock_key!r}; give a format string over parameters, or a callable"
            )

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The key of one call; raises `LockKeyError`, which shows no argument."""
        try:
            arguments = self._parameters.bind(args, kwargs)
        except TypeError as error:
            raise LockKeyError(self._task, f"the arguments do not fit: {error}") from None
        try:
            return self._name_of(arguments)
        except Unspeakable as error:
            raise LockKeyError(self._task, str(error)) from None

    def call_key(self, task_id: str) -> str:
        """The key of one call alone, for tasks whose calls do not exclude each other."""
        return f"{self._task}:call:{lock_keys.digest(task_id)}"

    def _from_arguments(self, lock_on: Any) -> Callable[[dict[str, Any]], str]:
        if lock_on is None:
            return self._hashed
        if isinstance(lock_on, str) or not isinstance(lock_on, (list, tuple, set, frozenset)):
            raise SettingsError(
                f"task {self._task}: lock_on={lock_on!r}; give a list of names of parameters, "
                "or () for one lock for the whole task"
            )
        names = sorted(lock_on, key=str)
        self._check_names("lock_on", names)
        extra = self._parameters.extra
        return lambda arguments: self._hashed(lock_keys.pick(arguments, names, extra))

    def _hashed(self, arguments: Mapping[str, Any]) -> str:
        try:
            return lock_keys.from_arguments(self._task, arguments)
        except Unspeakable as error:
            raise _blamed(arguments) or error from None

    def _from_template(self, template: str) -> Callable[[dict[str, Any]], str]:
        try:
            names = lock_keys.template_names(template)
        except ValueError as error:
            raise SettingsError(f"task {self._task}: lock_key={template!r}: {error}") from None
        if not template:
            raise SettingsError(f"task {self._task}: lock_key=''; give the name of the lock")
        self._check_names(f"lock_key={template!r}", names)
        extra = self._parameters.extra
        return lambda arguments: lock_keys.from_name(lock_keys.fill(template, arguments, extra))

    def _from_callable(self, function: Callable[..., Any]) -> Callable[[dict[str, Any]], str]:
        call = self._convention(function)

        def name_of(arguments: dict[str, Any]) -> str:
            try:
                value = call(arguments)
            except Exception as error:  # the user's own code, whose words may show values
                raise Unspeakable(f"lock_key raised {type(error).__name__}") from None
            return lock_keys.named(value)

        return name_of

    def _convention(self, function: Callable[..., Any]) -> Callable[[dict[str, Any]], Any]:
        """A callable gets the arguments that it names; one that names none gets all of them as a dict."""
        try:
            wanted = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return function
        kinds = {item.kind for item in wanted}
        if inspect.Parameter.VAR_KEYWORD in kinds and inspect.Parameter.POSITIONAL_ONLY not in kinds:
            return lambda arguments: function(**arguments)
        known = set(self._parameters.names)
        if wanted and all(
            item.kind in _NAMED and (item.name in known or item.default is not item.empty) for item in wanted
        ):
            names = [item.name for item in wanted if item.name in known]
            if names:
                return lambda arguments: function(**{name: arguments[name] for name in names})
        required = [item for item in wanted if item.default is item.empty]
        if len(required) <= 1 and wanted:
            return function
        raise SettingsError(
            f"task {self._task}: lock_key takes {', '.join(item.name for item in wanted) or 'nothing'}; "
            f"let it take parameters of the task ({', '.join(self._parameters.names)}) "
            "or one dict of all arguments"
        )

    def _check_names(self, where: str, names: Sequence[Any]) -> None:
        known = self._parameters.names
        for name in names:
            if name not in known and self._parameters.extra is None:
                raise SettingsError(
                    f"task {self._task}: {where} names {name!r}, which is no parameter of the task; "
                    f"its parameters: {', '.join(known) or 'none'}"
                )
