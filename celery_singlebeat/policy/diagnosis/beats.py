"""Checks of the running beats, and of what piles up."""

from __future__ import annotations

from collections.abc import Iterable

from celery_singlebeat.policy.diagnosis.facts import Facts
from celery_singlebeat.policy.diagnosis.findings import Finding, failure, ok, unknown, warning

#: Seconds that a message may wait in the outbox: about when a leader that cannot publish steps down.
DRAINED = 30.0
#: How much of the limit dead letters may take.
MANY_LETTERS = 0.8


def settings(facts: Facts) -> Finding:
    """Says where the store is and how slots are dispatched; warns if the store is memory. What cannot work at
    all ends the command with exit code 2.
    """
    how = "atomic" if facts.is_atomic else "outbox"
    found = f"store {facts.store_place}, prefix {facts.settings.prefix}, dispatch {how}"
    if facts.settings.redis_url.startswith("memory://"):
        return warning(f"{found}: no other process sees this store", "memory:// is for tests: give a Redis")
    return ok(found)


def leader(facts: Facts) -> Finding | None:
    """Fails if beats run and none leads; warns if no beat runs, or nobody stands by."""
    beats = facts.beats
    if facts.beats_problem:
        return unknown(
            f"what beats told the store cannot be read: {facts.beats_problem}",
            f"allow the user to read keys {facts.settings.prefix}*",
        )
    if beats is None:
        return None
    if beats.leader is None:
        if beats.heard:
            return failure(
                f"nobody leads; beats heard lately: {beats.heard}", "look at their logs, and at `status`"
            )
        return warning("no beat runs", "start `celery beat` on two hosts or more")
    found = f"{beats.leader} leads; standbys: {beats.standbys}"
    return ok(found) if beats.standbys else warning(found, "start another beat, on another host")


def reports(facts: Facts) -> Finding | None:
    """Fails if the loop of a beat does not turn; warns if a beat that did not say goodbye is silent."""
    beats = facts.beats
    if beats is None or not (beats.heard or beats.silent):
        return None
    if beats.wedged:
        found = "; ".join((*beats.wedged, *beats.silent))
        return failure(found, "look for a schedule that blocks or a starved CPU, and restart that beat")
    if beats.silent:
        return warning(
            "; ".join(beats.silent),
            "see whether its process lives; if it was killed, its report goes within the hour",
        )
    return ok(f"heard lately: {beats.heard}, and every loop turns")


def entries(facts: Facts) -> Finding | None:
    """Fails if entries are parked, or wait although they are due."""
    beats = facts.beats
    if beats is None or not beats.heard:
        return None
    problems = [f"{name} is parked: {problem}" for name, problem in sorted(beats.faulty.items())]
    if beats.overdue:
        problems.append(f"overdue: {', '.join(beats.overdue)}")
    if problems:
        return failure("; ".join(problems), "mend parked entries and deploy; overdue ones: see who leads")
    return ok(f"{beats.entries} in the schedule, none is parked or overdue")


def outbox(facts: Facts) -> Finding | None:
    """Fails if a message has waited in the outbox for more than 30 s."""
    beats = facts.beats
    if beats is None or facts.is_atomic:
        return None
    found = f"waiting messages: {beats.outbox}"
    if not beats.outbox:
        return ok(found)
    found += f", the oldest slot was due {beats.outbox_age:.0f} s ago"
    if beats.outbox_age > DRAINED:
        return failure(found, "see the leader's log for what the broker answers, and that there is a leader")
    return ok(found)


def dead_letters(facts: Facts) -> Finding | None:
    """Warns from 80 % of `singlebeat_dead_letter_limit` on; fails at it, where the oldest are trimmed."""
    if not facts.dead_letters:
        return None
    limit = facts.settings.dead_letter_limit
    known = {queue: number for queue, number in facts.dead_letters.items() if number is not None}
    found = f"{_told(known)} of {limit} at most"
    if facts.beats is not None and facts.beats.trimmed:
        found += f", {facts.beats.trimmed} trimmed so far"
    if len(known) < len(facts.dead_letters):
        return unknown("the broker does not say how many dead letters there are", "see the broker")
    number = max(known.values())
    remedy = "look at them (`dlq list`), replay or purge them, or raise singlebeat_dead_letter_limit"
    if number and number >= limit:
        return failure(f"{found}: each new one throws the oldest away", remedy)
    return warning(found, remedy) if number >= limit * MANY_LETTERS and number else ok(found)


def _told(numbers: dict[str, int]) -> str:
    told: Iterable[str] = (f"{number} in {queue}" for queue, number in sorted(numbers.items()))
    return ", ".join(told)
