"""The real server as a child process, for as long as a `with` block lasts."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from webhook.certs.selfsigned import self_signed
from webhook.cli.calling import Client

START_SECONDS = 60.0
STOP_SECONDS = 10.0
HOST = "127.0.0.1"


class ServerError(Exception):
    """The server did not come up; the message ends with what it wrote."""


@contextmanager
def serving(arguments: Sequence[str]) -> Iterator[tuple[Client, int]]:
    """Run `rightslice serve webhook` on a free loopback port with a certificate of its own.

    Yields:
        A client that trusts the certificate's authority, and the port.

    Raises:
        ServerError: it ended, or was not ready in time.
    """
    with TemporaryDirectory(prefix="rightslice-") as name:
        folder = Path(name)
        pair = self_signed([HOST], datetime.now(UTC))
        certificate, key = pair.write(folder)
        port = free_port()
        log = folder / "log"
        command = [sys.executable, "-m", "webhook.cli", "serve", "webhook", "--listen", f"{HOST}:{port}"]
        command += ["--tls-cert", str(certificate), "--tls-key", str(key), *arguments]
        with log.open("wb") as stream:
            server = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)  # noqa: S603 - our own program
        client = Client(port, folder / "ca.crt")
        try:
            _wait(server, client, log)
            yield client, port
        finally:
            client.close()
            _end(server)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _wait(server: subprocess.Popen[bytes], client: Client, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not client.is_ready():
        if server.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:].strip()
            raise ServerError(f"the server did not become ready. It wrote: {tail or 'nothing'}")
        time.sleep(0.05)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
