"""What every lease store promises, asked of each of them."""

from celery_singlebeat.policy.leases import Grant
from celery_singlebeat.store.ports import Held, Overdue, Won
from celery_singlebeat.testing.processes import wait_until

GRACE = 0.05


def bid(bench, nonce, **asked):
    asked.setdefault("ttl", 60.0)
    asked.setdefault("grace", GRACE)
    candidate = asked.pop("candidate", None) or bench.candidate(nonce)
    return bench.store.bid(nonce, candidate=candidate, **asked)


def test_a_free_lease_goes_to_whoever_asks(bench):
    answer = bid(bench, "a")
    assert isinstance(answer, Won)
    assert (answer.grant.nonce, answer.reason) == ("a", "free")


def test_a_held_lease_goes_to_nobody_else(bench):
    grant = bench.lead("a")
    answer = bid(bench, "b")
    assert isinstance(answer, Held)
    assert (answer.token, answer.absent) == (grant.token, False)


def test_asking_again_with_the_same_nonce_returns_the_same_grant(bench):  # M3
    grant = bench.lead("a")
    again = bid(bench, "a")
    assert isinstance(again, Won)
    assert (again.grant, again.reason) == (grant, "again")
    assert bench.store.overview().counters["elections"] == 1


def test_every_grant_has_a_larger_epoch_and_none_below_the_stores_clock(bench):
    first = bench.lead("a")
    bench.store.release(first)
    second = bench.lead("b")
    assert second.epoch > first.epoch
    assert first.epoch >= bench.ago(60).timestamp() * 1000


def test_epochs_grow_after_everything_was_lost(redis_bench):
    first = redis_bench.lead("a")
    redis_bench.wait(0.002)
    redis_bench.client.flushdb()
    assert redis_bench.lead("b").epoch > first.epoch


def test_an_old_grant_of_the_same_node_can_neither_renew_nor_release(bench):  # L4
    old = bench.lead("a")
    bench.store.release(old)
    new = bench.lead("a2")
    assert not bench.store.renew(old, ttl=60).held
    assert not bench.store.release(old)
    assert bench.store.renew(new, ttl=60).held


def test_an_invented_grant_can_do_nothing(bench):  # L4
    real = bench.lead("a")
    for forged in (Grant(real.epoch, "b"), Grant(real.epoch + 1, "a")):
        assert not bench.store.renew(forged, ttl=60).held
        assert not bench.store.release(forged)


def test_a_lease_that_is_not_renewed_expires(bench):
    grant = bench.lead("a", ttl=0.05)
    bench.wait(0.06)
    assert not bench.store.renew(grant, ttl=60).held
    assert isinstance(bid(bench, "b"), Won)


def test_a_renewed_lease_does_not(bench):
    grant = bench.lead("a", ttl=1.0)
    assert bench.store.renew(grant, ttl=60).held
    bench.wait(1.05)
    assert isinstance(bid(bench, "b"), Held)


def test_a_release_wakes_those_who_listen(bench):
    grant = bench.lead("a")
    ears = bench.store.ears()
    assert ears.listen("b")
    assert bench.store.release(grant)
    heard = []
    wait_until(lambda: heard.append(ears.hear(0.1)) or f"released {grant.token}" in heard, 5, lambda: heard)
    ears.close()


def test_an_absent_leader_is_replaced_at_the_second_look(bench):
    ears = bench.store.ears()
    assert ears.listen("a")
    grant = bench.lead("a", listens=True)
    assert not bid(bench, "b").absent
    ears.close()
    first = wait_until(lambda: (seen := bid(bench, "b")) and seen.absent and seen, 5, "never absent")
    assert first.token == grant.token
    second = bid(bench, "b", suspect=first.token)
    assert isinstance(second, Won)
    assert second.reason == "crash"


def test_one_look_is_not_enough_to_replace_a_leader(bench):
    bench.lead("a", listens=True)  # it promised to listen, and nobody does
    answer = bid(bench, "b")
    assert isinstance(answer, Held)
    assert answer.absent
    assert isinstance(bid(bench, "b", suspect="1:somebody else"), Held)


