"""Does the checker bite? A storm over a copy of the project whose emit script lacks one guard."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import LUA, ROOT, without_guard

_LEAVE_OUT = shutil.ignore_patterns(".git", ".venv", "*cache*", "*.egg-info", "build", "dist")


def bite(guard: str, arguments: Sequence[str]) -> int:
    """Run the same command line in the copy; its exit code. 1 is what one hopes for."""
    given = list(arguments)
    position = next(index for index, word in enumerate(given) if word.startswith("--mutant"))
    del given[position : position + (1 if "=" in given[position] else 2)]
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=_LEAVE_OUT)
        script = copy / LUA / "slots_emit.lua"
        before = script.read_text("utf-8")
        after = without_guard(guard)(before)
        if after == before:
            print(f"slots_emit.lua has no guard {guard!r}")
            return 2
        script.write_text(after, "utf-8")
        command = [sys.executable, "-m", "tests.torture", *given]
        return subprocess.run(command, cwd=copy, check=False).returncode
