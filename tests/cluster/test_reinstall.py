"""`rightslice install` over an existing installation: its own, kubectl's, or an out-of-cluster trial."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.cluster.client import Json
from tests.cluster.installation import ALL_MANIFESTS, rightslice
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.conftest import ROOT
from webhook.certs.issuer import create_self_signed
from webhook.installing.apply import TLS_SECRET_PATH, apply_object, uninstall_manifests
from webhook.installing.facts import CurrentInstall, parse_deployment
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH, OVERLAY_OBJECTS, WEBHOOK_KINDS, api_path
from webhook.well_known import SYSTEM_NAMESPACE

BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/rightslice-pods"
WEBHOOK_OBJECTS = [item for item in ALL_MANIFESTS if item["kind"] in WEBHOOK_KINDS]


@pytest.fixture
def clean_plane(plane: Plane) -> Iterator[Plane]:
    """The plane without an earlier installation; everything installed in it is removed afterwards."""
    plane.wait_until_gone(SYSTEM_NAMESPACE)
    yield plane
    asyncio.run(remove(plane))


async def remove(plane: Plane, *, with_policies: bool = True) -> None:
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        await uninstall_manifests(api, ALL_MANIFESTS, lambda _line: None, with_policies=with_policies, seconds=120)


async def apply_all(plane: Plane, objects: list[Json]) -> None:
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        for item in objects:
            await apply_object(api, item)


def install(plane: Plane, *flags: str) -> str:
    """Return the output of the command. No replica becomes ready, so it times out before it applies the webhooks."""
    done = rightslice(plane, "install", "--timeout=1", *flags)
    assert "a replica that is ready" in done.stderr or "Nothing was stored" in done.stdout, done.stderr
    return done.stdout


def apply(plane: Plane, overlay: str) -> None:
    """Apply an overlay as documented in docs/install.md."""
    folder = str(ROOT / "manifests" / "overlays" / overlay)
    eventually(lambda: plane.kubectl("apply", "--server-side", "-k", folder, check=False).returncode == 0)


def installed(plane: Plane) -> CurrentInstall:
    return parse_deployment(plane.api.get(DEPLOYMENT_PATH))


def actions(plane: Plane) -> list[str]:
    found: list[str] = plane.api.get(BINDING)["spec"]["validationActions"]
    return found


def test_omitted_options_keep_their_values(clean_plane: Plane) -> None:
    first = install(clean_plane, "--image=x/y:1")
    assert "mode audit\nimage x/y:1\n" in first
    assert (installed(clean_plane), actions(clean_plane)) == (CurrentInstall("audit", "x/y:1"), ["Audit"])

    dry_run = install(clean_plane, "--mode=enforce", "--dry-run")
    assert "mode enforce, before: audit\nimage x/y:1, unchanged\n" in dry_run
    assert (installed(clean_plane), actions(clean_plane)) == (CurrentInstall("audit", "x/y:1"), ["Audit"])

    install(clean_plane, "--mode=enforce")
    assert (installed(clean_plane), actions(clean_plane)) == (CurrentInstall("enforce", "x/y:1"), ["Deny"])

    third = install(clean_plane, "--image=x/y:2")
    assert "mode enforce, unchanged\nimage x/y:2, before: x/y:1\n" in third
    assert (installed(clean_plane), actions(clean_plane)) == (CurrentInstall("enforce", "x/y:2"), ["Deny"])


def test_audit_after_kubectl_enforced_denies_nothing(clean_plane: Plane) -> None:
    apply(clean_plane, "enforce")
    assert actions(clean_plane) == ["Deny"]

    install(clean_plane, "--mode=audit")
    asyncio.run(apply_all(clean_plane, WEBHOOK_OBJECTS))

    assert (installed(clean_plane).mode, actions(clean_plane)) == ("audit", ["Audit"])


def test_kubectl_after_the_command_conflicts_only_over_what_differs(clean_plane: Plane) -> None:
    install(clean_plane)
    asyncio.run(apply_all(clean_plane, WEBHOOK_OBJECTS))
    flags = "apply", "--server-side", "--dry-run=server", "-f"

    same, other = (
        clean_plane.kubectl(*flags, str(ROOT / "manifests" / file), check=False)
        for file in ("install.yaml", "install-enforce.yaml")
    )

    assert "RIGHTSLICE_MODE" in other.stderr
    deployment = [line for line in same.stderr.splitlines() if ".spec.template" in line]
    assert deployment == [], same.stderr


def webhooks_of(plane: Plane) -> list[Json]:
    return [hook for item in WEBHOOK_OBJECTS for hook in plane.api.get(api_path(item))["webhooks"]]


@pytest.mark.parametrize("own_ca", [True, False], ids=["own CA", "another CA"])
def test_a_trial_out_of_cluster_becomes_an_installation(clean_plane: Plane, *, own_ca: bool) -> None:
    bundle, other = (
        b64encode(create_self_signed(["127.0.0.1"], datetime.now(UTC)).authority).decode() for _ in range(2)
    )
    apply(clean_plane, "out-of-cluster")
    secret = {"metadata": {"name": "rightslice-tls"}, "data": {"ca.crt": bundle if own_ca else other}}
    clean_plane.api.create(TLS_SECRET_PATH.rpartition("/")[0], secret)
    trust = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    for item in WEBHOOK_OBJECTS:
        clean_plane.api.patch(api_path(item), trust, "json")
        clean_plane.api.patch(api_path(item), {"metadata": {"labels": {"team": "platform"}}})

    asyncio.run(apply_all(clean_plane, WEBHOOK_OBJECTS))

    assert {frozenset(hook["clientConfig"]) - {"caBundle"} for hook in webhooks_of(clean_plane)} == {
        frozenset({"service"})
    }
    kept = {hook["name"] for hook in webhooks_of(clean_plane) if hook["clientConfig"].get("caBundle") == bundle}
    assert kept == ({"mutate.rightslice.dev", "validate.rightslice.dev"} if own_ca else set())
    assert {clean_plane.api.get(api_path(item))["metadata"]["labels"]["team"] for item in WEBHOOK_OBJECTS} == {
        "platform"
    }


def test_uninstall_also_removes_the_address_of_a_trial(clean_plane: Plane) -> None:
    apply(clean_plane, "out-of-cluster")
    [address] = [item for item in OVERLAY_OBJECTS if item["metadata"]["name"] == "rightslice-address"]
    assert clean_plane.api.exists(api_path(address))

    asyncio.run(remove(clean_plane, with_policies=False))

    assert clean_plane.api.exists(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}")
    assert not clean_plane.api.exists(api_path(address))
