"""Child processes that may be killed, frozen and read, and that never outlive the process that started them.

The demo, the benchmarks and the tests all run real servers, beats and workers. What they believe about them:

* A child dies with its parent, even when the parent is killed with SIGKILL. On Linux the kernel sees to that;
  elsewhere an exit hook does what it can.
* A child leads its own process group, so that one signal reaches a pool worker as well as the process that
  forked it.
* A process id means one process only until it is reaped. A child that ended therefore stays a zombie until
  nothing is left to signal in its group.
* Nothing waits without a deadline. A deadline that passes says what it waited for, with the child's own log.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, TypeVar

from typing_extensions import Self

__all__ = ["ManagedProcess", "wait_until"]

T = TypeVar("T")

# Runs between fork and the real program. `preexec_fn` would be shorter, but in a threaded process it can
# deadlock, and Python 3.12 warns about that. getppid, since the parent may be gone before prctl is called.
_DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_GROUP_SIGNALS = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT})


def wait_until(
    predicate: Callable[[], T],
    timeout: float = 10.0,
    message: str | Callable[[], str] = "the expected state was not reached",
    interval: float = 0.02,
) -> T:
    """Call `predicate` every `interval` seconds until it returns something truthy, and return that.

    Raises AssertionError after `timeout` seconds. `message` may be a callable: it is then evaluated at the
    failure, and can show the state as it was when patience ran out. Exceptions of the predicate pass through.
    """
    start = time.monotonic()
    while True:
        if answer := predicate():
            return answer
        if time.monotonic() - start >= timeout:
            text = message() if callable(message) else message
            raise AssertionError(f"{text} (waited {timeout:g} s)")
        time.sleep(interval)


class ManagedProcess:
    """One child process, its process group and its log.

    `env` is laid over this process's own environment; a value of None removes the variable. Standard output
    and error are appended to `log_path` (a temporary file unless given), across restarts.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str | None] | None = None,
        name: str = "process",
        log_path: str | Path | None = None,
    ) -> None:
        self.argv = [str(part) for part in argv]
        self.cwd = Path(cwd) if cwd is not None else None
        self.env = {**os.environ, **{key: value for key, value in (env or {}).items() if value is not None}}
        for key in [key for key, value in (env or {}).items() if value is None]:
            self.env.pop(key, None)
        self.name = name
        if log_path is None:
            descriptor, log_path = tempfile.mkstemp(prefix=f"{name}-", suffix=".log")
            os.close(descriptor)
            weakref.finalize(self, _unlink, log_path)
        self.log_path = Path(log_path)
        self._log_start = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._paused = False

    def __repr__(self) -> str:
        pid = self._popen.pid if self._popen else None
        return f"<{type(self).__name__} {self.name} pid={pid} {self.status}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.terminate()

    # Life

    def start(self) -> Self:
        """Start the program (again, if it ended). Raises RuntimeError while it still runs."""
        if self._popen is not None:
            if self.poll() is None:
                raise RuntimeError(f"{self.name} already runs as process {self.pid}")
            self._bury()
        program = shutil.which(self.argv[0], path=self.env.get("PATH"))
        if program is None:
            raise FileNotFoundError(f"{self.name}: no program {self.argv[0]!r} on PATH")
        argv = [program, *self.argv[1:]]
        if sys.platform == "linux":
            argv = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._popen = _spawn(argv, self.cwd, self.env, log.fileno())
        self._paused = False
        _living.add(self)
        return self

    @property
    def pid(self) -> int:
        """The process id, which is the id of the process group too."""
        return self._started().pid

    @property
    def status(self) -> Literal["new", "running", "paused", "exited"]:
        """What the process does now."""
        if self._popen is None:
            return "new"
        if self.poll() is not None:
            return "exited"
        return "paused" if self._paused else "running"

    @property
    def running(self) -> bool:
        """Whether the process has not ended. A paused one has not."""
        return self._popen is not None and self.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal, or None while it has none."""
        return self.poll() if self._popen is not None else None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        popen = self._started()
        if popen.returncode is not None or not hasattr(os, "waitid"):
            return popen.poll()
        ended = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def wait(self, timeout: float = 10.0) -> int:
        """Wait for the end and return the exit code. Raises AssertionError after `timeout` seconds."""
        wait_until(
            lambda: self.poll() is not None,
            timeout,
            lambda: f"{self.name} (process {self.pid}) did not end\n{self.logs_since_start()}",
            interval=0.005,
        )
        code = self.poll()
        assert code is not None  # noqa: S101 - wait_until has just seen it
        return code

    # Signals

    def kill(self, signum: int | str = signal.SIGKILL) -> None:
        """Send a signal; SIGKILL also waits for the end. A process that has ended is left alone.

        SIGKILL, SIGSTOP and SIGCONT go to the whole group, as they would to a container. Any other signal
        goes to the process itself, which decides what to tell its children.
        """
        number = signal.Signals[signum] if isinstance(signum, str) else signal.Signals(signum)
        popen = self._started()
        if number == signal.SIGKILL:
            self._bury()
        elif self.poll() is None:
            if number in _GROUP_SIGNALS:
                os.killpg(popen.pid, number)
            else:
                os.kill(popen.pid, number)

    def pause(self) -> None:
        """Freeze the whole group with SIGSTOP, and return when it has stopped."""
        self.kill(signal.SIGSTOP)
        self._paused = True
        if hasattr(os, "waitid"):
            wait_until(
                lambda: os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT),
                message=f"{self.name} did not stop",
                interval=0.001,
            )

    def resume(self) -> None:
        """Let a paused group go on."""
        self.kill(signal.SIGCONT)
        self._paused = False

    def terminate(self, timeout: float = 10.0) -> int | None:
        """Ask the process to end with SIGTERM, kill what is left of its group, and return the exit code.

        After `timeout` seconds the process itself is killed too. Returns None if it was never started.
        """
        if self._popen is None:
            return None
        if self._paused:
            self.resume()
        self.kill(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        self._bury()
        return self._popen.returncode

    # Log

    def logs(self) -> str:
        """Everything that the process has written, restarts included."""
        return self._read_log(0)

    def logs_since_start(self) -> str:
        """What the process has written since its last start."""
        return self._read_log(self._log_start)

    # Inside

    def _read_log(self, offset: int) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._popen is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._popen

    def _bury(self) -> None:
        """Kill whatever is left of the group, then reap its leader, whose id may then be someone else's."""
        popen = self._started()
        if popen.returncode is None:
            # macOS answers EPERM for a group of zombies.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
        self._paused = False
        _living.discard(self)


# The kernel ties "die with the parent" to the *thread* that forked: a child of a thread that ends would be
# killed with it. All but the main thread therefore ask a thread that never ends to start their children.
_orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_spawner_lock = threading.Lock()
_spawner: threading.Thread | None = None


def _spawn(argv: list[str], cwd: Path | None, env: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the caller's own program
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    if threading.current_thread() is threading.main_thread():
        return start()
    result: Future[subprocess.Popen[bytes]] = Future()

    def order() -> None:
        try:
            result.set_result(start())
        except BaseException as error:
            result.set_exception(error)

    global _spawner  # noqa: PLW0603 - one thread per process, by necessity
    with _spawner_lock:
        if _spawner is None or not _spawner.is_alive():
            _spawner = threading.Thread(target=_serve_orders, name="process-spawner", daemon=True)
            _spawner.start()
    _orders.put(order)
    return result.result()


def _serve_orders() -> None:
    while True:
        _orders.get()()


_living: set[ManagedProcess] = set()


def _end_all() -> None:
    for process in list(_living):
        process._bury()  # noqa: SLF001 - the same module


def _forget_all() -> None:
    """A forked child has no say over its parent's processes."""
    _living.clear()


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)
