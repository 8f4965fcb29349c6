"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line for operators: what was looked at and found, and what to do about it ("" if it is ok).

    `subject` is "store" or "broker" where a check looks at a server.
    """

    check: str = ""
    subject: str = ""
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(found: str) -> Finding:
    """It was seen to be right."""
    return Finding(verdict=Verdict.OK, found=found)


def warning(found: str, remedy: str) -> Finding:
    """It works, and may cost something one day."""
    return Finding(verdict=Verdict.WARNING, found=found, remedy=remedy)


def failure(found: str, remedy: str) -> Finding:
    """It does not work, or will not keep a promise."""
    return Finding(verdict=Verdict.FAILURE, found=found, remedy=remedy)


def unknown(found: str, remedy: str) -> Finding:
    """It could not be looked at."""
    return Finding(verdict=Verdict.UNKNOWN, found=found, remedy=remedy)
