from datetime import datetime, timedelta, timezone

from celery_singlebeat.policy.tombstones import KEPT, Absences, absences

NOW = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)


def test_an_entry_is_noted_when_it_goes_and_when_it_comes_back_and_forgotten_long_after():
    gone = {"long ago": NOW - KEPT - timedelta(seconds=1), "lately": NOW - KEPT, "returned": NOW - 2 * KEPT}
    known = {"here", "just now", *gone}
    found = absences(known, ["here", "new", "returned"], gone, now=NOW)
    assert found == Absences(gone=("just now",), back=("returned",), over=("long ago",))


def test_a_note_about_an_entry_of_which_nothing_is_known_goes():
    found = absences({"here"}, ["here"], {"unknown": NOW}, now=NOW)
    assert (found.back, bool(found)) == (("unknown",), True)
    assert not absences({"here"}, ["here", "new"], {}, now=NOW)
