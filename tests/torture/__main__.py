"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.torture import bite, checker, flatness, history, picture, report
from tests.torture.plan import chosen
from tests.torture.storm import Options, Storm


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.judge is not None:
        return judge(options.judge, print)
    if options.mutant is not None:
        return bite.bite(options.mutant, sys.argv[1:])
    wish = Options(
        seed=options.seed if options.seed is not None else random.randrange(1_000_000),
        duration=options.duration,
        broker=options.broker,
        replicas=options.replicas,
        entries=options.entries,
        lease=options.lease,
        faults=options.faults.split(","),
    )
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        if any(options.keep.iterdir()):
            # Replicas would start with the schedule of the storm before.
            parser.error(f"--keep {options.keep}: the folder of another storm; name one that is empty")
        return run(wish, options.keep, print)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        return run(wish, Path(folder), print)


def run(options: Options, folder: Path, say: Callable[[str], None]) -> int:
    """One storm and its verdict; 0 if it is clean. The folder keeps the history, the logs and the picture."""
    kinds = chosen(options.faults, options.broker)
    say(f"seed {options.seed}: {options.command}")
    Storm(options, folder, kinds, say).run()
    return judge(folder / "history.jsonl", say)


def judge(path: Path, say: Callable[[str], None]) -> int:
    """The verdict on a history that exists; 0 if it is clean."""
    verdict = checker.check(history.read(path))
    drawn = picture.draw(history.read(path), verdict.violations)
    path.with_suffix(".svg").write_text(picture.svg(drawn), encoding="utf-8")
    samples = (record for record in history.read(path) if record["k"] == "sample")
    for line in (*picture.text(drawn), *flatness.lines(samples), *report.lines(verdict, path)):
        say(line)
    say(f"again: {verdict.run.get('command', '?')}")
    return 0 if verdict.is_clean else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description="A storm of faults over replicas of beat, and a verdict over what they sent.",
    )
    parser.add_argument("--duration", type=float, default=60, help="seconds of storm (60)")
    parser.add_argument("--seed", type=int, help="of entries and faults; a random one if not given")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--entries", type=int, default=300)
    parser.add_argument("--lease", type=float, default=2.0, help="singlebeat_lease_ttl (2)")
    parser.add_argument("--faults", default="all", help="families or names, with commas between; all")
    parser.add_argument("--keep", type=Path, help="empty folder for history, logs and picture")
    parser.add_argument("--judge", type=Path, help="judge this history again instead of making one")
    parser.add_argument(
        "--mutant", help="storm a copy without this guard of slots_emit.lua: mark, token, time"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
