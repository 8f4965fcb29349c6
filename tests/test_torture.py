"""The storm in short, and its judge before histories by hand: what it must condemn, and what it must not."""

import itertools
import json
import uuid
from datetime import datetime, timezone

import pytest
import redis

from celery_singlebeat.policy.slots import task_id
from celery_singlebeat.testing.servers import ServerNotFoundError
from tests.support.missing import miss
from tests.torture import __main__ as command
from tests.torture import checker, flatness, history, picture, report
from tests.torture.plan import FAMILIES, KINDS, chosen, needs, steps
from tests.torture.storm import Options
from tests.torture.tap import Tap
from tests.torture.timetable import PREFIX, changed, make_schedule, rule_of

ZERO = 1_800_000_000_000
ALL = {"every": 1000, "misfire": "all", "queue": "celery"}
LATEST = {"every": 1000, "misfire": "latest", "queue": "celery"}
EVERY_MINUTE = {"align": 60_000, "misfire": "all", "queue": "celery"}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.redis
@pytest.mark.timeout(300)
def test_a_short_storm_loses_nothing_and_doubles_nothing(tmp_path, capsys):  # G1, G5, G9
    options = Options(seed=4, duration=26, replicas=4, entries=120)
    try:
        code = command.run(options, tmp_path, print)
    except ServerNotFoundError as error:
        miss(error)
    assert code == 0, capsys.readouterr().out
    assert (tmp_path / "history.svg").stat().st_size > 1000


# The judge


class Story:
    """A history by hand: one entry "e", whose rule is enrolled at ZERO. Seconds since then."""

    def __init__(self, entry=ALL, **run):
        self.records = []
        self.sent = 0
        self.now = 0.0
        self.batch = 0
        run = {"broker": "redis", "prefix": PREFIX, "failover": 4.0, "replicas": 1, "command": "", **run}
        self._add("run", **run)
        self.version({"e": entry})
        self.enroll(0, entry)

    def _add(self, kind, **facts):
        self.records.append({"k": kind, "t": self.now, **facts})

    def version(self, entries):
        number = sum(record["k"] == "version" for record in self.records)
        self._add("version", number=number, entries=entries, what="")

    def enroll(self, anchor, entry, *, gone=()):
        entries = {"e": [ZERO + round(anchor * 1000), rule_of(entry) or "cron"]} if entry else {}
        self._add("enrolled", r=ZERO + round(self.now * 1000), entries=entries, gone=list(gone), left=0)

    def take(self, *slots, at=None, r=None, epoch=1, batch=None, call_id=None):
        """Messages for slots, each taken just after it was due, or at `at`."""
        for slot in slots:
            self.now = max(self.now, slot + 0.05) if at is None else at
            self.batch += 1
            millis = ZERO + round(slot * 1000)
            moment = datetime.fromtimestamp(millis / 1000, timezone.utc)
            taken = ZERO + round(self.now * 1000)
            self._add(
                "m",
                e="e",
                s=millis,
                p=epoch,
                i=call_id or task_id(PREFIX, "e", moment),
                b=self.batch if batch is None else batch,
                q=0,
                r=taken if r is None else ZERO + round(r * 1000),
                w=taken,
            )
            self.sent += 1
        return self

    def lead(self, epoch):
        self._add("lead", token=f"{epoch}:x", epoch=epoch, pid=1)
        return self

    def fault(self, phase, name):
        self._add("fault", id=1, name=name, hits="server", target=0, phase=phase)
        return self

    def lose(self, *, restored):
        self._add("loss", how="by hand", restored=restored, known=self.batch)
        self.batch = restored
        return self

    def trouble(self, what):
        self._add("trouble", what=what)
        return self

    def judge(self, *, until=None, skipped=0, **counters):
        """The verdict, after all slots up to `until` had their time."""
        settled = (self.now if until is None else until) - 0.04
        moment = ZERO + round(settled * 1000)
        self.now = max(self.now, settled) + 1
        number = sum(record["k"] == "version" for record in self.records) - 1
        self._add("settled", r=moment, w=moment, version=number)
        self._add("end", counters={"dispatched": self.sent, "missed": skipped, **counters}, outbox=0)
        return checker.check(self.records)

    def kinds(self, **facts):
        return {violation.kind for violation in self.judge(**facts).violations}


def test_every_slot_once_and_in_time_is_acquitted():
    verdict = Story().lead(1).take(1, 2, 3, 4, 5).judge()
    assert verdict.is_clean, verdict.violations
    assert (verdict.messages, verdict.slots, verdict.skipped) == (5, 5, 0)


def test_nothing_at_all_is_not_acquitted():
    assert not Story().judge(until=0.5).is_clean


