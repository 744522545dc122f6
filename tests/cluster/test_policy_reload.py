"""The server on a live cluster: its decisions follow policies applied with kubectl."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.installation import unverified_context
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_crds import POLICIES, is_served
from webhook.cli.webhook_client import WebhookClient, run_webhook_process

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANY_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition() -> Json:
    """Return a CRD of GPUPolicy without a schema, so that only the loader validates its content."""
    names = {"plural": "gpupolicies", "singular": "gpupolicy", "kind": "GPUPolicy", "listKind": "GPUPolicyList"}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANY_OBJECT}}
    spec = {"group": "rightslice.dev", "scope": "Cluster", "names": names, "versions": [version]}
    metadata = {"name": "gpupolicies.rightslice.dev"}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**kind, "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def kind(plane: Plane) -> Iterator[None]:
    """Serve the kind during these tests."""
    path = f"{DEFINITIONS}/gpupolicies.rightslice.dev"
    existed = plane.api.exists(path)
    if not existed:
        plane.api.create(DEFINITIONS, definition())
    eventually(lambda: is_served(plane, POLICIES))
    yield
    if not existed:
        plane.api.delete(path)
        eventually(lambda: not plane.api.exists(path))


class PolicyServer:
    """The real server process over the plane."""

    def __init__(self, client: WebhookClient, port: int) -> None:
        self.client = client
        self._port = port

    def page(self, path: str) -> str:
        url = f"https://127.0.0.1:{self._port}{path}"
        try:
            with urllib.request.urlopen(url, context=unverified_context(), timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())

    def rejects(self, pod: Json) -> bool:
        """Return whether this pod is rejected."""
        return not self.client.review("/validate", pod, "u").allowed


@contextmanager
def serve_webhook(plane: Plane, *arguments: str) -> Iterator[PolicyServer]:
    with run_webhook_process(["--cluster", "live", "--kubeconfig", str(plane.kubeconfig), *arguments]) as (
        client,
        port,
    ):
        yield PolicyServer(client, port)


NOT_CEL: Json = {"match": {"matchConditions": [{"name": "c", "expression": "object ==="}]}}
"""A policy that the schema accepts and the loader rejects."""


def policy(name: str, deny: str, mode: str = "enforce", **more: object) -> str:
    spec = {"mode": mode, "security": {"deny": [deny]}, **more}
    return json.dumps(
        {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}
    )


@pytest.mark.usefixtures("kind")
def test_a_policy_that_kubectl_applies_is_live_without_a_restart(plane: Plane, namespace: str, tmp_path: Path) -> None:
    bypass = make_pod().namespace(namespace).env("NVIDIA_VISIBLE_DEVICES", "all").build()
    (tmp_path / "f.yaml").write_text(policy("from-a-file", "privileged"))
    with serve_webhook(plane, "--policies", str(tmp_path)) as site:
        try:
            assert not site.rejects(bypass)
            plane.kubectl("apply", "-f", "-", stdin=policy("guard", "visibleDevicesEnv"))
            eventually(lambda: site.rejects(bypass))
            plane.kubectl("apply", "-f", "-", stdin=policy("guard", "visibleDevicesEnv", mode="audit"))
            eventually(lambda: not site.rejects(bypass))
            plane.kubectl("apply", "-f", "-", stdin=policy("guard", "visibleDevicesEnv"))
            eventually(lambda: site.rejects(bypass))
            plane.api.patch(f"{POLICIES}/guard", {"status": {"note": True}})
            plane.kubectl("delete", "gpupolicy", "guard")
            eventually(lambda: not site.rejects(bypass))
        finally:
            plane.kubectl("delete", "gpupolicy", "guard", "--ignore-not-found")


@pytest.mark.usefixtures("kind")
def test_files_take_precedence_and_an_invalid_object_changes_nothing(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    bypass = make_pod().namespace(namespace).env("NVIDIA_VISIBLE_DEVICES", "all").build()
    (tmp_path / "f.yaml").write_text(policy("one", "visibleDevicesEnv"))
    with serve_webhook(plane, "--policies", str(tmp_path)) as site:
        try:
            plane.kubectl("apply", "-f", "-", stdin=policy("one", "visibleDevicesEnv", mode="audit"))
            plane.kubectl("apply", "-f", "-", stdin=policy("two", "privileged", **NOT_CEL))
            eventually(lambda: "[-]policy files GPUPolicy/two" in site.page("/readyz?verbose"))
            assert site.rejects(bypass), "the file takes precedence over the object of the same name"
            assert site.page("/readyz") == "ok\n"
        finally:
            plane.kubectl("delete", "gpupolicy", "one", "two", "--ignore-not-found")


def test_readyz_reports_each_watched_kind(plane: Plane, namespace: str) -> None:
    with serve_webhook(plane, "--policies", "policies") as site:
        page = site.page("/readyz?verbose")
        for kind in ("nodes", "namespaces", "limitranges", "resourcequotas", "pods"):
            assert f"[+]{kind} synced" in page
        (age,) = re.findall(r"^rightslice_cluster_view_age_seconds (.+)$", site.page("/metrics"), re.MULTILINE)
        assert 0 <= float(age) < 60
