"""What every store of the dynamic schedule promises, and what the emit script makes of it."""

from datetime import timedelta

import pytest

from celery_singlebeat.policy.pauses import Pause
from celery_singlebeat.store.ports import RUN_FORGOTTEN, Claim, Held, Overdue, Push, Won
from celery_singlebeat.store.schedule_ports import Record

TEXT = '{"a": [1, "é\\n"]}'


def queue_of(bench):
    return f"q:{id(bench)}"


def emit(bench, grant, entry="e", *, ago=1.0, cursor="", overlap="", task_id="t"):
    claim = Claim(entry, bench.ago(ago), (Push(queue_of(bench), task_id),), overlap=overlap, task_id=task_id)
    return bench.store.emit(grant, [claim], cursor=cursor)[1][0].kind


def put(bench, text=TEXT, rule="r1", name="e"):
    return bench.store.schedule.put({name: (rule, text)})[name]


def test_an_entry_is_added_changed_and_removed(bench):
    schedule = bench.store.schedule
    assert [put(bench), put(bench), put(bench, "{}")] == ["added", "same", "changed"]
    found = schedule.changes()
    assert found.is_everything
    assert found.records["e"].text == "{}"
    assert schedule.remove("e")
    assert not schedule.remove("e")
    assert schedule.changes().records == {}


def test_one_entry_is_read_without_the_others(bench):
    schedule = bench.store.schedule
    for name in ("a", "b"):
        put(bench, name=name)
        schedule.pause(name)
    everything, found = schedule.changes(), schedule.of("a")
    assert found.records == {"a": everything.records["a"]}
    assert found.pauses == {"a": everything.pauses["a"]}
    schedule.remove("a")
    assert (schedule.of("a").records, schedule.of("a").pauses) == ({}, {})


def test_only_another_rule_starts_an_entry_anew(bench):
    put(bench)
    first = bench.store.schedule.changes().records["e"].since
    bench.wait(0.02)
    put(bench, "{}")
    assert bench.store.schedule.changes().records["e"] == Record(first, "{}")
    put(bench, "{}", rule="r2")
    assert bench.store.schedule.changes().records["e"].since > first
    assert bench.store.schedule.changes().records["e"].since <= bench.now()


def test_slots_of_an_entry_that_comes_from_elsewhere_count_from_when_they_are_said_to(bench):
    schedule = bench.store.schedule
    early, late = bench.ago(7200), bench.ago(3600)

    def bring(since, rule="r1"):
        outcome = schedule.put({"e": (rule, TEXT), "f": ("r", TEXT)}, {"e": since})["e"]
        return outcome, schedule.changes().records["e"].since

    assert bring(early) == ("added", early)
    assert bring(early) == ("same", early)
    assert bring(late) == ("changed", late)
    assert bring(early) == ("same", late)
    assert put(bench, "{}") == "changed"
    assert schedule.changes().records["e"].since == late
    assert bring(early, rule="r2") == ("changed", early)
    assert bench.now() - schedule.changes().records["f"].since < timedelta(seconds=60)


def test_a_reader_gets_what_changed_since_it_last_asked(bench):  # Y1
    schedule = bench.store.schedule
    for name in ("a", "b", "c"):
        put(bench, name=name)
    cursor = schedule.changes().cursor
    assert schedule.changes(cursor).records == {}
    put(bench, "{}", name="b")
    put(bench, "{}", name="b", rule="r2")
    schedule.remove("c")
    found = schedule.changes(cursor)
    assert not found.is_everything
    assert set(found.records) == {"b", "c"}
    assert found.records["c"] is None
    assert schedule.changes(found.cursor).cursor == found.cursor


def test_a_reader_whose_place_is_unknown_gets_everything(bench):
    put(bench, name="a")
    cursor = bench.store.schedule.changes().cursor
    if bench.client is None:
        bench.store.forget()
    else:
        bench.client.delete(bench.keys.changes, bench.keys.schedule)
    found = bench.store.schedule.changes(cursor)
    assert found.is_everything
    assert found.records == {}
    put(bench, name="b")
    found = bench.store.schedule.changes(cursor if bench.client else "")
    assert (found.is_everything, set(found.records)) == (True, {"b"})


