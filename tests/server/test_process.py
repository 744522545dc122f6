"""The real process, from start to exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.server.site import PAIR, PATIENCE, POLICY, TlsConnection, encoded, http, post, review

REQUEST = post("/validate", encoded(review()))


class Process:
    """`rightslice serve webhook`, and the lines it logs."""

    def __init__(self, arguments: list[str], files: int | None = None) -> None:
        command = [sys.executable, "-m", "webhook.cli", "serve", "webhook", *arguments]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        self.popen = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        self.lines.extend(iter(self.popen.stderr.readline, ""))
        self.popen.stderr.close()

    def wait_for(self, event: str) -> dict[str, object]:
        """Wait for a line of the log."""
        end = time.monotonic() + 3 * PATIENCE
        while time.monotonic() < end:
            for line in self.lines:
                if line.startswith("{") and json.loads(line)["event"] == event:
                    found: dict[str, object] = json.loads(line)
                    return found
            assert self.popen.poll() is None, self.lines
            time.sleep(0.02)
        raise AssertionError(f"no {event!r} in {self.lines}")

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait until the condition is true."""
        end = time.monotonic() + 3 * PATIENCE
        while not true():
            assert time.monotonic() < end, self.lines
            time.sleep(0.02)

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(str(self.wait_for("serving")["listen"]).rpartition(":")[2])

    def end(self) -> int:
        """Wait for the process to exit, and return its exit code."""
        code = self.popen.wait(3 * PATIENCE)
        self._reader.join()
        return code


@contextmanager
def running(folder: Path, *more: str, files: int | None = None) -> Iterator[Process]:
    """Run the process with one small policy until the block ends; `files` limits its open files."""
    (folder / "policies").mkdir()
    (folder / "policies" / "policy.yaml").write_text(POLICY.format(name="guard"))
    certificate, key = PAIR.write(folder)
    arguments = ["--policies", str(folder / "policies"), "--cluster", "demo", "--listen", "127.0.0.1:0"]
    process = Process([*arguments, "--tls-cert", str(certificate), "--tls-key", str(key), *more], files)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
        process.end()


