"""What the rows say, through the real scheduler over a store in memory."""

from datetime import datetime, timedelta, timezone

import pytest
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, PeriodicTask, PeriodicTasks

from celery_singlebeat import Schedule
from celery_singlebeat.beat.timetables import Wall
from celery_singlebeat.django import SingleBeatDatabaseScheduler
from celery_singlebeat.django.clerk import HANDFUL
from celery_singlebeat.moments import whole
from celery_singlebeat.store.ports import Candidate
from celery_singlebeat.testing.processes import wait_until
from celery_singlebeat.wiring import wire
from tests.support.shop_beat import rows

HOUR = timedelta(hours=1)

pytestmark = pytest.mark.slow


def now():
    return datetime.now(timezone.utc)


def row(name="a"):
    return rows()[name]


def test_a_row_is_dispatched_and_its_history_is_written_soon_after(start, add, sent):  # D1
    add(every=0.2)
    beat = start().lead()
    beat.tick_until(lambda: len(sent) >= 3)
    beat.tick_until(lambda: row().total_run_count >= 3)
    assert now() - row().last_run_at < timedelta(seconds=5)


def test_a_standby_has_the_rows_and_writes_nothing(start, add, app, sent):  # D3
    app.conf.beat_schedule = {"configured": {"task": "shop.job", "schedule": HOUR}}
    store = wire(app).beat_store()
    grant = store.bid("other", ttl=60, candidate=Candidate(node="other", host="other", pid=1)).grant
    add(every=0.1)
    add("spent", every=0.1, one_off=True, expires=now() - HOUR)
    standby = start()
    standby.tick_until(lambda: standby.machine and len(standby.machine.agenda) == 2)
    clerk = standby.scheduler._clerk
    looked = clerk._read_at
    clerk._read_at = float("-inf")
    standby.tick_until(lambda: clerk._read_at > looked)
    assert row("spent").enabled
    assert "configured" not in rows()
    assert row().total_run_count == 0
    assert sent == []
    store.release(grant)


def test_a_changed_row_is_seen_whoever_leads(start, add):
    add(every=3600)
    beat = start().lead()
    assert beat.names() == ["a"]
    changed = row()
    changed.enabled = False
    changed.save()
    add("b", every=3600)
    beat.tick_until(lambda: beat.names() == ["b"])
    row("b").delete()
    changed.enabled = True
    changed.save()
    beat.tick_until(lambda: beat.names() == ["a"])


def test_a_row_that_is_switched_on_again_begins_then(start, add, sent):
    add(every=3600, enabled=False)
    beat = start().lead()
    line = beat.line()
    line.anchor = line.last = line.anchor - 10 * HOUR  # it was off for long
    changed = row()
    changed.enabled = True
    before = now()
    changed.save()
    beat.tick_until(
        lambda: beat.names() == ["a"] and beat.line().anchor and beat.line().anchor >= whole(before)
    )
    assert beat.line().next - beat.line().anchor == HOUR
    assert sent == []


def test_changed_arguments_reset_nothing(start, add):
    add(every=3600)
    beat = start().lead()
    anchor = beat.line().anchor
    changed = row()
    changed.args = '["other"]'
    changed.save()
    beat.tick_until(lambda: beat.line().entry.args == ["other"] and beat.machine.dispatcher.is_adopted)
    assert beat.line().anchor == anchor


def crontab_row(add, name="a", zone="America/New_York", **fields):
    asked = CrontabSchedule.objects.create(minute="30", hour="2", timezone=zone)
    return add(name, crontab=asked, **fields)


def test_a_crontab_is_read_in_the_zone_of_its_row(start, add):
    crontab_row(add)
    beat = start().lead()
    assert isinstance(beat.line().timetable, Wall)
    local = beat.line().next.astimezone(beat.line().rules.timezone)
    assert (local.hour, local.minute) == (2, 30)
    assert str(beat.line().rules.timezone) == "America/New_York"


def test_a_start_and_an_end_bound_the_slots(start, add):
    begin = whole(now() + 24 * HOUR)
    add(every=3600, start_time=begin)
    crontab_row(add, "b", start_time=begin + 100 * HOUR, expires=begin + 101 * HOUR)
    beat = start().lead()
    assert beat.line().next == begin
    assert beat.line("b").next is None
    assert beat.machine.agenda.parked == {}


