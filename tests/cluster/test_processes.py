"""A supervised program starts, stops, restarts, and ends with the test process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.polling import eventually
from tests.cluster.processes import SUPERVISOR, Process
from tests.conftest import ROOT

SERVER = """
import os, signal, sys, time
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
print("said something", flush=True)
time.sleep(600)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVER
FAULTY = "raise SystemExit('no such flag')"


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """The file that the program appends its process id to at each start."""
    return tmp_path / "pids"


def program(code: str, pids: Path) -> Process:
    """Return a Python program that is ready once it has written its process id."""
    command = [sys.executable, "-c", code, str(pids)]
    return Process("server", command, pids.with_name("log"), lambda: not is_gone(started_pids(pids)[-1]))


def started_pids(pids: Path) -> list[int]:
    """Return the process ids of all starts."""
    return [int(line) for line in pids.read_text().split()] if pids.exists() else []


def is_gone(pid: int) -> bool:
    """Return whether the process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def server(pids: Path) -> Iterator[Process]:
    """A running program."""
    process = program(SERVER, pids)
    process.start()
    yield process
    process.kill()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_ended_program_can_be_started_again(server: Process, pids: Path, end: str) -> None:
    getattr(server, end)()
    assert is_gone(started_pids(pids)[0])
    assert not server.running

    server.start()
    assert server.running
    assert len(started_pids(pids)) == 2


def test_stopping_twice_is_no_error(server: Process) -> None:
    server.stop()
    server.stop()
    server.kill()


def test_a_program_that_does_not_stop_in_time_is_killed(pids: Path) -> None:
    process = program(STUBBORN, pids)
    process.start()

    with pytest.raises(AssertionError, match=r"has not ended after 0\.3 s"):
        process.stop(within=0.3)

    assert is_gone(started_pids(pids)[0])


def test_a_program_that_exits_at_once_is_reported_with_its_output(pids: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"server is not ready: it ended\n(.*\n)*no such flag\n\(all of it: .*log\)"
    ):
        program(FAULTY, pids).start()


def test_a_program_that_exited_is_not_running(server: Process, pids: Path) -> None:
    os.kill(started_pids(pids)[0], signal.SIGKILL)

    eventually(lambda: not server.running)
    server.stop()


PARENT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.cluster.processes import Process
pids = Path(sys.argv[1])
process = Process("server", [sys.executable, "-c", {SERVER!r}, str(pids)], pids.with_name("log"), lambda: pids.exists())
process.start()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_with_its_parent_process(pids: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, str(pids)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        parent.send_signal(number)

    (pid,) = eventually(lambda: started_pids(pids))
    eventually(lambda: is_gone(pid))


def test_a_terminated_supervisor_ends_its_program(pids: Path) -> None:
    command = [sys.executable, "-I", "-S", str(SUPERVISOR), sys.executable, "-c", SERVER, str(pids)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as supervisor:
        (pid,) = eventually(lambda: started_pids(pids))
        supervisor.terminate()

    assert is_gone(pid)
