"""What is said of which facts. Each row changes one fact of an installation that is well."""

from dataclasses import replace

import pytest

from celery_singlebeat.policy.diagnosis import APP_CHECKS, SERVER_CHECKS, Verdict, diagnose
from celery_singlebeat.policy.diagnosis.facts import (
    Beats,
    Broker,
    Countdown,
    Facts,
    Memory,
    Persistence,
    Probe,
    Replication,
    Server,
    TaskFacts,
)
from celery_singlebeat.settings import Settings

WELL, BAD, WARN, DARK = Verdict.OK, Verdict.FAILURE, Verdict.WARNING, Verdict.UNKNOWN

SERVER = Server(
    subject="store",
    place="cache:6379, db 0",
    version="7.0.15",
    is_cluster=False,
    round_trips=(0.001, 0.002, 0.003),
    clock_ahead=(-0.001, 0.001),
    probe=Probe(presence=1, heard=True),
    memory=Memory(policy="noeviction", used=10_000_000, maximum=100_000_000),
    persistence=Persistence(append_only=True, fsync="everysec", snapshots=True),
    replication=Replication(is_replica=False, replicas=1, minimum=1),
)
OURS = TaskFacts(
    name="shop.sync",
    is_ours=True,
    acks_late=True,
    reject_on_worker_lost=True,
    longest_wait=16,
    exclusive=True,
    lock_ttl=30,
    dedupe_ttl=3600,
)
PLAIN = TaskFacts(name="shop.plain", longest_wait=180)
LATE = replace(PLAIN, acks_late=True, time_limit=60)
REDIS = Broker(kind="redis", place="cache:6379, db 0", redelivers_after=3600, redelivery="visibility_timeout")
RABBIT = Broker(
    kind="amqp",
    place="amqp://rabbit//",
    redelivers_after=1800,
    redelivery="consumer_timeout",
    assumed=True,
)
BEATS = Beats(leader="web-1", heard=2, standbys=1, entries=12)


def facts(**changes):
    about = {
        "settings": Settings(redis_url="redis://cache:6379/0", prefix="singlebeat:shop"),
        "store_place": "cache:6379, db 0 (from broker_url)",
        "is_atomic": True,
        "servers": (SERVER,),
        "broker": REDIS,
        "tasks": (OURS, PLAIN),
        "beats": BEATS,
        "dead_letters": {"dead_letters": 3},
    }
    return Facts(**{**about, **changes})


def the(check, diagnosis):
    """The one finding of a check; None if it says nothing."""
    found = [finding for finding in diagnosis.findings if finding.check == check]
    assert len(found) <= 1
    return found[0] if found else None


def judged(check, verdict, words, known):
    found = the(check, diagnose(known))
    if verdict is None:
        assert found is None
        return
    assert found.verdict is verdict, found
    assert words in found.found
    # V2
    assert found.found.strip()
    assert bool(found.remedy) == (verdict is not WELL)


def test_an_installation_that_is_well_gets_one_good_word_for_each_check():  # V4
    found = diagnose(facts())
    assert found.verdict is WELL
    assert found.unreachable == ()
    assert {finding.check for finding in found.findings} == {*SERVER_CHECKS, *APP_CHECKS} - {"outbox"}
    assert {finding.subject for finding in found.findings if finding.check in SERVER_CHECKS} == {"store"}
    assert found.findings[0].check == "settings"


# Servers


def probe(**changes):
    return {"probe": replace(SERVER.probe, **changes)}


def memory(**changes):
    return {"memory": replace(SERVER.memory, **changes)}


def disk(**changes):
    return {"persistence": replace(SERVER.persistence, **changes)}


def replicas(**changes):
    return {"replication": replace(SERVER.replication, **changes)}


NOPERM = "NoPermissionError: this user has no permissions"


