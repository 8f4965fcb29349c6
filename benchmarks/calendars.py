"""Send a day and a quarter around both changes of the clock in five zones: `python -m benchmarks.calendars`.

Three schedulers run the same entries through their own `tick`, on a clock that is moved by what the tick
returned (`tests.support.simulated`). What counts is each message that Celery publishes, by the minute at
which it did. What was to be expected comes from `tests.support.walls`, which looks at the clock on the wall
minute by minute.

Stock beat is `celery.beat.Scheduler`; it keeps no state, and needs none in one run. RedBeat has a private
Redis and no lock.

Exit code 1 if ours is not what was to be expected.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from celery import beat
from celery.schedules import crontab
from rich.console import Console
from rich.table import Table

from celery_singlebeat.testing import FakeClock
from celery_singlebeat.testing.servers import EmbeddedRedis
from tests.support.simulated import Fleet, messages, run, simulated_app
from tests.support.walls import Fields, changes, expected

YEAR = 2026
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Santiago")
BEFORE, AFTER = timedelta(hours=4), timedelta(hours=27)
MARK = "<!-- {} by python -m benchmarks.calendars -->"

Sent = dict[str, list[datetime]]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the clock, and the jobs that are sent around it."""

    zone: str
    moment: datetime
    forward: bool
    jobs: dict[str, Fields]

    @property
    def start(self) -> datetime:
        return self.moment - BEFORE + timedelta(seconds=30)

    @property
    def end(self) -> datetime:
        return self.moment + AFTER + timedelta(seconds=30)

    def expected(self, job: str) -> list[datetime]:
        return expected(self.jobs[job], ZoneInfo(self.zone), self.start, self.end)

    def entries(self) -> dict[str, Any]:
        return {
            job: crontab(_text(fields.minutes, 60), _text(fields.hours, 24))
            for job, fields in self.jobs.items()
        }


def _text(numbers: Collection[int], length: int) -> str:
    return "*" if len(numbers) == length else ",".join(map(str, numbers))


def all_changes() -> list[Change]:
    return [_around(zone, moment) for zone in ZONES for moment in changes(ZoneInfo(zone), YEAR)]


def _around(zone: str, moment: datetime) -> Change:
    info, minute = ZoneInfo(zone), timedelta(minutes=1)
    old = (moment - minute).astimezone(info).replace(tzinfo=None) + minute
    new = moment.astimezone(info).replace(tzinfo=None)
    middle = min(old, new) + abs(new - old) / 2
    where = "that does not exist" if new > old else "that comes twice"
    return Change(
        zone,
        moment,
        new > old,
        {
            "each minute": Fields(),
            "each hour": Fields(minutes={0}),
            f"daily {middle:%H:%M}, {where}": Fields(minutes={middle.minute}, hours={middle.hour}),
            "daily 12:00": Fields(minutes={0}, hours={12}),
        },
    )


def _run(scheduler: beat.Scheduler, change: Change, clock: FakeClock) -> Sent:
    with messages(clock) as published:
        run(scheduler, clock, change.end + timedelta(minutes=1))
    sent: Sent = {job: [] for job in change.jobs}
    for job, moment, _ in published:
        if moment <= change.end:
            sent[job].append(moment.replace(second=0, microsecond=0))
    return sent


def ours(change: Change) -> Sent:
    clock = FakeClock(change.start)
    with Fleet(clock).leader(change.entries(), timezone=change.zone) as scheduler:
        return _run(scheduler, change, clock)


def stock(change: Change) -> Sent:
    clock = FakeClock(change.start)
    app = simulated_app(clock, change.entries(), timezone=change.zone)
    scheduler = beat.Scheduler(app)
    scheduler.update_from_dict(app.conf.beat_schedule)
    return _run(scheduler, change, clock)


def redbeat(change: Change, server: EmbeddedRedis) -> Sent:
    from redbeat import RedBeatScheduler  # noqa: PLC0415 - it is not needed with --alone

    with server.client() as client:
        client.flushall()
    clock = FakeClock(change.start)
    app = simulated_app(
        clock,
        change.entries(),
        timezone=change.zone,
        beat_max_loop_interval=300,
        redbeat_redis_url=server.url(0),
        redbeat_lock_key=None,
    )
    return _run(RedBeatScheduler(app), change, clock)


@contextmanager
def contenders(*, alone: bool) -> Iterator[dict[str, Callable[[Change], Sent]]]:
    """The schedulers by their names, ours first."""
    with nullcontext() if alone else EmbeddedRedis() as server:
        found: dict[str, Callable[[Change], Sent]] = {"ours": ours}
        if server is not None:
            found |= {"stock beat": stock, "RedBeat": lambda change: redbeat(change, server)}
        yield found


def rows(found: dict[str, list[Sent]]) -> list[list[str]]:
    """One row for each change and job: zone, change, job, expected, and what each scheduler did."""
    lines = []
    for number, change in enumerate(all_changes()):
        date = change.moment.astimezone(ZoneInfo(change.zone))
        for job in change.jobs:
            wanted = change.expected(job)
            cells = [_cell(wanted, each[number][job], change.zone) for each in found.values()]
            way = "forward" if change.forward else "back"
            lines.append([change.zone, f"{way}, {date:%d %b}", job, _show(wanted, change.zone), *cells])
    return lines


def _cell(wanted: Sequence[datetime], sent: Sequence[datetime], zone: str) -> str:
    if wanted == sent:
        return "equal"
    missing = len(set(wanted) - set(sent))
    extra = len(sent) - (len(wanted) - missing)
    text = _show(sent, zone)
    notes = [f"{missing} missing"] * bool(missing) + [f"{extra} too many"] * bool(extra)
    return f"**{text}**: {', '.join(notes)}"


def _show(moments: Sequence[datetime], zone: str) -> str:
    if len(moments) > 4:
        return f"{len(moments):,}"
    return ", ".join(f"{moment.astimezone(ZoneInfo(zone)):%a %H:%M}" for moment in moments) or "never"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    table = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def write(page: Path, text: str) -> None:
    """Put the table into a page, between its marks."""
    old = page.read_text("utf-8")
    opening, end = MARK.format("written"), "<!-- end of the table -->"
    head, _, rest = old.partition(opening)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{opening}\n\n{text}\n\n{end}{tail}", "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calendars", description=__doc__)
    parser.add_argument("--alone", action="store_true", help="ours only; needs no Redis")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    chosen = parser.parse_args(argv)
    with contenders(alone=chosen.alone) as schedulers:
        found = {
            name: [scheduler(change) for change in all_changes()] for name, scheduler in schedulers.items()
        }
    header = ["zone", "clocks go", "job", "expected", *found]
    lines = rows(found)
    if chosen.write:
        write(chosen.write, markdown(header, lines))
    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0 if all(line[4] == "equal" for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
