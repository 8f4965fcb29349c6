"""What may be asked of a server itself, beside what is kept in it: its state, and what it allows."""

from __future__ import annotations

from typing import Protocol

from celery_singlebeat.policy.diagnosis.facts import Server


class ServerStore(Protocol):
    """One server, as an operator looks at it: what it is to this app, and where, without secrets."""

    subject: str
    place: str

    def look(self) -> Server:
        """Everything that the server says of itself, and what it did when it was tried.

        What it does not say or allow is None or a text among the facts. Raises `StoreUnavailable` if it does
        not answer at all.
        """
        ...
