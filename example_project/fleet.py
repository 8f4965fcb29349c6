"""The processes of the demo: a private Redis, three beats and two workers, all in one temporary folder."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from typing_extensions import Self

from celery_singlebeat.testing.processes import ManagedProcess
from celery_singlebeat.testing.servers import EmbeddedRedis

BEATS, WORKERS = 3, 2
#: Where Python finds this package, whatever the current directory is.
_ROOT = Path(__file__).resolve().parents[1]
_APP = "example_project.rehearsal:app"


class Fleet:
    """A context manager; nothing of it is left when it ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="singlebeat-demo-", ignore_cleanup_errors=True)
        self._server: EmbeddedRedis | None = None
        self.beats: list[ManagedProcess] = []
        self.workers: list[ManagedProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._celeries:
            if process.status != "new":
                process.kill(signal.SIGKILL)
        if self._server is not None:
            self._server.stop()
        self._folder.cleanup()

    @property
    def _celeries(self) -> list[ManagedProcess]:
        return [*self.beats, *self.workers]

    def start_redis(self) -> str:
        """Start Redis on a free port of loopback, and return its address.

        Raises `ServerNotFoundError` or `ServerStartError`.
        """
        self._server = EmbeddedRedis()
        return self._server.start().url()

    def start(self, url: str) -> None:
        """Start the beats and the workers, all with the commands that a server of yours would run."""
        env = {
            "EXAMPLE_BROKER_URL": url,
            "EXAMPLE_RETRY_JITTER": "none",
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": self._folder.name,
        }
        quiet = ("--without-gossip", "--without-mingle", "--loglevel=INFO")
        for number in range(1, BEATS + 1):
            self.beats.append(self._celery(f"beat {number}", env, "beat", "--pidfile=", "--loglevel=INFO"))
        for number in range(1, WORKERS + 1):
            name = f"worker{number}@example"
            arguments = ("worker", "--pool=prefork", "--concurrency=2", f"--hostname={name}", *quiet)
            self.workers.append(self._celery(f"worker {number}", env, *arguments))
        for process in self._celeries:
            process.start()

    def _celery(self, name: str, env: dict[str, str], *arguments: str) -> ManagedProcess:
        folder = Path(self._folder.name)
        argv = [sys.executable, "-m", "celery", "-A", _APP, *arguments]
        log = folder / f"{name.replace(' ', '')}.log"
        return ManagedProcess(argv, cwd=folder, env=env, name=name, log_path=log)

    def beat(self, pid: int) -> ManagedProcess | None:
        """The beat with this process id."""
        return next((beat for beat in self.beats if beat.pid == pid), None)

    def worker(self, hostname: str) -> ManagedProcess:
        """The worker that Celery knows under this name."""
        return self.workers[int(hostname.removeprefix("worker").partition("@")[0]) - 1]

    def last_words(self, lines: int = 4) -> str:
        """The last lines of each log, for the case that something went wrong."""
        told = []
        for process in self._celeries:
            if process.status != "new":
                told += [f"--- {process.name} ({process.status})", *process.logs().splitlines()[-lines:]]
        return "\n".join(told)
