"""What every slot store promises, asked of each of them."""

from datetime import timedelta

import pytest

from celery_singlebeat.errors import Deposed, StoreUnavailable
from celery_singlebeat.moments import millis, whole
from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.policy.tombstones import Absences
from celery_singlebeat.store.ports import Claim, Enrolment, Keep, NodeReport, Publish, Push, record_id
from celery_singlebeat.store.scripts import source
from celery_singlebeat.testing.processes import wait_until


def queue_of(bench):
    return f"q:{id(bench)}"


def test_a_slot_is_sent_once_whoever_asks_again(bench, emit):  # M3 B1
    grant, slot = bench.lead(), bench.ago(1)
    assert [emit(grant, "e", slot, str(turn)) for turn in range(3)] == ["sent", "already", "already"]
    assert bench.queue(queue_of(bench)) == ["0"]


def test_an_older_slot_never_follows_a_newer_one(bench, emit):  # B1
    grant = bench.lead()
    assert emit(grant, "e", bench.ago(1)) == "sent"
    assert emit(grant, "e", bench.ago(2)) == "already"
    assert emit(grant, "other", bench.ago(2)) == "sent"


def test_a_slot_that_the_store_calls_future_is_early_and_sent_later(bench, emit):  # B1
    grant = bench.lead()
    slot = bench.now() + timedelta(seconds=0.2)
    assert emit(grant, "e", slot) == "early"
    bench.wait(0.21)
    assert emit(grant, "e", slot) == "sent"
    assert bench.store.overview().counters["refused"] == 1


def test_a_deposed_leader_writes_nothing(bench, emit):  # B1
    old = bench.lead("a")
    bench.store.release(old)
    new = bench.lead("b")
    with pytest.raises(Deposed) as caught:
        emit(old, "e", bench.ago(1), "from the past")
    assert caught.value.epoch == old.epoch
    assert bench.queue(queue_of(bench)) == []
    assert bench.store.overview().counters["refused"] == 1
    assert emit(new, "e", bench.ago(1)) == "sent"


def test_a_leader_whose_lease_has_expired_writes_nothing(bench, emit):  # B1
    grant = bench.lead("a", ttl=0.05)
    bench.wait(0.06)
    with pytest.raises(Deposed):
        emit(grant, "e", bench.ago(1))


def test_half_a_token_is_no_token(bench, emit):  # L4
    grant = bench.lead("a")
    for forged in (Grant(grant.epoch, "b"), Grant(grant.epoch + 1, "a")):
        with pytest.raises(Deposed):
            emit(forged, "e", bench.ago(1))


def test_one_script_takes_many_slots_in_order(bench):  # B7
    grant, start = bench.lead(), bench.ago(600)
    claims = [
        Claim(f"e{n % 3}", start + timedelta(seconds=n), (Push(queue_of(bench), str(n)),)) for n in range(300)
    ]
    _, outcomes = bench.store.emit(grant, claims)
    assert {outcome.kind for outcome in outcomes} == {"sent"}
    assert bench.queue(queue_of(bench)) == [str(n) for n in range(300)]
    memory = bench.store.remember()
    assert memory.runs == {"e0": 100, "e1": 100, "e2": 100}
    assert memory.marks["e2"] == whole(claims[-1].slot)


def test_a_claim_that_builds_on_a_lost_mark_does_nothing(bench):  # G1
    grant, first, second = bench.lead(), bench.ago(9), bench.ago(5)
    claim = Claim("e", second, (Push(queue_of(bench), "second"),), base=first)
    assert bench.store.emit(grant, [claim])[1][0].kind == "forgotten"
    assert bench.queue(queue_of(bench)) == []
    assert bench.store.remember().marks == {}
    bench.store.emit(grant, [Claim("e", first, (Push(queue_of(bench), "first"),))])
    assert bench.store.emit(grant, [claim])[1][0].kind == "sent"
    assert bench.store.emit(grant, [claim])[1][0].kind == "already"


def test_a_renewal_says_when_the_newest_emission_was(bench, emit):
    grant = bench.lead()
    bench.wait(0.002)
    now, _ = bench.store.emit(grant, [Claim("e", bench.ago(1), (Push(queue_of(bench), "m"),))])
    assert bench.store.renew(grant, ttl=60).emitted == now


def test_records_of_one_moment_come_in_the_order_of_their_names(bench):  # M5
    grant, slot = bench.lead(), bench.ago(1)
    bench.store.emit(grant, [Claim(name, slot, (Keep(name),)) for name in ("q", "p")])
    assert [payload for _, payload in bench.store.outbox()] == ["p", "q"]