def listens(port: int) -> bool:
    """Return whether a port of this machine accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_policies_flag_is_repeatable(tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(POLICY.format(name="more"))
    with running(tmp_path, "--policies", str(more)) as process:
        assert process.wait_for("serving")["policies"] == 2


def test_sigterm_drains_and_exits_with_0(tmp_path: Path) -> None:
    with running(tmp_path, "--drain-seconds", "5") as process:
        kept, late, slow = (TlsConnection(process.port) for _ in range(3))
        kept.send(REQUEST)
        first = kept.read()
        assert first is not None
        assert "connection" not in first.headers
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("shutting down")
        signaled = time.monotonic()

        late.send(http("GET", "/readyz"))
        assert (late.read() or (0,))[0] == 503
        kept.send(REQUEST)
        second = kept.read()
        assert second is not None
        assert (second.status, second.headers["connection"]) == (200, "close")
        newcomer = TlsConnection(process.port)
        newcomer.send(REQUEST)
        assert (newcomer.read() or (0,))[0] == 200

        time.sleep(max(0.0, signaled + 3 - time.monotonic()))  # the rest of the request must arrive within five seconds
        slow.send(REQUEST[:-10])  # the request begins before the pause ends, and ends after it
        time.sleep(max(0.0, signaled + 5.5 - time.monotonic()))
        slow.send(REQUEST[-10:])
        last = slow.read()
        assert last is not None
        assert last.status == 200
        assert process.end() == 0
        assert json.loads(process.lines[-1])["event"] == "stopped"


def test_a_connection_that_no_request_uses_is_left_to_its_client(tmp_path: Path) -> None:
    """If the server closed it while the client sends a request, that review would get no answer."""
    with running(tmp_path, "--drain-seconds", "0.5") as process:
        used, unused, never_used = (TlsConnection(process.port) for _ in range(3))
        for connection in (used, unused):
            connection.send(REQUEST)
            assert connection.read() is not None
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("shutting down")

        time.sleep(6)
        for connection in (used, never_used):
            connection.send(REQUEST)
            late = connection.read()
            assert late is not None
            assert (late.status, late.headers["connection"]) == (200, "close")
        assert process.popen.poll() is None
        unused.socket.close()
        assert process.end() == 0


def test_a_connection_made_before_the_end_of_draining_is_served(tmp_path: Path) -> None:
    with running(tmp_path, "--drain-seconds", "1") as process:
        port = process.port
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("shutting down")
        opened = socket.create_connection(("127.0.0.1", port), PATIENCE)
        process.wait_until(lambda: not listens(port))
        late = TlsConnection(port, opened=opened)
        late.send(REQUEST)
        assert (late.read() or (0,))[0] == 200
        assert process.end() == 0


def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "--drain-seconds", "300") as process:
        assert process.port
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("shutting down")
        start = time.monotonic()
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == 0
        assert time.monotonic() - start < 150, "half of the configured drain period"


def test_a_low_limit_of_open_files_keeps_spare_descriptors(tmp_path: Path) -> None:
    with running(tmp_path, files=128) as process:
        warning = process.wait_for("fewer connections than requested: the limit of open files is low")
        assert (warning["connections"], warning["requested"]) == (42, 2000)
        kept = []
        for _ in range(36):
            kept.append(TlsConnection(process.port))
            kept[-1].send(REQUEST)
            assert (kept[-1].read() or (0,))[0] == 200
        unused = [TlsConnection(process.port) for _ in range(100)]
        assert all(each.closed() for each in unused[:90]), "further connections replace one another"

        (tmp_path / "policies" / "policy.yaml").write_text(POLICY.format(name="other"))
        process.wait_until(lambda: any('"policies loaded"' in line for line in process.lines[2:]))
        assert "Too many open files" not in "".join(process.lines)

        for connection in (*kept, TlsConnection(process.port)):
            connection.send(REQUEST)
            assert (connection.read() or (0,))[0] == 200


def test_the_server_starts_fast_and_uses_little_memory(tmp_path: Path) -> None:
    start = time.monotonic()
    with running(tmp_path) as process:
        connection = TlsConnection(process.port)
        connection.send(http("GET", "/readyz"))
        assert (connection.read() or (0,))[0] == 200
        assert time.monotonic() - start < 2 * PATIENCE  # the measure of 2 s is taken by the benchmark
        resident = int(Path(f"/proc/{process.popen.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 120 * 2**20
        process.popen.send_signal(signal.SIGINT)
        assert process.end() == 0


DEMO = ["--policies", "policies", "--cluster", "demo"]

WRONG = {
    "no policies": (
        ["--cluster", "demo", "--self-signed"],
        "--policies: must be given, found none. Write --policies DIR",
    ),
    "missing policies": (
        ["--policies", "nowhere", "--cluster", "demo", "--self-signed"],
        "nowhere: must be a folder or file of policies",
    ),
    "no cluster": (
        ["--policies", "policies", "--self-signed"],
        "--cluster: must be given, found none. Write --cluster live",
    ),
    "a missing cluster": (["--policies", "policies", "--cluster", "nowhere", "--self-signed"], "nowhere"),
    "no certificate": (
        ["--policies", "policies", "--cluster", "demo"],
        "--tls-key, or --managed-tls, or --self-signed",
    ),
    "a live cluster without access": (
        ["--cluster", "live", "--kubeconfig", "nowhere", "--self-signed"],
        "nowhere: must be a kubeconfig file, found none. Write --kubeconfig FILE",
    ),
    "a kubeconfig for a snapshot": (
        ["--policies", "policies", "--cluster", "demo", "--kubeconfig", "x", "--self-signed"],
        "--kubeconfig and --context: must be used with --cluster live",
    ),
    "two certificates": (
        ["--policies", "policies", "--cluster", "demo", "--self-signed", "--tls-cert", "x", "--tls-key", "y"],
        "must have only one of",
    ),
    "managed certificates and files": (
        [*DEMO, "--managed-tls", "--tls-cert", "x", "--tls-key", "y"],
        "must have only one of",
    ),
    "a certificate without its key": ([*DEMO, "--tls-cert", "x"], "must have --tls-cert and --tls-key"),
    "a Secret without its namespace": (
        [*DEMO, "--managed-tls", "--tls-secret", "tls"],
        "--tls-secret: must be NAMESPACE/NAME, found 'tls'",
    ),
    "a Secret and a self-signed certificate": (
        [*DEMO, "--self-signed", "--tls-secret", "a/b"],
        "must have only one of",
    ),
    "names without a managed certificate": (
        [*DEMO, "--self-signed", "--tls-names", "x"],
        "--tls-names: must be used with --managed-tls",
    ),
    "managed certificates without access to a cluster": (
        [*DEMO, "--managed-tls", "--kubeconfig", "nowhere"],
        "nowhere: must be a kubeconfig file",
    ),
    "a missing certificate": (
        ["--policies", "policies", "--cluster", "demo", "--tls-cert", "x", "--tls-key", "y"],
        "x: cannot be read",
    ),
    "a missing client authority": (
        ["--policies", "policies", "--cluster", "demo", "--self-signed", "--client-ca", "nowhere.pem"],
        "--client-ca nowhere.pem: cannot be read",
    ),
    "an invalid client authority": (
        ["--policies", "policies", "--cluster", "demo", "--self-signed", "--client-ca", "README.md"],
        "--client-ca README.md: must be certificates of authorities",
    ),
    "an address without a port": (
        ["--policies", "policies", "--cluster", "demo", "--self-signed", "--listen", "localhost"],
        "--listen: must be ADDRESS:PORT",
    ),
    "an address of another machine": (
        ["--policies", "policies", "--cluster", "demo", "--self-signed", "--listen", "192.0.2.1:0"],
        "--listen 192.0.2.1:0",
    ),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_a_start_error_is_one_line(arguments: list[str], words: str) -> None:
    process = Process(arguments)
    assert process.end() == 2
    assert words in "".join(process.lines)
    assert "Traceback" not in "".join(process.lines)