@pytest.mark.parametrize("times", [2, 3])
def test_a_slot_that_came_twice_is_condemned(times):
    story = Story().take(1, 2, 3).take(*[2] * (times - 1), at=3.2).take(4)
    found = [violation for violation in story.judge(dispatched=4).violations if violation.kind == "twice"]
    assert len(found) == times - 1
    assert found[0].entry == "e"


def test_a_slot_that_never_came_is_condemned():
    assert Story().take(1, 2, 4, 5).kinds() == {"lost"}


def test_slots_that_are_due_before_the_end_and_never_came_are_condemned():
    verdict = Story().take(1, 2, 3).judge(until=6.5)
    assert [violation.kind for violation in verdict.violations] == ["lost"] * 3


def test_a_slot_that_latest_may_skip_is_counted_as_skipped():
    # the failover window is 4 s
    verdict = Story(LATEST).take(5, 6, 7, 8, 9, at=9.2).judge(skipped=4)
    assert verdict.is_clean, verdict.violations
    assert verdict.skipped == 4


def test_a_slot_within_the_failover_window_may_not_be_skipped_even_by_latest():
    assert Story(LATEST).take(1, 2).take(4, 5, at=5.1).kinds() == {"lost"}


def test_a_slot_that_all_may_not_skip_is_condemned_however_late_the_next_one_is():
    assert "lost" in Story(ALL).take(5, 6, 7, 8, at=9.2).kinds()


def test_a_slot_before_its_time_is_condemned():
    assert "early" in Story().take(1, 2).take(3, at=2.9).kinds(until=3.2)


def test_a_slot_before_its_time_by_the_store_is_condemned_unless_the_stores_clock_was_stepped():
    assert "early" in Story().take(1, 2).take(3, r=2.9).kinds()
    stepped = Story().take(1, 2).fault("begin", "redis clock").take(3, r=-3597).fault("end", "redis clock")
    assert stepped.judge().is_clean


def test_slots_out_of_order_are_condemned():
    assert Story().take(1, 3).take(2, at=3.1).take(4).kinds() == {"order"}


def test_an_older_epoch_after_a_newer_one_is_condemned():
    assert Story().take(1, epoch=7).take(2, epoch=6).take(3, epoch=7).kinds() == {"epoch"}


def test_a_message_of_a_leader_whose_successor_was_seen_before_is_condemned():
    assert Story().lead(6).take(1, epoch=6).lead(7).take(2, epoch=6).take(3, epoch=7).kinds() == {"epoch"}


def test_an_epoch_that_falls_is_condemned():
    assert Story().lead(7).lead(6).take(1, 2, epoch=7).kinds() == {"epoch"}


def test_another_task_id_is_condemned():
    assert Story().take(1, call_id=str(uuid.uuid4())).take(2).kinds() == {"id"}


def test_a_slot_beside_the_rule_is_condemned():
    assert "unexpected" in Story().take(1, 1.4, 2).kinds()


def test_totals_that_disagree_are_condemned():
    assert Story().take(1, 2).kinds(dispatched=3) == {"totals"}
    assert Story().take(1, 2).kinds(skipped=1) == {"totals"}


def test_a_crontab_has_its_slots_on_the_minute_whatever_its_anchor():
    story = Story(EVERY_MINUTE)
    first = 60 - ZERO // 1000 % 60
    assert story.take(first, first + 60).kinds() == {"silence"}
    assert Story(EVERY_MINUTE).take(first, first + 120).kinds() == {"silence", "lost"}


def test_a_replaced_rule_drops_what_it_had_not_dispatched_and_the_new_one_begins():
    faster = {**ALL, "every": 500}

    def story(*slots):
        told = Story().take(1, 2)
        told.version({"e": faster})
        told.now = 4.25
        told.enroll(4.25, faster)
        return told.take(*slots)

    assert story(4.75, 5.25, 5.75).judge().is_clean
    assert story(4.75, 5.75).kinds() == {"lost"}
    assert "unexpected" in story(4.75, 5, 5.25).kinds()


def test_a_removed_entry_owes_nothing():
    story = Story().take(1, 2)
    story.version({})
    assert story.judge(until=9).is_clean


def test_a_slot_comes_again_only_if_it_was_taken_within_what_the_store_lost():
    lost = Story().take(1, 2, 3, epoch=5).lose(restored=1).take(2, 3, at=3.4, epoch=4).take(4, epoch=4)
    verdict = lost.judge()
    assert verdict.is_clean, verdict.violations
    assert verdict.again == 2
    assert "twice" in Story().take(1, 2, 3).lose(restored=2).take(2, 3, at=3.4).take(4).kinds()
    assert "twice" in Story().take(1, 2).lose(restored=1).take(2, 2, at=2.4).take(3).kinds()