def test_a_pause_is_kept_with_its_end(bench):
    schedule = bench.store.schedule
    assert [schedule.pause("e"), schedule.pause("e")] == [True, False]
    since = schedule.changes().pauses["e"].since
    assert schedule.changes().pauses == {"e": Pause(since)}
    assert bench.store.overview().paused == ["e"]
    bench.wait(0.02)
    assert [schedule.resume("e"), schedule.resume("e")] == [True, False]
    pause = schedule.changes().pauses["e"]
    assert pause.since == since < pause.until
    assert bench.store.overview().paused == []
    bench.wait(0.02)
    schedule.pause("e")
    assert schedule.changes().pauses["e"].since > since


def test_removing_an_entry_ends_its_pause_and_keeps_its_mark(bench):
    grant = bench.lead()
    put(bench)
    bench.store.schedule.pause("e")
    cursor = bench.store.schedule.changes().cursor
    assert emit(bench, grant, cursor=cursor) == "sent"
    bench.store.schedule.remove("e")
    assert bench.store.schedule.changes().pauses == {}
    assert "e" in bench.store.remember().marks


def test_the_pause_of_another_entry_of_the_same_name_outlives_a_removed_one(bench):
    schedule = bench.store.schedule
    put(bench)
    schedule.pause("e")
    schedule.remove("e", keep_pause=True)
    assert schedule.changes().pauses["e"].until is None


def test_an_entry_that_somebody_has_removed_is_not_paused(bench):
    schedule = bench.store.schedule
    put(bench)
    schedule.remove("e")
    cursor = schedule.changes().cursor
    assert schedule.pause("e", is_dynamic=True) is None
    assert schedule.changes().pauses == {}
    assert schedule.changes().cursor == cursor
    assert schedule.pause("e") is True
    put(bench)
    assert schedule.pause("e", is_dynamic=True) is False


@pytest.mark.redis
@pytest.mark.parametrize("empty_before", [True, False])
def test_a_change_that_the_stream_has_forgotten_keeps_its_slot_back_as_well(redis_bench, empty_before):  # Y2
    grant, schedule, client = redis_bench.lead(), redis_bench.store.schedule, redis_bench.client
    if not empty_before:
        put(redis_bench, name="first")
    cursor = schedule.changes().cursor
    schedule.pause("e")
    with client.pipeline() as pipe:
        for number in range(10_001):
            pipe.xadd(redis_bench.keys.changes, {"entry": f"other {number}"})
        pipe.xtrim(redis_bench.keys.changes, maxlen=10_000, approximate=False)
        pipe.execute()
    assert emit(redis_bench, grant, cursor=cursor) == "changed"
    assert emit(redis_bench, grant, cursor=schedule.changes().cursor) == "sent"


def test_no_slot_goes_out_of_an_entry_that_has_changed_since_its_leader_looked(bench):  # Y2
    grant, schedule = bench.lead(), bench.store.schedule
    put(bench)
    cursor = schedule.changes().cursor
    assert emit(bench, grant, ago=5, cursor=cursor) == "sent"
    for change in (lambda: schedule.pause("e"), lambda: schedule.resume("e"), lambda: put(bench, "{}")):
        change()
        assert emit(bench, grant, ago=4, cursor=cursor) == "changed"
    assert emit(bench, grant, "other", ago=4, cursor=cursor, task_id="other") == "sent"
    schedule.remove("e")
    assert emit(bench, grant, ago=4, cursor=cursor) == "changed"
    assert bench.queue(queue_of(bench)) == ["t", "other"]
    assert emit(bench, grant, ago=4, cursor=schedule.changes().cursor) == "sent"


def test_a_slot_that_would_overlap_is_skipped_until_the_run_before_has_ended(bench):
    grant, schedule = bench.lead(), bench.store.schedule
    assert emit(bench, grant, ago=9, overlap="skip", task_id="one") == "sent"
    assert emit(bench, grant, ago=8, overlap="skip", task_id="two") == "overlap"
    assert emit(bench, grant, ago=8.5, overlap="skip", task_id="two") == "already"
    assert not schedule.finish("e", "two")
    assert schedule.finish("e", "one")
    assert emit(bench, grant, ago=7, overlap="skip", task_id="three") == "sent"
    assert bench.queue(queue_of(bench)) == ["one", "three"]
    counters = bench.store.overview().counters
    assert (counters["dispatched"], counters["missed"]) == (2, 1)


