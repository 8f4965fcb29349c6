"""The mixin over schedulers that are not Celery's own: their entries, their history, their ways to change."""

from datetime import datetime, timedelta, timezone
from typing import ClassVar

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler
from celery.schedules import maybe_schedule

from celery_singlebeat import SingleBeatMixin, signals
from celery_singlebeat.beat.mixin import LOOK
from celery_singlebeat.errors import SettingsError
from celery_singlebeat.testing.processes import wait_until

HOUR = timedelta(hours=1)


def make_app(name, **entries):
    app = Celery(name, broker="memory://", set_as_current=False)
    app.conf.update(
        beat_schedule=entries or {"tick": {"task": "tick", "schedule": HOUR}},
        result_expires=None,
        task_ignore_result=True,
        singlebeat_prefix=name,
    )
    return app


@pytest.fixture
def lead():
    """Make a scheduler and tick until it leads."""
    made = []

    def start(kind, app, **options):
        scheduler = kind(app, **options)
        made.append(scheduler)
        wait_until(lambda: scheduler.tick() and scheduler._machine.dispatcher.is_adopted, 10, "it never led")
        return scheduler

    yield start
    for scheduler in made:
        scheduler.close()


@pytest.fixture
def sent():
    found = []

    def hear(entry, **_):
        found.append(entry)

    signals.slot_dispatched.connect(hear, weak=False)
    yield found
    signals.slot_dispatched.disconnect(hear)


def make_due(scheduler, name="tick"):
    line = scheduler._machine.agenda.line(name)
    line.anchor = line.last = scheduler._machine.elector.due_now() - HOUR - timedelta(seconds=1)
    scheduler._machine.agenda.put(line)


class Ledger:
    """Where the schedulers below keep what ran: shared by all replicas, as a database is."""

    def __init__(self):
        self.written = []


class Keeping(Scheduler):
    """Notes runs in `reserve`, writes them in `sync`, and does something at each tick."""

    ledger = Ledger()
    ticks = 0

    def __init__(self, *args, **kwargs):
        self.dirty = set()
        super().__init__(*args, **kwargs)

    def tick(self, *args, **kwargs):
        self.ticks += 1
        return super().tick(*args, **kwargs)

    def reserve(self, entry):
        new = super().reserve(entry)
        self.dirty.add(new.name)
        return new

    def sync(self):
        self.ledger.written.append({name: self.schedule[name].total_run_count for name in self.dirty})
        self.dirty.clear()


class FencedKeeping(SingleBeatMixin, Keeping):
    ledger = Ledger()


def test_a_run_is_noted_and_written_by_the_leader_alone(lead, sent):  # B5
    app = make_app("keeping")
    leader = lead(FencedKeeping, app)
    standby = FencedKeeping(app)
    wait_until(lambda: standby.tick() and leader.tick(), 5)
    make_due(leader)
    wait_until(lambda: leader.tick() and standby.tick() and sent == ["tick"], 10, "it was not dispatched")
    for scheduler in (leader, standby):
        if scheduler.should_sync():
            scheduler._do_sync()
    assert FencedKeeping.ledger.written == [{"tick": 1}]
    standby.close()
    leader.close()
    assert FencedKeeping.ledger.written == [{"tick": 1}]  # there was nothing more to write


def test_a_history_that_cannot_be_kept_stops_nothing(lead, sent, caplog):  # B4
    class Broken(FencedKeeping):
        broken = True

        def reserve(self, entry):
            if self.broken:
                raise OSError("the disk is full")
            return super().reserve(entry)

    class BrokenSync(Keeping):
        def sync(self):
            raise OSError("the disk is gone")

    class FencedBroken(SingleBeatMixin, BrokenSync):
        reserve = Broken.reserve
        broken = True

    scheduler = lead(FencedBroken, make_app("broken"))
    make_due(scheduler)
    wait_until(lambda: scheduler.tick() and sent == ["tick"], 10, "it was not dispatched")
    assert "its run is not noted: OSError: the disk is full" in caplog.text
    scheduler.sync()
    scheduler.sync()
    assert caplog.text.count("the history cannot be written: OSError: the disk is gone") == 2
    assert scheduler.tick() > 0