def test_a_leader_that_never_promised_presence_is_not_called_absent(bench):
    grant = bench.lead("a", listens=False)
    assert not bid(bench, "b", suspect=grant.token).absent


def test_a_bid_tells_how_many_listen(bench):  # L5
    bench.lead("a")
    ears = [bench.store.ears() for _ in range(3)]
    for number, one in enumerate(ears):
        assert one.listen(f"nonce{number}")
    assert bid(bench, "b").listeners == 3
    ears[0].close()
    wait_until(lambda: bid(bench, "b").listeners == 2, 5, "still heard")
    for one in ears[1:]:
        one.close()


def test_an_overdue_slot_lets_a_standby_take_over(bench):
    bench.lead("a")
    bench.wait(GRACE * 10.2)
    answer = bid(bench, "b", overdue={"report": Overdue(bench.ago(GRACE * 2))})
    assert isinstance(answer, Won)
    assert answer.reason == "overdue"


def test_a_new_leader_has_time_to_read_before_it_is_called_overdue(bench, emit):  # G9
    grant = bench.lead("a")
    bench.wait(GRACE * 3)
    assert isinstance(bid(bench, "b", overdue={"report": Overdue(bench.ago(GRACE * 2))}), Held)
    emit(grant, "other", bench.ago(1))
    bench.wait(GRACE * 1.2)
    assert isinstance(bid(bench, "b", overdue={"report": Overdue(bench.ago(GRACE * 2))}), Won)


def test_nobody_takes_over_twice_within_the_grace(bench):
    bench.lead("a")
    bench.wait(GRACE * 10.2)
    overdue = {"report": Overdue(bench.ago(5))}
    assert isinstance(bid(bench, "b", overdue=overdue, grace=GRACE), Won)
    assert isinstance(bid(bench, "c", overdue=overdue, grace=30), Held)


def test_a_slot_that_has_its_mark_is_not_overdue(bench, emit):
    grant = bench.lead("a")
    slot = bench.ago(10)
    emit(grant, "report", slot)
    bench.wait(GRACE * 2)
    answer = bid(bench, "b", overdue={"report": Overdue(slot), "other": Overdue(bench.ago(-60))})
    assert isinstance(answer, Held)
    assert dict(answer.marks) == {"report": slot, "other": None}


def test_nodes_with_another_schedule_do_not_judge_the_leader(bench):
    bench.lead("a")
    bench.wait(GRACE * 2)
    stranger = bench.candidate("b").__class__(node="b", host="h", pid=2, schedule="another")
    assert isinstance(bid(bench, "b", overdue={"report": Overdue(bench.ago(10))}, candidate=stranger), Held)


def test_the_overview_names_the_leader(bench):
    grant = bench.lead("a", ttl=60)
    leader = bench.store.overview().leader
    assert (leader.node, leader.host, leader.pid, leader.epoch) == ("a", "host", 1, grant.epoch)
    assert 50 < leader.lease_remaining <= 60
    bench.store.release(grant)
    assert bench.store.overview().leader is None


def test_every_lease_in_redis_has_an_expiry(redis_bench):  # M4
    bench = redis_bench
    grant = bench.lead("a", ttl=60)
    assert 0 < bench.client.pttl(bench.keys.lease) <= 60_000
    bench.store.renew(grant, ttl=90)
    assert 60_000 < bench.client.pttl(bench.keys.lease) <= 90_000


def test_a_leader_whose_sign_stayed_the_same_is_replaced(bench):
    bench.lead("a")
    sign = bid(bench, "b").sign
    assert isinstance(bid(bench, "b", silent=sign + " older"), Held)
    answer = bid(bench, "b", silent=sign)
    assert isinstance(answer, Won)
    assert answer.reason == "silent"


def test_every_renewal_changes_the_sign(bench):
    grant = bench.lead("a")
    first = bid(bench, "b").sign
    bench.store.renew(grant, ttl=60)
    assert bid(bench, "b").sign != first
    assert isinstance(bid(bench, "b", silent=first), Held)
