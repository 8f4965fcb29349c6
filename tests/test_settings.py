import types
from datetime import timedelta

import pytest
from celery import Celery

from celery_singlebeat import SingleBeatScheduler
from celery_singlebeat.errors import SettingsError, SingleBeatError
from celery_singlebeat.settings import Settings
from celery_singlebeat.wiring import wire

URL = "redis://localhost:6379/0"


def read(**conf):
    return Settings.from_conf({"singlebeat_redis_url": URL, **conf}, main="shop")


@pytest.mark.parametrize(
    ("spelling", "namespace"),
    [
        ("singlebeat_lease_ttl", None),
        ("SINGLEBEAT_LEASE_TTL", None),
        ("CELERY_SINGLEBEAT_LEASE_TTL", "CELERY"),
        ("PROJ_SINGLEBEAT_LEASE_TTL", "PROJ"),
    ],
)
def test_every_spelling_that_celery_takes_is_read(spelling, namespace):  # X1
    app = Celery("shop", broker=URL, set_as_current=False)
    app.config_from_object(types.SimpleNamespace(**{spelling: 60}), namespace=namespace)
    assert wire(app).settings.lease_ttl == 60


@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", 1, timedelta(hours=1)])
def test_a_beat_does_not_start_in_a_zone_that_is_none(zone):  # X3
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    with pytest.raises(SettingsError) as caught:
        SingleBeatScheduler(app, lazy=True)
    assert str(caught.value) == f"timezone={zone!r}: give an IANA name such as 'Europe/Berlin', or a tzinfo"


@pytest.mark.parametrize("spelling", ["singlebeat_lock_ttl", "SINGLEBEAT_LOCK_TTL"])
def test_settings_that_are_set_on_the_app_are_read(spelling):  # X1
    app = Celery("shop", broker=URL, set_as_current=False)
    app.conf[spelling] = "12.5"
    assert wire(app).settings.lock_ttl == 12.5


def test_numbers_may_be_text():  # X2
    settings = read(singlebeat_lease_ttl=" 6 ", singlebeat_poison_limit="3", singlebeat_dedupe_ttl="0")
    assert (settings.lease_ttl, settings.renew_every) == (6.0, 2.0)
    assert (settings.poison_limit, settings.dedupe_ttl) == (3, 0.0)


def test_nothing_given_is_the_documented_default():
    settings = read()
    assert (settings.lease_ttl, settings.takeover_grace, settings.prefix) == (10.0, 0.3, "singlebeat:shop")
    assert settings.renew_every == pytest.approx(10 / 3)
    assert settings.dead_letter_queue == "dead_letters"


@pytest.mark.parametrize("interval", [0, 300])
def test_the_lease_does_not_depend_on_the_loop_of_beat(interval):
    app = Celery("shop", broker=URL, set_as_current=False)
    app.conf.beat_max_loop_interval = interval
    assert (wire(app).settings.lease_ttl, wire(app).settings.renew_every) == (10.0, pytest.approx(10 / 3))


