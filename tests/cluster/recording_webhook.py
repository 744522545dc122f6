"""A webhook that allows everything and records the requests it receives."""

from __future__ import annotations

import json
import ssl
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.polling import eventually
from webhook.certs.issuer import SelfSignedPair, create_self_signed
from webhook.manifests.webhooks import webhook_configurations


class RecordingWebhook:
    """A webhook server and the requests it received.

    Attributes:
        reviews: Requests of AdmissionReviews, each with its path.
        url: Its URL.
        bundle: The caBundle that signed its certificate.
    """

    def __init__(self, port: int, pair: SelfSignedPair) -> None:
        self.reviews: list[tuple[str, Json]] = []
        self.url = f"https://127.0.0.1:{port}"
        self.bundle = b64encode(pair.authority).decode()

    def paths_called_for(self, name: str) -> set[str]:
        """Return the paths called for objects of a name, without the slash."""
        return {path[1:] for path, request in self.reviews if object_name(request) == name}

    def redirect(self, configuration: Json) -> Json:
        """Return a webhook configuration that calls this server instead, each webhook at the first part of its name.

        The API server waits as long as it can, so that no call fails because a machine is busy.
        """
        webhooks = [
            {
                **hook,
                "clientConfig": {"url": f"{self.url}/{hook['name'].partition('.')[0]}", "caBundle": self.bundle},
                "timeoutSeconds": 30,
            }
            for hook in configuration["webhooks"]
        ]
        return {**configuration, "webhooks": webhooks}


def object_name(request: Mapping[str, Any]) -> str:
    """Return the name of a request's object."""
    name: str = request.get("name") or request["object"]["metadata"].get("name", "")
    return name


def no_patch(_request: Json) -> list[Json]:
    """Return an empty patch."""
    return []


@contextmanager
def serve_recording_webhook(patch: Callable[[Json], list[Json]] = no_patch) -> Iterator[RecordingWebhook]:
    """Serve a recording webhook until the block ends. `patch` returns the JSON Patch of its answer to a request."""
    pair = create_self_signed(["127.0.0.1"], datetime.now(UTC))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            recorder.reviews.append((self.path.partition("?")[0], review["request"]))
            response = {"uid": review["request"]["uid"], "allowed": True}
            operations = patch(review["request"])
            if operations:
                response |= {"patchType": "JSONPatch", "patch": b64encode(json.dumps(operations).encode()).decode()}
            body = json.dumps({**review, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = _tls(pair).wrap_socket(server.socket, server_side=True)
    recorder = RecordingWebhook(server.server_address[1], pair)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tls(pair: SelfSignedPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "crt"), Path(folder, "key")
        for file, content in zip(files, (pair.certificate, pair.key), strict=True):
            file.write_bytes(content)
        context.load_cert_chain(*files)
    return context


@contextmanager
def register_recording_webhook(plane: Any, namespace: str) -> Iterator[RecordingWebhook]:
    """Register our configurations for one namespace, with a recording webhook as their server."""
    pod = make_pod("probe").gpus(1).namespace(namespace).build()

    def is_called() -> bool:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
        return recorder.paths_called_for("probe") >= {"mutate", "validate"}

    with (
        plane.namespace_called(namespace),
        serve_recording_webhook() as recorder,
        apply_admission_objects(plane, [recorder.redirect(item) for item in webhook_configurations()]),
    ):
        eventually(is_called)
        yield recorder


def pod_webhook(name: str, url: str, bundle: str, namespace: str) -> Json:
    """Return the configuration of another webhook that is called for new pods of a namespace, in the order of names."""
    webhook = {
        "name": f"{name}.example.com",
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,  # many pods at once, on a machine that may be busy
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    return {**head, "metadata": {"name": name}, "webhooks": [webhook]}


@contextmanager
def register_patching_webhook(plane: Any, name: str, pod: Json, patch: Callable[[Json], list[Json]]) -> Iterator[None]:
    """Register another webhook for the block that changes the new pods of a namespace; `pod` is one, to try it with."""
    namespace = pod["metadata"]["namespace"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    with serve_recording_webhook(patch) as other:
        configuration = pod_webhook(name, f"{other.url}/patch", other.bundle, namespace)
        with apply_admission_objects(plane, [configuration]):
            eventually(lambda: other.reviews or not plane.api.create(path, pod, dryRun="All"))
            yield


def admission_object_paths(objects: Sequence[Json]) -> list[str]:
    """Return the API paths of admissionregistration objects."""
    plurals = {
        "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
        "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    }
    folder = "/apis/admissionregistration.k8s.io/v1"
    return [f"{folder}/{plurals[item['kind']]}/{item['metadata']['name']}" for item in objects]


@contextmanager
def apply_admission_objects(plane: Any, objects: Sequence[Json]) -> Iterator[None]:
    """Create these admissionregistration objects for the block."""
    try:
        for path, item in zip(admission_object_paths(objects), objects, strict=True):
            plane.api.create(path.rpartition("/")[0], item)
        yield
    finally:
        for path in admission_object_paths(objects):
            if plane.api.exists(path):
                plane.api.delete(path)
