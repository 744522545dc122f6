"""The extender's manifests, and a real kube-scheduler with the configurations that name it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.installation import fetch_page
from tests.cluster.plane import Plane
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.test_manifests import MANIFESTS, kustomize_build, system_namespace
from tests.controlplane.build import control_plane, is_minor_or_newer, wanted_version
from tests.device_builders import card, resource_slice
from webhook.documents.reader import read_documents
from webhook.manifests.scheduler_config import EXTENDER_CA_FILE, SECOND_SCHEDULER_NAME
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.well_known import SYSTEM_NAMESPACE

__all__ = ["system_namespace"]


def load_config(name: str, plane: Plane) -> Json:
    """Return one of our configurations with this cluster's values."""
    text = (MANIFESTS / "scheduler" / name).read_text(encoding="utf-8")
    (document,) = read_documents(text.replace(EXTENDER_CA_FILE, str(plane.ca)).replace("ADDRESS", "127.0.0.1"), name)
    config: Json = document.data | {"clientConnection": {"kubeconfig": str(plane.kubeconfig)}}
    return config


CONFIGURATIONS = {
    "first/extenders.yaml": ["1s"],
    "first/claims.yaml": ["500ms"],
    "second/config.yaml": ["1s", "500ms"],
}
"""The timeouts of the extenders, by the file."""


@pytest.mark.parametrize(("name", "timeouts"), CONFIGURATIONS.items())
def test_a_scheduler_accepts_the_configuration(plane: Plane, name: str, timeouts: list[str], tmp_path: Path) -> None:
    file, written = tmp_path / "config.json", tmp_path / "made.yaml"
    file.write_text(json.dumps(load_config(name, plane)))
    command = [str(control_plane(wanted_version())["kube-scheduler"]), f"--config={file}", "--secure-port=0"]

    done = subprocess.run(
        [*command, f"--write-config-to={written}"], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )

    assert done.returncode == 0, done.stderr
    (document,) = read_documents(written.read_text(), "made.yaml")
    found = document.data["extenders"]
    assert all(each["ignorable"] and each["nodeCacheCapable"] for each in found)
    assert [each["httpTimeout"] for each in found] == timeouts
    ignored = [each for entry in found for each in entry.get("managedResources", ()) if each.get("ignoredByScheduler")]
    assert [each["name"] for each in ignored] == [ACCOUNTING_RESOURCE] * timeouts.count("1s")


def test_pods_of_the_second_scheduler_are_offered_every_node(plane: Plane) -> None:
    (profile,) = load_config("second/config.yaml", plane)["profiles"]
    assert profile == {"schedulerName": SECOND_SCHEDULER_NAME, "percentageOfNodesToScore": 100}


@pytest.mark.parametrize(("folder", "count"), [("scheduler/extender", 7), ("scheduler/second", 16)])
def test_the_manifests_are_accepted_without_warnings(
    plane: Plane, system_namespace: None, folder: str, count: int
) -> None:
    done = plane.kubectl("apply", "--server-side", "--dry-run=server", "-k", str(MANIFESTS / folder))

    assert done.stderr == ""
    assert done.stdout.count("serverside-applied (server dry run)") == count


def test_the_extender_has_the_certificate_of_the_webhook(plane: Plane) -> None:
    """Its name is in the certificate that the webhook's replicas or cert-manager issue."""
    host = load_config("second/config.yaml", plane)["extenders"][0]["tlsConfig"]["serverName"]
    (service,) = [item for item in kustomize_build(plane, "scheduler/extender") if item["kind"] == "Service"]
    assert host == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    managed, issued = (json.dumps(kustomize_build(plane, f"overlays/{name}")) for name in ("enforce", "cert-manager"))
    assert host in managed
    assert host in issued


def extender_kubeconfig(plane: Plane, folder: Path) -> Path:
    """Return the kubeconfig of the extender's account, which has only the permissions of its manifests."""
    plane.kubectl("apply", "--server-side", "-f", str(MANIFESTS / "scheduler" / "extender" / "rbac.yaml"),
                  "-n", SYSTEM_NAMESPACE)  # fmt: skip
    token = plane.kubectl("create", "token", "rightslice-extender", "-n", SYSTEM_NAMESPACE).stdout.strip()
    config = json.loads(plane.kubectl("config", "view", "--raw", "-o", "json").stdout)
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file = folder / "extender.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


