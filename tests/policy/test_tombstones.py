from datetime import datetime, timedelta, timezone

from celery_singlebeat.policy.tombstones import KEPT, Absences, absences

NOW = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)


def test_an_entry_is_noted_when_it_goes_and_when_it_comes_back_and_forgotten_long_after():
    gone = {"long ago": NOW - KEPT - timedelta(seconds=1), "lately": NOW - KEPT, "returned": NOW - 2 * KEPT}
    known = {"here", "just now", *gone}
    found = absences(known, ["here", "new", "returned"], gone, marks={"long ago": NOW - 2 * KEPT}, now=NOW)
    assert found == Absences(gone=("just now",), back=("returned",), over=("long ago",))


def test_a_note_about_an_entry_of_which_nothing_is_known_goes():
    found = absences({"here"}, ["here"], {"unknown": NOW}, marks={}, now=NOW)
    assert (found.back, bool(found)) == (("unknown",), True)
    assert not absences({"here"}, ["here", "new"], {}, marks={}, now=NOW)


def test_an_entry_that_ran_since_it_was_noted_as_gone_is_kept_from_its_newest_slot_on():
    gone = {"was back": NOW - 2 * KEPT, "was back long ago": NOW - 2 * KEPT}
    marks = {"was back": NOW - KEPT, "was back long ago": NOW - KEPT - timedelta(seconds=1)}
    found = absences(set(gone), [], gone, marks=marks, now=NOW)
    assert found == Absences(gone=(), back=(), over=("was back long ago",))
