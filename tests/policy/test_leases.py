from hypothesis import given
from hypothesis import strategies as st

from celery_singlebeat.moments import Monotonic, later
from celery_singlebeat.policy.leases import Grant, begin_term, margin

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