def test_a_skipped_slot_moves_the_mark_and_is_counted_as_missed(bench):
    grant, slot = bench.lead(), bench.ago(5)
    _, outcomes = bench.store.emit(grant, [Claim("e", slot, (), missed=4)])
    assert outcomes[0].kind == "sent"
    assert bench.store.remember().marks["e"] == whole(slot)
    counters = bench.store.overview().counters
    assert (counters["missed"], counters.get("dispatched", 0)) == (4, 0)
    assert bench.store.remember().runs == {}


def test_one_claim_may_write_to_several_places(bench):
    grant, slot = bench.lead(), bench.ago(1)
    writes = (Push("a:" + queue_of(bench), "1"), Push("b:" + queue_of(bench), "2"), Keep("3"))
    claim = Claim("e", slot, writes)
    assert bench.store.emit(grant, [claim])[1][0].kind == "sent"
    assert bench.queue("a:" + queue_of(bench)) == ["1"]
    assert bench.queue("b:" + queue_of(bench)) == ["2"]
    assert bench.store.outbox() == [(record_id(claim), "3")]


def test_a_record_leaves_the_outbox_only_unchanged(bench):
    grant = bench.lead()
    claims = [Claim("e", bench.ago(9 - n), (Keep(f"message {n}"),)) for n in range(3)]
    bench.store.emit(grant, claims)
    records = bench.store.outbox()
    assert [payload for _, payload in records] == ["message 0", "message 1", "message 2"]
    assert bench.store.confirm([(records[0][0], "another"), records[1]]) == 1
    assert bench.store.outbox() == [records[0], records[2]]
    assert bench.store.overview().outbox == 2


def test_anchors_are_written_by_the_leader_only(bench):
    grant, anchor = bench.lead(), bench.ago(100)
    bench.store.enroll(grant, {"e:1 {x}": Enrolment(anchor, "rule one")})
    with pytest.raises(Deposed):
        bench.store.enroll(Grant(grant.epoch, "b"), {"e:1 {x}": Enrolment(bench.now(), "rule two")})
    assert bench.store.remember().entries == {"e:1 {x}": Enrolment(whole(anchor), "rule one")}


def test_the_marks_of_an_enrolled_entry_begin_where_its_writer_knows_and_never_go_back(bench, emit):  # G1
    grant, slot = bench.lead(), bench.ago(5)
    bench.store.enroll(grant, {"e": Enrolment(bench.ago(60), "r", mark=slot)})
    assert bench.store.remember().marks == {"e": whole(slot)}
    assert emit(grant, "e", slot) == "already"
    bench.store.enroll(grant, {"e": Enrolment(bench.ago(60), "r", mark=bench.ago(50))})
    assert bench.store.remember().marks == {"e": whole(slot)}


def test_the_count_of_an_entry_begins_where_its_first_leader_says(bench, emit):
    grant = bench.lead()
    assert emit(grant, "known", bench.ago(1)) == "sent"
    bench.store.enroll(grant, {name: Enrolment(bench.now(), "rule", 41) for name in ("known", "new")})
    bench.store.enroll(grant, {"new": Enrolment(bench.now(), "another rule", 7)})
    assert emit(grant, "new", bench.ago(1)) == "sent"
    assert bench.store.remember().runs == {"known": 1, "new": 42}


def test_what_is_kept_of_an_entry_that_went_long_ago_goes_unless_it_came_back(bench, emit):  # B1
    grant, names = bench.lead(), ("away", "back", "dynamic")
    bench.store.enroll(grant, {name: Enrolment(bench.ago(9), "rule") for name in names})
    for name in names:
        assert emit(grant, name, bench.ago(1)) == "sent"
    gone, over = Absences(gone=names, back=(), over=()), Absences(gone=(), back=(), over=names)
    for wrong in (gone, over):
        with pytest.raises(Deposed):
            bench.store.tidy(Grant(grant.epoch, "b"), wrong, keep=0)
    bench.store.tidy(grant, gone, keep=60)
    noted = bench.store.remember().gone
    assert set(noted) == set(names)
    bench.wait(0.02)
    bench.store.tidy(grant, gone, keep=60)
    assert bench.store.remember().gone == noted
    bench.store.tidy(grant, Absences(gone=(), back=("back",), over=()), keep=60)
    bench.store.schedule.put({"dynamic": ("rule", "{}")})
    bench.store.tidy(grant, over, keep=60)
    assert set(bench.store.remember().marks) == set(names)
    bench.store.tidy(grant, over, keep=0.01)
    memory = bench.store.remember()
    assert set(memory.marks) == set(memory.runs) == set(memory.entries) == {"back", "dynamic"}


