"""Checks of the broker: whether it can be reached, and whether it delivers again what is still in hand.

A Redis broker delivers a message again that was not acknowledged within `visibility_timeout`. RabbitMQ closes
the channel of a consumer that took longer than `consumer_timeout`, and delivers again what it had. A
`SingleBeatTask` knows its copies, and they cost deliveries only. A plain task runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from celery_singlebeat.policy.diagnosis.facts import Broker, Facts, TaskFacts
from celery_singlebeat.policy.diagnosis.findings import Finding, failure, ok, unknown, warning

#: So many names stand in one line; the others are counted.
_NAMED = 5


def reachability(facts: Facts) -> Finding:
    """Fails if the broker cannot be reached, or does not let us in."""
    broker = facts.broker
    if broker.problem:
        return failure(
            f"{broker.place}: {broker.problem}",
            "start it, open the network to it, or correct broker_url and its password",
        )
    return ok(broker.place)


def redelivery(facts: Facts) -> Finding | None:
    """Fails if messages are delivered again after less time than a lock lasts: the copy of a call whose
    worker died finds its lock taken, waits, and is delivered again while it waits. Warns if
    `visibility_timeout` is set where it has no effect.
    """
    broker = facts.broker
    if broker.redelivers_after is None:
        return None
    after = _told(broker)
    short = {
        task.name: task.lock_ttl
        for task in facts.tasks
        if task.exclusive and task.lock_ttl is not None and task.lock_ttl > broker.redelivers_after
    }
    if short:
        return failure(
            f"{after} is shorter than lock_ttl of {_with_seconds(short)}",
            f"set {broker.redelivery} above {max(short.values()):g} s, or lower lock_ttl",
        )
    if broker.stray:
        return warning(
            f"{after}; visibility_timeout in {' and '.join(broker.stray)} does not change that",
            "set it in broker_transport_options",
        )
    return ok(after)


def time_limits(facts: Facts) -> Finding | None:
    """Fails if a plain task that acknowledges late may run for longer than the broker waits: it runs twice at
    once. Warns if a `SingleBeatTask` may, or if the broker's own patience is only assumed (RabbitMQ). Unknown
    if a plain task acknowledges late and has no time limit.
    """
    broker, after = facts.broker, facts.broker.redelivers_after
    late = [task for task in facts.tasks if task.acks_late]
    if after is None or not late:
        return None
    long = {task.name: limit for task in late if (limit := _limit(task)) is not None and limit > after}
    remedy = f"set {broker.redelivery} above the longest time_limit"
    if long:
        found = f"{_told(broker)} is shorter than the time limit of {_with_seconds(long)}"
        return _judged(facts, long, found, f"{remedy} ({max(long.values()):g} s), or lower the limit")
    unbounded = [task.name for task in late if _limit(task) is None]
    plain = [task.name for task in late if _limit(task) is None and not task.is_ours]
    if plain and not broker.assumed:
        return unknown(
            f"{_named(plain)} acknowledge late and have no time limit: beyond {after:g} s they run twice",
            f"give them a time_limit, and {remedy}",
        )
    found = f"{_told(broker)} is above every time limit"
    return ok(f"{found}; {len(unbounded)} of {len(late)} tasks have none" if unbounded else found)


def waiting(facts: Facts) -> Finding | None:
    """Fails if a plain task may wait for longer than the broker does (backoff, countdown of an entry): each
    worker gets a copy, and all run. Warns if a `SingleBeatTask` may (backoff, `conflict_countdown`).
    """
    broker, after = facts.broker, facts.broker.redelivers_after
    if after is None or not broker.holds_waiting:
        return None
    long = {task.name: task.longest_wait for task in facts.tasks if task.longest_wait > after}
    entries = [delay for delay in facts.countdowns if delay.seconds > after]
    if not long and not entries:
        return ok(f"{_told(broker)} is above every wait")
    waits = {**long, **{f"entry {delay.entry}": delay.seconds for delay in entries}}
    longest = max(waits.values())
    found = (
        f"{_told(broker)} is shorter than the longest wait of {_with_seconds(waits)}: such a "
        "message is delivered again and again while it waits"
    )
    remedy = (
        f"set {broker.redelivery} above {longest:g} s, wait for less (retry_backoff_max, countdown), or let "
        "retries wait in Redis (retry_store)"
    )
    return _judged(facts, {*long, *(delay.task for delay in entries)}, found, remedy)


def _judged(facts: Facts, names: Iterable[str], found: str, remedy: str) -> Finding:
    """A failure if a plain task is among them, on a broker whose patience is known."""
    plain = {task.name for task in facts.tasks if not task.is_ours}
    if plain.isdisjoint(names):
        return warning(f"{found}; copies of a SingleBeatTask do not run", remedy)
    return warning(found, remedy) if facts.broker.assumed else failure(found, remedy)


def _limit(task: TaskFacts) -> float | None:
    return task.soft_time_limit if task.time_limit is None else task.time_limit


def _told(broker: Broker) -> str:
    assumed = " (RabbitMQ's default; it cannot be asked)" if broker.assumed else ""
    return f"{broker.redelivery} of {broker.redelivers_after:g} s{assumed}"


def _named(names: Iterable[str]) -> str:
    known = sorted(names)
    rest = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + rest


def _with_seconds(seconds: Mapping[str, float]) -> str:
    return _named(f"{name} ({value:g} s)" for name, value in seconds.items())
