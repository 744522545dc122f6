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

from webhook.certs.selfsigned import create_self_signed
from webhook.cli.calling import WebhookClient

START_SECONDS = 60.0
STOP_SECONDS = 10.0
HOST = "127.0.0.1"


class WebhookProcessError(Exception):
    """The server did not come up; the message ends with what it wrote."""


@contextmanager
def run_webhook_process(arguments: Sequence[str]) -> Iterator[tuple[WebhookClient, int]]:
    """Run `rightslice serve webhook` on a free loopback port with a certificate of its own.

    Yields:
        A client that trusts the certificate's authority, and the port.

    Raises:
        ServerError: it ended, or was not ready in time.
    """
    with TemporaryDirectory(prefix="rightslice-") as name:
        folder = Path(name)
        pair = create_self_signed([HOST], datetime.now(UTC))
        certificate, key = pair.write(folder)
        port = find_free_port()
        log = folder / "log"
        command = [sys.executable, "-m", "webhook.cli", "serve", "webhook", "--listen", f"{HOST}:{port}"]
        command += ["--tls-cert", str(certificate), "--tls-key", str(key), *arguments]
        with log.open("wb") as stream:
            server = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)  # noqa: S603 - our own program
        client = WebhookClient(port, folder / "ca.crt")
        try:
            _wait_until_ready(server, client, log)
            yield client, port
        finally:
            client.close()
            _stop_process(server)


def find_free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _wait_until_ready(server: subprocess.Popen[bytes], client: WebhookClient, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not client.is_ready():
        if server.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:].strip()
            raise WebhookProcessError(f"the server did not become ready. It wrote: {tail or 'nothing'}")
        time.sleep(0.05)


def _stop_process(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
