from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from celery_singlebeat.errors import EntryError
from celery_singlebeat.policy.entries import check_schedule, read_rules, split
from celery_singlebeat.policy.slots import Misfire, MissedRules

DEFAULTS = MissedRules()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"misfyre": "all"}, ["misfyre", "'all'", "did you mean 'misfire'?"]),
        ({"shedule": 60}, ["shedule", "60", "did you mean 'schedule'?"]),
        ({"expires": 90}, ["expires=90", "options"]),
        ({"zzz": 1}, ["zzz", "known keys: args"]),
    ],
)
def test_an_unknown_key_names_entry_value_and_remedy(fields, words):  # E1
    with pytest.raises(EntryError) as caught:
        split("nightly", {"task": "t", "schedule": 60, **fields})
    for word in ["nightly", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "word"),
    [
        ("60", "'60' is a str"),
        (None, "no 'schedule'"),
        (0, "above 0"),
        (-5, "above 0"),
        (True, "bool"),
        (timedelta(0), "above 0"),
        (0.0001, "1 ms"),
        (object(), "is_due"),
        (float("nan"), "above 0"),
    ],
)
def test_what_cannot_be_a_schedule_is_named(schedule, word):  # E1
    with pytest.raises(EntryError, match=word):
        check_schedule("nightly", schedule)


@pytest.mark.parametrize("schedule", [1, 0.5, timedelta(days=1), crontab()])
def test_what_can_be_a_schedule_passes(schedule):
    check_schedule("nightly", schedule)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"misfire": "al"}, "'latest', 'all' or 'skip'"),
        ({"misfire_grace": "soon"}, "misfire_grace='soon'"),
        ({"misfire_grace": 0}, "misfire_grace=0"),
        ({"misfire_grace": -1}, "give seconds above 0"),
        ({"jitter": 10**400}, "give a number, 0 or larger"),
        ({"catch_up_limit": -1}, "catch_up_limit=-1"),
        ({"enabled": "yes"}, "True or False"),
        ({"timezone": "Berlin"}, "Europe/Berlin"),
        ({"timezone": "../etc/passwd"}, "IANA"),
        ({"overlap": "never"}, "overlap='never'; give 'allow', 'skip' or 'queue'"),
        ({"overlap": ["skip"]}, "overlap="),
        ({"overlap": "queue", "misfire": "all"}, "misfire='all' with overlap='queue'"),
        ({"jitter": -5}, "jitter=-5"),
        ({"jitter": "a lot"}, "jitter='a lot'"),
    ],
)
def test_a_bad_value_is_named_with_what_to_give(fields, word):  # E1
    with pytest.raises(EntryError, match=word):
        read_rules("nightly", fields, DEFAULTS)


def test_an_entry_may_lift_the_bound_that_a_setting_has():
    assert read_rules("nightly", {"misfire_grace": None}, MissedRules(grace=5)).missed.grace is None


def test_keys_of_the_entry_win_over_the_settings():
    fields = {"misfire": "all", "misfire_grace": "90", "catch_up_limit": 7, "enabled": False}
    own = {"timezone": "Europe/Berlin", "jitter": "2.5", "overlap": "skip"}
    rules = read_rules("nightly", {**fields, **own}, DEFAULTS)
    assert rules.missed == MissedRules(misfire=Misfire.ALL, grace=90.0, limit=7)
    assert not rules.enabled
    assert rules.timezone == ZoneInfo("Europe/Berlin")
    assert (rules.jitter, rules.overlap) == (2.5, "skip")


def test_an_entry_that_queues_keeps_its_newest_slot_only():
    missed = read_rules("nightly", {"overlap": "queue"}, MissedRules(misfire=Misfire.SKIP)).missed
    assert (missed.misfire, missed.failover) == (Misfire.LATEST, 0.0)


def test_whatever_an_entry_raises_is_told_in_one_line():  # E1
    assert str(EntryError("nightly", "it cannot be built: OSError: no\nclock")).endswith("OSError: no clock")
