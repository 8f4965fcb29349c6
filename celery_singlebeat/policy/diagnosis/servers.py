"""Checks of one Redis or Valkey: is it there, is it quick, and does it keep what it is given."""

from __future__ import annotations

import statistics

from celery_singlebeat.policy.diagnosis.facts import Facts, Server
from celery_singlebeat.policy.diagnosis.findings import Finding, failure, ok, unknown, warning

#: The oldest versions whose scripts replicate by their effects and know what ours call.
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
#: Seconds between two clocks from which it is worth a word: a healthy NTP stays well below.
CLOCK_WARNING = 0.1
#: How full a server with a limit may be.
FULL_WARNING, FULL_FAILURE = 0.8, 0.95
#: An answer must fit so often into the grace of a due slot: read, emit, and some air.
ANSWERS_IN_GRACE = 3

_WHO = "ask whoever runs the server"
_INFO = f"allow the user INFO, or {_WHO}"


def reachability(server: Server, facts: Facts) -> Finding:  # noqa: ARG001 - every check has both
    """Fails if the server cannot be reached, or does not let us in. Nothing else of it is judged then."""
    if server.problem:
        return failure(
            f"{server.place}: {server.problem}",
            "start it, open the network to it, or correct the address and the password",
        )
    return ok(server.place)


def version(server: Server, facts: Facts) -> Finding:  # noqa: ARG001
    """Fails below Redis 6.2 or Valkey 7.2."""
    if server.version is None:
        return unknown("the server does not say its version", _INFO)
    oldest = OLDEST[server.product]
    found = f"{server.product} {server.version}"
    numbers = tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit())
    if numbers < oldest:
        return failure(found, f"upgrade to {server.product} {oldest[0]}.{oldest[1]} or newer")
    return ok(found)


def cluster(server: Server, facts: Facts) -> Finding:  # noqa: ARG001
    """Fails if the server runs in cluster mode, which this version does not support."""
    if server.is_cluster is None:
        return unknown("the server does not say whether it runs in cluster mode", _INFO)
    if server.is_cluster:
        return failure(
            "the server runs in cluster mode, which this version does not support",
            "use a Redis without cluster mode, alone or behind Sentinel",
        )
    return ok("no cluster mode")


def latency(server: Server, facts: Facts) -> Finding | None:
    """Fails if the store's median answer takes longer than `singlebeat_takeover_grace`, so that no leader can
    dispatch in time; warns if the worst takes longer than a third of it.
    """
    if not server.round_trips:
        return None
    grace = facts.settings.takeover_grace
    median, worst = statistics.median(server.round_trips), max(server.round_trips)
    found = f"median {_ms(median)}, worst {_ms(worst)} of {len(server.round_trips)} PINGs"
    if not server.is_store:  # slots are claimed without it
        return ok(found)
    remedy = (
        "bring Redis nearer, look for slow commands (SLOWLOG) and a starved CPU, "
        "or raise singlebeat_takeover_grace"
    )
    if median > grace:
        return failure(f"{found}; no leader can dispatch within {_ms(grace)}", remedy)
    if worst * ANSWERS_IN_GRACE > grace:
        return warning(f"{found}; a leader has {_ms(grace)} for a due slot before it is replaced", remedy)
    return ok(found)


def clock(server: Server, facts: Facts) -> Finding | None:
    """Warns if this machine's clock and Redis's are provably more than 0.1 s apart; fails beyond
    `singlebeat_lease_ttl`. Slots wait for the later of the two.
    """
    if server.clock_ahead is None or not server.is_store:
        return None
    low, high = server.clock_ahead
    apart = max(low, -high, 0.0)
    middle, doubt = (low + high) / 2, (high - low) / 2
    way = "ahead of" if middle >= 0 else "behind"
    found = f"this machine's clock is {abs(middle):.3f} s {way} the server's (give or take {doubt:.3f} s)"
    if apart <= CLOCK_WARNING:
        return ok(found)
    found += "; slots wait for the later of the two"
    remedy = "set the clock of this machine, or of the server; run NTP on both"
    return failure(found, remedy) if apart > facts.settings.lease_ttl else warning(found, remedy)


