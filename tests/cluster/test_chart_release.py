"""A release of the Helm chart on a real API server: install, upgrade, rollback and uninstall, with a real replica."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.builders import make_pod
from tests.cluster.charts import CHART, render
from tests.cluster.client import Json, RefusedError
from tests.cluster.installation import (
    ALL_MANIFESTS,
    copy_manifests,
    dry_run_succeeds,
    fetch_page,
    rightslice,
    with_local_address,
)
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.test_certificates import ContinuousCaller
from tests.cluster.test_chart import ENFORCE, EVERYTHING, documented, helm
from tests.cluster.test_install import command, local_command, write_account_kubeconfig
from tests.conftest import ROOT
from tests.policy.policy_texts import policy_text
from tests.upgrade.earlier_version import find_earlier
from webhook import __version__
from webhook.documents.reader import read_documents
from webhook.errors import ApiError
from webhook.installing.apply import uninstall_manifests
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH, WEBHOOK_KINDS, api_path, display_name
from webhook.well_known import AGENT_NAMESPACE, SYSTEM_NAMESPACE

PODS = "/api/v1/namespaces/default/pods"
POLICIES = "/apis/rightslice.dev/v1alpha1/gpupolicies"
BACKSTOP = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/rightslice-pods"
ADDRESSES = ("base/service.yaml", "admission/webhooks.yaml")
"""Files of the manifests that say where the API server calls the webhook."""


class ReleasedSite(NamedTuple):
    """A control plane with a release of the chart, the only replica, the charts of two versions, and Helm's output."""

    plane: Plane
    replica: Process
    before: Path
    current: Path
    output: str

    def call(self) -> None:
        """Create a pod that both webhooks evaluate."""
        self.plane.api.create(PODS, make_pod("probe").namespace("default").gpus(1).build(), dryRun="All")

    def is_denied(self) -> bool:
        """Return whether the webhook denies a privileged pod with a GPU."""
        bad = make_pod("bad").namespace("default").gpus(1)
        bad.main["securityContext"] = {"privileged": True}
        try:
            self.plane.api.create(PODS, bad.build(), dryRun="All")
        except RefusedError as error:
            return "validate.rightslice.dev" in error.message and "privileged must be false" in error.message
        return False

    def answers(self) -> bool:
        """Return whether both webhooks answer."""

        async def probe() -> bool:
            async with await KubeClient.connect(str(self.plane.kubeconfig)) as api:
                return await dry_run_succeeds(api)

        try:
            return asyncio.run(probe())
        except ApiError:
            return False

    def image(self) -> str:
        """Return the image of the webhook."""
        container: Json = self.deployment()["template"]["spec"]["containers"][0]
        return str(container["image"])

    def deployment(self) -> Json:
        """Return the spec of the webhook's Deployment."""
        spec: Json = self.plane.api.get(DEPLOYMENT_PATH)["spec"]
        return spec

    def bundles(self) -> set[str]:
        """Return the caBundles of all webhooks."""
        configurations = [item for item in ALL_MANIFESTS if item["kind"] in WEBHOOK_KINDS]
        webhooks = [hook for item in configurations for hook in self.plane.api.get(api_path(item))["webhooks"]]
        return {hook["clientConfig"].get("caBundle", "") for hook in webhooks}


def copy_chart(folder: Path, port: int, version: str, checkout: Path = ROOT) -> Path:
    """Copy the chart of a checkout as another version, whose webhook is called at a local port."""
    shutil.copytree(checkout / "charts/rightslice", folder, ignore=shutil.ignore_patterns("manifests"))
    manifests = copy_manifests(checkout / "manifests", folder / "manifests")
    for name in ADDRESSES:
        documents = read_documents((manifests / name).read_bytes(), name, aliases=True)
        local = [json.dumps(with_local_address(document.data, port)) for document in documents]
        (manifests / name).write_text("\n---\n".join(local), encoding="utf-8")
    chart = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    (folder / "Chart.yaml").write_text(json.dumps(chart | {"version": version, "appVersion": version}))
    return folder