def test_its_own_tick_is_not_run_and_one_line_says_so(lead, caplog):
    scheduler = lead(FencedKeeping, make_app("ticking"))
    assert scheduler.ticks == 0
    assert caplog.text.count("the tick() of FencedKeeping is not run") == 1


def test_a_tick_before_the_mixin_runs(lead, caplog):
    class Outer(SingleBeatMixin, Scheduler):
        ticks = 0

        def tick(self, *args, **kwargs):
            self.ticks += 1
            return super().tick(*args, **kwargs)

    assert lead(Outer, make_app("outer")).ticks > 0
    assert "is not run" not in caplog.text


class Twice(ScheduleEntry):
    """Decides itself: due every tenth of a second until it has run twice."""

    def is_due(self):
        if self.total_run_count >= 2:
            return False, 60
        waited = (datetime.now(timezone.utc) - self.last_run_at).total_seconds()
        return waited >= 0.1, 0.05


def test_an_entry_that_decides_itself_is_asked_and_knows_its_runs(lead, sent):  # W3
    class Deciding(Keeping):
        Entry = Twice

    class Fenced(SingleBeatMixin, Deciding):
        ledger = Ledger()

    scheduler = lead(Fenced, make_app("deciding"))
    wait_until(lambda: scheduler.tick() and len(sent) == 2, 10, "it did not run twice")
    line = scheduler._machine.agenda.line("tick")
    wait_until(
        lambda: scheduler.tick() and line.next and line.next - line.last > timedelta(seconds=20),
        5,
        lambda: line,
    )
    assert sent == ["tick", "tick"]


@pytest.mark.parametrize("longest", [-1, 0, 1e-9])
def test_an_interval_that_is_none_keeps_no_core_busy(lead, longest):
    class Fenced(SingleBeatMixin, Scheduler):
        pass

    scheduler = lead(Fenced, make_app(f"hasty {longest}"), max_interval=longest)
    assert 0.01 <= scheduler.tick() <= 0.1


class Slots:
    """An entry with slots alone, that is no `ScheduleEntry` and cannot be ordered."""

    __slots__ = (
        "app",
        "args",
        "kwargs",
        "last_run_at",
        "name",
        "options",
        "schedule",
        "task",
        "total_run_count",
    )

    def __init__(self, **fields):
        for name in self.__slots__:
            setattr(self, name, fields.get(name))
        self.schedule = maybe_schedule(self.schedule)

    is_due = ScheduleEntry.is_due


class Changeling(ScheduleEntry):
    """Makes itself into something that no message can be made of, once it was asked."""

    def is_due(self):
        self.options = ["no", "options"]
        return True, 0.1


def test_an_entry_with_slots_alone_is_dispatched(lead, sent):
    class Fenced(SingleBeatMixin, Scheduler):
        Entry = Slots

    scheduler = lead(Fenced, make_app("slots"))
    make_due(scheduler)
    wait_until(lambda: scheduler.tick() and sent == ["tick"], 10, "it was not dispatched")


def test_an_entry_that_spoils_itself_stops_no_other(lead, sent, caplog):  # B4
    class Spoiling(Scheduler):
        def setup_schedule(self):
            super().setup_schedule()
            self.schedule["bad"] = Changeling(name="bad", task="t", schedule=HOUR, app=self.app)

    class Fenced(SingleBeatMixin, Spoiling):
        pass

    scheduler = lead(Fenced, make_app("spoilt"))
    wait_until(lambda: scheduler.tick() and "'bad': its message cannot be made" in caplog.text)
    make_due(scheduler)
    wait_until(lambda: scheduler.tick() and sent == ["tick"], 10, "it was not dispatched")


def test_a_scheduler_in_front_of_the_mixin_is_refused():
    class Base(Scheduler):
        pass

    class Wrong(Base, SingleBeatMixin):
        pass

    class Abstract(SingleBeatMixin):
        pass

    class Right(Abstract, Scheduler):
        pass

    with pytest.raises(SettingsError, match=r"class Wrong\(SingleBeatMixin, Base\)"):
        Wrong(make_app("wrong"))
    with pytest.raises(SettingsError, match=r"class Abstract\(SingleBeatMixin, Scheduler\)"):
        Abstract(make_app("abstract"))
    assert Right(make_app("right"), lazy=True).info


