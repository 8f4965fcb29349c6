"""The Celery app of the tests' Django project, with a way to die right after a dispatch."""

import os
import signal
from pathlib import Path

from celery import Celery

from celery_singlebeat import signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.shop_settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(name="shop.job")
def job(*args, **kwargs):
    """What the rows run."""


@signals.slot_dispatched.connect
def die_after_a_dispatch(**_):
    """The message is in the queue and its mark is made; nothing of it has reached the database."""
    if os.environ.get("SHOP_FATAL"):
        try:
            Path(os.environ["SHOP_FATAL"]).unlink()  # one process takes it
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
