import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.policy.leases import Grant, begin_term, bid_pauses, margin

GRANT = Grant(7, "nonce")
TTLS = st.floats(min_value=0.1, max_value=3600)


def test_trust_runs_from_the_question_not_from_the_answer():  # L1
    term = begin_term(GRANT, asked_at=Monotonic(100.0), ttl=10)
    assert term.trusted_until == 109.5


@given(ttl=TTLS)
def test_trust_ends_before_the_lease_can(ttl):  # L2
    term = begin_term(GRANT, asked_at=Monotonic(0.0), ttl=ttl)
    assert 0 < term.trusted_until < ttl
    assert margin(ttl) >= min(0.05, ttl / 2)


@given(ttl=TTLS, passed=st.floats(min_value=0, max_value=7200))
def test_what_remains_is_never_negative_and_zero_means_no_trust(ttl, passed):
    term = begin_term(GRANT, asked_at=Monotonic(0.0), ttl=ttl)
    moment = later(Monotonic(0.0), passed)
    assert (term.remaining(moment) > 0) == term.is_trusted(moment)


def test_a_grant_is_named_by_epoch_and_nonce():  # L4
    assert Grant(7, "a").token == "7:a" != Grant(8, "a").token


@given(standbys=st.integers(min_value=1, max_value=2000))
def test_that_none_of_the_standbys_looks_for_150_ms_is_less_likely_than_one_in_a_million(standbys):  # L5
    shortest, longest = bid_pauses(standbys + 1)
    within = min(0.15, longest)
    # of a renewal process with pauses that are uniform over a range: no event of one within so long
    seen = shortest
    if longest > shortest:
        seen += ((longest - shortest) ** 2 - (longest - within) ** 2) / (2 * (longest - shortest))
    none_of_one = 1 - seen / ((shortest + longest) / 2)
    assert max(0.0, none_of_one) ** standbys < 1e-6


@pytest.mark.parametrize("standbys", [1, 2, 10, 20, 49])
def test_all_standbys_together_send_at_most_a_hundred_bids_a_second(standbys):  # L5
    assert standbys / (sum(bid_pauses(standbys + 1)) / 2) <= 101


@pytest.mark.parametrize("listeners", [0, 1, 2, 11])
def test_a_few_standbys_look_as_often_as_they_can_whatever_the_store_tells(listeners):
    assert bid_pauses(listeners) == pytest.approx((0.08, 0.12))
