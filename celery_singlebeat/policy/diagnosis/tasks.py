"""Checks of the registered tasks: combinations of attributes that cannot mean what they say."""

from __future__ import annotations

from celery_singlebeat.policy.diagnosis.facts import Facts, TaskFacts
from celery_singlebeat.policy.diagnosis.findings import Finding, failure, ok, warning

#: Seconds below which a lock has no time for a second try: each request may take a quarter of one.
SHORTEST_LOCK = 1.0
#: A lock is renewed every so much of its ttl.
_RENEWALS = 3


def tasks(facts: Facts) -> Finding:
    """Warns if attributes contradict each other: time limits, retries, conflicts, `dedupe_ttl`."""
    problems = [f"{task.name}: {problem}" for task in facts.tasks for problem in _contradictions(task, facts)]
    if problems:
        return warning("; ".join(problems), "change one of the two values in each")
    ours = sum(task.is_ours for task in facts.tasks)
    return ok(f"{len(facts.tasks)} tasks, {ours} of them SingleBeatTask")


def _contradictions(task: TaskFacts, facts: Facts) -> list[str]:
    found = list(task.doubts)
    hard, soft = task.time_limit, task.soft_time_limit
    if hard is not None and soft is not None and soft >= hard:
        found.append(f"soft_time_limit {soft:g} s is not below time_limit {hard:g} s, so it never acts")
    after = facts.broker.redelivers_after
    if task.dedupe_ttl == 0 and not facts.is_atomic:
        found.append("dedupe_ttl is 0, and this broker may get the message of a slot twice: both would run")
    elif task.dedupe_ttl and after is not None and task.dedupe_ttl < after:
        found.append(
            f"dedupe_ttl {task.dedupe_ttl:g} s is below {facts.broker.redelivery} of {after:g} s: a copy "
            "that comes late would run"
        )
    return found


def lock_ttl(facts: Facts) -> Finding | None:
    """Fails if a lock is too short to be renewed in time: below 1 s, or a third of it below the worst round
    trip to the store.
    """
    ttls = {task.name: task.lock_ttl for task in facts.tasks if task.exclusive and task.lock_ttl is not None}
    if not ttls:
        return None
    trips = [trip for server in facts.servers if server.is_store for trip in server.round_trips]
    least = max(SHORTEST_LOCK, _RENEWALS * max(trips, default=0.0))
    short = sorted(f"{name} ({ttl:g} s)" for name, ttl in ttls.items() if ttl < least)
    if short:
        return failure(
            f"lock_ttl of {', '.join(short)} leaves no time for renewals: {least:.3g} s are needed",
            f"raise it to {least:.3g} s or more; 30 s is the default",
        )
    return ok(f"{min(ttls.values()):g} s is the shortest of {len(ttls)}")


def acknowledgement(facts: Facts) -> Finding | None:
    """Warns if a `SingleBeatTask` acknowledges early, or keeps the message of a killed child from coming
    back: such a call is lost with its worker.
    """
    ours = [task for task in facts.tasks if task.is_ours]
    if not ours:
        return None
    early = sorted(task.name for task in ours if not task.acks_late)
    kept = sorted(task.name for task in ours if task.acks_late and not task.reject_on_worker_lost)
    problems = []
    if early:
        problems.append(f"acks_late is off for {', '.join(early)}: a call is lost with its worker")
    if kept:
        problems.append(
            f"reject_on_worker_lost is off for {', '.join(kept)}: the call of a killed child does not come "
            "back"
        )
    if problems:
        return warning("; ".join(problems), "leave both on; a copy that has finished does not run again")
    return ok("every SingleBeatTask acknowledges late, and comes back when its child is killed")
