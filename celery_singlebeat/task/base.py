"""The task base class."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar

from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import Retry
from celery.utils.serialization import raise_with_context

from celery_singlebeat.errors import SettingsError
from celery_singlebeat.task import workers
from celery_singlebeat.task.bodies import guard_body, has_body, stands_alone
from celery_singlebeat.task.execution import Body, Execution, is_under_way, perform
from celery_singlebeat.task.holding import NoLock, TaskLock
from celery_singlebeat.task.overlap import run_of
from celery_singlebeat.task.retries import send_retry
from celery_singlebeat.task.rules import FROM_SETTING, FromSetting, TaskRules, read_rules
from celery_singlebeat.task.workplace import BARE_SETTINGS, Workplace, at_work, in_place

_NO_LOCK = NoLock()


class SingleBeatTask(Task):  # type: ignore[type-arg]
    """A task that runs once at a time for each key, tries again with backoff, and ends as a dead letter.

    `@app.task(base=SingleBeatTask)`, or `Celery("proj", task_cls="celery_singlebeat:SingleBeatTask")`.
    Every attribute can be set in the decorator or on a subclass; `None` takes the app's setting.

    Differs from a plain task also in this: `acks_late` and `reject_on_worker_lost` are on. A call whose
    worker is killed comes back, and `poison_limit` ends a call that kills its workers. Whoever turns
    them off loses such calls, as with any plain task.
    """

    abstract = True
    #: The scheduler hears of the end of each run, so entries of this task may say how they overlap.
    _tells_its_end: ClassVar[bool] = True

    #: Take a lock around each execution; off: only copies of one call exclude each other.
    exclusive: bool = True
    #: Names of the parameters that make the key; None: all of them; (): one lock for the whole task.
    lock_on: Sequence[str] | None = None
    #: Instead of `lock_on`: a format string over parameters, or a callable. It is the whole key.
    lock_key: Any = None
    #: Seconds until a dead holder's lock frees itself; a living holder renews, however long it runs.
    lock_ttl: float | None = None
    #: "skip", "retry", "fail", "queue" (one follow-up run) or "replace" (revoke the running one).
    on_conflict: str = "skip"
    #: Seconds between the tries of a call that waits for its key.
    conflict_countdown: float = 5
    #: Seconds after which "retry" gives up and fails; None: never.
    conflict_timeout: float | None = None
    #: Keep the key through the backoff of a retry, for this call alone.
    hold_during_retry: bool = True
    #: What to do when Redis cannot be asked: "retry", "fail" or "run".
    on_lock_error: str = "retry"
    #: "continue", or "abort": end without a result when the lock was lost.
    on_lock_lost: str = "continue"
    #: "redis", "redlock", "postgresql" or "redis+postgresql".
    lock_backend: str | None = None
    #: Seconds that the id of a successful execution is remembered; 0: off.
    dedupe_ttl: float | None = None

    autoretry_for: Any = (Exception,)
    dont_autoretry_for: Any = ()
    retry_kwargs: ClassVar[dict[str, Any]] = {}
    max_retries: int | None = 5
    #: Seconds before the second attempt; doubles each time.
    retry_backoff: Any = 1.0
    #: The longest wait, in seconds.
    retry_backoff_max: Any = 600
    #: The shortest wait, in seconds.
    retry_backoff_min: Any = 0
    #: Seconds after the first failure in which another attempt may start; None: `max_retries` alone counts.
    retry_for: float | None = None
    #: "full", "equal", "decorrelated", "none"; True is full, False is none.
    retry_jitter: Any = "full"
    #: "eta": Celery's countdown; "redis": a sorted set in Redis.
    retry_store: str | None = None

    #: Queue for calls that failed for good; None: off.
    dead_letter_queue: str | FromSetting | None = FROM_SETTING
    #: Deliveries that ended without an outcome before the call is a dead letter.
    poison_limit: int | None = None

    acks_late = True
    reject_on_worker_lost = True
    #: Celery 5.7's own way back after a lost worker would use up attempts, and not see poison.
    retry_on_worker_lost = False

    Request = "celery_singlebeat.task.request:SingleBeatRequest"

    _singlebeat_rules: ClassVar[dict[bool, TaskRules]] = {}

    #: Celery's own autoretry wraps a task once: where it finds this name it has done so.
    _orig_run = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Guard the body that this class defines or gets from a class beside this one."""
        super().__init_subclass__(**options)
        guard_body(cls, _under_lock)

    @classmethod
    def bind(cls, app: Celery) -> Celery:
        """Connect to an app; raises `SettingsError` for an attribute that cannot work."""
        bound: Celery = super().bind(app)
        if stands_alone(cls):
            raise SettingsError(
                f"task {cls.name}: its __call__ stands in for the body, and so would run without its lock; "
                "name the body run, and call self.run or super().__call__ from __call__"
            )
        if has_body(cls):
            guard_body(cls, _under_lock)  # `task_annotations` may have put something around it
            read_rules(cls, BARE_SETTINGS)
            workers.expect(app)
        return bound

    # -- in the body ----------------------------------------------------------------------------

    @property
    def lock(self) -> TaskLock | NoLock:
        """The lock of this execution: `key`, `token`, `fence`, `held`, `check()`."""
        execution = self._execution()
        return (execution.lock if execution else None) or _NO_LOCK

    @property
    def entry(self) -> str | None:
        """The entry of the schedule that this call was dispatched for."""
        value = self._header("singlebeat_entry")
        return str(value) if value is not None else None

    @property
    def slot(self) -> datetime | None:
        """The slot that this call was dispatched for: aware, in UTC."""
        try:
            moment = datetime.fromisoformat(str(self._header("singlebeat_slot")))
        except ValueError:
            return None
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
        return aware.astimezone(timezone.utc)

    def retry(  # noqa: PLR0917 - Celery's own
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Try again later, as `Task.retry`; without `countdown` and `eta` after this task's backoff."""
        request = self._delivery()
        execution: Execution | None = getattr(request, "singlebeat", None)
        if request is None or execution is None:
            raise_with_context(exc or Retry("Task can be retried", None))
            raise AssertionError  # pragma: no cover - the line before always raises
        return send_retry(
            self,
            request,
            execution,
            args=args,
            kwargs=kwargs,
            exc=exc,
            throw=throw,
            eta=eta,
            countdown=countdown,
            max_retries=max_retries,
            options=options,
        )

    # -- inside ---------------------------------------------------------------------------------

    def _delivery(self) -> Context | None:
        """The request of the delivery that runs now; None in a call that was made directly.

        A base class whose `__call__` calls `super().__call__` puts an empty request on top of it.
        """
        stack = getattr(self.request_stack, "stack", None) or ()
        return next((request for request in reversed(stack) if not request.called_directly), None)

    def _execution(self) -> Execution | None:
        found: Execution | None = getattr(self._delivery(), "singlebeat", None)
        return found

    def _header(self, name: str) -> Any:
        request = self._delivery()
        if request is None:
            return None
        return (request.headers or {}).get(name)

    def _rules(self, place: Workplace) -> TaskRules:
        # On the instance: there is one for each app. Worked out when it is needed first, since the app
        # need not be configured when its tasks are declared.
        known = self.__dict__.setdefault("_singlebeat_rules", {})
        if place.eager not in known:
            known[place.eager] = read_rules(self, place.settings)
        rules: TaskRules = known[place.eager]
        return rules


def _under_lock(task: Any, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body of a task: under its lock when a delivery calls it, and as it is otherwise."""
    request = task._delivery() if isinstance(task, SingleBeatTask) else None  # noqa: SLF001 - our own
    if request is None or is_under_way(request):
        # Called directly, perhaps from the body of a running call, whose lock it is under.
        return body(*args, **kwargs)
    app = task.app
    place = in_place(app) if request.is_eager else at_work(app)
    with run_of(request, app):
        return perform(
            task,
            request,
            rules=task._rules(place),  # noqa: SLF001 - our own
            place=place,
            body=body,
            args=args,
            kwargs=kwargs,
        )