def test_over_redbeat_its_own_lock_is_refused():
    class RedBeatScheduler(Scheduler):
        """The name and the attribute are those of celery-redbeat."""

        lock_key: str | None = "redbeat::lock"

    class Fenced(SingleBeatMixin, RedBeatScheduler):
        pass

    class Free(Fenced):
        lock_key = None

    with pytest.raises(SettingsError, match="set redbeat_lock_key = None"):
        Fenced(make_app("redbeat"), lazy=True)
    assert Free(make_app("free redbeat"), lazy=True).info


class Changing(Scheduler):
    """Reads its entries anew each time that it is asked, as a scheduler over a database does."""

    source: ClassVar[dict] = {}
    away = False

    @property
    def schedule(self):
        if self.away:
            raise ConnectionError("the database is away")
        return {name: self.Entry(name=name, app=self.app, **fields) for name, fields in self.source.items()}

    @schedule.setter
    def schedule(self, value):
        """It is read only."""


def test_a_schedule_that_changes_by_itself_is_looked_at(lead, caplog):
    class Fenced(SingleBeatMixin, Changing):
        source: ClassVar[dict] = {"a": {"task": "t", "schedule": HOUR}}

    scheduler = lead(Fenced, make_app("changing"), max_interval=0.05)
    agenda = scheduler._machine.agenda
    assert [line.name for line in agenda] == ["a"]
    adopted = scheduler._machine.dispatcher._adopted
    Fenced.source["b"] = {"task": "t", "schedule": HOUR}
    wait_until(lambda: scheduler.tick() and len(agenda) == 2, 5, "it did not see the new entry")
    Fenced.away = True
    wait_until(lambda: scheduler.tick() and "the database is away" in caplog.text, 5)
    assert len(agenda) == 2
    Fenced.source.pop("a")
    Fenced.away = False
    wait_until(lambda: scheduler.tick() and [line.name for line in agenda] == ["b"], 5, "it is still there")
    wait_until(lambda: scheduler.tick() and scheduler._machine.dispatcher._adopted == adopted, 5)


def test_a_schedule_that_stays_is_not_looked_at_again(lead):
    class Counting(Changing):
        source: ClassVar[dict] = {"a": {"task": "t", "schedule": HOUR}}
        fills = 0

    class Fenced(SingleBeatMixin, Counting):
        def _fill(self, *args):
            self.fills += 1
            super()._fill(*args)

    scheduler = lead(Fenced, make_app("staying"), max_interval=0.01)
    for _ in range(20):
        scheduler._look_at = 0.0
        scheduler.tick()
    assert scheduler.fills == 1
    assert LOOK <= 5


def test_celerys_persistent_scheduler_keeps_its_file_and_nothing_hangs_on_it(lead, sent, tmp_path):
    class Fenced(SingleBeatMixin, PersistentScheduler):
        pass

    file = str(tmp_path / "beat")
    app = make_app("persistent")
    scheduler = lead(Fenced, app, schedule_filename=file)
    make_due(scheduler)
    wait_until(lambda: scheduler.tick() and sent == ["tick"], 10, "it was not dispatched")
    mark = scheduler._machine.agenda.line("tick").mark
    scheduler.close()
    scheduler.close()  # as Celery does
    for path in tmp_path.iterdir():
        path.write_bytes(b"no database")
    again = lead(Fenced, app, schedule_filename=file)
    assert again._machine.agenda.line("tick").mark == mark
    for _ in range(5):
        again.tick()
    assert sent == ["tick"]


def test_a_scheduler_that_is_made_from_its_app_is_made_so_behind_the_mixin(lead):
    class Made(Scheduler):
        def __new__(cls, app, **_):
            made = super().__new__(cls)
            made.made_for = app
            return made

    class Fenced(SingleBeatMixin, Made):
        pass

    app = make_app("made")
    assert lead(Fenced, app).made_for is app
