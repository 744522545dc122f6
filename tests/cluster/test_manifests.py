"""The manifests on a real API server: each overlay builds as documented and is accepted without warnings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.installation import copy_manifests
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.plane import Plane
from tests.conftest import ROOT
from tests.manifests.generated import BUILT
from tests.telemetry.test_tracing import ENDPOINT
from webhook.documents.reader import read_documents
from webhook.manifests.objects import api_path
from webhook.settings import WebhookSettings
from webhook.well_known import SYSTEM_NAMESPACE

MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(folder.name for folder in (MANIFESTS / "overlays").iterdir())
APPLIED = [*(f"overlays/{overlay}" for overlay in OVERLAYS), "monitoring", "dashboards"]
"""Folders that users apply."""


def kustomize_build(plane: Plane, folder: str) -> list[Json]:
    """Return the objects that kustomize builds from a folder."""
    text = plane.kubectl("kustomize", str(MANIFESTS / folder)).stdout
    return [document.data for document in read_documents(text, folder, aliases=True)]


def by_name(objects: list[Json]) -> dict[str, Json]:
    """Return objects by kind and name."""
    return {f"{item['kind']} {item['metadata']['name']}": item for item in objects}


@pytest.mark.parametrize(("name", "overlay"), BUILT.items(), ids=BUILT)
def test_generated_files_equal_the_kustomize_build(plane: Plane, name: str, overlay: str) -> None:
    assert (MANIFESTS / name).read_text(encoding="utf-8") == plane.kubectl(
        "kustomize", str(MANIFESTS / overlay)
    ).stdout, "run make manifests"


@pytest.fixture(scope="module")
def system_namespace(plane: Plane) -> Iterator[None]:
    """Our namespace, which a dry run requires, and our CRDs."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(MANIFESTS / "crds"))
    with plane.namespace_called(SYSTEM_NAMESPACE):
        yield


@pytest.fixture(scope="module")
def operators(plane: Plane) -> Iterator[None]:
    """The CRDs of cert-manager and the Prometheus operator, whose kinds our manifests use."""
    with (
        serve_operator_kinds(plane, "cert-manager", "certificates.cert-manager.io", "issuers.cert-manager.io"),
        serve_operator_kinds(
            plane,
            "prometheus-operator",
            "servicemonitors.monitoring.coreos.com",
            "podmonitors.monitoring.coreos.com",
            "prometheusrules.monitoring.coreos.com",
        ),
    ):
        yield


@pytest.mark.parametrize("folder", APPLIED)
@pytest.mark.parametrize("flag", ["--server-side", "--server-side=false"])
def test_overlays_are_accepted_without_warnings(
    plane: Plane, system_namespace: None, operators: None, folder: str, flag: str
) -> None:
    objects = kustomize_build(plane, folder)
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})

    done = plane.kubectl("apply", flag, "--force-conflicts" if flag == "--server-side" else "--validate=strict",
                         "--dry-run=server", "-f", "-", stdin=everything)  # fmt: skip

    assert [line for line in done.stderr.splitlines() if "last-applied-configuration" not in line] == []
    assert done.stdout.count("dry run") == len(objects)


@pytest.mark.parametrize("kind", ["Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule"])
def test_a_misspelled_field_of_an_operator_kind_is_reported(
    plane: Plane, system_namespace: None, operators: None, kind: str
) -> None:
    everything = [*kustomize_build(plane, "overlays/cert-manager"), *kustomize_build(plane, "monitoring")]
    item = next(item for item in everything if item["kind"] == kind)

    done = plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", check=False,
                         stdin=json.dumps(item | {"spec": item["spec"] | {"misspelled": 1}}))  # fmt: skip

    assert ".spec.misspelled: field not declared in schema" in done.stderr


def test_audit_only_differs_where_something_could_be_changed_or_denied(plane: Plane) -> None:
    audit, enforce = (
        by_name(kustomize_build(plane, "overlays/audit-only")),
        by_name(kustomize_build(plane, "overlays/enforce")),
    )

    assert audit.keys() == enforce.keys()
    assert {name for name in audit if audit[name] != enforce[name]} == {
        "Deployment rightslice",
        "ValidatingWebhookConfiguration rightslice",
        "ValidatingAdmissionPolicyBinding rightslice-pods",
    }
    hooks = [hook for name in audit if "WebhookConfiguration" in name for hook in audit[name]["webhooks"]]
    assert {hook["failurePolicy"] for hook in hooks if hook["clientConfig"]["service"]["path"] != "/policies"} == {
        "Ignore"
    }
    [container] = audit["Deployment rightslice"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "RIGHTSLICE_MODE", "value": "audit"} in container["env"]
    assert audit["ValidatingAdmissionPolicyBinding rightslice-pods"]["spec"]["validationActions"] == ["Audit"]


