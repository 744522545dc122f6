"""The Helm chart renders the objects that kubectl builds from the manifests."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.cluster.charts import CHART, RELEASE_LABELS, helm_template, render, run_helm
from tests.cluster.client import Json
from tests.cluster.installation import copy_manifests
from tests.cluster.plane import Plane
from tests.cluster.test_manifests import kustomize_build
from tests.conftest import ROOT
from tests.house.checkout import read_checkout_file
from tests.release.__main__ import CHART as CHART_ARCHIVE
from tests.release.__main__ import write_chart
from tests.upgrade.earlier_version import export_earlier
from webhook import __version__
from webhook.documents.reader import read_documents
from webhook.manifests.objects import display_name
from webhook.settings import WebhookSettings
from webhook.well_known import SYSTEM_NAMESPACE


def helm(
    plane: Plane, *arguments: str, check: bool = True, namespace: str = SYSTEM_NAMESPACE
) -> subprocess.CompletedProcess[str]:
    """Run Helm as the admin, in the namespace of the release."""
    done = run_helm(*arguments, namespace=namespace, env=plane.kubectl_environment())
    assert not check or done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done


def documented(command: str, chart: Path, page: str = "docs/install.md") -> list[str]:
    """Return the arguments of a documented Helm command, for another chart."""
    text = read_checkout_file(page).replace("\\\n", "")
    [line] = re.findall(rf"^helm {command} .*", text, re.MULTILINE)
    return [str(chart) if word == "charts/rightslice" else word for word in shlex.split(line, comments=True)[1:]]


ENFORCE, NOT_KEPT = "--set=mode=enforce", "--set=crds.keep=false"
PRESETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "audit": ((), ("overlays/audit-only",)),
    "enforce": ((ENFORCE,), ("overlays/enforce",)),
    "one node": ((ENFORCE, "--set=availability=single-node"), ("overlays/single-node",)),
    "high availability": ((ENFORCE, "--set=availability=high"), ("overlays/high-availability",)),
    "cert-manager": ((ENFORCE, "--set=certManager.enabled=true"), ("overlays/cert-manager",)),
    "agent": (("--set=agent.enabled=true",), ("overlays/audit-only", "agent")),
    "extender": (("--set=extender.enabled=true",), ("overlays/audit-only", "scheduler/extender")),
    "second scheduler": (
        ("--set=scheduler.enabled=true", "--kube-version=1.36.3"),
        ("overlays/audit-only", "scheduler/second"),
    ),
    "monitoring": (
        ("--set=monitoring.serviceMonitor.enabled=true,monitoring.alerts.enabled=true",),
        ("overlays/audit-only", "monitoring"),
    ),
    "dashboards": (("--set=dashboards.enabled=true",), ("overlays/audit-only", "dashboards")),
}
"""Values of the chart, and the folders that install the same with kubectl."""


def by_display_name(objects: list[Json]) -> dict[str, Json]:
    """Return objects by kind, namespace and name, without the suffix of a generated name.

    Four differences are intended: Helm creates the namespace of the release, an uninstall keeps that of the agent, an
    autoscaler sets the replicas, and the objects of a release have its labels.
    Kustomize gives admission policies the namespace of the agent, which an API server ignores.
    """
    copies = json.loads(normalized(objects))
    for item in copies:
        if item["kind"].startswith("ValidatingAdmissionPolicy"):
            item["metadata"].pop("namespace", None)
        labels = item["metadata"].pop("labels", {})
        if kept := {key: value for key, value in labels.items() if key not in RELEASE_LABELS}:
            item["metadata"]["labels"] = kept
    named = {display_name(item): item for item in copies}
    assert len(named) == len(objects)
    named.pop(f"Namespace {SYSTEM_NAMESPACE}", None)
    named.get("Namespace rightslice-agent", {"metadata": {}})["metadata"].pop("annotations", None)
    for scaler in [item for item in named.values() if item["kind"] == "HorizontalPodAutoscaler"]:
        named[f"Deployment {SYSTEM_NAMESPACE}/{scaler['metadata']['name']}"]["spec"].pop("replicas", None)
    return named


@pytest.mark.parametrize(("flags", "folders"), PRESETS.values(), ids=PRESETS)
def test_the_chart_renders_what_kustomize_builds(
    plane: Plane, flags: tuple[str, ...], folders: tuple[str, ...]
) -> None:
    built = [item for folder in folders for item in kustomize_build(plane, folder)]

    rendered, expected = by_display_name(render(NOT_KEPT, *flags)), by_display_name(built)

    assert rendered.keys() == expected.keys()
    assert {name: item for name, item in rendered.items() if item != expected[name]} == {}


COMPONENTS = {
    "prometheus": ["--set=prometheus.enabled=true"],
    "tracing": ["--set=tracing.enabled=true"],
    "prometheus-secured": documented("upgrade", CHART, "docs/usage.md")[6:],
}
"""Components, and values that add the same."""


@pytest.mark.parametrize(("component", "flags"), COMPONENTS.items(), ids=COMPONENTS)
def test_the_chart_renders_the_components_of_kustomize(
    plane: Plane, tmp_path: Path, component: str, flags: list[str]
) -> None:
    copy_manifests(ROOT / "manifests", tmp_path)
    text = f"resources: [../overlays/enforce]\ncomponents: [../components/{component}]\n"
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "kustomization.yaml").write_text(text, encoding="utf-8")
    built = plane.kubectl("kustomize", str(tmp_path / "ours")).stdout
    expected = [document.data for document in read_documents(built, "built", aliases=True)]

    rendered = render(NOT_KEPT, ENFORCE, *flags)

    assert by_display_name(rendered) == by_display_name(expected)


VALUES: dict[str, tuple[str, str, Json]] = {
    "an image": (
        "image.repository=registry.example.com/rightslice,image.tag=1.2.3",
        "Deployment rightslice-system/rightslice",
        {"image": "registry.example.com/rightslice:1.2.3"},
    ),
    "an image by digest": (
        f"image.digest=sha256:{'0' * 64}",
        "Deployment rightslice-system/rightslice",
        {"image": f"rightslice@sha256:{'0' * 64}"},
    ),
    "a secret for pulling images": (
        "imagePullSecrets[0].name=registry,agent.enabled=true,agent.createNamespace=false",
        "DaemonSet rightslice-agent/rightslice-agent",
        {"imagePullSecrets": [{"name": "registry"}]},
    ),
    "a setting": (
        "webhook.settings.usage_minutes=5",
        "Deployment rightslice-system/rightslice",
        {"name": "RIGHTSLICE_USAGE_MINUTES", "value": "5"},
    ),
    "nodes for the webhook": (
        "webhook.nodeSelector.pool=system,webhook.tolerations[0].operator=Exists",
        "Deployment rightslice-system/rightslice",
        {"nodeSelector": {"pool": "system"}, "tolerations": [{"operator": "Exists"}]},
    ),
    "resources": (
        "webhook.resources.limits.memory=2Gi",
        "Deployment rightslice-system/rightslice",
        {"resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}},
    ),
    "a runtime class of the agent": (
        "agent.enabled=true,agent.runtimeClassName=nvidia",
        "DaemonSet rightslice-agent/rightslice-agent",
        {"runtimeClassName": "nvidia"},
    ),
    "a scheduler of the cluster's version": (
        "scheduler.enabled=true",
        "Deployment rightslice-system/rightslice-scheduler",
        {"image": "registry.k8s.io/kube-scheduler:v1.35.4"},
    ),
    "callers of the webhook": (
        "networkPolicy.apiServerCIDRs={10.0.0.0/28}",
        "NetworkPolicy rightslice-system/rightslice",
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]},
    ),
    "another Prometheus": (
        "prometheus.enabled=true,prometheus.url=https://metrics.observability.svc",
        "NetworkPolicy rightslice-system/rightslice-prometheus",
        {"kubernetes.io/metadata.name": "observability"},
    ),
    "labels of a monitor": (
        "monitoring.serviceMonitor.enabled=true,monitoring.serviceMonitor.labels.release=prom",
        "ServiceMonitor rightslice-system/rightslice",
        {"release": "prom"},
    ),
    "CRDs that stay": (
        "crds.keep=true",
        "CustomResourceDefinition gpupolicies.rightslice.dev",
        {"helm.sh/resource-policy": "keep"},
    ),
}
"""Values, an object, and fields that it then has."""


@pytest.mark.parametrize(("values", "name", "fields"), VALUES.values(), ids=VALUES)
def test_a_value_changes_its_object(values: str, name: str, fields: Json) -> None:
    item = by_display_name(render(f"--set={values}", "--kube-version=v1.35.4-gke.100"))[name]

    found: Json = {}
    for part in parts_of(item):
        found |= {key: part[key] for key in fields.keys() & part.keys() if part[key] == fields[key]}
    assert found == fields


def parts_of(item: object) -> Iterator[Json]:
    """Yield every JSON object in one, with itself."""
    if isinstance(item, dict):
        yield item
    for part in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        yield from parts_of(part)


def test_files_among_the_values_are_mounted_where_the_settings_name_them(tmp_path: Path) -> None:
    kinds = {
        "kueue_config": "Configuration",
        "node_groups": "NodeGroups",
        "scheduler_config": "KubeSchedulerConfiguration",
    }
    files = {name: json.dumps({"kind": kind}) for name, kind in kinds.items()}
    (tmp_path / "values.json").write_text(json.dumps({"webhook": {"files": files}}))
    objects = {display_name(item): item for item in render(f"--values={tmp_path / 'values.json'}")}

    pod = objects[f"Deployment {SYSTEM_NAMESPACE}/rightslice"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "files"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "files"]
    mounted = objects[f"ConfigMap {SYSTEM_NAMESPACE}/{volume['configMap']['name']}"]["data"]
    variables = {each["name"].lower(): each["value"] for each in container["env"]}
    assert files.keys() <= WebhookSettings.model_fields.keys()
    assert mounted == files
    assert {name: variables[f"rightslice_{name}"] for name in files} == {
        name: f"{mount['mountPath']}/{name}" for name in files
    }


OMITTED = {
    "CRDs": ("crds.enabled=false", "CustomResourceDefinition"),
    "network policies": ("networkPolicy.enabled=false,agent.enabled=true,prometheus.enabled=true", "NetworkPolicy"),
}


@pytest.mark.parametrize(("values", "kind"), OMITTED.values(), ids=OMITTED)
def test_a_value_omits_a_kind(values: str, kind: str) -> None:
    assert kind in {item["kind"] for item in render("--set=agent.enabled=true")}
    assert kind not in {item["kind"] for item in render(f"--set={values}")}


EVERYTHING = (
    "agent.enabled=true,extender.enabled=true,scheduler.enabled=true,prometheus.enabled=true,certManager.enabled=true,"
    "monitoring.serviceMonitor.enabled=true,monitoring.alerts.enabled=true,dashboards.enabled=true"
)


@pytest.mark.parametrize("values", [EVERYTHING, "mode=enforce,tracing.enabled=true"])
def test_another_namespace_replaces_the_usual_one_everywhere(values: str) -> None:
    flags = (f"--set={values}", "--kube-version=1.36.3")
    usual, other = (render(*flags, namespace=name) for name in (SYSTEM_NAMESPACE, "gpu-tools"))

    [deployment] = [item for item in other if display_name(item) == "Deployment gpu-tools/rightslice"]
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    environment.remove({"name": "RIGHTSLICE_NAMESPACE", "value": "gpu-tools"})
    assert normalized(other) == normalized(usual).replace(SYSTEM_NAMESPACE, "gpu-tools")


def normalized(objects: list[Json]) -> str:
    """Return objects as text, without the digests in names and the line breaks in long expressions."""
    return re.sub(r"(rightslice-scheduler)-\w{10}\b", r"\1", json.dumps(objects, sort_keys=True))


RESERVED = {
    "that of the API server": ("kube-system", "must have a namespace of its own"),
    "that of everybody": ("default", "must have a namespace of its own"),
    "that of the agents": ("rightslice-agent", "must have a namespace of its own"),
    "a number": ("2026", "must not be a number or a YAML constant"),
    "a constant": ("null", "must not be a number or a YAML constant"),
}


@pytest.mark.parametrize(("namespace", "error"), RESERVED.values(), ids=RESERVED)
def test_a_namespace_that_cannot_be_that_of_the_release_is_rejected(namespace: str, error: str) -> None:
    done = helm_template(namespace=namespace)

    assert done.returncode != 0
    assert error in done.stderr
    assert f"found {namespace}. Write --namespace rightslice-system --create-namespace" in done.stderr


def test_shipped_policies_can_be_values(tmp_path: Path) -> None:
    files = sorted((ROOT / "policies").glob("*.yaml"))
    shipped = [each.data for file in files for each in read_documents(file.read_bytes(), file.name, aliases=True)]
    specs = {item["metadata"]["name"]: item["spec"] for item in shipped if item["kind"] == "GPUPolicy"}
    (tmp_path / "values.json").write_text(json.dumps({"guard": {"enabled": False}, "policies": specs}))

    objects = by_display_name(render(f"--values={tmp_path / 'values.json'}"))

    data = objects[f"ConfigMap {SYSTEM_NAMESPACE}/rightslice-policies"]["data"]
    written = {name: yaml.safe_load(text) for name, text in data.items()}
    assert {name: item["spec"] for name, item in written.items()} == {f"{name}.yaml": specs[name] for name in specs}
    assert {(item["apiVersion"], item["kind"]) for item in written.values()} == {
        ("rightslice.dev/v1alpha1", "GPUPolicy")
    }


def test_the_documented_values_are_accepted(tmp_path: Path) -> None:
    page = read_checkout_file("docs/install.md").partition("## With Helm")[2].partition("\n## ")[0]
    [values] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "values.yaml").write_text(values)

    data = by_display_name(render(f"--values={tmp_path / 'values.yaml'}"))[
        f"ConfigMap {SYSTEM_NAMESPACE}/rightslice-policies"
    ]["data"]
    assert yaml.safe_load(data["research.yaml"])["spec"] == yaml.safe_load(values)["policies"]["research"]


def test_the_packed_chart_is_that_of_helm_package_and_renders_the_same(plane: Plane, tmp_path: Path) -> None:
    write_chart(tmp_path, datetime(2026, 6, 1, tzinfo=UTC))
    helm(plane, "package", str(CHART), f"--destination={tmp_path / 'by-helm'}")
    ours, by_helm = tmp_path / CHART_ARCHIVE, tmp_path / "by-helm" / f"rightslice-{__version__}.tgz"

    assert contents(ours) == contents(by_helm)
    assert render(ENFORCE, chart=ours) == render(ENFORCE)


def contents(archive: Path) -> dict[str, bytes]:
    """Return the files of a packed chart; Helm writes Chart.yaml again."""
    with tarfile.open(archive) as opened:
        files = {item.name: opened.extractfile(item) for item in opened.getmembers()}
        return {name: file.read() for name, file in files.items() if file and name != "rightslice/Chart.yaml"}


def test_the_page_of_artifact_hub_lists_the_kinds() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    listed = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    defined = [item for item in render() if item["kind"] == "CustomResourceDefinition"]

    assert {(each["kind"], each["name"], each["version"]) for each in listed} == {
        (item["spec"]["names"]["kind"], item["metadata"]["name"], item["spec"]["versions"][0]["name"])
        for item in defined
    }


def test_an_upgrade_changes_no_field_that_the_api_server_keeps(tmp_path: Path) -> None:
    """Selectors of workloads, and the roles of bindings: Helm would fail, or delete and create the object."""
    flags = ("--set=agent.enabled=true,extender.enabled=true,scheduler.enabled=true", "--kube-version=1.36.3")
    before = immutable_fields(render(*flags, chart=export_earlier(tmp_path) / "charts" / "rightslice"))
    after = immutable_fields(render(*flags))

    assert sum(name.startswith(("Deployment", "DaemonSet")) for name in before) == 4
    assert {name: after.get(name) for name in before} == before


def immutable_fields(objects: list[Json]) -> dict[str, Json]:
    """Return the field of each workload and binding that no update can change, by the object's name."""
    return {
        display_name(item): item["spec"]["selector"] if "roleRef" not in item else item["roleRef"]
        for item in objects
        if item["kind"] in ("Deployment", "DaemonSet") or "roleRef" in item
    }


def test_the_chart_has_the_version_of_the_program_and_passes_lint(plane: Plane) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert chart["version"] == chart["appVersion"] == __version__
    assert "0 chart(s) failed" in helm(plane, "lint", "--strict", str(CHART)).stdout
