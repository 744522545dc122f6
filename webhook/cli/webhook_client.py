"""Runs the webhook server as a child process, and calls it as an API server does."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import orjson

from webhook.audit.evaluate import api_group
from webhook.certs.issuer import create_self_signed
from webhook.model.decisions import PatchOperation

START_SECONDS = 180.0
"""On an idle machine it takes one; a process that ends is noticed at once."""

STOP_SECONDS = 10.0
HOST = "127.0.0.1"
REVIEW_TIMEOUT_SECONDS = 10.0
"""An API server's default timeout for webhooks."""


class WebhookProcessError(Exception):
    """The server did not start; the message ends with its output."""


class WebhookResponse(NamedTuple):
    """A webhook's response to an AdmissionReview, and its latency."""

    allowed: bool
    patch: tuple[PatchOperation, ...]
    warnings: tuple[str, ...]
    message: str
    milliseconds: float


class WebhookClient:
    """A client with one kept-alive connection."""

    def __init__(self, port: int, authority: Path) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        self._connection = http.client.HTTPSConnection(HOST, port, timeout=REVIEW_TIMEOUT_SECONDS, context=context)

    def is_ready(self) -> bool:
        """Return whether the server answers and is ready."""
        try:
            self._connection.request("GET", "/readyz")
            response = self._connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return False
        return response.status == http.client.OK

    def review(self, route: str, data: Mapping[str, Any], uid: str) -> WebhookResponse:
        """Send one object for review.

        Raises:
            OSError: the connection failed.
            ValueError: the response is not an AdmissionReview.
        """
        body = orjson.dumps(build_admission_review(data, uid))
        start = time.perf_counter()
        self._connection.request("POST", route, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        milliseconds = (time.perf_counter() - start) * 1000
        if response.status != http.client.OK:
            raise ValueError(f"{route} answered {response.status}: {content[:200].decode(errors='replace')}")
        return _parse_review_response(orjson.loads(content)["response"], milliseconds)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._connection.close()


def _parse_review_response(response: Mapping[str, Any], milliseconds: float) -> WebhookResponse:
    patch = orjson.loads(base64.b64decode(response["patch"])) if response.get("patch") else ()
    return WebhookResponse(
        allowed=response["allowed"],
        patch=tuple(patch),
        warnings=tuple(response.get("warnings") or ()),
        message=(response.get("status") or {}).get("message", ""),
        milliseconds=milliseconds,
    )


def build_admission_review(data: Mapping[str, Any], uid: str) -> dict[str, Any]:
    """Return the AdmissionReview that an API server sends when the object is created."""
    group = api_group(data["apiVersion"])
    version = data["apiVersion"].rpartition("/")[2]
    kind = {"group": group, "version": version, "kind": data["kind"]}
    resource = {"group": group, "version": version, "resource": f"{data['kind'].lower()}s"}
    metadata = data.get("metadata") or {}
    request = {
        "uid": uid,
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": metadata.get("name", ""),
        "namespace": metadata.get("namespace", ""),
        "operation": "CREATE",
        "userInfo": {"username": "demo", "groups": ["system:authenticated"]},
        "object": data,
        "oldObject": None,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@contextmanager
def run_webhook_process(arguments: Sequence[str]) -> Iterator[tuple[WebhookClient, int]]:
    """Run `rightslice serve webhook` on a free loopback port with a generated certificate.

    Yields a client that trusts its CA, and the port. Raises WebhookProcessError if it does not become ready.
    """
    with TemporaryDirectory(prefix="rightslice-") as name:
        folder = Path(name)
        pair = create_self_signed([HOST], datetime.now(UTC))
        certificate, key = pair.write(folder)
        with socket.create_server((HOST, 0)) as listener:
            port: int = listener.getsockname()[1]
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


def _wait_until_ready(server: subprocess.Popen[bytes], client: WebhookClient, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not client.is_ready():
        if server.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:].strip()
            raise WebhookProcessError(f"the server did not become ready. Its output: {tail or 'nothing'}")
        time.sleep(0.05)


def _stop_process(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