def test_the_dead_letter_queue_can_be_switched_off():
    assert read(singlebeat_dead_letter_queue=None).dead_letter_queue is None


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"singlebeat_lease_tll": 5}, ["singlebeat_lease_tll", "did you mean singlebeat_lease_ttl?"]),
        ({"SINGLEBEAT_LOCK_TLL": 5}, ["SINGLEBEAT_LOCK_TLL", "singlebeat_lock_ttl"]),
        ({"singlebeat_lease_ttl": "ten"}, ["singlebeat_lease_ttl='ten'", "number"]),
        ({"singlebeat_misfire_grace": 0}, ["singlebeat_misfire_grace=0.0", "above 0"]),
        ({"singlebeat_lease_ttl": float("nan")}, ["singlebeat_lease_ttl=nan"]),
        ({"singlebeat_lease_ttl": True}, ["singlebeat_lease_ttl=True"]),
        ({"singlebeat_lease_ttl": 0}, ["singlebeat_lease_ttl=0.0", "above 0"]),
        ({"singlebeat_lock_ttl": 0.4}, ["singlebeat_lock_ttl=0.4", "renewed every third", "0.5 or more"]),
        ({"singlebeat_catch_up_limit": 1.5}, ["singlebeat_catch_up_limit=1.5", "whole"]),
        ({"singlebeat_renew_every": 5}, ["singlebeat_renew_every=5", "singlebeat_lease_ttl=10", "below 5"]),
        ({"singlebeat_takeover_grace": 12}, ["singlebeat_takeover_grace=12", "singlebeat_lease_ttl=10"]),
        ({"singlebeat_misfire": "always"}, ["singlebeat_misfire='always'", "'latest', 'all', 'skip'"]),
        ({"singlebeat_dispatch": "fast"}, ["singlebeat_dispatch='fast'", "'outbox'"]),
        ({"singlebeat_poison_limit": 0}, ["singlebeat_poison_limit=0", "1 or more"]),
        ({"singlebeat_redis_url": "localhost"}, ["singlebeat_redis_url", "redis://"]),
        ({"singlebeat_redis_url": "http://:s3cret@localhost"}, ["singlebeat_redis_url", "'http'"]),
        ({"singlebeat_redis_options": "fast"}, ["singlebeat_redis_options", "dict"]),
        ({"singlebeat_lock_backend": "etcd"}, ["singlebeat_lock_backend='etcd'", "'redis+postgresql'"]),
        ({"singlebeat_lock_backend": "redlock"}, ["'redlock' needs singlebeat_lock_urls", "it names 0"]),
        (
            {"singlebeat_lock_backend": "redlock", "singlebeat_lock_urls": f"{URL}, redis://:s3cret@b"},
            ["an odd number of independent Redis servers, 3 or more", "it names 2"],
        ),
        (
            {"singlebeat_lock_backend": "redlock", "singlebeat_lock_urls": ["redis://a", "redis://b"] * 2},
            ["odd", "it names 4"],
        ),
        (
            {
                "singlebeat_lock_backend": "redlock",
                "singlebeat_lock_urls": ["redis://a", "redis://b", "redis://a"],
            },
            ["singlebeat_lock_urls names a server twice"],
        ),
        (
            {"singlebeat_lock_urls": ["redis://a", "sentinel://:s3cret@b", "redis://c"]},
            ["singlebeat_lock_urls[1]", "not one Redis server", "redis://"],
        ),
        ({"singlebeat_lock_urls": 7}, ["singlebeat_lock_urls is a int", "a list"]),
        (
            {"singlebeat_lock_backend": "postgresql"},
            ["'postgresql' needs singlebeat_postgres_dsn", "postgresql://"],
        ),
        ({"singlebeat_lock_backend": "redis+postgresql"}, ["needs singlebeat_postgres_dsn"]),
        ({"singlebeat_postgres_dsn": 5}, ["singlebeat_postgres_dsn is a int"]),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_with_the_remedy(conf, words):  # X3
    with pytest.raises(SettingsError) as caught:
        read(**conf)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert "s3cret" not in message


def test_several_servers_may_be_one_text(monkeypatch):  # X2
    wanted = ("redis://a", "redis://b", "redis://c")
    assert read(singlebeat_lock_urls=" redis://a, redis://b,redis://c ").lock_urls == wanted
    assert read(singlebeat_lock_urls=list(wanted)).lock_urls == wanted


def test_addresses_of_lock_servers_are_not_shown():  # X3
    settings = read(
        singlebeat_lock_urls=[f"redis://:s3cret@{host}" for host in "abc"],
        singlebeat_postgres_dsn="postgresql://u:s3cret@h/d",
    )
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        (
            {"singlebeat_postgres_dsn": "mysql://u:s3cret@h/d"},
            ["singlebeat_postgres_dsn", "postgresql://user"],
        ),
        ({"singlebeat_postgres_dsn": "postgresql://u:s3cret@h:x/d"}, ["singlebeat_postgres_dsn", "port"]),
        ({"singlebeat_postgres_dsn": "host=h passwort=s3cret"}, ["singlebeat_postgres_dsn cannot be read"]),
    ],
)
def test_a_database_that_cannot_be_meant_is_refused_before_it_is_asked(conf, words):  # X3
    pytest.importorskip("psycopg")
    app = Celery("shop", broker=URL, set_as_current=False)
    app.conf.update(singlebeat_lock_backend="postgresql", **conf)
    with pytest.raises(SettingsError) as caught:
        wire(app).lock_store("postgresql")
    message = str(caught.value)
    assert all(word in message for word in words)
    assert "\n" not in message
    assert "s3cret" not in message


