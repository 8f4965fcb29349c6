"""Rules of the code base that no linter knows.

A package's docstring numbers what it believes, one invariant a line: `L1  One node at most holds the lease.`
The test that shows an invariant cites its number in a comment, `# L1`; several are separated by commas.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import celery_singlebeat

PACKAGE = Path(celery_singlebeat.__file__).parent
TESTS = Path(__file__).parent
LONGEST = 420

_NUMBERED = re.compile(r"^\s*([A-Z][0-9]+)  \S", re.MULTILINE)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def invariants() -> dict[str, list[str]]:
    """Return the numbers in the docstrings of packages, with the packages that define them."""
    found: dict[str, list[str]] = {}
    for path in modules():
        if path.name == "__init__.py":
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            for number in _NUMBERED.findall(docstring):
                found.setdefault(number, []).append(str(path.relative_to(PACKAGE.parent)))
    return found


def citations() -> set[str]:
    return {
        number
        for path in TESTS.rglob("*.py")
        for comment in re.findall(r"#\s*((?:[A-Z][0-9]+\b[,; ]*)+)", path.read_text())
        for number in re.findall(r"[A-Z][0-9]+", comment)
    }


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_longer_than_a_reader_keeps_in_mind(path):
    length = len(path.read_text().splitlines())
    assert length <= LONGEST, f"{path.name} has {length} lines, and {LONGEST} are the most: it is two files"


def test_a_number_means_one_invariant():
    assert {number: packages for number, packages in invariants().items() if len(packages) > 1} == {}


def test_every_invariant_is_cited_by_a_test():
    cited = citations()
    uncited = {number: packages for number, packages in invariants().items() if number not in cited}
    assert uncited == {}, "write `# <number>` at the test that shows it"