@pytest.mark.parametrize(
    ("check", "verdict", "words", "changes"),
    [
        ("reachability", WELL, "cache:6379", {}),
        ("reachability", BAD, "refused", {"problem": "Connection refused"}),
        ("version", WELL, "Redis 6.2.0", {"version": "6.2.0"}),
        ("version", BAD, "Redis 6.0.16", {"version": "6.0.16"}),
        ("version", WELL, "Valkey 7.2.4", {"version": "7.2.4", "product": "Valkey"}),
        ("version", BAD, "Valkey 7.0.1", {"version": "7.0.1", "product": "Valkey"}),
        ("version", DARK, "version", {"version": None}),
        ("cluster", WELL, "no cluster", {}),
        ("cluster", BAD, "cluster mode", {"is_cluster": True}),
        ("cluster", DARK, "cluster mode", {"is_cluster": None}),
        ("latency", WELL, "median 2 ms, worst 3 ms of 3 PINGs", {}),
        ("latency", WARN, "worst 101 ms", {"round_trips": (0.001, 0.001, 0.101)}),
        ("latency", WELL, "worst 99 ms", {"round_trips": (0.001, 0.001, 0.099)}),
        ("latency", WARN, "median 300 ms", {"round_trips": (0.3, 0.3, 0.001)}),
        ("latency", BAD, "median 301 ms", {"round_trips": (0.301, 0.301, 0.001)}),
        ("latency", None, "", {"round_trips": ()}),
        ("clock", WELL, "0.000 s", {}),
        ("clock", WELL, "0.500 s", {"clock_ahead": (0.05, 0.95)}),
        ("clock", WARN, "0.200 s ahead of", {"clock_ahead": (0.15, 0.25)}),
        ("clock", WARN, "0.200 s behind", {"clock_ahead": (-0.25, -0.15)}),
        ("clock", WELL, "0.150 s ahead of", {"clock_ahead": (0.1, 0.2)}),
        ("clock", WARN, "10.100 s ahead of", {"clock_ahead": (10.0, 10.2)}),
        ("clock", BAD, "3600.000 s ahead of", {"clock_ahead": (3599.9, 3600.1)}),
        ("clock", BAD, "3600.000 s behind", {"clock_ahead": (-3600.1, -3599.9)}),
        ("clock", None, "", {"clock_ahead": None}),
        ("scripts", WELL, "wrote", {}),
        ("scripts", BAD, NOPERM, probe(script_problem=NOPERM, presence=None, heard=False)),
        ("scripts", None, "", {"probe": None}),
        ("subscriptions", WELL, "was heard", {}),
        ("subscriptions", BAD, "`resign` is not heard", probe(subscribe_problem=NOPERM, heard=False)),
        ("subscriptions", BAD, "not heard by its subscriber", probe(heard=False)),
        ("subscriptions", DARK, "could not be tried", probe(script_problem=NOPERM, heard=False)),
        ("subscriptions", None, "", {"probe": None}),
        ("crash-detector", WELL, "at once", {}),
        ("crash-detector", WARN, "0.3 s overdue", probe(presence=None, presence_problem=NOPERM)),
        ("crash-detector", BAD, "counts 0 subscribers", probe(presence=0)),
        ("crash-detector", None, "", probe(script_problem=NOPERM)),
        ("crash-detector", None, "", probe(subscribe_problem=NOPERM)),
        ("crash-detector", None, "", {"probe": None}),
        ("maxmemory-policy", WELL, "noeviction, maxmemory 100 MB", {}),
        ("maxmemory-policy", BAD, "throw away marks", memory(policy="allkeys-lru", evicted=7)),
        ("maxmemory-policy", BAD, "7 keys evicted", memory(policy="allkeys-lru", evicted=7)),
        ("maxmemory-policy", BAD, "the lease, locks", memory(policy="volatile-ttl")),
        (
            "maxmemory-policy",
            BAD,
            "allkeys-lfu, maxmemory not known",
            memory(policy="allkeys-lfu", maximum=None),
        ),
        ("maxmemory-policy", WARN, "once somebody sets", memory(policy="allkeys-lru", maximum=0)),
        ("maxmemory-policy", DARK, "does not say", memory(policy=None)),
        ("memory", WELL, "10 MB of 100 MB used (10%)", {}),
        ("memory", WELL, "no maxmemory", memory(maximum=0)),
        ("memory", WARN, "80%", memory(used=80_000_000)),
        ("memory", BAD, "95%", memory(used=95_000_000)),
        ("memory", DARK, "does not say", memory(used=None)),
        ("persistence", WELL, "appendfsync everysec", {}),
        ("persistence", WELL, "appendfsync not known", disk(fsync=None)),
        ("persistence", WARN, "30 s", disk(fsync="no")),
        ("persistence", WARN, "snapshots alone", disk(append_only=False)),
        ("persistence", WARN, "no persistence at all", disk(append_only=False, snapshots=False)),
        ("persistence", WARN, "dead letters", disk(append_only=False, snapshots=False)),
        ("persistence", WARN, "CONFIG is forbidden", disk(append_only=False, snapshots=None)),
        ("persistence", BAD, "the last snapshot failed", disk(problems=("the last snapshot failed",))),
        ("persistence", DARK, "does not say", disk(append_only=None)),
        ("replication", WELL, "1 replicas, min-replicas-to-write 1", {}),
        ("replication", WELL, "no replicas", replicas(replicas=0, minimum=0)),
        ("replication", WARN, "those of one are lost", replicas(minimum=0)),
        ("replication", BAD, "takes no writes", replicas(replicas=0, minimum=1)),
        ("replication", BAD, "is a replica", replicas(is_replica=True)),
        ("replication", DARK, "not known", replicas(minimum=None)),
        ("replication", DARK, "does not say", replicas(is_replica=None)),
    ],
)
def test_a_server_is_judged(check, verdict, words, changes):  # V1, V2, V3
    judged(check, verdict, words, facts(servers=(replace(SERVER, **changes),)))


