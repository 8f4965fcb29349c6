"""Rows of a database whose slots were missed."""

import pytest
from django_celery_beat.models import CrontabSchedule

from celery_singlebeat import signals
from celery_singlebeat.store.ports import Enrolment
from tests.django.test_rows import HOUR, now

pytestmark = pytest.mark.slow


def test_the_deadline_of_celery_holds_for_the_crontab_of_a_row(start, app, add, sent):  # S3
    app.conf.beat_cron_starting_deadline = 60
    skipped = []

    def hear(entry, reason, **_):
        skipped.append((entry, reason))

    signals.slot_skipped.connect(hear, weak=False)
    try:
        late = now() - 2 * HOUR
        add("cron", crontab=CrontabSchedule.objects.create(minute=str(late.minute), hour=str(late.hour)))
        add("interval", every=3600)
        beat = start().lead()
        machine = beat.machine
        for name in ("cron", "interval"):  # as if they had been there the day before
            line = beat.line(name)
            known = {name: Enrolment(now() - 3 * HOUR, line.rule)}
            machine._store.enroll(machine.elector.term().grant, known)
        machine.elector.silences += 1
        beat.tick_until(lambda: "interval" in sent and skipped)
    finally:
        signals.slot_skipped.disconnect(hear)
    assert ("cron", "deadline") in skipped
    assert "cron" not in sent
