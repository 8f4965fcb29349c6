"""Forks beats: `python -m benchmarks.nursery SCHEDULER NUMBER PIDS`, in the folder of a project.

What a `celery beat` imports is imported once, so that fifty of them start within seconds. Each is a process
with the stock service and with connections of its own; all die with this one. Writes their pids to the file
PIDS when the last one is forked.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from celery.apps.beat import Beat
from celery.utils.imports import symbol_by_name

_PR_SET_PDEATHSIG = 1
#: Seconds between two forks: those that start leave something of the machine to those that have started.
APART = 0.15


def main() -> None:
    scheduler, number, pids = sys.argv[1:]
    sys.path.insert(0, str(Path.cwd()))
    app: Any = import_module("bench_app").app
    app.finalize()
    symbol_by_name(scheduler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    forked = []
    for count in range(int(number)):
        pid = os.fork()
        if pid == 0:
            _run(app, scheduler, f"schedule-{os.getpid()}-{count}")
        forked.append(pid)
        time.sleep(APART)
    half = Path(f"{pids}.half")
    half.write_text(" ".join(map(str, forked)))
    half.rename(pids)
    while True:
        signal.pause()


def _run(app: Any, scheduler: str, file: str) -> None:
    """Be a beat; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        beat = Beat(app=app, scheduler=scheduler, schedule=file, pidfile="", loglevel="WARNING", quiet=True)
        beat.run()
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