def test_of_a_server_that_does_not_answer_nothing_else_is_said():  # V1
    found = diagnose(facts(servers=(Server(subject="store", place="cache:6379", problem="refused"),)))
    assert [finding.check for finding in found.findings if finding.subject] == ["reachability"]
    assert found.unreachable == ("store",)


def test_a_broker_that_is_another_redis_is_judged_beside_the_store():
    broker = replace(
        SERVER, subject="broker", probe=None, memory=Memory(policy="allkeys-lru", maximum=5, used=1)
    )
    found = diagnose(facts(servers=(SERVER, broker)))
    (bad,) = found.having(BAD)
    assert (bad.check, bad.subject) == ("maxmemory-policy", "broker")


@pytest.mark.parametrize(
    ("subject", "is_atomic", "lost", "kept"),
    [
        ("store", True, ("marks", "locks", "queues", "dead letters"), ("outbox",)),
        ("store", False, ("marks", "locks", "outbox"), ("queues", "dead letters")),
        ("broker", False, ("queues", "dead letters"), ("marks", "locks", "outbox")),
    ],
)
def test_what_a_server_may_lose_is_what_it_has(subject, is_atomic, lost, kept):
    lossy = replace(
        SERVER,
        subject=subject,
        memory=Memory(policy="allkeys-lru", maximum=5, used=1),
        persistence=Persistence(append_only=False, snapshots=False),
    )
    found = diagnose(facts(servers=(lossy,), is_atomic=is_atomic))
    for check in ("persistence", "maxmemory-policy"):
        text = the(check, found).found
        assert [word for word in (*lost, *kept) if word in text] == list(lost)


def test_a_broker_that_is_slow_or_has_another_clock_delays_no_slot():
    far = replace(SERVER, subject="broker", round_trips=(1.0, 1.0), clock_ahead=(3600.0, 3601.0))
    found = diagnose(facts(servers=(far,)))
    assert the("latency", found).verdict is WELL
    assert the("clock", found) is None


def test_the_bounds_of_latency_and_clock_are_those_of_the_settings():
    patient = Settings(redis_url="redis://c", takeover_grace=2.0, lease_ttl=60.0, renew_every=20.0)
    slow = replace(SERVER, round_trips=(0.4, 0.4), clock_ahead=(20.0, 20.1))
    strict = diagnose(facts(servers=(slow,)))
    loose = diagnose(facts(servers=(slow,), settings=patient))
    assert [the(check, strict).verdict for check in ("latency", "clock")] == [BAD, BAD]
    assert [the(check, loose).verdict for check in ("latency", "clock")] == [WELL, WARN]


# The broker


def broker(known=REDIS, **changes):
    return {"broker": replace(known, **changes)}


def delayed(task, seconds):
    return {"countdowns": (Countdown(entry="nightly", task=task, seconds=seconds),)}


def only(task, **changes):
    return {"tasks": (replace(task, **changes),)}