def test_a_store_that_lost_everything_enrolls_again_and_owes_what_comes_after():
    def story(*slots):
        told = Story().take(1, 2).lose(restored=0)
        told.now = 4.3
        told.enroll(0, None, gone=["e"])
        told.enroll(4.3, ALL)
        return told.take(*slots)

    assert story(5.3, 6.3, 7.3).judge().is_clean
    assert story(5.3, 7.3).kinds() == {"lost"}


def test_executions_may_come_late_and_in_any_order_but_not_twice():
    assert Story(broker="rabbitmq").take(1, 3).take(2, at=3.1).judge().is_clean
    assert "twice" in Story(broker="rabbitmq").take(1, 2, 3).take(1, at=3.1).kinds()


def test_a_silence_that_no_fault_explains_is_condemned():
    verdict = Story().take(1, 2).take(*range(3, 40), at=39.1).judge()
    assert {violation.kind for violation in verdict.violations} == {"silence"}
    assert verdict.silence == pytest.approx(37, abs=0.1)
    assert "silence" in Story().take(1, 2).kinds(until=40)


def test_leaders_that_sent_nothing_are_counted():
    verdict = Story().lead(5).lead(6).lead(7).take(1, 2, epoch=7).judge()
    assert (verdict.epochs, verdict.idle_epochs) == (3, 2)


def test_trouble_and_an_unfinished_history_are_condemned():
    assert Story().take(1, 2).trouble("beat1 ended by itself with -11").kinds() == {"trouble"}
    assert not checker.check(Story().take(1, 2).records).is_clean


def test_lateness_is_told_for_each_fault_that_was_at_work():
    story = Story().take(1).fault("begin", "freeze").take(2, at=2.6).fault("end", "freeze")
    story.now = 9.0
    lateness = story.take(3, 4, 5, 6, 7, 8, 9).judge().lateness
    assert lateness["freeze"].most == pytest.approx(6.0, abs=0.1)  # the slots that fell into it
    assert lateness["calm"].most == pytest.approx(5.0, abs=0.1)
    assert lateness["all"].number == 9


def test_a_report_shows_the_history_around_a_violation(tmp_path):
    story = Story(seed=1, lease=2.0).take(1, 2, 3).take(2, at=3.2)
    verdict = story.judge()
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in story.records))
    told = "\n".join(report.lines(verdict, path))
    assert "VIOLATIONS: twice 1" in told
    assert told.count(str(ZERO + 2000)) >= 2
    assert list(history.read(path)) == story.records


def test_a_picture_shows_who_led_what_was_broken_and_where_it_went_wrong():
    records = [
        {"k": "run", "t": 0.0, "replicas": 2, "command": "a <storm>"},
        {"k": "process", "t": 0.0, "index": 0, "phase": "start", "pid": 10},
        {"k": "process", "t": 0.0, "index": 1, "phase": "start", "pid": 11},
        {"k": "lead", "t": 1.0, "pid": 10, "token": "1:x", "epoch": 1},
        {"k": "fault", "t": 10.0, "id": 1, "name": "stop", "hits": "process", "target": 0, "phase": "begin"},
        {"k": "lead", "t": 11.0, "pid": 11, "token": "2:x", "epoch": 2},
        {"k": "fault", "t": 20.0, "id": 1, "name": "stop", "hits": "process", "target": 0, "phase": "end"},
        {"k": "m", "t": 25.0},
        {"k": "process", "t": 30.0, "index": 0, "phase": "exit", "pid": 10},
        {"k": "end", "t": 40.0},
    ]
    drawing = picture.draw(records, [checker.Violation("twice", 25.0, "twice & more")])
    lines = {line.split()[0]: line[8:] for line in picture.text(drawing)[1:]}
    assert lines["beat0"].startswith("-LLLLLLLLLssssssssss----------x")
    assert lines["beat1"].startswith("-----------LLLLL")
    assert lines["!"].find("!") == 25 - 8 or "!" in picture.text(drawing)[-1]
    drawn = picture.svg(drawing)
    assert "a &lt;storm&gt;" in drawn
    assert "twice &amp; more" in drawn
    assert "stop 10.00 to 20.00 s" in drawn


def test_what_grows_is_told():
    beat = {"index": 0, "pid": 7, "threads": 3, "descriptors": 9}
    samples = [
        {
            "t": 10.0 * number,
            "beats": [{**beat, "memory": 50_000_000 + 1_000_000 * number}],
            "harness": {},
            "redis": {"keys": 14, "memory": 2_000_000},
        }
        for number in range(12)
    ]
    told = flatness.lines(samples)
    assert told[0].startswith("beat0 (pid 7), 110 s: memory 55 -> 61 MB")
    assert "threads 3 -> 3" in told[0]
    assert "keys 14 -> 14" in told[1]


# The plan


