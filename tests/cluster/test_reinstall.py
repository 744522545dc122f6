"""`rightslice install` over an existing installation: its own, kubectl's, or an out-of-cluster trial."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.cluster.client import Json
from tests.cluster.installation import EVERYTHING
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.conftest import ROOT
from webhook.certs.issuer import create_self_signed
from webhook.installing.apply import TLS_SECRET_PATH, apply_object
from webhook.installing.current_install import CurrentInstall, parse_deployment
from webhook.installing.removal import uninstall_manifests
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH, OVERLAY_OBJECTS, WEBHOOK_KINDS, api_path
from webhook.well_known import SYSTEM_NAMESPACE

BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/rightslice-pods"
HOOK_OBJECTS = [one for one in EVERYTHING if one["kind"] in WEBHOOK_KINDS]


@pytest.fixture
def bare(plane: Plane) -> Iterator[Plane]:
    """The plane; whatever is installed in it goes afterwards."""
    yield plane
    asyncio.run(remove(plane))


async def remove(plane: Plane, *, with_policies: bool = True) -> None:
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        await uninstall_manifests(api, EVERYTHING, lambda _line: None, with_policies=with_policies, seconds=120)


async def put_all(plane: Plane, objects: list[Json]) -> None:
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        for one in objects:
            await apply_object(api, one)


def install(plane: Plane, *flags: str) -> str:
    """What the command says. No replica ever gets ready here: it ends at that wait, before the hooks."""
    command = [sys.executable, "-m", "webhook.cli", "install", f"--kubeconfig={plane.kubeconfig}", "--timeout=1"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "a replica that is ready" in done.stderr or "Nothing was stored" in done.stdout, done.stderr
    return done.stdout


def apply(plane: Plane, overlay: str) -> None:
    """As docs/install.md says it."""
    folder = str(ROOT / "manifests" / "overlays" / overlay)
    eventually(lambda: plane.kubectl("apply", "--server-side", "-k", folder, check=False).returncode == 0)


def installed(plane: Plane) -> CurrentInstall:
    return parse_deployment(plane.api.get(DEPLOYMENT_PATH))


def actions(plane: Plane) -> list[str]:
    found: list[str] = plane.api.get(BINDING)["spec"]["validationActions"]
    return found


def test_omitted_options_keep_their_values(bare: Plane) -> None:
    first = install(bare, "--image=x/y:1")
    assert "mode audit\nimage x/y:1\n" in first
    assert (installed(bare), actions(bare)) == (CurrentInstall("audit", "x/y:1"), ["Audit"])

    tried = install(bare, "--mode=enforce", "--dry-run")
    assert "mode enforce, before: audit\nimage x/y:1, unchanged\n" in tried
    assert (installed(bare), actions(bare)) == (CurrentInstall("audit", "x/y:1"), ["Audit"])

    install(bare, "--mode=enforce")
    assert (installed(bare), actions(bare)) == (CurrentInstall("enforce", "x/y:1"), ["Deny"])

    third = install(bare, "--image=x/y:2")
    assert "mode enforce, unchanged\nimage x/y:2, before: x/y:1\n" in third
    assert (installed(bare), actions(bare)) == (CurrentInstall("enforce", "x/y:2"), ["Deny"])


def test_audit_after_kubectl_enforced_denies_nothing(bare: Plane) -> None:
    apply(bare, "enforce")
    assert actions(bare) == ["Deny"]

    install(bare, "--mode=audit")
    asyncio.run(put_all(bare, HOOK_OBJECTS))

    assert (installed(bare).mode, actions(bare)) == ("audit", ["Audit"])


def hooks_of(plane: Plane) -> list[Json]:
    return [hook for one in HOOK_OBJECTS for hook in plane.api.get(api_path(one))["webhooks"]]


@pytest.mark.parametrize("ours", [True, False], ids=["its own authority", "another"])
def test_a_trial_out_of_cluster_becomes_an_installation(bare: Plane, *, ours: bool) -> None:
    bundle, other = (
        b64encode(create_self_signed(["127.0.0.1"], datetime.now(UTC)).authority).decode() for _ in range(2)
    )
    apply(bare, "out-of-cluster")
    secret = {"metadata": {"name": "rightslice-tls"}, "data": {"ca.crt": bundle if ours else other}}
    bare.api.create(TLS_SECRET_PATH.rpartition("/")[0], secret)
    trust = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    for one in HOOK_OBJECTS:
        bare.api.patch(api_path(one), trust, "json")
        bare.api.patch(api_path(one), {"metadata": {"labels": {"team": "platform"}}})

    asyncio.run(put_all(bare, HOOK_OBJECTS))

    assert {frozenset(hook["clientConfig"]) - {"caBundle"} for hook in hooks_of(bare)} == {frozenset({"service"})}
    kept = {hook["name"] for hook in hooks_of(bare) if hook["clientConfig"].get("caBundle") == bundle}
    assert kept == ({"mutate.rightslice.dev", "validate.rightslice.dev"} if ours else set())
    assert {bare.api.get(api_path(one))["metadata"]["labels"]["team"] for one in HOOK_OBJECTS} == {"platform"}


def test_uninstall_takes_the_address_of_a_trial_too(bare: Plane) -> None:
    apply(bare, "out-of-cluster")
    [address] = [one for one in OVERLAY_OBJECTS if one["kind"] == "ConfigMap"]
    assert bare.api.exists(api_path(address))

    asyncio.run(remove(bare, with_policies=False))

    assert bare.api.exists(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}")
    assert not bare.api.exists(api_path(address))
