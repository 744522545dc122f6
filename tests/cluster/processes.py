"""Programs that tests start, stop, kill and restart, and that end with the test process."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster.polling import eventually

SUPERVISOR = Path(__file__).with_name("supervisor.py")

START_SECONDS = 180
"""An API server starts in 5 s on an idle machine, and in more than 60 s on a busy one."""

STOP_SECONDS = 360
"""An API server that stops gracefully waits for the requests that run: up to its --request-timeout of 5 minutes."""

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

PORTS = range(20_000, 32_000)[WORKER::WORKERS]
"""Below the ports of outgoing connections, so that a restarted program gets its port again. Each worker process of
pytest-xdist has its own: otherwise one could take a port while another restarts its program."""

UNUSED_PORTS = set(PORTS)
"""Ports that have not been returned yet."""

SYSTEM_RANDOM = random.SystemRandom()
"""Independent of `random`, which property tests reseed: that would return the same ports again."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free and has not been returned before."""
    for port in SYSTEM_RANDOM.sample(sorted(UNUSED_PORTS), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            UNUSED_PORTS.discard(port)
            return port
    raise OSError("no free port")


def is_up(url: str) -> bool:
    """Return whether a program answers a probe with 200. It may raise OSError before it listens."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as response:
        return bool(response.status == 200)


class Process:
    """One program under its supervisor, which ends it when it is stopped or garbage-collected, or when we are killed.

    Args:
        name: Its name in messages.
        command: Program and arguments.
        log: The file that its output is appended to.
        ready: Returns true once it serves; polled by `start`. May raise OSError before that.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, ready: Callable[[], object] = lambda: True
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._ready = ready
        self._supervisor: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used so far. Linux only."""
        assert self._supervisor is not None
        supervisor = self._supervisor.pid
        child = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text(encoding="ascii").split()[0]
        fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        user, system = int(fields[11]), int(fields[12])
        return (user + system) / os.sysconf("SC_CLK_TCK")

    def start(self, within: float = START_SECONDS) -> None:
        """Start it, and wait until it is ready.

        Raises:
            AssertionError: it ended, or was not ready in time; the end of its log is in the message.
        """
        self.launch()
        self.wait(within)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Run it for the block, from when it is ready, and kill it afterwards."""
        self.start()
        try:
            yield
        finally:
            self.kill()

    def launch(self) -> None:
        """Start it without waiting."""
        assert not self.running, f"{self.name} is already running"
        self._close()
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), *self.command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, within: float = START_SECONDS) -> None:
        """Wait until it is ready."""
        try:
            eventually(lambda: not self.running or self._ready(), within=within)
            assert self.running, "it ended"
        except AssertionError as error:
            self._close()
            raise AssertionError(f"{self.name} is not ready: {error}\n{self.tail()}") from None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(b"%d\n" % number)

    def stop(self, within: float = STOP_SECONDS) -> None:
        """Stop it gracefully (SIGTERM), and wait until it has exited and its port is free.

        Raises:
            AssertionError: it had not ended in time, and was killed; the end of its log is in the message.
        """
        self._stop_with(signal.SIGTERM, within)

    def kill(self) -> None:
        """Kill it (SIGKILL), and wait until it has exited."""
        self._stop_with(signal.SIGKILL, 30)

    def restart(self) -> None:
        """Stop it gracefully, and start it again with the same data on the same port."""
        self.stop()
        self.start()

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log, and the path of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join([*text.splitlines()[-lines:], f"(all of it: {self.log})"])

    def _stop_with(self, number: signal.Signals, within: float) -> None:
        if self._supervisor is None:
            return
        try:
            with suppress(BrokenPipeError):  # it may have ended by itself
                self.send(number)
            self._supervisor.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended after {within:g} s\n{self.tail()}") from None
        finally:
            self._close()

    def _close(self) -> None:
        """Close the pipe: the supervisor then kills what is left, and exits."""
        if self._supervisor is not None:
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.close()
            self._supervisor.wait(30)
        self._supervisor = None


def mount_namespace() -> list[str]:
    """Return the start of a command that runs in a mount namespace of its own, as root there."""
    user_flags = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user_flags, "--mount"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        return command
    # A root that is not a mount, as in a chroot, cannot be made private here.
    assert "shared:" not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return [*command, "--propagation", "unchanged"]