@pytest.fixture
def extender_port(plane: Plane, system_namespace: None, tmp_path: Path) -> Iterator[int]:
    """Run the extender as its Deployment does, called by the plane's scheduler; yield its port."""
    (entry,) = load_config("first/extenders.yaml", plane)["extenders"]
    authority, port = trustme.CA(), free_port()
    pair = authority.issue_cert(entry["tlsConfig"]["serverName"])
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    pair.private_key_pem.write_to_path(tmp_path / "tls.key")
    entry["tlsConfig"]["caFile"] = str(tmp_path / "ca.crt")
    (deployment,) = [item for item in kustomize_build(plane, "scheduler/extender") if item["kind"] == "Deployment"]
    text = " ".join(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    arguments = text.replace("0.0.0.0:8444", f"127.0.0.1:{port}").replace("/etc/rightslice/tls", str(tmp_path)).split()
    command = [sys.executable, "-m", "webhook.cli", *arguments, f"--kubeconfig={extender_kubeconfig(plane, tmp_path)}"]
    extender = Process("extender", command, tmp_path / "extender.log", lambda: fetch_page(port, "/readyz"))
    extender.start()
    try:
        with plane.scheduler_with(extenders=[entry | {"urlPrefix": f"https://127.0.0.1:{port}"}]):
            yield port
    finally:
        extender.kill()
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        plane.api.delete(f"{rbac}/clusterrolebindings/rightslice-extender")
        plane.api.delete(f"{rbac}/clusterroles/rightslice-extender")


def test_a_scheduler_calls_the_extender_of_the_manifests(
    plane: Plane, extender_port: int, nodes: list[str], namespace: str
) -> None:
    pod = make_pod("train").namespace(namespace).gpus(2)
    pod.spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(path, pod.build())

    eventually(lambda: plane.api.get(f"{path}/train")["spec"].get("nodeName"))

    metrics = fetch_page(extender_port, "/metrics")
    assert re.search(r'rightslice_extender_requests_total\{[^}]*verb="filter"[^}]*\} [1-9]', metrics), metrics


def test_the_extender_watches_claims_only_where_devices_are_published(plane: Plane, extender_port: int) -> None:
    def listed() -> set[str]:
        found = re.findall(r'watch_lists_total\{resource="(\w+)"\} [1-9]', fetch_page(extender_port, "/metrics"))
        return {each for each in found if each.startswith(("resource", "device"))}

    assert listed() == {"resourceslices"}
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    plane.api.create(
        slices, resource_slice("extender-slice", "gpu.nvidia.com", "p", allNodes=True, devices=[card("gpu-0")])
    )
    try:
        eventually(listed, until=lambda kinds: kinds == {"resourceslices", *KINDS_OF_CLAIMS})
    finally:
        plane.api.delete(f"{slices}/extender-slice")


KINDS_OF_CLAIMS = ["resourceclaims", "resourceclaimtemplates", "deviceclasses"]
if is_minor_or_newer(36):
    KINDS_OF_CLAIMS.append("devicetaintrules")  # not served as v1beta2 before


@pytest.fixture
def unreachable_extender(plane: Plane) -> Iterator[None]:
    """Configure the plane's scheduler as documented, with an extender that does not run."""
    (entry,) = load_config("first/extenders.yaml", plane)["extenders"]
    unreachable: dict[str, Any] = entry | {"urlPrefix": f"https://127.0.0.1:{free_port()}"}
    with plane.scheduler_with(extenders=[unreachable]):
        yield


def test_scheduling_continues_without_the_extender_and_ignores_the_accounting_resource(
    plane: Plane, unreachable_extender: None, nodes: list[str], namespace: str
) -> None:
    pod = make_pod("train").namespace(namespace).gpus(2).requests(ACCOUNTING_RESOURCE, "2000")
    pod.spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(path, pod.build())

    node = eventually(lambda: plane.api.get(f"{path}/train")["spec"].get("nodeName"))

    assert ACCOUNTING_RESOURCE not in plane.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
