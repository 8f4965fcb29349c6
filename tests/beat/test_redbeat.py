"""Entries that the real celery-redbeat wrote, taken over; judged by when RedBeat itself would run them."""

import json
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

from celery_singlebeat import EntryError, Schedule, SettingsError, StoreUnavailable
from celery_singlebeat.beat.redbeat import take
from celery_singlebeat.store.redis_redbeat import RedBeatSettings
from tests.beat.test_schedule import Bench

redbeat = pytest.importorskip("redbeat", reason="the tests import what celery-redbeat wrote")
rrule = redbeat.schedules.rrule

pytestmark = pytest.mark.redis

NOW = datetime.now(timezone.utc)
HOUR = timedelta(hours=1)


def make_app(url, **conf):
    app = Celery("moved", broker=url, set_as_current=False)
    app.conf.update(redbeat_redis_url=url, result_expires=None, **conf)
    return app


@pytest.fixture
def app(redis_url):
    return make_app(redis_url)


def save(app, name, asked, *, last=None, args=(), **fields):
    """Let RedBeat store an entry, and that it ran."""
    entry = redbeat.RedBeatSchedulerEntry(name, "proj.work", asked, args=list(args), app=app, **fields).save()
    if last is not None:
        entry.reschedule(last)
    return entry


def outcomes(app, **options):
    return {row["name"]: row["outcome"] for row in Schedule(app).import_redbeat(**options)}


def reason(app, name):
    (found,) = (row for row in Schedule(app).import_redbeat() if row["name"] == name)
    assert found["outcome"] == "refused"
    assert "\n" not in found["reason"]
    return found["reason"]


def everything(client):
    return {key: client.dump(key) for key in client.scan_iter()}


def next_of(app, name):
    (row,) = Schedule(app).next(1, name)
    return datetime.fromisoformat(row["slot"])


# When they run


_RULE = {"__type__": "rrule", "freq": 3, "dtstart": 1767225600.0}


def _ran(year, zone):
    moment = {"__type__": "datetime", "year": year, "month": 12, "day": 31, "hour": 23, "minute": 59}
    return json.dumps({"last_run_at": {**moment, "second": 0, "microsecond": 0, "timezone": zone}})


def in_zone(name, **fields):
    return rrule(dtstart=datetime(2026, 1, 5, 9, 30, tzinfo=ZoneInfo(name)), **fields)


