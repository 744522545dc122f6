"""The overlay `cert-manager` on a real API server: a server with its rights, its arguments and its Secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders import make_pod
from tests.cluster.certmanager import CertManagerStub, MountedSecret
from tests.cluster.client import Json, RefusedError
from tests.cluster.installation import is_ready, rightslice, with_local_address
from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.test_certificates import ContinuousCaller
from tests.cluster.test_install import local_command, write_account_kubeconfig
from tests.conftest import ROOT
from tests.policy.policy_texts import policy_text
from tests.server.managed_site import served_certificate
from webhook.cli.commands.doctor import diagnose
from webhook.cli.commands.install import InstallMode, shipped_manifests
from webhook.documents.reader import read_documents
from webhook.installing.apply import uninstall_manifests
from webhook.installing.facts import ClusterFacts, read_cluster_facts
from webhook.kube.api import KubeClient
from webhook.manifests.objects import api_path
from webhook.well_known import SYSTEM_NAMESPACE

ACCOUNT = f"system:serviceaccount:{SYSTEM_NAMESPACE}:rightslice"
SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/rightslice-tls"
POLICIES = "/apis/rightslice.dev/v1alpha1/gpupolicies"
AUTHORITY, SERVING = f"{SYSTEM_NAMESPACE}/rightslice-authority", f"{SYSTEM_NAMESPACE}/rightslice-tls"
NAME = f"rightslice.{SYSTEM_NAMESPACE}.svc"


class CertManagerSite(NamedTuple):
    """A control plane, the applied objects, the stub of cert-manager, the mounted Secret, and the only replica."""

    plane: Plane
    objects: list[Json]
    manager: CertManagerStub
    mount: MountedSecret
    replica: Process
    port: int

    def call(self) -> None:
        """Create a pod that both webhooks evaluate."""
        pod = make_pod("probe").namespace("default").gpus(1).build()
        self.plane.api.create("/api/v1/namespaces/default/pods", pod, dryRun="All")

    def answers(self) -> bool:
        """Return whether a pod is evaluated, rather than rejected because no webhook was reachable."""
        try:
            self.call()
        except RefusedError as refusal:
            if "failed calling webhook" not in refusal.message:
                raise
            return False
        return True

    def served(self) -> bytes:
        """Return the certificate that is served to a client with the webhooks' CA bundle."""
        return served_certificate(self.port, self.manager.bundle(SERVING), NAME)


@pytest.fixture(scope="module")
def site(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CertManagerSite]:
    """The applied overlay; its server runs with the service account's token, as in the cluster."""
    folder, port = tmp_path_factory.mktemp("cert-manager"), free_port()
    built = plane.kubectl("kustomize", str(ROOT / "manifests" / "overlays" / "cert-manager")).stdout
    objects = [with_local_address(document.data, port) for document in read_documents(built, "built", aliases=True)]
    manager = CertManagerStub(plane, objects)
    kinds = ("certificates.cert-manager.io", "issuers.cert-manager.io")
    with serve_operator_kinds(plane, "cert-manager", *kinds), applied(plane, objects):
        manager.issue(AUTHORITY)
        manager.issue(SERVING)
        mount = MountedSecret(plane, SECRET, folder / "tls")
        write_account_kubeconfig(plane, folder)
        replica = Process("rightslice", command(objects, folder, port), folder / "log", lambda: is_ready(port))
        try:
            replica.start()
            manager.inject()
            installed = CertManagerSite(plane, objects, manager, mount, replica, port)
            eventually(installed.answers)
            yield installed
        finally:
            replica.kill()


@contextmanager
def applied(plane: Plane, objects: list[Json]) -> Iterator[None]:
    """Apply objects for the block, and uninstall everything afterwards."""
    plane.wait_until_gone(SYSTEM_NAMESPACE)
    kinds = [item for item in objects if item["kind"] in ("CustomResourceDefinition", "Namespace")]
    try:
        for items in (kinds, objects):
            everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=everything)
        yield
    finally:
        asyncio.run(remove(plane))


