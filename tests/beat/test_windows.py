from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab

from celery_singlebeat.beat.lines import MOST_COUNTED, MOST_DUE, Agenda, make_line
from celery_singlebeat.beat.timetables import Live
from celery_singlebeat.beat.windows import timetable_of
from celery_singlebeat.policy.entries import EntryRules
from celery_singlebeat.policy.slots import MissedRules
from celery_singlebeat.store.ports import Enrolment, Memory

APP = Celery("windows", broker="memory://", set_as_current=False)
NOON = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
EVERY_TEN = timedelta(minutes=10)


def entry(when):
    return ScheduleEntry("e", "task", schedule=when, app=APP)


def table(when, **rules):
    return timetable_of(entry(when), EntryRules(missed=MissedRules(), **rules))


def slots(when, count=3, since=NOON, **rules):
    """The first slots after an anchor."""
    found, moment, asked = [], since, table(when, **rules)
    while len(found) < count:
        moment = asked.after(moment, anchor=since)
        if moment is None:
            break
        found.append(moment)
    return found


def test_an_interval_counts_from_its_start():  # W1
    start = NOON + 3 * HOUR + timedelta(seconds=7)
    assert slots(EVERY_TEN, start=start) == [start, start + EVERY_TEN, start + 2 * EVERY_TEN]
    past = NOON - MINUTE
    assert slots(EVERY_TEN, start=past) == [past + EVERY_TEN * n for n in (1, 2, 3)]


def test_a_crontab_has_its_first_slot_at_or_after_its_start():  # W1
    assert slots(crontab(minute="*/30"), start=NOON + HOUR)[:2] == [NOON + HOUR, NOON + 1.5 * HOUR]
    assert slots(crontab(minute="*/30"), start=NOON + HOUR + MINUTE)[0] == NOON + 1.5 * HOUR
    assert slots(crontab(minute="*/30"), start=NOON - HOUR)[0] == NOON + HOUR / 2


def test_there_is_no_slot_at_or_after_the_end():  # W1
    assert slots(EVERY_TEN, end=NOON + 2 * EVERY_TEN) == [NOON + EVERY_TEN]
    assert slots(crontab(minute="*/30"), end=NOON + HOUR + MINUTE) == [NOON + HOUR / 2, NOON + HOUR]
    assert slots(EVERY_TEN, end=NOON - HOUR) == []


@pytest.mark.parametrize("when", [EVERY_TEN, crontab(minute="*/10")], ids=["interval", "crontab"])
def test_what_happens_once_has_one_slot(when):  # W2
    assert slots(when, once=True) == [NOON + EVERY_TEN]
    assert slots(when, once=True, start=NOON + HOUR) == [NOON + HOUR]


def clocked(at):
    """As the schedule of django-celery-beat looks from outside."""
    return SimpleNamespace(clocked_time=at, is_due=lambda last: (False, 1.0), now=lambda: NOON)


@pytest.mark.parametrize("rules", [{}, {"once": True}], ids=["plain", "once"])
def test_a_clocked_time_is_one_slot_and_due_at_once_if_it_is_over(rules):  # W2
    assert slots(clocked(NOON + HOUR), **rules) == [NOON + HOUR]
    assert slots(clocked(NOON - HOUR), **rules) == [NOON + timedelta(milliseconds=1)]


def test_windows_and_moments_are_part_of_the_rule():
    rules = [
        table(EVERY_TEN).rule(),
        table(EVERY_TEN, start=NOON).rule(),
        table(EVERY_TEN, end=NOON).rule(),
        table(EVERY_TEN, once=True).rule(),
        table(clocked(NOON)).rule(),
        table(clocked(NOON + HOUR)).rule(),
    ]
    assert len(set(rules)) == len(rules)


def due_line(when, since, **rules):
    line = make_line("e", entry(when), EntryRules(missed=MissedRules(), **rules))
    line.stand_at(since, None)
    line.plan()
    return line


def test_after_a_very_long_stop_a_window_is_counted_like_its_schedule():
    start = NOON - timedelta(days=1000)
    due = due_line(timedelta(seconds=1), start, start=start, end=NOON + HOUR).due(NOON)
    assert due.slots[-1] == NOON
    assert len(due.slots) + due.older == 1000 * 86400
    due = due_line(crontab(), start, start=start, end=NOON + HOUR).due(NOON)
    assert (len(due.slots), due.older, due.is_part) == (MOST_DUE, MOST_COUNTED, True)
    assert due.slots[0] == start + (MOST_COUNTED + 1) * timedelta(minutes=1)


def test_an_entry_that_has_had_its_last_slot_is_in_order():  # W2
    told = []
    agenda = Agenda(told.append, lambda: NOON)
    line = make_line("e", entry(EVERY_TEN), EntryRules(missed=MissedRules(), once=True))
    agenda.fill([line], {})
    memory = Memory(marks={"e": NOON + EVERY_TEN}, entries={"e": Enrolment(NOON, line.rule)})
    assert agenda.settle(memory) == []
    assert agenda.next_at() is None
    assert agenda.parked == {}
    assert told == []


class Own(ScheduleEntry):
    def is_due(self):
        return self.last_run_at == NOON, 5


def test_an_entry_that_decides_itself_is_asked_with_its_newest_run():  # W3
    rules = EntryRules(missed=MissedRules(), once=True)
    asked = timetable_of(Own("e", "task", schedule=HOUR, app=APP), rules)
    assert isinstance(asked, Live)
    assert asked.is_due(NOON, NOON, NOON) == (True, 5.0)
    assert asked.is_due(NOON + HOUR, NOON + HOUR, NOON + HOUR) == (False, 5.0)
    assert asked.rule().endswith("Own")


def test_whatever_an_entry_says_to_wait_is_survived():  # W3
    asked = timetable_of(Own("e", "task", schedule=HOUR, app=APP), EntryRules(missed=MissedRules()))
    for wait in (float("nan"), None, "soon"):
        asked.entry.is_due = lambda wait=wait: (False, wait)
        assert asked.is_due(NOON, NOON, NOON) == (False, 1.0)