def scripts(server: Server, facts: Facts) -> Finding | None:
    """Fails if the server refuses a script that writes below our prefix: no permission, a replica, no memory,
    too few replicas, a full disk.
    """
    if server.probe is None:
        return None
    if server.probe.script_problem:
        return failure(
            f"the server refused a script that writes one key: {server.probe.script_problem}",
            "if it is a permission, allow the user EVAL, EVALSHA, SCRIPT LOAD, PUBLISH and what the scripts "
            f"call, on keys and channels {facts.settings.prefix}*; otherwise mend what the server says",
        )
    return ok("a script wrote below our prefix")


def subscriptions(server: Server, facts: Facts) -> Finding | None:
    """Fails if a subscription does not work, or hears nothing: then a crash is noticed when a slot is
    overdue, and `resign` is not heard.
    """
    if server.probe is None:
        return None
    remedy = (
        f"allow the user SUBSCRIBE, UNSUBSCRIBE and PUBLISH on channels {facts.settings.prefix}*; "
        "no proxy in between may drop subscriptions"
    )
    if server.probe.subscribe_problem:
        return failure(
            f"subscribing does not work: {server.probe.subscribe_problem}; standbys are not woken, crashes "
            "are noticed by overdue slots alone, and `resign` is not heard",
            remedy,
        )
    if server.probe.script_problem:
        return unknown("subscribing works; whether anything is heard could not be tried", remedy)
    if not server.probe.heard:
        return failure("a message that was published was not heard by its subscriber", remedy)
    return ok("a message that was published was heard")


def crash_detector(server: Server, facts: Facts) -> Finding | None:
    """Warns if scripts may not call PUBSUB, as with some managed Redis: a killed leader is then replaced
    when a slot is overdue or its lease ends, and everything else works. Fails if PUBSUB does not see a
    subscriber that is there: living leaders would be replaced again and again.
    """
    probe = server.probe
    if probe is None or probe.script_problem or probe.subscribe_problem:
        return None
    if probe.presence_problem:
        return warning(
            f"scripts may not call PUBSUB NUMSUB ({probe.presence_problem}): a killed leader is replaced "
            f"when a slot is {facts.settings.takeover_grace:g} s overdue or its lease of "
            f"{facts.settings.lease_ttl:g} s ends, not within 0.25 s; everything else works",
            "allow the user PUBSUB (+pubsub); where the provider forbids it, lower singlebeat_lease_ttl",
        )
    if probe.presence != 1:
        return failure(
            f"PUBSUB NUMSUB counts {probe.presence} subscribers of a channel that has one: a leader that "
            "lives looks as if it had crashed",
            "connect to the server itself, not through a proxy that keeps subscriptions elsewhere",
        )
    return ok("scripts see who is subscribed: a killed leader is noticed at once")


def eviction(server: Server, facts: Facts) -> Finding:
    """Fails if `maxmemory` is set and `maxmemory-policy` is anything but `noeviction`; warns if the policy
    alone is wrong.
    """
    memory = server.memory
    if memory.policy is None:
        return unknown("the server does not say its maxmemory-policy", _INFO)
    limits = {0: "no maxmemory", None: "maxmemory not known"}
    found = f"{memory.policy}, {limits.get(memory.maximum, f'maxmemory {_size(memory.maximum)}')}"
    if memory.evicted:
        found += f", {memory.evicted} keys evicted since its start"
    if memory.policy == "noeviction":
        return ok(found)
    lost = _kept(server, facts)
    if memory.policy.startswith("volatile"):
        lost = "keys that expire" + (": the lease, locks, what is known of calls" if server.is_store else "")
    remedy = "CONFIG SET maxmemory-policy noeviction, and in the server's configuration"
    if memory.maximum == 0:
        return warning(f"{found}; once somebody sets maxmemory, it can throw away {lost}", remedy)
    return failure(f"{found}; it can throw away {lost}", remedy)


