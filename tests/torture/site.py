"""The real things: a Redis, perhaps a RabbitMQ, a proxy for each replica, and the replicas."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import redis
from typing_extensions import override

from celery_singlebeat.testing.processes import ManagedProcess
from celery_singlebeat.testing.servers import EmbeddedRabbitMQ, EmbeddedRedis
from tests.support.proxy import FaultProxy
from tests.torture.history import History
from tests.torture.timetable import QUEUES, Schedule, changed

ROOT = Path(__file__).resolve().parents[2]
_SHIM = Path(__file__).parent / "clock_shim.c"


class Clocks:
    """Wall clocks that can be stepped, one for each process; `why_not` says why there are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock_shim.so"
        self.why_not = self._build()

    def env(self, name: str) -> dict[str, str]:
        """What a process needs in its environment so that its clock can be stepped."""
        if self.why_not:
            return {}
        self.step(name, 0)
        return {"LD_PRELOAD": str(self._library), "TORTURE_CLOCK": str(self._file(name))}

    def step(self, name: str, seconds: int) -> None:
        """Put a clock so many seconds off the true one; in place, for the file is mapped."""
        file = self._file(name)
        with file.open("r+" if file.exists() else "w") as written:
            written.write(f"{seconds:<31d}\n")

    def _file(self, name: str) -> Path:
        return self._folder / f"clock {name}"

    def _build(self) -> str:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if sys.platform != "linux":
            return "clock steps need Linux"
        if compiler is None:
            return "clock steps need a C compiler (cc, gcc or clang), and there is none"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_SHIM), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"clock steps need {_SHIM.name}, and it cannot be compiled: {done.stderr[:300]}"
        return ""


class Server(EmbeddedRedis):
    """A Redis that keeps whatever it has acknowledged, and whose clock can be stepped."""

    def __init__(self, env: Mapping[str, str], *, port: int | None = None) -> None:
        keep = ("--appendfsync", "always", "--auto-aof-rewrite-min-size", "64mb")
        arguments = (*keep, "--repl-diskless-sync-delay", "0")
        super().__init__(*arguments, appendonly=True, port=port, start_timeout=30)
        self._env = env

    @override
    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str | None]]:
        argv, env = super()._command()
        return argv, {**env, **self._env}

    def log(self) -> Path:
        """The part of the append-only log that grows."""
        found = self.directory.glob("appendonlydir/*.incr.aof")
        return max(found, key=lambda path: int(path.name.split(".")[-3]))


class Replica:
    """One beat behind its own proxies."""

    def __init__(self, index: int, site: Site) -> None:
        self.index = index
        self.name = f"beat{index}"
        self._site = site
        self.version = 0
        self.proxy = site.stack.enter_context(FaultProxy(site.server.port))
        self.broker_proxy: FaultProxy | None = None
        broker = self.proxy.url(0)
        if site.rabbit is not None:
            self.broker_proxy = site.stack.enter_context(FaultProxy(site.rabbit.port))
            broker = f"amqp://guest:guest@127.0.0.1:{self.broker_proxy.port}//"
        self.process = ManagedProcess(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "tests.torture.beats_app",
                "beat",
                "-l",
                "INFO",
                "--pidfile=",
            ],
            cwd=site.folder,
            env={
                **site.env,
                **site.clocks.env(self.name),
                "TORTURE_BROKER": broker,
                "TORTURE_STORE": self.proxy.url(0),
            },
            name=self.name,
            log_path=site.folder / f"{self.name}.log",
        )
        site.stack.callback(self.process.kill)
        #: Whether the process is meant to run.
        self.wanted = False

    def start(self, seconds: float) -> None:
        self.process.env["TORTURE_SCHEDULE"] = str(self._site.schedule_file(self.version))
        self.process.start()
        self.wanted = True
        self._note(seconds, "start")

    def kill(self, seconds: float) -> None:
        self.wanted = False
        self.process.kill(signal.SIGKILL)
        self._note(seconds, "exit", code=self.process.returncode)

    def ask_to_end(self) -> None:
        self.wanted = False
        self.process.kill(signal.SIGTERM)

    def has_ended(self, seconds: float) -> bool:
        if self.process.running:
            return False
        self._note(seconds, "exit", code=self.process.returncode)
        return True

    def _note(self, seconds: float, phase: str, **facts: object) -> None:
        self._site.history.write(
            "process",
            seconds,
            index=self.index,
            phase=phase,
            pid=self.process.pid,
            version=self.version,
            wanted=self.wanted,
            **facts,
        )


class Site:
    """Everything that runs, in one folder."""

    def __init__(
        self, folder: Path, history: History, schedule: Schedule, *, broker: str, replicas: int, lease: float
    ) -> None:
        self.folder = folder
        self.history = history
        self.stack = ExitStack()
        self.versions = [schedule]
        self.clocks = Clocks(folder)
        self.rabbit: EmbeddedRabbitMQ | None = None
        self.server = Server(self.clocks.env("redis"))
        self.stack.callback(self._stop_server)
        self.server.start()
        if broker == "rabbitmq":
            self.rabbit = self.stack.enter_context(EmbeddedRabbitMQ())
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {
            "TORTURE_LEASE": str(lease),
            "TORTURE_SCHEDULE": str(self.schedule_file(0)),
            "PYTHONPATH": os.pathsep.join(path),
        }
        self.client = self.connect()
        self.replicas = [Replica(index, self) for index in range(replicas)]
        self.worker = self._worker() if self.rabbit is not None else None
        #: Whether the server is known not to answer.
        self.away = False
        #: Whether messages are left where they are.
        self.resting = False

    def connect(self) -> redis.Redis:
        """A client of the server as it is now, with little patience."""
        return self.server.client(decode_responses=True, socket_timeout=0.5, socket_connect_timeout=0.5)

    def move_to(self, server: Server) -> None:
        """Let another server take the place of this one, which is stopped."""
        old, self.server = self.server, server
        for replica in self.replicas:
            replica.proxy.upstream_port = server.port
        self.client.close()
        self.client = self.connect()
        old.stop()

    def schedule_file(self, version: int) -> Path:
        file = self.folder / f"schedule{version}.json"
        if not file.exists():
            file.write_text(json.dumps(self.versions[version]))
        return file

    def next_version(self, seed: int, seconds: float) -> int:
        """Make the next version of the schedule, for replicas that are started with it."""
        number = len(self.versions)
        after, what = changed(self.versions[-1], seed, number)
        self.versions.append(after)
        self.history.write("version", seconds, number=number, what=what, entries=after)
        return number

    def close(self) -> None:
        self.stack.close()

    def _stop_server(self) -> None:
        self.server.stop()  # whichever it is by then

    def _worker(self) -> ManagedProcess:
        assert self.rabbit is not None
        argv = [sys.executable, "-m", "celery", "--quiet", "-A", "tests.torture.beats_app", "worker"]
        argv += [
            "-P",
            "solo",
            "-l",
            "WARNING",
            "--without-gossip",
            "--without-mingle",
            "-Q",
            ",".join(QUEUES),
        ]
        env = {**self.env, "TORTURE_BROKER": self.rabbit.url(), "TORTURE_STORE": self.server.url(0)}
        log = self.folder / "worker.log"
        worker = ManagedProcess(argv, cwd=self.folder, env=env, name="worker", log_path=log)
        self.stack.callback(worker.kill)
        return worker.start()