@pytest.fixture(scope="module")
def site(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleasedSite]:
    """Install the chart of an earlier commit, enforced, and start a replica as in test_install.

    Without the history of the checkout, the chart is that of today as another version.
    """
    folder, port = tmp_path_factory.mktemp("release"), free_port()
    earlier = find_earlier(tmp_path_factory.mktemp("earlier")) or ROOT
    before, current = (
        copy_chart(folder / "before", port, "0.0.9", earlier),
        copy_chart(folder / "current", port, __version__),
    )
    asyncio.run(remove(plane))  # definitions of other tests, which Helm would not take over
    plane.wait_until_gone(SYSTEM_NAMESPACE)
    nodes = add_nodes(plane, demo_nodes())
    replica = Process("rightslice", command(plane.folder, port), folder / "log", lambda: fetch_page(port, "/readyz"))
    try:
        output = helm(plane, *documented("install", before), ENFORCE).stdout
        write_account_kubeconfig(plane)
        replica.start()
        released = ReleasedSite(plane, replica, before, current, output)
        eventually(released.answers)
        yield released
    finally:
        replica.kill()
        asyncio.run(remove(plane))
        remove_nodes(plane, nodes)


async def remove(plane: Plane) -> None:
    """Remove whatever is left."""
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        await uninstall_manifests(api, ALL_MANIFESTS, lambda _line: None, with_policies=True, seconds=120)


def test_the_release_says_the_next_step_and_is_installed_once(site: ReleasedSite) -> None:
    assert "Rightslice 0.0.9 is installed in mode enforce." in site.output
    assert "rightslice doctor" in site.output
    assert "pod-security.kubernetes.io/enforce=restricted" in site.output
    assert site.image() == "registry.example.com/rightslice:0.0.9"
    assert documented("install", CHART) == documented("install", CHART, "README.md")


def test_its_pods_become_ready_and_its_webhooks_deny(site: ReleasedSite) -> None:
    """The autoscaler adds the second replica, though nothing here measures CPU."""
    eventually(lambda: site.deployment()["replicas"] == 2)
    site.plane.kubectl("rollout", "status", "deployment/rightslice", "-n", SYSTEM_NAMESPACE, "--timeout=110s")

    assert site.is_denied()


GPUNODES = "/apis/rightslice.dev/v1alpha1/gpunodes"


def store_former_report(plane: Plane) -> Json:
    """Create the GPUNode of an agent before 0.1, and return its status, in which no field is lost."""
    written: Json = yaml.safe_load((ROOT / "tests/upgrade/files/former/gpunode.yaml").read_text(encoding="utf-8"))
    plane.api.create(GPUNODES, written)
    plane.api.patch(f"{GPUNODES}/gpu-1/status", {"status": written["status"]})
    status: Json = plane.api.get(f"{GPUNODES}/gpu-1")["status"]
    assert status == written["status"]
    return status


def test_no_create_fails_during_an_upgrade_and_a_rollback(site: ReleasedSite) -> None:
    """The replicas' caBundle, those of the autoscaler and policies that admins created stay."""
    plane = site.plane
    plane.api.create(POLICIES, json.loads(policy_text("mine", match={"namespaces": ["no-such-namespace"]})))
    plane.kubectl("scale", "deployment/rightslice", "--replicas=3", "-n", SYSTEM_NAMESPACE)
    [bundle] = site.bundles()
    report = store_former_report(plane)
    seen = []
    with ContinuousCaller(site) as caller:
        for change in (documented("upgrade", site.current), ["rollback", "rightslice", "1"]):
            caller.wait_for(10)
            helm(plane, *change)
            caller.wait_for(10)
            seen.append((site.image(), site.deployment()["replicas"], site.bundles(), site.is_denied()))

    assert bundle
    assert caller.failures == []
    images = [f"registry.example.com/rightslice:{version}" for version in (__version__, "0.0.9")]
    assert seen == [(image, 3, {bundle}, True) for image in images]
    assert plane.api.exists(f"{POLICIES}/mine")
    assert plane.api.get(f"{GPUNODES}/gpu-1")["status"] == report
    plane.api.delete(f"{GPUNODES}/gpu-1")
    history = json.loads(helm(plane, "history", "rightslice", "--output=json").stdout)
    assert [entry["chart"] for entry in history] == [
        "rightslice-0.0.9",
        f"rightslice-{__version__}",
        "rightslice-0.0.9",
    ]


