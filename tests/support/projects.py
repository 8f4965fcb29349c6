"""A project as a user has it: a module with an app, and `celery -A proj` run in its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from celery_singlebeat.testing.processes import ManagedProcess

REPOSITORY = Path(__file__).resolve().parents[2]

SOURCE = """\
import json
import os

from celery import Celery, signals

app = Celery("proj", broker=os.environ["PROJ_BROKER"], task_cls="celery_singlebeat:SingleBeatTask")
app.conf.beat_scheduler = "celery_singlebeat:SingleBeatScheduler"
app.conf.beat_schedule = {"tick": {"task": "proj.tick", "schedule": 0.5}}
app.conf.update(json.loads(os.environ.get("PROJ_CONF", "{}")))


@app.task(name="proj.tick")
def tick(*args, **kwargs):
    return None


@app.task(name="proj.fail", max_retries=0)
def fail(*args, **kwargs):
    raise ValueError("no use")
"""


class Project:
    """The folder of a project, and the processes that run in it."""

    def __init__(self, folder: Path, broker: str, *, source: str = SOURCE, env: dict[str, str] | None = None):
        self.folder = folder
        (folder / "proj.py").write_text(source)
        paths = [str(folder), str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {"PROJ_BROKER": broker, "PYTHONPATH": os.pathsep.join(paths), **(env or {})}
        self.processes: list[ManagedProcess] = []

    def celery(self, *arguments: str, answer: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run one `celery -A proj` command to its end."""
        return self.python("-m", "celery", "-A", "proj", *arguments, answer=answer, **env)

    def python(self, *arguments: str, answer: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, **self.env, **env},
            input=answer,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def singlebeat(self, *arguments: str, answer: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return self.celery("singlebeat", *arguments, answer=answer, **env)

    def beat(self, *arguments: str, **env: str) -> ManagedProcess:
        return self._start("beat", "--pidfile=", "--loglevel=INFO", *arguments, **env)

    def worker(self, *arguments: str, **env: str) -> ManagedProcess:
        lonely = ("--without-gossip", "--without-mingle", "--pool=solo", "--loglevel=INFO")
        return self._start("worker", *lonely, *arguments, **env)

    def end(self) -> None:
        for process in self.processes:
            process.kill()

    def _start(self, *arguments: str, **env: str) -> ManagedProcess:
        quiet = ["--quiet"] if arguments[0] == "worker" else []
        process = ManagedProcess(
            # A worker prints its banner in the midst of its log; beat prints it before.
            [sys.executable, "-m", "celery", *quiet, "-A", "proj", *arguments],
            cwd=self.folder,
            env={**self.env, **env},
            name=arguments[0],
        )
        self.processes.append(process)
        return process.start()