@pytest.mark.parametrize(
    ("check", "verdict", "words", "changes"),
    [
        ("broker", WELL, "cache:6379", {}),
        ("broker", BAD, "refused", broker(problem="refused")),
        ("visibility-timeout", WELL, "visibility_timeout of 3600 s", {}),
        ("visibility-timeout", BAD, "lock_ttl of shop.sync (30 s)", broker(redelivers_after=29)),
        ("visibility-timeout", WELL, "30 s", broker(redelivers_after=30)),
        ("visibility-timeout", WELL, "29 s", {**broker(redelivers_after=29), **only(OURS, exclusive=False)}),
        ("visibility-timeout", WELL, "29 s", {**broker(redelivers_after=29), **only(PLAIN)}),
        ("visibility-timeout", WARN, "result options", broker(stray=("the result options",))),
        ("visibility-timeout", WELL, "cannot be asked", broker(RABBIT)),
        ("visibility-timeout", None, "", broker(redelivers_after=None)),
        ("time-limits", WELL, "1 of 1 tasks have none", {}),
        ("time-limits", WELL, "above every time limit", only(LATE)),
        ("time-limits", WELL, "above every time limit", only(LATE, time_limit=None, soft_time_limit=3600)),
        ("time-limits", BAD, "shop.plain (3601 s)", only(LATE, time_limit=3601)),
        ("time-limits", BAD, "shop.plain (3601 s)", only(LATE, time_limit=None, soft_time_limit=3601)),
        ("time-limits", WARN, "shop.sync (3601 s)", only(OURS, time_limit=3601)),
        ("time-limits", WARN, "default", {**broker(RABBIT), **only(LATE, time_limit=3601)}),
        ("time-limits", DARK, "shop.plain", only(LATE, time_limit=None)),
        ("time-limits", WELL, "have none", {**broker(RABBIT), **only(LATE, time_limit=None)}),
        ("time-limits", None, "", only(PLAIN, time_limit=3601)),
        ("time-limits", None, "", broker(redelivers_after=None)),
        ("backoff", WELL, "above every wait", only(PLAIN, longest_wait=3600)),
        ("backoff", WELL, "above every wait", delayed("shop.plain", 3600)),
        ("backoff", WARN, "shop.sync (3601 s)", only(OURS, longest_wait=3601)),
        ("backoff", BAD, "shop.plain (3601 s)", only(PLAIN, longest_wait=3601)),
        ("backoff", WARN, "shop.plain (3601 s)", {**broker(RABBIT), **only(PLAIN, longest_wait=3601)}),
        ("backoff", BAD, "entry nightly (7200 s)", delayed("shop.plain", 7200)),
        ("backoff", WARN, "entry nightly (7200 s)", delayed("shop.sync", 7200)),
        ("backoff", WARN, "entry nightly (7200 s)", delayed("elsewhere.task", 7200)),
        ("backoff", None, "", {**broker(holds_waiting=False), **only(OURS, longest_wait=3601)}),
        ("backoff", None, "", broker(redelivers_after=None)),
    ],
)
def test_a_broker_is_judged_by_what_it_delivers_again(check, verdict, words, changes):  # V1, V2, V3
    judged(check, verdict, words, facts(**changes))


def test_a_remedy_names_the_number_that_is_enough():
    hour, day = replace(LATE, name="hour", time_limit=3601), replace(LATE, name="day", time_limit=86_400)
    assert "(86400 s)" in the("time-limits", diagnose(facts(tasks=(hour, day)))).remedy
    waits = tuple(replace(PLAIN, name=str(wait), longest_wait=wait) for wait in (3601, 86_400))
    found = the("backoff", diagnose(facts(tasks=waits, **delayed("shop.plain", 7200))))
    assert "above 86400 s" in found.remedy
    locks = tuple(replace(OURS, name=str(ttl), lock_ttl=ttl) for ttl in (70, 80))
    assert (
        "above 80 s"
        in the("visibility-timeout", diagnose(facts(tasks=locks, **broker(redelivers_after=60)))).remedy
    )


def test_a_few_tasks_are_all_named():
    few = tuple(replace(PLAIN, name=f"shop.{letter}", longest_wait=7200) for letter in "abcde")
    assert "more" not in the("backoff", diagnose(facts(tasks=few))).found


def test_many_tasks_are_named_in_part():
    many = tuple(replace(PLAIN, name=f"shop.{letter}", longest_wait=7200) for letter in "abcdefg")
    found = the("backoff", diagnose(facts(tasks=many)))
    assert "shop.a (7200 s)" in found.found
    assert "and 2 more" in found.found
    assert "shop.g" not in found.found


# Tasks

FAR = (replace(SERVER, round_trips=(3.0,)),)


