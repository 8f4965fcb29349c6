"""`make demo`: three beats and two workers, and everything that can happen to them within a minute.

    python -m example_project.demo

Starts a private Redis, three `celery beat` and two `celery worker` processes on this machine. Then the beat
that leads is killed, the next one is terminated, the next one is frozen, and a worker is killed in the
middle of its work. What counts is read from the calls that the workers received. Exit code 0: nothing was
sent twice and nothing was lost; 1: something was; 2: there is no Redis to start. Ctrl-C ends it at any time,
and nothing is left behind.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from celery_singlebeat.testing.servers import ServerNotFoundError, ServerStartError
from example_project.fleet import Fleet
from example_project.narration import Narrator
from example_project.story import Story, StuckError
from example_project.verdict import in_words

#: Seconds between two acts, so that people can follow.
_PAUSE = 6.0


class Interrupted(Exception):
    """A signal asks the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def _signals_noted() -> Iterator[Callable[[], None]]:
    """Note signals instead of being interrupted anywhere: a half-started process would be nobody's."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}

    def wanted() -> None:
        if came:
            raise Interrupted(came[0])

    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def perform(*, pause: float) -> int:
    """Start everything, play, judge, clean up; returns the exit code."""
    with ExitStack() as stack:
        wanted = stack.enter_context(_signals_noted())
        fleet = stack.enter_context(Fleet())
        narrator = Narrator()
        try:
            with narrator:
                narrator.say("A private Redis starts, on this machine only.")
                url = fleet.start_redis()
                verdict = Story(fleet, narrator, pause=pause, wanted=wanted).play(url)
        except Interrupted as signalled:
            narrator.say(f"{signalled}: everything is being stopped.")
            return 128 + signalled.number
        except StuckError as error:
            print(f"Error: {error}\n{fleet.last_words()}", file=sys.stderr)
            return 1
        except (ServerNotFoundError, ServerStartError) as error:
            print(f"Error: {error}", file=sys.stderr)
            return 2
        narrator.conclude(in_words(verdict))
        return 0 if verdict.is_clean else 1


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)  # for the tests
    chosen = parser.parse_args()
    return perform(pause=0.5 if chosen.quick else _PAUSE)


if __name__ == "__main__":
    sys.exit(main())
