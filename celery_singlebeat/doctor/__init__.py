"""Looks at an installation: asks the servers, reads the configuration, and lets policy judge.

Whatever cannot be asked is a fact as well: a server that does not answer ends the examination of that
server, and nothing else.
"""

from __future__ import annotations

from celery import Celery

from celery_singlebeat.doctor.beats import read_beats
from celery_singlebeat.doctor.broker import read_broker
from celery_singlebeat.doctor.tasks import read_countdowns, read_tasks
from celery_singlebeat.errors import StoreUnavailable
from celery_singlebeat.policy.diagnosis import Diagnosis, Facts, diagnose
from celery_singlebeat.policy.diagnosis.facts import Beats, Server
from celery_singlebeat.wiring import Wiring, wire

__all__ = ["examine"]


def examine(app: Celery) -> Diagnosis:
    """Everything that can be said of this app's settings, servers, tasks and beats.

    The app's tasks must be imported. Raises `SettingsError` for a configuration that cannot work.
    """
    wiring = wire(app)
    is_atomic = wiring.is_atomic
    tasks = read_tasks(app, wiring.settings)
    servers = tuple(_looked(wiring))
    broker = read_broker(wiring, servers)
    beats, problem = _told_by_beats(wiring, servers)
    return diagnose(
        Facts(
            settings=wiring.settings,
            store_place=wiring.place,
            is_atomic=is_atomic,
            servers=servers,
            broker=broker,
            tasks=tasks,
            countdowns=read_countdowns(app),
            beats=beats,
            beats_problem=problem,
            dead_letters={} if broker.problem else _dead_letters(wiring),
        )
    )


def _looked(wiring: Wiring) -> list[Server]:
    found = []
    for store in wiring.server_stores():
        try:
            found.append(store.look())
        except StoreUnavailable as error:
            found.append(Server(subject=store.subject, place=store.place, problem=error.cause))
    return found


def _told_by_beats(wiring: Wiring, servers: tuple[Server, ...]) -> tuple[Beats | None, str]:
    """What beats told the store, or why it cannot be read."""
    if any(server.subject == "store" and server.problem for server in servers):
        return None, ""
    try:
        return read_beats(wiring), ""
    except StoreUnavailable as error:
        return None, error.cause


def _dead_letters(wiring: Wiring) -> dict[str, int | None]:
    numbers: dict[str, int | None] = {}
    for queue in wiring.letter_queues():
        try:
            numbers[queue] = wiring.letter_store(queue).number()
        except StoreUnavailable:
            numbers[queue] = None
    return numbers
