"""Facts about the broker, from the configuration and from one connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery

from celery_singlebeat.errors import SettingsError
from celery_singlebeat.policy.diagnosis.facts import Broker, Server
from celery_singlebeat.wiring import Wiring

#: Seconds that RabbitMQ waits for an acknowledgement unless it is told otherwise (its guide on consumers).
CONSUMER_TIMEOUT = 1800.0
#: Seconds to wait for the broker.
_PATIENCE = 5

_OPTION = "visibility_timeout"


def read_broker(wiring: Wiring, servers: Iterable[Server]) -> Broker:
    """The broker of this app. A Redis broker is among the `servers`, which were asked already."""
    app = wiring.app
    if wiring.broker is not None:
        server = next((one for one in servers if one.subject == "broker"), None)
        server = server or next(one for one in servers if one.subject == "store")
        return Broker(
            kind="redis",
            place=str(wiring.broker),
            problem=server.problem,
            redelivers_after=_visibility_timeout(app),
            redelivery=_OPTION,
            stray=tuple(_stray(app)),
        )
    try:
        connection = app.connection_for_write()
        kind = str(connection.transport.driver_type)
    except (ValueError, LookupError, ImportError) as error:
        # the text of the error may quote the URL, and with it the password
        raise SettingsError(
            f"broker_url needs a transport that is not there ({type(error).__name__}): correct its scheme, "
            "or install what kombu needs for it"
        ) from None
    with connection:
        about: dict[str, Any] = {"kind": kind, "place": connection.as_uri(), "problem": _problem(connection)}
    return Broker(**about, **(_rabbitmq(app) if kind == "amqp" else {}))


def _problem(connection: Any) -> str:
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=_PATIENCE)
    except Exception as error:  # whatever a transport raises: it is what there is to say
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _visibility_timeout(app: Celery) -> float:
    options = app.conf.broker_transport_options or {}
    transport: Any = app.connection_for_write().get_transport_cls()
    return float(options.get(_OPTION, transport.Channel.visibility_timeout))


def _stray(app: Celery) -> Iterable[str]:
    """Where else the option is set: kombu reads it from the broker's transport options alone."""
    known = (app.conf.broker_transport_options or {}).get(_OPTION)
    for name, value in (
        ("result_backend_transport_options", (app.conf.result_backend_transport_options or {}).get(_OPTION)),
        ("the configuration itself", app.conf.get(_OPTION)),
    ):
        if value is not None and value != known:
            yield name


def _rabbitmq(app: Celery) -> dict[str, Any]:
    """What the queues' arguments say; the server itself cannot be asked over AMQP."""
    queues = [*app.amqp.queues.values()]
    arguments = [queue.queue_arguments or {} for queue in queues]
    timeouts = [found.get("x-consumer-timeout") for found in arguments]
    given = [value / 1000 for value in timeouts if value]
    if len(given) < max(1, len(timeouts)):
        given.append(CONSUMER_TIMEOUT)
    quorum = app.conf.get("task_default_queue_type") == "quorum"
    quorum = quorum or any(found.get("x-queue-type") == "quorum" for found in arguments)
    native = quorum and app.conf.get("worker_detect_quorum_queues", False)
    native = native and all(queue.exchange.type != "direct" for queue in queues)
    return {
        "redelivers_after": min(given),
        "redelivery": "consumer_timeout",
        "assumed": min(given) == CONSUMER_TIMEOUT,
        # Celery leaves waiting to RabbitMQ itself where it sees quorum queues, and no direct exchange.
        "holds_waiting": not native,
    }