def test_a_row_whose_end_has_come_is_switched_off_and_not_run(start, add, sent):
    add(every=0.1, expires=now() + timedelta(seconds=1.5))
    beat = start().lead()
    beat.tick_until(lambda: sent)
    beat.tick_until(lambda: not row().enabled)
    ran = len(sent)
    beat.tick_until(lambda: beat.names() == [])
    assert len(sent) == ran
    assert row().last_run_at is not None


def test_expire_seconds_and_the_other_options_go_into_the_message(start, add):
    add(every=3600, expire_seconds=30, queue="reports", priority=3, headers='{"own": 1}')
    options = start().lead().line().entry.options
    assert options["expires"] == 30
    assert (options["queue"], options["priority"]) == ("reports", 3)
    assert options["headers"]["own"] == 1


@pytest.mark.parametrize("kind", ["interval", "clocked"])
def test_a_one_off_runs_once_and_is_switched_off(start, add, sent, kind):  # D4
    if kind == "interval":
        add(every=0.1, one_off=True)
    else:
        moment = ClockedSchedule.objects.create(clocked_time=now() + timedelta(seconds=0.3))
        add(clocked=moment, one_off=True)
    beat = start().lead()
    beat.tick_until(lambda: not row().enabled)
    beat.tick_until(lambda: beat.names() == [])
    assert sent == ["a"]
    assert row().total_run_count == 1
    again = row()
    again.enabled = True
    again.save()
    beat.tick_until(lambda: len(sent) == 2)
    beat.tick_until(lambda: not row().enabled)
    assert sent == ["a", "a"]


def test_a_one_off_whose_slot_was_skipped_is_switched_off(start, add, app, sent):
    app.conf.beat_scheduler = SingleBeatDatabaseScheduler
    add(every=3600, one_off=True)
    beat = start().lead()
    Schedule(app).pause("a")
    line = beat.line()
    line.last = line.anchor = beat.machine.elector.due_now() - HOUR
    beat.machine.agenda.put(line)
    beat.tick_until(lambda: not row().enabled)
    beat.tick_until(lambda: beat.names() == [])
    assert (sent, row().total_run_count) == ([], 0)


def test_a_row_that_is_switched_on_the_moment_it_was_switched_off_runs_again(start, add, sent):  # D4
    add(every=0.1, one_off=True)
    beat = start()
    table, hurried = beat.scheduler._table, []
    switch_off = table.switch_off

    def then_on_again(keys):
        off = switch_off(keys)
        if not hurried:
            hurried.append(PeriodicTask.objects.update(enabled=True))
            PeriodicTasks.update_changed()
        return off

    table.switch_off = then_on_again
    beat.lead().tick_until(lambda: len(sent) == 2 and not row().enabled)
    assert sent == ["a", "a"]