def test_a_seed_decides_entries_and_faults():
    assert make_schedule(5, 300) == make_schedule(5, 300) != make_schedule(6, 300)
    plan = [list(itertools.islice(steps(5, KINDS, replicas=5, lease=2, spared=0), 200)) for _ in range(2)]
    assert plan[0] == plan[1]
    assert {step.fault.kind.family for step in plan[0]} == set(FAMILIES)
    assert all(
        step.fault.kind.shortest <= step.fault.seconds / (2 if step.fault.kind.in_leases else 1) + 1e-9
        for step in plan[0]
    )


def test_a_schedule_has_hundreds_of_entries_of_every_kind():
    schedule = make_schedule(1, 300)
    assert len(schedule) == 300
    assert {entry["misfire"] for entry in schedule.values()} == {"all", "latest"}
    assert min(entry.get("every", 60_000) for entry in schedule.values()) == 200
    assert any("align" in entry for entry in schedule.values())


def test_a_rolling_change_adds_removes_or_changes_one_entry():
    schedule = make_schedule(1, 100)
    for version in range(1, 60):
        after, what = changed(schedule, 1, version)
        differ = {name for name in {*schedule, *after} if schedule.get(name) != after.get(name)}
        assert len(differ) == 1
        assert what.split()[0] in {"add", "remove", "change"}
        schedule = after


def test_faults_that_would_meet_at_one_thing_are_kept_apart():
    faults = {}
    for step in itertools.islice(steps(1, KINDS, replicas=3, lease=2, spared=0), 2000):
        faults.setdefault(step.fault.name, step.fault)
    assert needs(faults["stop"], 1, 3) & needs(faults["kill"], 1, 3)
    assert not needs(faults["stop"], 1, 3) & needs(faults["stop"], 2, 3)
    assert not needs(faults["stop"], 1, 3) & needs(faults["cut"], 1, 3)
    assert needs(faults["beat clock"], 1, 3) & needs(faults["redis clock"], 1, 3)  # G5: of any one clock
    assert needs(faults["roll"], 0, 3) & needs(faults["kill"], 2, 3)


def test_faults_are_chosen_by_name_or_family():
    assert {kind.name for kind in chosen(["clock", "kill"], "redis")} == {"beat clock", "redis clock", "kill"}
    assert "broker" not in {kind.family for kind in chosen(["all"], "redis")}
    assert "lossy" not in {kind.family for kind in chosen(["all"], "rabbitmq")}
    with pytest.raises(ValueError, match="no such fault: kil"):
        chosen(["kil"], "redis")


# The tap


class _Silent:
    """A script whose answer is lost: the server has run it."""

    def __init__(self, script):
        self.script = script

    def __call__(self, **arguments):
        self.script(**arguments)
        raise redis.ConnectionError("lost")


def _message(number):
    headers = {
        "singlebeat_entry": "e",
        "singlebeat_slot": "2027-01-15T08:00:00+00:00",
        "singlebeat_epoch": number,
    }
    return json.dumps({"body": "", "headers": {**headers, "id": f"id{number}"}})


def test_a_message_whose_taking_got_no_answer_is_neither_lost_nor_counted_twice(redis_client, tmp_path):
    told = history.History(tmp_path / "history.jsonl")
    tap = Tap(redis_client, told, PREFIX, ["first", "second"])
    redis_client.lpush("first", _message(1), _message(2))
    redis_client.lpush("second", _message(3))
    script, tap._script = tap._script, _Silent(tap._script)
    with pytest.raises(redis.ConnectionError):
        tap.turn(0.0)
    redis_client.lpush("first", _message(4))
    tap._script = script
    assert [tap.turn(0.1), tap.turn(0.2), tap.turn(0.3)] == [3, 1, 0]
    told.close()
    assert [one["i"] for one in history.read(told.path) if one["k"] == "m"] == ["id1", "id2", "id3", "id4"]


def test_the_tap_knows_what_it_had_taken_when_the_store_lost_data(redis_client, tmp_path):
    told = history.History(tmp_path / "history.jsonl")
    tap = Tap(redis_client, told, PREFIX, ["first"])
    for number in range(3):
        redis_client.lpush("first", _message(number))
        tap.turn(0.0)
    redis_client.hset("tap:batch", "number", 1)  # as a server that lost the last two batches
    with pytest.raises(RuntimeError, match="it has lost data"):
        tap.turn(0.1)
    assert tap.after_loss(0.1, "by hand") == 1
    redis_client.lpush("first", _message(9))
    assert tap.turn(0.2) == 1
    told.close()
    loss = next(one for one in history.read(told.path) if one["k"] == "loss")
    assert (loss["restored"], loss["known"]) == (1, 3)


def test_a_folder_of_another_storm_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "schedule0.json").write_text("{}")
    monkeypatch.setattr("sys.argv", ["torture", "--keep", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert f"--keep {tmp_path}: the folder of another storm" in capsys.readouterr().err