def test_the_last_mark_stays_since_no_marks_at_all_are_marks_that_were_lost(bench, emit):  # G1
    grant, over = bench.lead(), Absences(gone=(), back=(), over=("first", "last"))
    for name in over.over:
        assert emit(grant, name, bench.ago(1)) == "sent"
    bench.store.tidy(grant, Absences(gone=over.over, back=(), over=()), keep=60)
    bench.wait(0.02)
    bench.store.tidy(grant, over, keep=0.01)
    assert set(bench.store.remember().marks) == set(bench.store.remember().gone) == {"last"}
    bench.store.schedule.put({"new": ("rule", "{}")})
    assert bench.store.mend(grant) == {}
    assert emit(grant, "new", bench.ago(0)) == "sent"
    bench.store.tidy(grant, over, keep=0.01)
    assert set(bench.store.remember().marks) == {"new"}


def test_a_node_reports_until_it_leaves(bench):
    report = NodeReport(node="n", host="h", pid=4, role="standby", tick_age=0.5, entries=3, faulty={"x": "y"})
    seen = bench.store.report(report, keep=60)
    known = bench.store.overview().nodes
    assert [(n.node, n.pid, n.role, n.tick_age, n.entries, n.faulty, n.seen) for n in known] == [
        ("n", 4, "standby", 0.5, 3, {"x": "y"}, seen)
    ]
    bench.store.leave("n")
    assert bench.store.overview().nodes == []


def test_reports_of_nodes_that_fell_silent_long_ago_go(bench):
    def report(node):
        return NodeReport(node=node, host="h", pid=1, role="standby", tick_age=0)

    bench.store.report(report("old"), keep=60)
    bench.wait(0.05)
    bench.store.report(report("new"), keep=None)
    assert [node.node for node in bench.store.overview().nodes] == ["new", "old"]
    bench.store.report(report("new"), keep=0.02)
    assert [node.node for node in bench.store.overview().nodes] == ["new"]


def test_a_request_to_resign_reaches_those_who_listen(bench):
    ears = bench.store.ears()
    assert bench.store.ask_to_resign(7) == 0
    assert ears.listen("a")
    assert bench.store.ask_to_resign(7) == 1
    heard = []
    wait_until(lambda: heard.append(ears.hear(0.1)) or "resign 7" in heard, 5, lambda: heard)
    ears.close()


# Redis alone


def test_a_queue_that_cannot_take_the_message_concerns_its_slot_alone(redis_bench):
    grant = redis_bench.lead()
    broken = f"broken:{id(redis_bench)}"
    redis_bench.client.set(broken, "not a list")
    claims = [
        Claim("bad", redis_bench.ago(1), (Push(broken, "1"),)),
        Claim("good", redis_bench.ago(1), (Push(queue_of(redis_bench), "2"),)),
    ]
    _, outcomes = redis_bench.store.emit(grant, claims)
    assert [outcome.kind for outcome in outcomes] == ["error", "sent"]
    assert "WRONGTYPE" in outcomes[0].text
    assert redis_bench.queue(queue_of(redis_bench)) == ["2"]


def test_a_queue_with_an_expiry_gets_it_again_with_each_message(redis_bench):
    grant, queue = redis_bench.lead(), queue_of(redis_bench)
    push = Push(queue, "1", expires=50_000, also=(queue, queue + ":low"))
    redis_bench.store.emit(grant, [Claim("e", redis_bench.ago(1), (push,))])
    assert 40_000 < redis_bench.client.pttl(queue) <= 50_000


def test_a_fanout_message_reaches_subscribers(redis_bench):
    grant = redis_bench.lead()
    pubsub = redis_bench.client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe("channel")
    pubsub.get_message(timeout=1)
    redis_bench.store.emit(grant, [Claim("e", redis_bench.ago(1), (Publish("channel", "hello"),))])
    message = wait_until(lambda: pubsub.get_message(timeout=0.1), 5, "nothing came")
    assert message["data"] == "hello"
    pubsub.close()


def test_state_that_cannot_be_read_is_named_entry_by_entry(redis_bench):
    client, keys = redis_bench.client, redis_bench.keys
    good = millis(redis_bench.ago(5))
    client.hset(keys.marks, mapping={"good": good, "word": "yesterday", "far": 10**18})
    client.hset(keys.entries, mapping={"good": f"{good} rule", "torn": "17"[:0]})
    memory = redis_bench.store.remember()
    assert set(memory.marks) == {"good"}
    assert set(memory.entries) == {"good"}
    assert set(memory.unreadable) == {"word", "far", "torn"}


def test_enrolling_an_entry_writes_a_mark_anew_that_cannot_be(redis_bench):  # G8
    bench, grant = redis_bench, redis_bench.lead()
    sound, anchor = millis(bench.ago(5)), bench.now()
    damaged = {"word": "yesterday", "far": 10**14, "nan": "nan", "below": "-inf", "bytes": b"\xff"}
    bench.client.hset(bench.keys.marks, mapping={**damaged, "sound": sound})
    bench.store.enroll(grant, {name: Enrolment(anchor, "rule") for name in (*damaged, "sound")})
    anew = dict.fromkeys(damaged, str(millis(anchor)))
    assert bench.client.hgetall(bench.keys.marks) == {**anew, "sound": str(sound)}


