"""`celery -A proj singlebeat ...`: what operators ask, and the few things that they change.

O1  The answer is on stdout and nothing else is; everything else is on stderr. With `--json` the answer is
    one JSON document.
O2  The exit code is an answer too. 0: done; 1: the answer is no; 2: wrong usage or configuration; 3: Redis
    or the broker cannot be reached.
O3  A failure is one line on stderr, without a traceback.
O4  No password is in any output.
O5  A changing command says what it did. It asks before it takes something away or acts on many things,
    unless told `--yes`; without a terminal and without `--yes` it does nothing.
O6  A table is plain text where nobody looks at it: no colours and no wrapped lines unless stdout is a
    terminal, no colours with NO_COLOR.

The commands are a thin layer over `Leadership`, `Schedule`, `Locks` and `DeadLetters`; whatever they do,
Python code can do as well. Celery imports this package for every `celery` command, so everything but click
is imported by the command that needs it.
"""

from __future__ import annotations

import click

from celery_singlebeat.cli.answers import Commands
from celery_singlebeat.cli.dlq import dlq
from celery_singlebeat.cli.doctor import doctor
from celery_singlebeat.cli.health import health
from celery_singlebeat.cli.locks import locks
from celery_singlebeat.cli.resign import resign
from celery_singlebeat.cli.schedule import schedule
from celery_singlebeat.cli.status import status

__all__ = ["singlebeat"]


@click.group(cls=Commands)
def singlebeat() -> None:
    """See and steer the beats of this app, its schedule, its locks and its dead letters.

    Exit codes: 0 done, 1 the answer is no, 2 wrong usage or configuration, 3 Redis or the broker cannot be
    reached.
    """


for _command in (status, resign, health, doctor, schedule, locks, dlq):
    singlebeat.add_command(_command)
