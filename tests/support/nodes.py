"""pytest-celery's nodes on local processes instead of Docker containers.

pytest-celery reaches a container only through the dozen attributes of docker-py's `Container` that
pytest-docker-tools wraps. `LocalContainer` offers those for a process of ours; the stock classes then serve
unchanged, but for what they read from Docker's network. Beat, for which pytest-celery has no component, gets
one in the same manner.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import celery
from pytest_celery import (
    CeleryTestCluster,
    CeleryTestContainer,
    CeleryTestNode,
    CeleryWorkerContainer,
    RabbitMQContainer,
    RedisContainer,
)
from pytest_docker_tools.exceptions import ContainerFailed

from celery_singlebeat.testing.processes import ManagedProcess, wait_until
from celery_singlebeat.testing.servers import EmbeddedRabbitMQ, EmbeddedRedis, EmbeddedServer

REPOSITORY = Path(__file__).resolve().parents[2]

_DOCKER_STATUS = {"new": "created", "running": "running", "paused": "paused", "exited": "exited"}


class LocalContainer:
    """A ManagedProcess with the surface of docker-py's Container."""

    def __init__(self, process: ManagedProcess, container_id: str) -> None:
        self.id = container_id
        self.process = process
        self.name = process.name

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "Config": {
                "Hostname": "127.0.0.1",
                "Env": [f"{key}={value}" for key, value in self.process.env.items()],
            },
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "HostConfig": {"PortBindings": {}},
            "State": {"Pid": self.process.pid, "ExitCode": self.process.returncode},
        }

    @property
    def status(self) -> str:
        return _DOCKER_STATUS[self.process.status]

    def reload(self) -> None:
        """There is no cached state to reload."""

    def logs(self) -> bytes:
        return self.process.logs().encode()

    def kill(self, signal: str | int | None = None) -> None:
        self.process.kill("SIGKILL" if signal is None else signal)

    def pause(self) -> None:
        self.process.pause()

    def unpause(self) -> None:
        self.process.resume()

    def stop(self, timeout: float = 10) -> int | None:
        return self.process.terminate(timeout)

    def restart(self, timeout: float = 10) -> None:
        self.process.terminate(timeout)
        self.process.start()

    def exec_run(self, command: str | Sequence[str], **_: object) -> tuple[int, bytes]:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
        done = subprocess.run(
            argv,
            cwd=self.process.cwd,
            env=self.process.env,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout


class ServerContainer(LocalContainer):
    """An embedded server with the surface of docker-py's Container."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        super().__init__(server.process, uuid.uuid4().hex)

    def restart(self, timeout: float = 10) -> None:
        self.server.restart()
        self.process = self.server.process


class _Local:
    """What every local node does otherwise than its container would."""

    _container: LocalContainer
    ready_prompt: str | None
    ready_timeout = 30.0

    def ready(self) -> bool:
        """Wait for the prompt in the log of the *last* start: an older prompt survives a restart."""
        process = self._container.process
        wait_until(
            lambda: self._prompted() or not process.running,
            self.ready_timeout,
            lambda: f"{process.name} is not ready:\n{process.logs_since_start()}",
        )
        if not process.running:
            raise ContainerFailed(
                self, f"{process.name} ended with {process.returncode}:\n{process.logs_since_start()}"
            )
        return True

    def _prompted(self) -> bool:
        return not self.ready_prompt or self.ready_prompt in self._container.process.logs_since_start()

    def pause(self) -> None:
        self._container.pause()

    def unpause(self) -> None:
        self._container.unpause()

    def terminate(self, timeout: float = 10) -> int | None:
        """Ask for a warm shutdown and return the exit code; kill after `timeout` seconds."""
        return self._container.stop(timeout)


class ProcessRedis(_Local, RedisContainer):
    """Redis on loopback, as broker or result backend."""

    ready_prompt = None  # EmbeddedRedis returns from `start` when it answers

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self._container.server.port

    @property
    def url(self) -> str:
        """One address for all: worker and test are on the same host."""
        return self.host_url

    @property
    def host_url(self) -> str:
        server: EmbeddedRedis = self._container.server
        return server.url(int(self.vhost))


class ProcessRabbitMQ(_Local, RabbitMQContainer):
    """A virtual host of a RabbitMQ on loopback."""

    ready_prompt = None

    def __init__(self, container: ServerContainer, vhost: str) -> None:
        super().__init__(container)
        self._vhost = vhost

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self._container.server.port

    @property
    def vhost(self) -> str:
        return self._vhost

    @property
    def url(self) -> str:
        return self.host_url

    @property
    def host_url(self) -> str:
        server: EmbeddedRabbitMQ = self._container.server
        return server.url(self.vhost)


class ProcessWorker(_Local, CeleryWorkerContainer):
    """`celery worker` in a process group of its own."""

    @classmethod
    def command(cls, *args: str, **options: Any) -> list[str]:
        # Without neighbours there is nobody to mingle with, and waiting for them takes a second.
        return super().command("--without-gossip", "--without-mingle", *args, **options)

    @classmethod
    def version(cls) -> str:
        return celery.__version__


class ProcessBeat(_Local, CeleryTestContainer):
    """`celery beat` in a process group of its own."""

    ready_prompt = "beat: Starting..."

    @classmethod
    def command(cls, *args: str, **_: Any) -> list[str]:
        return ["celery", "-A", "app", "beat", "--loglevel=INFO", "--pidfile=", "-s", "schedule.db", *args]


class CeleryTestBeat(CeleryTestNode):
    """One replica of beat as a node: kill, restart, logs and wait_for_log are pytest-celery's own."""

    container: ProcessBeat

    def hostname(self) -> str:
        return f"beat@{super().hostname()}"

    @property
    def pid(self) -> int:
        return self.container._container.process.pid

    def kill(self, signal: str | int = "SIGKILL", reload_container: bool = True) -> None:
        """Kill, whatever the state: the stock method leaves a paused node alone."""
        self.container.kill(signal=signal)

    def pause(self) -> None:
        self.container.pause()

    def unpause(self) -> None:
        self.container.unpause()

    def terminate(self, timeout: float = 10) -> int | None:
        return self.container.terminate(timeout)


class CeleryBeatCluster(CeleryTestCluster):
    """The replicas of beat. All run the same command; which of them leads is theirs to decide."""

    def kill(self, index: int) -> None:
        self[index].kill()

    def pause(self, index: int) -> None:
        self[index].pause()

    def unpause(self, index: int) -> None:
        self[index].unpause()

    def terminate(self, index: int, timeout: float = 10) -> int | None:
        return self[index].terminate(timeout)

    def logs(self) -> str:
        return "\n".join(f"--- {node.name()} ---\n{node.logs()}" for node in self)


def celery_process(
    argv: Iterable[str], root: Path, name: str, env: dict[str, str], content: dict[str, bytes]
) -> LocalContainer:
    """Lay pytest-celery's worker volume down in `root` and start a `celery` command there."""
    for path, source in content.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(source)
    container_id = uuid.uuid4().hex
    name = f"{name}-{container_id[:6]}"
    process = ManagedProcess(
        # pytest-celery expects the container's id as host name, and Docker would have made it so.
        [sys.executable, "-m", *(part.replace("%h", container_id[:12]) for part in argv)],
        cwd=root,
        env={
            "PYTHONPATH": os.pathsep.join([str(root), str(REPOSITORY)]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            **env,
        },
        name=name,
        log_path=root / f"{name}.log",
    ).start()
    return LocalContainer(process, container_id)
