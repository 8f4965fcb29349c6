"""`python -m tests.model`: walk everything and print how many states there were.

`faults`: only the planted ones; `all`: the largest of those too.
"""

from __future__ import annotations

import sys

from tests.model.faults import FAULTS, FINDINGS, LARGE_FAULTS
from tests.model.scopes import LARGE, SMALL


def main() -> int:
    """Return 0 if every scope holds and every fault was found."""
    wrong = 0
    if sys.argv[1:] != ["faults"]:
        for name, study in {**SMALL, **LARGE}.items():
            seen = study.walk()
            holds = seen.complete and not seen.broken
            wrong += not holds
            verdict = "holds" if holds else "BROKEN" if seen.broken else "NOT EXHAUSTED"
            print(
                f"{verdict:8s}{seen.states:8d} states {seen.transitions:8d} steps {seen.depth:3d} deep"
                f" {seen.seconds:6.1f} s  {name}",
                flush=True,
            )
            if seen.broken:
                print(seen.told())
    for fault in FAULTS + FINDINGS + ((*LARGE_FAULTS,) if sys.argv[1:] == ["all"] else ()):
        seen = fault.walk()
        as_expected = seen.broken.startswith(fault.costs) and bool(seen.broken) == bool(fault.costs)
        wrong += not as_expected
        verdict = "as expected" if as_expected else "NOT AS EXPECTED"
        print(f"\n{verdict}: {fault.name} ({seen.states} states)")
        print(seen.told() if seen.broken else "     => safety and liveness hold without it", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