BAD = {
    "no schedule": ({}, "it has no schedule"),
    "arguments": ({"every": 60, "args": "[1"}, "its args are no JSON list: '[1'"),
    "keywords": ({"every": 60, "kwargs": "[1]"}, "its kwargs are no JSON dict: '[1]'"),
    "headers": ({"every": 60, "headers": "3"}, "its headers are no JSON dict: '3'"),
    "interval": ({"every": 0}, "is not above 0 seconds"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_parked_left_alone_and_the_others_run(start, add, sent, caplog, name):  # G8
    fields, words = BAD[name]
    fields = dict(fields)
    add("good", every=0.1)
    if "every" in fields:
        add("bad", **fields)
    else:
        PeriodicTask.objects.bulk_create([PeriodicTask(name="bad", task="shop.job")])
    beat = start().lead()
    beat.tick_until(lambda: "good" in sent)
    assert words in beat.machine.agenda.parked["bad"]
    assert row("bad").enabled
    assert len([line for line in caplog.messages if "'bad'" in line]) == 1


def test_a_crontab_that_cannot_be_is_parked(start, add):
    add("bad", crontab=CrontabSchedule.objects.create(minute="61"))
    assert (
        "its row cannot be read: ValueError: Invalid end range: 61 > 59"
        in start().lead().machine.agenda.parked["bad"]
    )


def test_rows_are_never_left_out_by_their_hour(start, add):
    for hour in range(24):
        asked = CrontabSchedule.objects.create(minute="0", hour=str(hour), timezone="Asia/Tokyo")
        add(f"at {hour}", crontab=asked)
    add("far", one_off=True, clocked=ClockedSchedule.objects.create(clocked_time=now() + 1000 * HOUR))
    assert len(start().lead().names()) == 25


def test_changes_in_a_row_delay_no_slot_and_repeat_none(start, add, sent):
    add(every=0.2)
    other = add("b", every=3600)
    beat = start().lead()
    first = beat.line().anchor
    for turn in range(10):
        other.description = str(turn)
        other.kwargs = f'{{"turn": {turn}}}'
        other.save()
        count = len(sent)
        beat.tick_until(lambda count=count: len(sent) > count)
    beat.tick_until(lambda: beat.machine.dispatcher.is_adopted)
    assert (beat.line().mark - first) / timedelta(seconds=0.2) == sent.count("a")
    wait_until(lambda: row("b").kwargs == '{"turn": 9}')


# Changes


def test_a_change_touches_no_other_row_and_reads_nothing_of_them(start, add):
    add(every=3600)
    add("b", every=3600)
    beat = start().lead()
    beat.tick_until(lambda: beat.scheduler._clerk._served)  # it reads everything once
    line, asked = beat.line(), []
    remember = beat.machine._store.remember
    beat.machine._store.remember = lambda entries=None: asked.append(entries) or remember(entries)
    changed = row("b")
    changed.args = "[1]"
    changed.save()
    add("c", every=3600)
    beat.tick_until(lambda: beat.names() == ["a", "b", "c"] and beat.line("c").anchor)
    changed.delete()
    beat.tick_until(lambda: beat.names() == ["a", "c"])
    assert beat.line() is line
    assert asked == [["c"]]


def test_a_standby_learns_where_a_new_row_stands(start, add):
    add(every=3600)
    leader, standby = start().lead(), start()
    standby.tick_until(lambda: standby.machine and standby.line())
    add("b", every=3600)
    standby.tick_until(lambda: leader.scheduler.tick() and standby.line("b") and standby.line("b").anchor)
    leader.tick_until(lambda: standby.scheduler.tick() and leader.line("b"))
    assert standby.line("b").anchor == leader.line("b").anchor
    assert leader.machine.agenda.digest() == standby.machine.agenda.digest()


def test_many_changes_come_a_handful_at_a_time(start, add):
    same = add(every=3600).interval
    beat = start().lead()
    sizes = []
    amend = beat.machine.amend
    beat.machine.amend = lambda lines, *rest: sizes.append(len(lines)) or amend(lines, *rest)
    many = [PeriodicTask(name=f"e{n}", task="shop.job", interval=same) for n in range(HANDFUL + 50)]
    PeriodicTask.objects.bulk_create(many)
    PeriodicTasks.update_changed()
    beat.tick_until(lambda: len(beat.names()) == HANDFUL + 51)
    assert sizes == [HANDFUL, 50]


def test_a_row_that_comes_and_goes_between_two_turns_leaves_nothing(start, add):
    same = add(every=3600).interval
    beat = start().lead()
    passing = beat.scheduler._entries_of([PeriodicTask(name="b", task="shop.job", interval=same)])
    lines, _ = beat.scheduler._lines(passing.entries)
    beat.machine.amend(lines.values(), (), {})
    beat.machine.amend((), {"b"}, {})
    beat.scheduler.tick()
    assert set(beat.machine._store.remember().entries) == {"a"}


def test_a_renamed_row_is_a_new_entry(start, add):
    add(every=3600)
    beat = start().lead()
    before, changed = beat.line().anchor, row()
    changed.name = "b"
    changed.save()
    beat.tick_until(lambda: beat.names() == ["b"] and beat.line("b").anchor)
    assert beat.line("b").anchor > before


def test_a_row_hides_a_dynamic_entry_until_it_is_deleted(start, add, app):  # Y3
    Schedule(app).add("a", "shop.other", 3600)
    beat = start().lead()
    beat.tick_until(lambda: beat.names() == ["a"])
    add(every=3600)
    beat.tick_until(lambda: beat.line().entry.task == "shop.job")
    row().delete()
    beat.tick_until(lambda: beat.line() and beat.line().entry.task == "shop.other")


def test_a_row_that_is_mended_runs(start, add, sent):
    add(every=0.1, args="[1")
    beat = start().lead()
    beat.tick_until(lambda: "a" in beat.machine.agenda.parked)
    mended = row()
    mended.args = "[1]"
    mended.save()
    beat.tick_until(lambda: sent and not beat.machine.agenda.parked)
