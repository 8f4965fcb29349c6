"""What the suite believes about the processes that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from celery_singlebeat.testing.processes import ManagedProcess, wait_until

pytestmark = pytest.mark.process

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def exists(pid: int) -> bool:
    """Whether the process lives. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def sleeper(tmp_path):
    with ManagedProcess(SLEEPER, cwd=tmp_path, name="sleeper", log_path=tmp_path / "sleeper.log") as process:
        wait_until(lambda: "up" in process.logs_since_start(), message=process.logs)
        yield process


def test_a_killed_process_reports_the_signal_and_starts_again_with_a_log_of_its_own(sleeper):
    first = sleeper.pid
    sleeper.kill()
    assert (sleeper.status, sleeper.returncode) == ("exited", -signal.SIGKILL)
    sleeper.start()
    assert sleeper.pid != first
    wait_until(lambda: "up" in sleeper.logs_since_start())
    assert sleeper.logs().count("up") == 2


def test_a_paused_process_stands_still_until_it_is_resumed(tmp_path):
    ticker = [sys.executable, "-c", "import time\nwhile True: print('.', flush=True); time.sleep(0.005)"]
    with ManagedProcess(ticker, cwd=tmp_path, log_path=tmp_path / "log") as process:
        wait_until(process.logs)
        process.pause()
        assert process.status == "paused"
        frozen = process.logs()
        time.sleep(0.05)  # ten lines long: there is no event to wait for where nothing may happen
        assert process.logs() == frozen
        process.resume()
        wait_until(lambda: process.logs() > frozen)


def test_terminate_ends_even_a_paused_process(sleeper):
    sleeper.pause()
    assert sleeper.terminate() == -signal.SIGTERM


def test_terminate_kills_what_ignores_it(tmp_path):
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
    argv = [sys.executable, "-c", stubborn + "time.sleep(60)"]
    with ManagedProcess(argv, cwd=tmp_path, log_path=tmp_path / "log") as process:
        wait_until(process.logs)
        assert process.terminate(timeout=0.1) == -signal.SIGKILL


def test_a_pool_worker_goes_with_its_parent(tmp_path):
    code = """
        import os, time
        child = os.fork()
        if child:
            print(child, flush=True)
        time.sleep(60)
    """
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    with ManagedProcess(argv, cwd=tmp_path, log_path=tmp_path / "log") as process:
        child = int(wait_until(process.logs))
        process.kill()
        wait_until(lambda: not exists(child), message="the forked child lives on")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
def test_nothing_outlives_a_parent_that_is_killed(tmp_path):
    code = f"""
        import time
        from celery_singlebeat.testing.processes import ManagedProcess
        print(ManagedProcess({SLEEPER!r}).start().pid, flush=True)
        time.sleep(60)
    """
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    parent = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    with parent:
        child = int(parent.stdout.readline())
        assert exists(child)
        parent.kill()
    wait_until(lambda: not exists(child), message="the child outlived its parent")


def test_a_process_outlives_the_thread_that_started_it(tmp_path):
    process = ManagedProcess(SLEEPER, cwd=tmp_path, log_path=tmp_path / "log")
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join()
    with pytest.raises(AssertionError, match="did not end"):
        process.wait(timeout=0.2)
    process.terminate()


def test_the_environment_is_laid_over_ours_and_none_removes(tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("GONE", "1")
    code = "import os; print(*[os.environ.get(name) for name in ('KEPT', 'GONE', 'NEW')])"
    argv = [sys.executable, "-c", code]
    process = ManagedProcess(argv, cwd=tmp_path, env={"GONE": None, "NEW": "2"}, log_path=tmp_path / "log")
    assert process.start().wait() == 0
    assert process.logs().strip() == "1 None 2"


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        ManagedProcess(["no-such-program"], cwd=tmp_path).start()


def test_a_deadline_that_passes_says_what_it_waited_for():
    seen: list[int] = []

    def look() -> bool:
        seen.append(len(seen))
        return False

    with pytest.raises(AssertionError, match=r"saw \d+ of nothing"):
        wait_until(look, timeout=0.05, message=lambda: f"saw {len(seen)} of nothing", interval=0.01)
    assert len(seen) > 2