def test_the_single_node_overlay_needs_one_node(plane: Plane) -> None:
    objects = by_name(kustomize_build(plane, "overlays/single-node"))
    pod = objects["Deployment rightslice"]["spec"]["template"]["spec"]

    assert objects["Deployment rightslice"]["spec"]["replicas"] == 1
    assert not {"affinity", "topologySpreadConstraints"} & pod.keys()
    assert not [name for name in objects if name.startswith(("PodDisruptionBudget", "HorizontalPodAutoscaler"))]


def test_high_availability_needs_three_nodes_and_spreads_over_zones(plane: Plane) -> None:
    objects = by_name(kustomize_build(plane, "overlays/high-availability"))
    deployment = objects["Deployment rightslice"]["spec"]
    spread = {each["topologyKey"]: each for each in deployment["template"]["spec"]["topologySpreadConstraints"]}

    assert deployment["replicas"] == objects["HorizontalPodAutoscaler rightslice"]["spec"]["minReplicas"] == 3
    assert {each["whenUnsatisfiable"] for each in spread.values()} == {"DoNotSchedule"}
    assert spread["kubernetes.io/hostname"]["minDomains"] == 3
    assert spread.keys() == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


@pytest.mark.parametrize("folder", ["agent", "overlays/enforce", "scheduler/second"])
def test_every_process_accepts_connections_only_on_its_port(plane: Plane, folder: str) -> None:
    objects = kustomize_build(plane, folder)
    policies = {
        item["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: item["spec"]
        for item in objects
        if item["kind"] == "NetworkPolicy"
    }
    pods = [item["spec"]["template"] for item in objects if item["kind"] in ("Deployment", "DaemonSet")]

    assert pods
    for pod in pods:
        policy = policies[pod["metadata"]["labels"]["app.kubernetes.io/component"]]
        ports = [port["containerPort"] for each in pod["spec"]["containers"] for port in each.get("ports", ())]
        assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ports
        assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_with_cert_manager_certificates_are_not_managed(plane: Plane) -> None:
    objects = by_name(kustomize_build(plane, "overlays/cert-manager"))
    [container] = objects["Deployment rightslice"]["spec"]["template"]["spec"]["containers"]

    assert not [argument for argument in container["args"] if argument.startswith("--tls-secret")]
    assert {"--tls-cert=/etc/rightslice/tls/tls.crt", "--tls-key=/etc/rightslice/tls/tls.key"} < set(container["args"])
    assert not [name for name in objects if name.endswith(" rightslice-certificates")]
    for kind in ("Mutating", "Validating"):
        annotations = objects[f"{kind}WebhookConfiguration rightslice"]["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": f"{SYSTEM_NAMESPACE}/rightslice-tls"}


def test_out_of_cluster_every_webhook_has_the_configured_address(plane: Plane, tmp_path: Path) -> None:
    copy_manifests(MANIFESTS, tmp_path)
    address = tmp_path / "overlays" / "out-of-cluster" / "address.yaml"
    address.write_text(address.read_text().replace("127.0.0.1:8443", "laptop.example.com:9443"))

    text = plane.kubectl("kustomize", str(address.parent)).stdout
    objects = [document.data for document in read_documents(text, "built", aliases=True)]

    hooks = {hook["name"]: hook["clientConfig"] for item in objects for hook in item.get("webhooks", ())}
    in_cluster = {
        hook["name"]: {"url": f"https://laptop.example.com:9443{hook['clientConfig']['service']['path']}"}
        for item in kustomize_build(plane, "admission")
        for hook in item.get("webhooks", ())
    }
    assert hooks == in_cluster
    assert not [item for item in objects if item["kind"] in ("Deployment", "Service", "ClusterRole")]


def documented_kustomization(text: str) -> str:
    """Return the kustomization in docs/usage.md."""
    (kustomization,) = [
        each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Kustomization" in each
    ]
    return str(kustomization)


PLAIN = "resources: [../overlays/enforce]\ncomponents: [../components/prometheus]\n"
KUSTOMIZATIONS = {
    "as documented": documented_kustomization((ROOT / "docs" / "usage.md").read_text(encoding="utf-8")),
    "plain HTTP": PLAIN,
}


@pytest.mark.parametrize("text", KUSTOMIZATIONS.values(), ids=KUSTOMIZATIONS)
def test_with_prometheus_the_webhook_has_its_url_and_network_access(
    plane: Plane, system_namespace: None, tmp_path: Path, text: str
) -> None:
    copy_manifests(MANIFESTS, tmp_path)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "kustomization.yaml").write_text(text, encoding="utf-8")
    built = plane.kubectl("kustomize", str(tmp_path / "ours")).stdout

    done = plane.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=built)
    assert done.stderr == ""
    objects = by_name([document.data for document in read_documents(built, "ours", aliases=True)])
    [container] = objects["Deployment rightslice"]["spec"]["template"]["spec"]["containers"]
    settings = {each["name"].removeprefix("RIGHTSLICE_").lower(): each["value"] for each in container["env"]}
    assert settings.keys() <= WebhookSettings.model_fields.keys()
    files = {
        str(Path(settings[name]).parent) for name in ("prometheus_token_file", "prometheus_ca") if name in settings
    }
    assert files <= {each["mountPath"] for each in container["volumeMounts"]}
    address = urlsplit(settings["prometheus"])
    assert (address.scheme == "https") is bool(files)
    [egress_rule] = objects["NetworkPolicy rightslice-prometheus"]["spec"]["egress"]
    assert "ports" not in egress_rule, "the port of the pod may differ from that of the Service"
    assert [*egress_rule["to"][0]["namespaceSelector"]["matchLabels"].values()] == [str(address.hostname).split(".")[1]]