@pytest.mark.parametrize("since", ["99999999999999", "nan", "-5", "soon", ""])
def test_a_run_that_began_when_no_clock_can_have_said_counts_as_gone(redis_bench, since):  # G8
    grant = redis_bench.lead()
    redis_bench.client.hset(redis_bench.keys.running, "e", f"{since} t")
    assert emit(redis_bench, grant, overlap="skip") == "sent"


def test_a_slot_that_queues_waits_for_the_run_before(bench):
    grant = bench.lead()
    assert emit(bench, grant, ago=9, overlap="queue", task_id="one") == "sent"
    assert [emit(bench, grant, ago=8, overlap="queue", task_id="two") for _ in range(2)] == ["busy"] * 2
    assert "missed" not in bench.store.overview().counters
    bench.store.schedule.finish("e", "one")
    assert emit(bench, grant, ago=8, overlap="queue", task_id="two") == "sent"


def test_resuming_forgets_a_run_of_whose_end_nobody_told(bench):
    grant = bench.lead()
    emit(bench, grant, ago=9, overlap="skip", task_id="lost")
    bench.store.schedule.pause("e")
    bench.store.schedule.resume("e")
    assert emit(bench, grant, ago=7, overlap="skip", task_id="next") == "sent"


def test_a_run_of_whose_end_nobody_told_for_long_counts_as_gone(bench):
    grant = bench.lead()
    emit(bench, grant, ago=9, overlap="skip", task_id="lost")
    if bench.client is None:
        bench.store._kept.schedule.running["e"] = (bench.ago(RUN_FORGOTTEN + 1), "lost")
    else:
        long_ago = int(bench.ago(RUN_FORGOTTEN + 1).timestamp() * 1000)
        bench.client.hset(bench.keys.running, "e", f"{long_ago} lost")
    assert emit(bench, grant, ago=7, overlap="skip", task_id="next") == "sent"


def test_a_leader_is_judged_by_a_dynamic_entry_only_while_it_is_as_the_bidder_knows_it(bench):  # B5
    bench.lead()
    put(bench)
    since = bench.store.schedule.changes().records["e"].since
    bench.wait(0.6)
    late = {"e": Overdue(bench.ago(0.1), since - timedelta(milliseconds=1))}

    def bid(overdue):
        stranger = bench.candidate("b")
        return bench.store.bid("b", ttl=60, candidate=stranger, grace=0.05, overdue=overdue)

    assert isinstance(bid(late), Held)
    assert isinstance(bid({"gone": Overdue(bench.ago(0.1), since)}), Held)
    assert isinstance(bid({"e": Overdue(bench.ago(0.1), since)}), Won)


@pytest.mark.redis
@pytest.mark.parametrize("value", ["", "x", "12", "99999999999999999999 r {}", "abc r {}"])
def test_a_damaged_entry_is_named_and_the_others_are_read(redis_bench, value):  # G8
    put(redis_bench, name="good")
    redis_bench.client.hset(redis_bench.keys.schedule, "bad", value)
    redis_bench.client.hset(redis_bench.keys.paused, "bad", value)
    found = redis_bench.store.schedule.changes()
    assert found.records["good"] is not None
    assert ("bad" in found.unreadable) == ("bad" in redis_bench.store.schedule.of("bad").unreadable)
    assert "bad" in found.unreadable or not found.records.get("bad") or not found.records["bad"].text


@pytest.mark.redis
@pytest.mark.parametrize(
    "value", [b"\xff\xfe", b"x r \xff", b"99999999999999999999 r {}", b"253000000000000 r {}"]
)
def test_a_damaged_entry_can_be_removed_and_added_again(redis_bench, value):  # G8
    schedule = redis_bench.store.schedule
    redis_bench.client.hset(redis_bench.keys.schedule, "e", value)
    redis_bench.client.hset(redis_bench.keys.schedule, b"\xff", value)
    put(redis_bench, name="good")
    assert schedule.changes().records["good"] is not None
    assert put(redis_bench, rule="r") == "changed"
    assert abs(schedule.changes().records["e"].since - redis_bench.now()) < timedelta(seconds=60)
    assert schedule.remove("e")
    assert set(schedule.changes().records) == {"good", "\\xff"}
