"""Four kinds of work that go wrong without care, and one that somebody starts by hand."""

from __future__ import annotations

import os
import time

from celery_singlebeat import SingleBeatTask
from example_project import ledger
from example_project.app import app

#: "full" spreads the next attempts of many calls over time, which is what one wants in production.
#: The demo takes "none", so that the waits of 1, 2 and 4 seconds can be seen.
RETRY_JITTER = os.environ.get("EXAMPLE_RETRY_JITTER", "full")

#: How often the gateway fails before it answers.
GATEWAY_FAILURES = 3


class GatewayTimeoutError(Exception):
    """The gateway did not answer in time; it may next time."""


class CardExpiredError(Exception):
    """Nothing that a retry could change, though nobody has told the task so."""


class ExampleTask(SingleBeatTask):
    """What the tasks of this app have in common: attempts after 1, 2, 4 ... seconds, up to a minute."""

    abstract = True
    retry_backoff = 1.0
    retry_backoff_max = 60
    retry_jitter = RETRY_JITTER


# Not exclusive: two slots may be sent at the same time, since each is a report of its own. Copies of the
# same call still exclude each other.
@app.task(base=ExampleTask, bind=True, name="example.send_report", exclusive=False)
def send_report(self: ExampleTask) -> None:
    """Must go out once for each slot: a customer who gets two complains, and so does one who gets none."""
    ledger.note_run(self)


# One sync at a time, whoever starts it. The lock is kept while the call waits for its next attempt.
@app.task(
    base=ExampleTask,
    bind=True,
    name="example.sync_invoices",
    lock_on=(),
    autoretry_for=(GatewayTimeoutError,),
)
def sync_invoices(self: ExampleTask) -> None:
    """Talks to a gateway that fails at first: the next attempts follow after 1, 2 and 4 seconds."""
    ledger.note_run(self)
    if self.request.retries < GATEWAY_FAILURES:
        raise GatewayTimeoutError("the gateway did not answer")


# Due every 2 seconds, and takes 3: without the lock the runs would pile up.
@app.task(base=ExampleTask, bind=True, name="example.rebuild_index", lock_on=(), on_conflict="skip")
def rebuild_index(self: ExampleTask) -> None:
    """Takes longer than its interval: a run that is due while the last one goes on is skipped."""
    ledger.note_run(self)
    time.sleep(3)


@app.task(
    base=ExampleTask,
    bind=True,
    name="example.charge_card",
    max_retries=2,
)
def charge_card(self: ExampleTask, card: str) -> None:
    """Fails for good: after three attempts the call is kept as a dead letter, for somebody to look at."""
    ledger.note_run(self)
    raise CardExpiredError(f"{card} has expired")


@app.task(base=ExampleTask, bind=True, name="example.import_orders", lock_on=("batch",))
def import_orders(self: ExampleTask, batch: str, seconds: float = 2.0) -> str:
    """Started by hand. If its worker is killed, another one does it again from the start."""
    ledger.note_run(self)
    time.sleep(seconds)
    return batch