def memory_use(server: Server, facts: Facts) -> Finding:  # noqa: ARG001
    """Warns if 80 % of `maxmemory` are used, fails at 95 %: a full server takes no message and no lock."""
    used, maximum = server.memory.used, server.memory.maximum
    if used is None or maximum is None:
        return unknown("the server does not say how much memory it uses", _INFO)
    if maximum == 0:
        return ok(f"{_size(used)} used, no maxmemory")
    part = used / maximum
    found = f"{_size(used)} of {_size(maximum)} used ({part:.0%})"
    if part < FULL_WARNING:
        return ok(found)
    remedy = "raise maxmemory, or find what fills it: long queues, results that never expire, dead letters"
    return failure(found, remedy) if part >= FULL_FAILURE else warning(found, remedy)


def persistence(server: Server, facts: Facts) -> Finding:
    """Fails if the last write to disk failed; warns if a restart loses everything (no persistence), minutes
    (snapshots alone) or half a minute (`appendfsync no`).
    """
    kept = server.persistence
    if kept.append_only is None:
        return unknown("the server does not say whether it writes to disk", _INFO)
    if kept.problems:
        return failure("; ".join(kept.problems), "look at the server's log and at its disk")
    remedy = "appendonly yes and appendfsync everysec"
    if not kept.append_only:
        lost = _kept(server, facts)
        if kept.snapshots is None:
            return warning(
                "no append-only file, and CONFIG is forbidden: if the server takes no snapshots, a restart "
                f"loses {lost}",
                remedy,
            )
        if kept.snapshots:
            return warning(
                f"snapshots alone: a restart goes back some minutes, and loses what came after: {lost}",
                remedy,
            )
        return warning(f"no persistence at all: a restart loses {lost}", remedy)
    found = f"append-only file, appendfsync {kept.fsync or 'not known'}"
    if kept.fsync == "no":
        return warning(f"{found}: a power cut loses some 30 s", "appendfsync everysec")
    return ok(found)


def replication(server: Server, facts: Facts) -> Finding:  # noqa: ARG001
    """Fails if the server is a replica; warns if it has replicas and takes writes without any."""
    about = server.replication
    if about.is_replica is None:
        return unknown("the server does not say whether it is a replica", _INFO)
    if about.is_replica:
        return failure(
            "the server is a replica: it takes no writes, or loses them",
            "give the address of the primary, or sentinel:// with master_name",
        )
    if not about.replicas and not about.minimum:
        return ok("no replicas")
    minimum = "not known" if about.minimum is None else about.minimum
    found = f"{about.replicas} replicas, min-replicas-to-write {minimum}"
    if about.minimum is None:
        return unknown(found, f"min-replicas-to-write should be 1 or more: {_WHO}")
    if about.minimum > about.replicas:
        return failure(
            f"{found}: the server takes no writes", "bring the replicas back, or lower min-replicas-to-write"
        )
    if about.minimum == 0:
        return warning(
            f"{found}: after a failover two servers may take writes for a while, and those of one are lost",
            "min-replicas-to-write 1 and a small min-replicas-max-lag",
        )
    return ok(found)


def _kept(server: Server, facts: Facts) -> str:
    """What is on this server, as one would miss it."""
    ours = "marks (entries begin anew), epochs, locks, what is known of calls" if server.is_store else ""
    messages = "queues, dead letters" if facts.is_atomic or not server.is_store else "the outbox"
    return ", ".join(filter(None, (ours, messages)))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _size(amount: int | None) -> str:
    size = float(amount or 0)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:  # noqa: PLR2004 - what makes the next unit
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
