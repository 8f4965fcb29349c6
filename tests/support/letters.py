"""Letters for tests."""

from celery_singlebeat.policy import dead_letters


def letter_with(**about):
    """What the header of a letter says, unless `about` says something else."""
    usual = {
        "reason": "max_retries",
        "queue": "celery",
        "exchange": "",
        "routing_key": "celery",
        "priority": 0,
        "entry": None,
        "slot": None,
        "replays": 0,
    }
    return dead_letters.letter(**{**usual, **about})


def longest_letter(character):
    """The headers of a call that had as many attempts as are kept, and failed with endless texts."""
    text, history = character * 100_000, []
    for number in range(2 * dead_letters.LONGEST_HISTORY):
        attempt = dead_letters.record(
            attempt=number, failed_at="t" * 32, exception="E" * 60, message=text, traceback=text
        )
        history = dead_letters.add(history, attempt)
    letter = letter_with(exception="E" * 60, message=text, traceback=text, history=history, died_at="t" * 32)
    return dead_letters.buried({"id": "a", "task": "t", dead_letters.ATTEMPTS: history}, letter)
