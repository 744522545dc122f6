"""The minimum cost of any webhooks: the floor that `benchmarks.cluster` compares with.

One mutating and one validating webhook, each pair in a namespace of its own that Rightslice's webhooks exclude:

* *conditions alone*: webhooks whose only condition is never true. Nothing is called; the API server converts the pod.
* *an empty pair*: webhooks without conditions; their server reads the uid and allows.
* *our webhooks, an empty server*: Rightslice's webhooks for pods with their conditions, and the backstop, with
  that server.
"""

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.recording_webhook import apply_admission_objects
from tests.controlplane.build_cache import cache, print_message
from tests.controlplane.toolchain import find_go
from webhook.certs.issuer import create_self_signed
from webhook.manifests.backstop import backstop_policies
from webhook.manifests.webhooks import webhook_configurations
from webhook.well_known import EXCLUDED_NAMESPACES

CONDITIONS, EMPTY, COPIED = "nvidia-gpu-operator", "gpu-operator", "kube-public"
"""Namespaces that our own hooks leave out."""

JUDGED = ("mutate.rightslice.dev", "validate.rightslice.dev", "host.rightslice.dev")
"""Our hooks that a pod's create can come to."""

GO = Path(__file__).parent / "go"
NEVER = {"name": "never", "expression": "object.metadata.name == ''"}


@contextmanager
def floors(plane: Plane, folder: Path) -> Iterator[Process]:
    """Install all of them for the duration of the block; yields the one server behind them."""
    server, client = empty_server(folder)
    pairs = [*pair("conditions", CONDITIONS, client, [NEVER]), *pair("empty", EMPTY, client, [])]
    hooks = [*pairs, *copies(COPIED, client)]
    for namespace in (CONDITIONS, EMPTY):
        plane.add_namespace(namespace)
    server.start()
    try:
        with apply_admission_objects(plane, hooks):
            eventually(lambda: is_asked(plane, server, EMPTY))
            eventually(lambda: is_asked(plane, server, COPIED))
            yield server
    finally:
        server.kill()


def empty_server(folder: Path) -> tuple[Process, Json]:
    """Return the server, not started yet, and its client configuration."""
    go = find_go("1.24", cache(), print_message)
    subprocess.run([str(go), "build", "-o", f"{folder}/", "./empty"], cwd=GO, check=True)
    certificate, port = create_self_signed(["127.0.0.1"], datetime.now(UTC)), free_port()
    certificate.write(folder)
    files = [f"-cert={folder}/tls.crt", f"-key={folder}/tls.key"]
    server = Process("empty", [f"{folder}/empty", f"-listen=127.0.0.1:{port}", *files], folder / "empty.log")
    return server, {"url": f"https://127.0.0.1:{port}/", "caBundle": b64encode(certificate.authority).decode()}


def pair(name: str, namespace: str, client: Json, conditions: list[Json]) -> list[Json]:
    """Return a mutating and a validating webhook for one namespace."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": f"{name}.floor.rightslice.dev",
        "clientConfig": client,
        "rules": [rule],
        "namespaceSelector": only(namespace),
        "matchConditions": conditions,
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    }
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": f"floor-{name}"},
            "webhooks": [hook],
        }
        for kind in ("Mutating", "Validating")
    ]


def only(namespace: str) -> Json:
    """Return a selector of one namespace."""
    return {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}]}


def copies(namespace: str, client: Json) -> list[Json]:
    """Return Rightslice's webhooks for pods and the backstop for one namespace, with another server."""
    policy, binding = backstop_policies()[:2]
    copied = {
        **binding,
        "metadata": {"name": "floor-ours"},
        "spec": {
            "policyName": "floor-ours",
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": only(namespace)},
        },
    }
    hooks = [
        {
            **one,
            "metadata": {"name": "floor-ours"},
            "webhooks": [copy(hook, namespace, client) for hook in one["webhooks"] if hook["name"] in JUDGED],
        }
        for one in webhook_configurations()
    ]
    return [*hooks, {**policy, "metadata": {"name": "floor-ours"}}, copied]


def copy(hook: Json, namespace: str, client: Json) -> Json:
    """Return a webhook that excludes as many namespaces as ours, but not this one."""
    conditions = [{**each, "expression": elsewhere(each["expression"])} for each in hook["matchConditions"]]
    return {**hook, "clientConfig": client, "namespaceSelector": only(namespace), "matchConditions": conditions}


def elsewhere(expression: str) -> str:
    """Return the condition that excludes namespaces, for other names of the same length."""
    for name in EXCLUDED_NAMESPACES:
        expression = expression.replace(f"'{name}'", f"'x{name[1:]}'")
    return expression


def is_asked(plane: Plane, server: Process, namespace: str) -> bool:
    """Return whether the API server calls it already."""
    before = server.cpu_seconds
    pod = make_pod().namespace(namespace).gpus(1).build()
    for _ in range(50):
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    return server.cpu_seconds > before