@pytest.mark.parametrize(
    ("check", "verdict", "words", "changes"),
    [
        ("tasks", WELL, "2 tasks, 1 of them SingleBeatTask", {}),
        ("tasks", WELL, "0 tasks", {"tasks": ()}),
        ("tasks", WARN, "never acts", only(PLAIN, time_limit=60, soft_time_limit=60)),
        ("tasks", WARN, "shop.sync: a; shop.sync: b", only(OURS, doubts=("a", "b"))),
        ("tasks", WARN, "a copy that comes late would run", only(OURS, dedupe_ttl=3599)),
        ("tasks", WARN, "both would run", {**only(OURS, dedupe_ttl=0), "is_atomic": False}),
        ("tasks", WELL, "1 tasks", only(OURS, dedupe_ttl=0)),
        ("lock-ttl", WELL, "30 s is the shortest of 1", {}),
        (
            "lock-ttl",
            WELL,
            "30 s is the shortest of 2",
            {"tasks": (OURS, replace(OURS, name="b", lock_ttl=60))},
        ),
        ("lock-ttl", WELL, "1 s is the shortest of 1", only(OURS, lock_ttl=1)),
        ("lock-ttl", BAD, "shop.sync (0.9 s)", only(OURS, lock_ttl=0.9)),
        (
            "lock-ttl",
            BAD,
            "9 s are needed",
            {"servers": (replace(SERVER, round_trips=(3.0,)),), **only(OURS, lock_ttl=8)},
        ),
        ("lock-ttl", None, "", only(OURS, exclusive=False, lock_ttl=0.9)),
        ("lock-ttl", None, "", only(PLAIN)),
        ("acknowledgement", WELL, "late", {}),
        ("acknowledgement", WARN, "acks_late is off for shop.sync", only(OURS, acks_late=False)),
        ("acknowledgement", WARN, "killed child", only(OURS, reject_on_worker_lost=False)),
        ("acknowledgement", None, "", only(PLAIN)),
    ],
)
def test_tasks_are_judged(check, verdict, words, changes):  # V2, V3
    judged(check, verdict, words, facts(**changes))


# Beats


def told(**changes):
    return {"beats": replace(BEATS, **changes)}


@pytest.mark.parametrize(
    ("check", "verdict", "words", "changes"),
    [
        ("settings", WELL, "dispatch atomic", {}),
        ("settings", WELL, "dispatch outbox", {"is_atomic": False}),
        ("settings", WARN, "no other process", {"settings": Settings(redis_url="memory://")}),
        ("leader", WELL, "web-1 leads; standbys: 1", {}),
        ("leader", WARN, "standbys: 0", told(standbys=0)),
        ("leader", BAD, "heard lately: 2", told(leader=None)),
        ("leader", WARN, "no beat runs", told(leader=None, heard=0)),
        ("leader", DARK, NOPERM, {"beats": None, "beats_problem": NOPERM}),
        ("leader", None, "", {"beats": None}),
        ("beats", WELL, "heard lately: 2", {}),
        ("beats", WARN, "a was not heard", told(silent=("a was not heard for 40 s",))),
        ("beats", BAD, "b is wedged", told(wedged=("b is wedged",), silent=("a was not heard for 40 s",))),
        ("beats", None, "", told(heard=0)),
        ("entries", WELL, "12 in the schedule", {}),
        ("entries", BAD, "nightly is parked: no task", told(faulty={"nightly": "no task"})),
        ("entries", BAD, "overdue: hourly", told(overdue=("hourly",))),
        ("entries", None, "", told(heard=0)),
        ("outbox", None, "", told(outbox=3, outbox_age=1000)),
        ("outbox", WELL, "waiting messages: 0", {"is_atomic": False}),
        ("outbox", WELL, "30 s ago", {"is_atomic": False, **told(outbox=3, outbox_age=30)}),
        ("outbox", BAD, "waiting messages: 3", {"is_atomic": False, **told(outbox=3, outbox_age=31)}),
        ("dead-letters", WELL, "3 in dead_letters of 100000 at most", {}),
        ("dead-letters", WARN, "80000", {"dead_letters": {"dead_letters": 80_000, "other": 1}}),
        ("dead-letters", BAD, "4 trimmed", {"dead_letters": {"dead_letters": 100_000}, **told(trimmed=4)}),
        ("dead-letters", DARK, "does not say", {"dead_letters": {"dead_letters": None, "other": 1}}),
        ("dead-letters", None, "", {"dead_letters": {}}),
    ],
)
def test_beats_and_what_piles_up_are_judged(check, verdict, words, changes):  # V1, V2, V3
    judged(check, verdict, words, facts(**changes))


# All of it


def test_the_worst_finding_speaks_for_all():
    assert diagnose(facts(**told(standbys=0))).verdict is WARN
    assert diagnose(facts(**told(standbys=0, leader=None))).verdict is BAD
    assert diagnose(facts(**only(LATE, time_limit=None))).verdict is DARK


def test_servers_that_do_not_answer_are_named_once():
    away = Server(subject="broker", place="c", problem="refused")
    found = diagnose(facts(servers=(SERVER, away), **broker(problem="refused")))
    assert found.unreachable == ("broker",)


@pytest.mark.parametrize("check", [*SERVER_CHECKS, *APP_CHECKS])
def test_every_check_says_when_it_fails_or_warns(check):
    assert {**SERVER_CHECKS, **APP_CHECKS}[check].__doc__.startswith(("Fails ", "Warns ", "Says "))