def test_a_mark_that_no_clock_can_have_made_is_forgotten_and_claims_no_slot(bench, emit):  # G8
    grant, far = bench.lead(), bench.now() + timedelta(days=400)
    bench.store.enroll(grant, {"e": Enrolment(bench.ago(9), "rule", mark=far)})
    assert emit(grant, "e", bench.ago(1)) == "forgotten"
    bench.store.enroll(grant, {"e": Enrolment(bench.ago(9), "rule")})
    assert emit(grant, "e", bench.ago(1)) == "sent"


def test_bytes_that_are_no_text_are_one_value_that_cannot_be_read(redis_bench):  # G8
    bench, grant = redis_bench, redis_bench.lead()
    keys, rubbish = bench.keys, b"\xff\xfe"
    for key in (keys.marks, keys.entries, keys.runs, keys.counters, keys.nodes, keys.paused, keys.leader):
        bench.client.hset(key, "bytes", rubbish)
    bench.client.hset(keys.leader, "pid", rubbish)
    bench.client.hset(keys.marks, rubbish, "1")
    memory = bench.store.remember()
    assert set(memory.unreadable) == {"bytes"}
    assert "bytes" not in {**memory.marks, **memory.entries, **memory.runs}
    overview = bench.store.overview()
    assert overview.leader.epoch == grant.epoch
    assert [node.role for node in overview.nodes] == ["unreadable"]
    assert bench.store.schedule.changes().pauses == {"bytes": None}


def test_what_has_another_type_is_put_aside_by_the_leader_alone_and_nothing_is_repeated(redis_bench):  # G8
    bench, keys, grant = redis_bench, redis_bench.keys, redis_bench.lead()
    bench.store.enroll(grant, {"e": Enrolment(bench.ago(60), "rule")})
    bench.store.schedule.put({"dynamic": ("rule", "{}")})
    assert bench.store.mend(grant) == {}
    for key in (keys.marks, keys.runs, keys.changes):
        bench.client.delete(key)
        bench.client.set(key, "a string")
    with pytest.raises(Deposed):
        bench.store.mend(Grant(grant.epoch, "b"))
    asked = bench.now()
    places = bench.store.mend(grant)
    assert {key: kept.rpartition(":damaged:")[0] for key, kept in places.items()} == {
        key: key for key in (keys.marks, keys.runs, keys.changes)
    }
    assert [bench.client.get(kept) for kept in places.values()] == ["a string"] * 3
    memory = bench.store.remember()
    assert set(memory.marks) == {"e", "dynamic"}
    assert min(memory.marks.values()) >= asked
    assert bench.store.schedule.changes("0-1").is_everything


def test_marks_that_were_evicted_begin_now_and_marks_that_were_never_written_do_not(redis_bench):
    bench, keys, grant = redis_bench, redis_bench.keys, redis_bench.lead()
    bench.store.enroll(grant, {"e": Enrolment(bench.ago(60), "rule", 41)})
    assert bench.store.mend(grant) == {}
    assert bench.store.remember().marks == {}
    slot = bench.ago(1)
    bench.store.emit(grant, [Claim("e", slot, (Push(queue_of(bench), "m"),))])
    bench.client.delete(keys.marks)
    assert bench.store.mend(grant) == {keys.marks: ""}
    assert bench.store.remember().marks["e"] > slot


def test_a_damaged_mark_begins_at_the_anchor_and_not_with_the_next_leader(redis_bench):  # G1 G8
    bench, keys, grant = redis_bench, redis_bench.keys, redis_bench.lead()
    bench.store.emit(grant, [Claim("e", bench.ago(1), (Push(queue_of(bench), "m"),))])
    bench.client.hset(keys.marks, "e", "rubbish")
    anchor = whole(bench.now())
    bench.store.enroll(grant, {"e": Enrolment(anchor, "rule")})
    bench.wait(0.02)
    assert bench.store.mend(grant) == {}
    assert bench.store.remember().marks == {"e": anchor}


def test_no_answer_is_an_error_not_a_no(redis_bench):  # M2
    redis_bench.client.set(redis_bench.keys.marks, "a string where a hash belongs")
    with pytest.raises(StoreUnavailable, match="remember"):
        redis_bench.store.remember()


def test_every_script_says_what_it_takes_and_returns():  # M1
    names = ["lease_bid", "lease_renew", "lease_release", "slots_emit", "slots_enroll", "outbox_confirm"]
    for name in [*names, "node_report"]:
        header = source(name).partition("\nlocal")[0]
        assert "KEYS[1]" in header, name
        assert "returns" in header, name