def test_a_lock_server_that_cannot_be_meant_is_refused_before_it_is_asked():  # X3
    app = Celery("shop", broker=URL, set_as_current=False)
    app.conf.singlebeat_lock_urls = ["redis://a", "redis://:s3cret@b/x", "redis://c"]
    with pytest.raises(SettingsError, match=r"singlebeat_lock_urls\[1\] cannot be read") as caught:
        wire(app).lock_store("redlock")
    assert "s3cret" not in str(caught.value)


def test_a_settings_error_is_one_of_ours_and_one_that_click_prints():  # X3
    error = SettingsError("singlebeat_x=1: give 2")
    assert isinstance(error, SingleBeatError)
    assert (error.format_message(), error.exit_code) == ("singlebeat_x=1: give 2", 2)


def test_another_projects_settings_are_not_ours():
    assert read(SINGLE_BEAT_REDIS_SERVER="redis://elsewhere", my_singlebeat_lease=1).lease_ttl == 10.0


def test_the_broker_is_the_store_if_it_is_redis():
    app = Celery("shop", broker="redis://localhost:6379/7", set_as_current=False)
    assert (wire(app).address.db, wire(app).is_atomic) == (7, True)


def test_a_broker_that_is_not_redis_needs_a_store():  # X3
    app = Celery("shop", broker="amqp://localhost", set_as_current=False)
    with pytest.raises(SettingsError, match="singlebeat_redis_url is not set"):
        wire(app)


def test_atomic_dispatch_over_two_servers_is_refused():  # X3
    app = Celery("shop", broker="amqp://localhost", set_as_current=False)
    app.conf.update(singlebeat_redis_url=URL, singlebeat_dispatch="atomic")
    with pytest.raises(SettingsError, match="same database of one Redis"):
        _ = wire(app).is_atomic


@pytest.mark.parametrize(
    ("url", "options", "text", "db"),
    [
        ("redis://:p%40ss@cache:6380/2", {}, "cache:6380, db 2", 2),
        ("rediss://user:pw@cache/1?ssl_cert_reqs=optional", {}, "cache:6379, db 1", 1),
        ("redis+socket:///run/redis.sock?virtual_host=3", {}, "/run/redis.sock, db 3", 3),
        ("sentinel://a:1;sentinel://b:2", {"master_name": "m"}, "m of sentinels a:1,b:2, db 0", 0),
    ],
)
def test_every_form_of_url_that_kombu_takes_is_read_and_shown_without_its_password(url, options, text, db):
    app = Celery("shop", broker="amqp://localhost", set_as_current=False)
    app.conf.update(singlebeat_redis_url=url, singlebeat_redis_options=options)
    address = wire(app).address
    assert (str(address), address.db) == (text, db)
    assert "pw" not in repr(address)
    assert "p@ss" not in repr(address)
    assert "pw" not in repr(wire(app).settings)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("redis://h/notanumber", {}, "percent-encoded"),
        ("sentinel://a:1;sentinel://b:2", {}, "master_name"),
        ("redis://a;redis://b", {}, "several servers"),
        (URL, {"visibility_timeout": 5}, "no option 'visibility_timeout'"),
    ],
)
def test_a_url_or_option_that_cannot_be_used_says_so(url, options, words):  # X3
    app = Celery("shop", broker="amqp://localhost", set_as_current=False)
    app.conf.update(singlebeat_redis_url=url, singlebeat_redis_options=options)
    with pytest.raises(SettingsError, match=words):
        _ = wire(app).address