def test_doctor_finds_nothing_to_fix(site: ReleasedSite) -> None:
    helm(site.plane, *documented("upgrade", site.current))

    assert problems_found(site.plane) == []


def problems_found(plane: Plane) -> list[Json]:
    """Return the problems that doctor reports, once it reports none, else at last."""

    def problems() -> list[Json]:
        found = json.loads(rightslice(plane, "doctor", "-o", "json").stdout)
        # The API server counts since its start, also calls that other tests made fail.
        bad = [line for line in found if line["state"] in ("warn", "fail")]
        return [line for line in bad if "failed open" not in line["summary"]]

    return eventually(problems, until=lambda found: not found)


def test_an_upgrade_to_audit_mode_denies_nothing(site: ReleasedSite) -> None:
    helm(site.plane, "upgrade", "rightslice", str(site.current), "--reset-then-reuse-values", "--set=mode=audit")

    backstop = site.plane.api.get(
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/rightslice-pods"
    )
    [container] = site.deployment()["template"]["spec"]["containers"]
    assert backstop["spec"]["validationActions"] == ["Audit"]
    assert {"name": "RIGHTSLICE_MODE", "value": "audit"} in container["env"]


def test_a_policy_among_the_values_reaches_the_replicas(site: ReleasedSite) -> None:
    values = "--set=policies.research.mode=audit,policies.research.limits.perPod[0].resource=nvidia.com/gpu,"
    helm(site.plane, "upgrade", "rightslice", str(site.current), f"{values}policies.research.limits.perPod[0].max=4")

    data = site.plane.api.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/rightslice-policies")["data"]
    assert data.keys() == {"guard.yaml", "research.yaml"}
    listed = rightslice(site.plane, "policy", "list", "--cluster=live", "--no-headers").stdout.splitlines()
    assert {line.split()[0] for line in listed} >= {"guard", "research"}
    shown = rightslice(site.plane, "policy", "show", "research", "--cluster=live", "-o", "jsonpath={..max}")
    assert shown.stdout == "4", shown.stderr
    assert yaml.safe_load(data["research.yaml"])["spec"]["limits"] == {
        "perPod": [{"resource": "nvidia.com/gpu", "max": 4}]
    }


def test_the_command_refuses_to_change_a_release(site: ReleasedSite) -> None:
    done = rightslice(site.plane, "install")

    assert done.returncode == 2
    assert "must not belong to Helm, found release rightslice. Use helm upgrade rightslice CHART" in done.stderr


def test_uninstall_keeps_policies_and_a_second_installation_uses_them(site: ReleasedSite) -> None:
    plane = site.plane
    objects = render(chart=site.current)
    site.replica.kill()

    kept = helm(plane, "uninstall", "rightslice", "--wait").stdout

    assert "kept due to the resource policy" in kept
    left = {item["kind"] for item in objects if plane.api.exists(api_path(item))}
    assert left == {"CustomResourceDefinition"}
    assert plane.api.exists(f"{POLICIES}/mine")
    site.call()
    helm(plane, "install", "rightslice", str(site.current))
    assert [item for item in objects if not plane.api.exists(api_path(item))] == []
    helm(plane, "uninstall", "rightslice", "--wait")


def test_everything_can_be_installed_and_removed(site: ReleasedSite) -> None:
    plane = site.plane
    monitoring = [f"{each}.monitoring.coreos.com" for each in ("servicemonitors", "podmonitors", "prometheusrules")]
    with (
        serve_operator_kinds(plane, "cert-manager", "certificates.cert-manager.io", "issuers.cert-manager.io"),
        serve_operator_kinds(plane, "prometheus-operator", *monitoring),
    ):
        install = helm(plane, "install", "rightslice", str(CHART), f"--set={EVERYTHING}")
        for owner in ("deployment/rightslice", "deployment/rightslice-extender", "deployment/rightslice-scheduler"):
            plane.kubectl("rollout", "status", owner, "-n", SYSTEM_NAMESPACE, "--timeout=110s")
        plane.kubectl("rollout", "status", "daemonset/rightslice-agent", "-n", AGENT_NAMESPACE, "--timeout=110s")
        objects = render(f"--set={EVERYTHING}")
        missing = [display_name(item) for item in objects if not plane.api.exists(api_path(item))]
        helm(plane, "uninstall", "rightslice", "--wait")
        left = {item["kind"] for item in objects if plane.api.exists(api_path(item))}
        plane.kubectl("delete", "namespace", AGENT_NAMESPACE)

    assert missing == []
    assert left == {"CustomResourceDefinition", "Namespace"}
    assert [line for line in install.stderr.splitlines() if "symbolic link" not in line] == []