async def remove(plane: Plane) -> None:
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        await uninstall_manifests(
            api, shipped_manifests(InstallMode.ENFORCE), lambda _line: None, with_policies=True, seconds=120
        )


def command(objects: list[Json], folder: Path, port: int) -> list[str]:
    """Return the Deployment's command with the paths and addresses of this machine."""
    [deployment] = [item for item in objects if item["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [mount] = [item["mountPath"] for item in container["volumeMounts"] if item["name"] == "tls"]
    arguments = [argument.replace(mount, str(folder / "tls")) for argument in container["args"]]
    return ["env", "KUBERNETES_SERVICE_HOST=127.0.0.1", *local_command({"args": arguments}, folder, port)]


def test_no_call_fails_when_cert_manager_renews_the_certificate_or_ca(site: CertManagerSite) -> None:
    """The CA injector is faster than kubelet: the old certificate is served for a while after the new CA is trusted."""
    served = [site.served()]
    with ContinuousCaller(site) as caller:
        for renewed in ([SERVING], [AUTHORITY, SERVING]):
            for name in renewed:
                site.manager.issue(name)
            site.manager.inject()
            assert site.served() == served[-1]
            caller.wait_for(10)
            site.mount.sync()
            served.append(eventually(site.served, until=lambda current: current != served[-1]))
            caller.wait_for(10)
    assert caller.failures == []
    assert len(set(served)) == 3


def test_a_replica_leads_and_writes_policy_status(site: CertManagerSite) -> None:
    site.plane.api.create(POLICIES, json.loads(policy_text("checked", match={"namespaces": ["no-such-namespace"]})))
    try:
        conditions = eventually(lambda: site.plane.api.get(f"{POLICIES}/checked")["status"]["conditions"])
    finally:
        site.plane.api.delete(f"{POLICIES}/checked")

    assert [(item["type"], item["status"], item["reason"]) for item in conditions] == [("Ready", "True", "Active")]


PERMISSIONS = {
    "get secrets/rightslice-tls": "no",
    "create secrets": "no",
    "patch mutatingwebhookconfigurations/rightslice": "no",
    "update leases/rightslice": "yes",
}


@pytest.mark.parametrize(("permission", "granted"), PERMISSIONS.items(), ids=PERMISSIONS)
def test_permissions_for_certificates_are_not_granted(site: CertManagerSite, permission: str, granted: str) -> None:
    can_i = ["auth", "can-i", *permission.split(), f"--as={ACCOUNT}", f"--namespace={SYSTEM_NAMESPACE}"]

    assert site.plane.kubectl(*can_i, check=False).stdout.strip() == granted


def test_doctor_accepts_the_certificate(site: CertManagerSite) -> None:
    async def facts() -> ClusterFacts:
        async with await KubeClient.connect(str(site.plane.kubeconfig)) as api:
            return await read_cluster_facts(api)

    lines = {line.summary for line in diagnose(asyncio.run(facts()), datetime.now(UTC))}

    assert "caBundle matches the serving certificate in every webhook" in lines
    assert any(line.startswith("serving certificate expires in 89 days") for line in lines)


def test_no_request_is_forbidden(site: CertManagerSite) -> None:
    assert "forbidden" not in site.replica.log.read_text(encoding="utf-8")


def test_install_refuses_to_add_its_own_certificates(site: CertManagerSite) -> None:
    done = rightslice(site.plane, "install", "--mode=audit")

    assert done.returncode == 2
    assert "kubectl apply --server-side -k manifests/overlays/cert-manager" in done.stderr
    assert site.answers()


def test_uninstall_removes_the_overlay_and_its_certificates(site: CertManagerSite) -> None:
    site.replica.kill()
    authority = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/rightslice-authority"
    assert all(map(site.plane.api.exists, [authority, *map(api_path, site.objects)]))

    assert rightslice(site.plane, "uninstall").returncode == 0

    kept = {item["kind"] for item in site.objects if site.plane.api.exists(api_path(item))}
    assert kept == {"CustomResourceDefinition", "Namespace"}
    assert not site.plane.api.exists(authority)
