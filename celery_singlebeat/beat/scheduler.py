"""The class behind `beat_scheduler = "celery_singlebeat:SingleBeatScheduler"`."""

from __future__ import annotations

from celery.beat import Scheduler

from celery_singlebeat.beat.mixin import SingleBeatMixin


class SingleBeatScheduler(SingleBeatMixin, Scheduler):
    """Beat for every replica: the entries of `beat_schedule`, dispatched by at most one of them.

    Each slot (entry and nominal time) of an entry gets one message. Which slots have theirs is kept in
    Redis, so there is no schedule file.
    """