SCHEDULES = {
    "hourly": schedule(3600),
    "more than a day": schedule(86400.5),
    "rounded": schedule(3600, relative=True),
    "crontab of minutes": crontab(minute="*/7"),
    "crontab of hours": crontab(minute=30, hour="2,14", day_of_week="mon-fri"),
    "crontab of days": crontab(0, 0, day_of_month="1", month_of_year="*/3"),
    "daily": in_zone("UTC", freq="DAILY"),
    "weekdays": in_zone("Europe/Berlin", freq="WEEKLY", byweekday=(0, 3), byhour=[9, 17]),
    "last day": in_zone("America/New_York", freq="MONTHLY", bymonthday=-1, interval=2),
    "last Friday": in_zone("Europe/Berlin", freq="MONTHLY", byweekday=4, bysetpos=-1, wkst=6),
    "five hours": in_zone("Europe/Berlin", freq="HOURLY", interval=5, byminute=[0, 20]),
    "minutes": in_zone("Europe/Berlin", freq="MINUTELY", interval=90),
    "hours": in_zone("UTC", freq="HOURLY", byhour=[3, 4], bymonth=[1, 6, 12]),
    "Easter": in_zone("UTC", freq="YEARLY", byeaster=1),
    "days of the year": in_zone("UTC", freq="YEARLY", byyearday=[10, 200], count=1000),
    "until": in_zone("Europe/Berlin", freq="DAILY", until=datetime(2040, 1, 1, tzinfo=timezone.utc)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_entry_runs_next_when_redbeat_would_have_run_it(app, name):
    last = NOW - timedelta(minutes=3)
    save(app, name, SCHEDULES[name], last=last)
    is_due, wait = redbeat.RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app).is_due()
    now = datetime.now(timezone.utc)
    assert outcomes(app) == {name: "added"}
    between = Schedule(app).backfill(name, last, now, dry_run=True)
    assert bool(between) == is_due
    assert abs(next_of(app, name) - (now + timedelta(seconds=wait))) < timedelta(seconds=2)


def test_a_run_that_is_overdue_is_made_up_for_once_and_one_that_was_made_is_not_repeated(redis_url):
    bench = Bench(redis_url)
    app = bench.app
    app.conf.redbeat_redis_url = redis_url
    save(app, "overdue", schedule(3600), last=NOW - 3 * HOUR)
    save(app, "done", schedule(3600), last=NOW - timedelta(seconds=1))
    save(app, "off", schedule(0.1), last=NOW - 3 * HOUR, enabled=False)
    save(app, "nightly", crontab(minute=NOW.minute, hour=NOW.hour), last=NOW - timedelta(hours=30))
    save(app, "quick", schedule(0.1), last=NOW)
    assert bench.schedule.import_redbeat()
    try:
        bench.start()
        bench.turn_until(lambda: len(bench.slots("quick")) >= 3)
        bench.turn_for(0.2)
        assert [len(bench.slots(name)) for name in ("overdue", "done", "off")] == [1, 0, 0]
        (slot,) = bench.slots("overdue")
        assert abs(slot - NOW) < timedelta(seconds=120)
        assert len(bench.slots("nightly")) == 1
        assert bench.row("off")["enabled"] is False
    finally:
        bench.close()


def test_everything_that_the_call_has_is_taken_over(redis_url):
    bench = Bench(redis_url)
    app = bench.app
    app.conf.redbeat_redis_url = redis_url
    options = {"queue": bench.name, "expires": 300, "headers": {"x": 1}}
    save(app, "e", schedule(3600), args=[1, {"a": None}], kwargs={"kind": "pdf"}, options=options)
    bench.schedule.import_redbeat()
    bench.schedule.run("e")
    (message,) = map(json.loads, bench.client.lrange(bench.name, 0, -1))
    assert message["headers"]["task"] == "proj.work"
    assert message["headers"]["x"] == 1
    assert message["headers"]["expires"]
    assert message["headers"]["argsrepr"] == "[1, {'a': None}]"
    assert message["headers"]["kwargsrepr"] == "{'kind': 'pdf'}"
    bench.close()


# What becomes of each


def test_a_second_import_changes_nothing_and_takes_over_later_runs(app):
    entry = save(app, "e", schedule(3600), last=NOW - timedelta(minutes=50))
    save(app, "f", schedule(60))
    assert outcomes(app) == {"e": "added", "f": "added"}
    assert outcomes(app) == {"e": "same", "f": "same"}
    entry.reschedule(NOW - timedelta(minutes=10))
    save(app, "f", schedule(60), args=[1])
    assert outcomes(app, dry_run=True) == {"e": "changed", "f": "changed"}
    assert outcomes(app) == {"e": "changed", "f": "changed"}
    assert abs(next_of(app, "e") - (NOW + timedelta(minutes=50))) < timedelta(seconds=2)


def test_a_dry_run_says_the_same_and_writes_nothing(app, redis_client):
    save(app, "good", schedule(60))
    save(app, "bad", schedule(60), args=[NOW])
    before = everything(redis_client)
    found = outcomes(app, dry_run=True)
    assert everything(redis_client) == before
    assert found == outcomes(app) == {"good": "added", "bad": "refused"}
    after = everything(redis_client)
    assert {key: after[key] for key in before} == before  # RedBeat's keys stay as they are


def test_what_redbeat_took_from_the_configuration_is_left_there(redis_url):
    theirs = make_app(redis_url, beat_schedule={"old": {"task": "t", "schedule": 60}})
    redbeat.RedBeatScheduler(theirs)  # it stores its static entries as soon as it is made
    save(theirs, "celery.backend_cleanup", crontab(minute=0, hour=4))
    save(theirs, "mine", schedule(60))
    save(theirs, "ours now", schedule(60))
    ours = make_app(redis_url, beat_schedule={"ours now": {"task": "t", "schedule": 60}})
    assert outcomes(ours) == {
        "old": "static",
        "celery.backend_cleanup": "static",
        "ours now": "static",
        "mine": "added",
    }


def test_one_entry_that_cannot_be_taken_over_keeps_no_other_out(app, redis_client):  # G8
    save(app, "good", schedule(60))
    save(app, "time in args", schedule(60), args=[NOW])
    save(app, "over", in_zone("UTC", freq="DAILY", until=datetime(2026, 2, 1, tzinfo=timezone.utc)))
    good = redis_client.hget("redbeat:good", "definition")
    damaged = {
        "cut": {"definition": good[:20]},
        "gone": {"meta": "{}"},
        "list": {"definition": "[]"},
        "moon": {"definition": good.replace('"interval"', '"lunar"')},
        "cron": {"definition": good.replace('"interval"', '"crontab"')},
        "odd run": {"definition": good, "meta": '{"last_run_at": "yesterday"}'},
        "no task": {"definition": good.replace('"proj.work"', "null")},
        "far": {"definition": good.replace("60.0", "1e300")},
        "below": {"definition": good.replace("60.0", "-60.0")},
        "nested": {"definition": "[" * 100_000},
        "no text": {"definition": b"\xff\xfe"},
        "year 9999": {"definition": good, "meta": _ran(9999, "America/New_York")},
        "new\nline": {"definition": good},
        "endless": {"definition": json.dumps({"task": "t", "schedule": {**_RULE, "interval": 0}})},
    }
    for name, fields in damaged.items():
        redis_client.hset(f"redbeat:{name}", mapping=fields)
    found = outcomes(app)
    assert found.pop("good") == "added"
    assert set(found) == {"time in args", "over", *damaged}
    assert set(found.values()) == {"refused"}
    assert [row["name"] for row in Schedule(app).list()] == ["good"]
    assert "its args cannot be kept as JSON" in reason(app, "time in args")
    assert "no slot to come" in reason(app, "over")
    assert "'lunar'" in reason(app, "moon")
    assert "no definition" in reason(app, "gone")
    assert "'yesterday'" in reason(app, "odd run")


def test_a_last_run_in_the_future_counts_as_now(app):
    save(app, "e", schedule(3600), last=NOW + timedelta(days=3))
    outcomes(app)
    assert next_of(app, "e") - datetime.now(timezone.utc) <= HOUR


def test_an_entry_of_which_no_run_is_known_begins_with_its_first_import(app, redis_client):
    save(app, "future", schedule(3600), last=NOW + timedelta(days=3))
    save(app, "never", schedule(3600))
    redis_client.hdel("redbeat:never", "meta")
    assert outcomes(app) == {"future": "added", "never": "added"}
    planned = next_of(app, "future"), next_of(app, "never")
    assert outcomes(app, dry_run=True) == outcomes(app) == {"future": "same", "never": "same"}
    assert (next_of(app, "future"), next_of(app, "never")) == planned


# Rules and their offsets


def test_an_offset_that_no_zone_of_whole_hours_has_needs_the_apps_zone(redis_url):
    start = datetime(2026, 1, 5, 9, 30, tzinfo=ZoneInfo("Asia/Kolkata"))
    entry = save(make_app(redis_url), "e", rrule("DAILY", dtstart=start))
    assert "+0530" in reason(make_app(redis_url), "e")
    app = make_app(redis_url, timezone="Asia/Kolkata")
    assert outcomes(app) == {"e": "added"}
    assert next_of(app, "e").astimezone(start.tzinfo).time() == start.time()
    entry.delete()
    lord_howe = ZoneInfo("Australia/Lord_Howe")  # it changes its clocks
    save(app, "e", rrule("DAILY", dtstart=datetime(2026, 7, 1, 9, tzinfo=lord_howe)))
    assert "+1030" in reason(make_app(redis_url, timezone="Australia/Lord_Howe"), "e")


def test_an_hourly_rule_that_picks_hours_of_another_offset_is_refused(app):
    save(app, "e", in_zone("Europe/Berlin", freq="HOURLY", byhour=[9, 10]))
    assert "in UTC" in reason(app, "e")


def test_an_aware_moment_is_read_in_each_of_the_forms_that_redbeat_writes():
    def last(zone):
        moment = {"__type__": "datetime", "year": 2026, "month": 7, "day": 1, "hour": 12, "minute": 0}
        meta = json.dumps({"last_run_at": {**moment, "second": 0, "microsecond": 0, "timezone": zone}})
        every = {"__type__": "interval", "every": 60, "relative": False}
        return take("e", json.dumps({"task": "t", "schedule": every}), meta, zone=None).last_run_at

    assert last("UTC") == last("Etc/UTC") == last(0.0) == datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
    assert last("Europe/Berlin") == last(7200.0) == datetime(2026, 7, 1, 10, tzinfo=timezone.utc)
    with pytest.raises(EntryError, match="cannot be read"):
        last("Mars")


# Where they are


def test_prefix_and_server_are_those_of_redbeats_own_settings(redis_server, redis_url, redis_client):
    there = redis_server.url(
        (int(redis_url.rpartition("/")[2]) + 1) % 64
    )  # another database than the test's own
    settings = {"redbeat_key_prefix": "r[b]*?:", "redbeat_redis_options": {"client_name": "x"}}
    theirs = make_app(there, **settings)
    save(theirs, "e", schedule(60))
    save(make_app(there, redbeat_key_prefix="rb:"), "another's", schedule(60))
    ours = Celery("moved", broker=redis_url, set_as_current=False)
    ours.conf.update(REDBEAT_REDIS_URL=there, **settings)
    assert outcomes(ours) == {"e": "added"}
    assert redis_client.keys("*schedule") == ["singlebeat:moved:{sb}:schedule"]
    redis.Redis.from_url(there).flushdb()


def test_without_its_own_url_redbeat_is_where_the_broker_is(redis_url):
    app = Celery("moved", broker=redis_url, set_as_current=False)
    save(make_app(redis_url), "e", schedule(60))
    assert outcomes(app) == {"e": "added"}


def test_whether_a_redbeat_leads_is_seen_from_its_lock(redis_url):
    for lock in (None, "redbeat::lock", "mine"):
        app = make_app(redis_url, **({"redbeat_lock_key": lock} if lock == "mine" else {}))
        assert not Schedule(app).redbeat_leads()
        if lock is not None:
            with redis.Redis.from_url(redis_url) as client:
                key = redbeat.schedulers.RedBeatConfig(app).lock_key
                client.set(key, "token")
                assert Schedule(app).redbeat_leads()
                client.delete(key)


@pytest.mark.parametrize(
    ("conf", "error", "words"),
    [
        ({"redbeat_redis_url": None}, SettingsError, "redbeat_redis_url is not set"),
        ({"redbeat_redis_url": "redis-cluster://a"}, SettingsError, "Cluster"),
        ({"redbeat_redis_url": "redis://:hidden@h:port/0"}, SettingsError, "cannot be read"),
        ({"redbeat_redis_options": {"nonsense": 1}}, SettingsError, "cannot be read"),
        ({"redbeat_redis_options": 5}, SettingsError, "is a int: give a dict"),
        ({}, StoreUnavailable, "no answer"),
    ],
)
def test_a_server_that_cannot_be_read_is_told_without_its_password(conf, error, words):
    app = Celery("moved", broker="memory://", set_as_current=False)
    app.conf.update({"redbeat_redis_url": "redis://:hidden@127.0.0.1:1/0", **conf})
    with pytest.raises(error, match=words) as caught:
        Schedule(app).import_redbeat()
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sentinels_and_certificates_are_given_to_the_client_as_redbeat_gives_them():
    def client(**conf):
        app = make_app(conf.pop("url"), **conf)
        return RedBeatSettings.from_conf(app.conf, broker_url="").connect(timeout=1)

    options = {"sentinels": [("127.0.0.1", 1)], "service_name": "m", "password": "p", "db": 3}
    pool = client(url="redis-sentinel://", redbeat_redis_options=options).connection_pool
    assert (pool.service_name, pool.connection_kwargs["db"]) == ("m", 3)
    assert pool.connection_kwargs["password"] == "p"
    secure = client(url="rediss://h:1/0", redbeat_redis_use_ssl={"ssl_ca_certs": "ca.pem"}).connection_pool
    assert secure.connection_kwargs["ssl_ca_certs"] == "ca.pem"
    assert secure.connection_kwargs["socket_timeout"] == 1