OTHER = "gpu-tools"


@pytest.fixture
def other_release(site: ReleasedSite, tmp_path: Path) -> Iterator[ReleasedSite]:
    """Install the chart into another namespace, and start a replica with the command and the account of its pods."""
    plane, port = site.plane, free_port()
    helm(plane, "uninstall", "rightslice", "--wait", "--ignore-not-found")
    site.replica.kill()
    chart = copy_chart(tmp_path / "chart", port, __version__)
    install = ["install", "rightslice", str(chart), "--create-namespace", "--take-ownership", "--force-conflicts"]
    try:
        output = helm(plane, *install, ENFORCE, namespace=OTHER).stdout
        write_account_kubeconfig(plane, tmp_path, OTHER)
        deployment = plane.api.get(f"/apis/apps/v1/namespaces/{OTHER}/deployments/rightslice")
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        environment = [f"{each['name']}={each['value']}" for each in container["env"]]
        replica = Process(
            "rightslice",
            ["env", *environment, *local_command(container, tmp_path, port)],
            tmp_path / "log",
            lambda: fetch_page(port, "/readyz"),
        )
        with replica.run():
            released = ReleasedSite(plane, replica, chart, chart, output)
            eventually(released.answers)
            yield released
    finally:
        helm(plane, "uninstall", "rightslice", "--wait", "--ignore-not-found", namespace=OTHER)
        plane.api.delete(f"/api/v1/namespaces/{OTHER}")


def test_a_release_in_another_namespace_serves_and_is_found(other_release: ReleasedSite) -> None:
    plane = other_release.plane
    assert f"kubectl label namespace {OTHER} pod-security.kubernetes.io/enforce=restricted" in other_release.output
    eventually(other_release.is_denied)
    assert plane.api.exists(f"/api/v1/namespaces/{OTHER}/secrets/rightslice-tls")
    assert plane.api.exists(f"/apis/coordination.k8s.io/v1/namespaces/{OTHER}/leases/rightslice")
    assert problems_found(plane) == []
    assert "policies: guard" in rightslice(plane, "audit", "--verbose", "-o", "name").stderr
    for name in ("install", "uninstall"):
        refused = rightslice(plane, name)
        assert refused.returncode == 2
        assert (
            f"helm uninstall {'rightslice' if name == 'install' else 'RELEASE'} --namespace {OTHER}" in refused.stderr
        )
    objects = render(ENFORCE, chart=other_release.current, namespace=OTHER)
    helm(plane, "uninstall", "rightslice", "--wait", namespace=OTHER)
    left = {item["kind"] for item in objects if plane.api.exists(api_path(item))}
    assert left == {"CustomResourceDefinition"}


def test_helm_takes_over_what_kubectl_installed(site: ReleasedSite) -> None:
    plane = site.plane
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests/overlays/enforce"))
    install = ["install", "rightslice", str(CHART), "--set=image.tag=1.2.3"]

    refused = helm(plane, *install, check=False)
    plane.kubectl("delete", "validatingadmissionpolicybinding", "rightslice-pods")
    helm(plane, *install, "--take-ownership", "--force-conflicts")
    actions = [plane.api.get(BACKSTOP)["spec"]["validationActions"]]
    for mode in ("enforce", "audit"):
        upgrade = ["upgrade", "rightslice", str(CHART), "--reset-then-reuse-values", f"--set=mode={mode}"]
        helm(plane, *upgrade, "--force-conflicts")
        actions.append(plane.api.get(BACKSTOP)["spec"]["validationActions"])

    assert "invalid ownership metadata" in refused.stderr
    assert site.image() == "rightslice:1.2.3"
    assert actions == [["Audit"], ["Deny"], ["Audit"]]