def test_its_pods_run_in_a_restricted_namespace_on_two_hosts_and_leave_them_one_by_one(
    plane: Plane, system_namespace: None
) -> None:
    """Pod Security enforces the restricted profile and the scheduler spreads the replicas; our server need not run."""
    nodes = add_nodes(plane, [node_without_gpus(node, index) for index, node in enumerate(demo_nodes()[:3])])
    kinds = ("Namespace", "PriorityClass", "ServiceAccount", "ConfigMap", "Deployment", "PodDisruptionBudget")
    objects = [item for item in kustomize_build(plane, "base") if item["kind"] in kinds]
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(as_list(objects)))
    pods = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    try:
        plane.kubectl("rollout", "status", "deployment/rightslice", f"--namespace={SYSTEM_NAMESPACE}", "--timeout=110s")
        hosts = [pod["spec"]["nodeName"] for pod in plane.api.get(pods)["items"]]
        insecure = make_pod("insecure").namespace(SYSTEM_NAMESPACE).build()
        with pytest.raises(RefusedError, match='violates PodSecurity "restricted'):
            plane.api.create(pods, insecure, dryRun="All")
        for host in hosts:
            plane.kubectl("drain", host, "--delete-emptydir-data", "--timeout=110s")
            assert host not in [pod["spec"]["nodeName"] for pod in plane.api.get(pods)["items"]]
            plane.kubectl("uncordon", host)
        for node in nodes:
            plane.kubectl("cordon", node)
        evicted = [evict(plane, pod["metadata"]["name"]) for pod in plane.api.get(pods)["items"]]
    finally:
        plane.api.delete(api_path(by_name(objects)["Deployment rightslice"]))
        plane.api.delete("/apis/scheduling.k8s.io/v1/priorityclasses/rightslice")
        remove_nodes(plane, nodes)

    assert len(hosts) == len(set(hosts)) == 2
    assert evicted.count(True) == 1, "the others wait until it runs elsewhere"


def evict(plane: Plane, name: str) -> bool:
    """Return whether the disruption budget allows an eviction now."""
    metadata = {"name": name, "namespace": SYSTEM_NAMESPACE}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    try:
        plane.api.create(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{name}/eviction", body)
    except RefusedError as error:
        if "disruption budget" not in str(error):
            raise
        return False
    return True


def as_list(objects: list[Json]) -> Json:
    """Return objects as one List for kubectl."""
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def node_without_gpus(node: Json, index: int) -> Json:
    """Return a node without GPUs and taints."""
    name = f"plain-{index}"
    labels = {"kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}},
    }


def test_with_tracing_the_webhook_has_its_collector_and_network_access(
    plane: Plane, system_namespace: None, tmp_path: Path
) -> None:
    copy_manifests(MANIFESTS, tmp_path)
    (tmp_path / "ours").mkdir()
    text = "resources: [../overlays/enforce]\ncomponents: [../components/tracing]\n"
    (tmp_path / "ours" / "kustomization.yaml").write_text(text, encoding="utf-8")
    built = plane.kubectl("kustomize", str(tmp_path / "ours")).stdout

    plane.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=built)
    objects = by_name([document.data for document in read_documents(built, "ours", aliases=True)])
    [container] = objects["Deployment rightslice"]["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    address = urlsplit(variables[ENDPOINT])
    [egress_rule] = objects["NetworkPolicy rightslice-tracing"]["spec"]["egress"]
    assert "ports" not in egress_rule, "the port of the pod may differ from that of the Service"
    assert [*egress_rule["to"][0]["namespaceSelector"]["matchLabels"].values()] == [str(address.hostname).split(".")[1]]


@pytest.mark.parametrize("component", ["prometheus", "prometheus-secured", "tracing"])
def test_the_component_requires_the_webhook(plane: Plane, tmp_path: Path, component: str) -> None:
    copy_manifests(MANIFESTS, tmp_path)
    (tmp_path / "ours").mkdir()
    text = f"resources: [../overlays/out-of-cluster]\ncomponents: [../components/{component}]\n"
    (tmp_path / "ours" / "kustomization.yaml").write_text(text, encoding="utf-8")

    done = plane.kubectl("kustomize", str(tmp_path / "ours"), check=False)

    assert done.returncode != 0
    assert "nothing selected by Deployment" in done.stderr
    assert done.stdout == ""
