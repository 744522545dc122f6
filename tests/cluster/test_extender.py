"""The extender as a process, called by a real kube-scheduler: placement of GPU pods."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.test_agent import DEFINITIONS, GPUNODES
from tests.cluster.test_crds import is_served
from tests.conftest import ROOT
from tests.example_cluster import mig_node
from tests.placement.clusters import BRIDGED, DGX1, gpu_node, gpu_node_report
from webhook.certs.issuer import create_self_signed
from webhook.manifests import scheduler_config
from webhook.model.annotations import GANG_SIZE_ANNOTATION, TOPOLOGY_ANNOTATION
from webhook.placement.nodes.filtering import NEVER_CONNECTED, NOT_CONNECTED
from webhook.policy.crds import gpunode_crd

MIG = "nvidia.com/mig-1g.10gb"
SWITCHED = {(i, j): 18 for j in range(8) for i in range(j)}
SINGLES = dict.fromkeys(SWITCHED, 0)

PATIENT_TIMEOUT = "30s"
"""The scheduler ignores an extender that is late, so on a busy machine one second would decide where pods go."""

SHARES = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: teams}
spec:
  fairShare: {by: queue, shares: [{name: q0, weight: 1}, {name: q2, weight: 9}]}
"""


def node_with_report(
    name: str, product: str, links: Mapping[tuple[int, int], int], free: set[int], gpus: int = 8
) -> list[Json]:
    """Return a node that advertises its free GPUs, and its agent's report, in which the others are unhealthy."""
    node = gpu_node(name, len(free), product)
    node_report = gpu_node_report(name, gpus, links)
    for device in node_report["status"]["gpus"]:
        device["healthy"] = device["index"] in free
    return [node, node_report]


def half_node_pod(number: int) -> PodMaker:
    return make_pod(f"half-{number}").gpus(1).label("queue", f"q{number}")


def backdate_start(plane: Plane, path: str) -> None:
    """Set an early start time once the pod runs."""
    eventually(lambda: plane.api.get(path), until=lambda pod: pod["status"].get("phase") == "Running")
    plane.api.patch(f"{path}/status", {"status": {"startTime": "2026-01-01T00:00:00Z"}}, "merge")


def half_used_pairs_node(name: str, namespace: str) -> list[Json]:
    """Return a node with two bridged pairs of GPUs, each with one GPU allocated to a pod."""
    pods = [half_node_pod(i).namespace(namespace).spec(nodeName=name).build() for i in (0, 2)]
    owners = {i: f"{namespace}/half-{i}" for i in (0, 2)}
    return [gpu_node(name), gpu_node_report(name, 4, BRIDGED, owners), *pods]


def mig_objects(name: str, start: int, namespace: str) -> list[Json]:
    """Return a node with two MIG GPUs: the second has a free 1g slice at `start`, and one allocated to a pod at 5."""
    pod = make_pod(f"on-{name}").namespace(namespace).requests(MIG, "1").spec(nodeName=name).build()
    partitions = {0: [("3g.40gb", 4, "")], 1: [("1g.10gb", start, ""), ("1g.10gb", 5, f"{namespace}/on-{name}")]}
    return [mig_node(name, small=2, large=1), gpu_node_report(name, 2, {}, mig_instances=partitions), pod]


def domain(name: str, nodes: int) -> list[Json]:
    """Return nodes of one NVLink domain with four GPUs each."""
    return [gpu_node(f"ext-{name}{i}", 4, "NVIDIA-GB200", **{"nvidia.com__gpu.clique": name}) for i in range(nodes)]


def gang_member(name: str, gang: str, size: int = 0) -> PodMaker:
    pod = make_pod(name).gpus(4).label("scheduling.x-k8s.io/pod-group", gang)
    return pod.annotate(GANG_SIZE_ANNOTATION, str(size)) if size else pod


class ScheduledCluster:
    """A plane with nodes, agent reports, and an extender that its scheduler calls."""

    def __init__(self, plane: Plane, namespace: str, extender: Process, entry: Json) -> None:
        self.plane, self._namespace, self.extender, self._entry = plane, namespace, extender, entry

    def health(self) -> str:
        """Return the extender's health page."""
        context = ssl.create_default_context(cafile=self._entry["tlsConfig"]["caFile"])
        url = f"{self._entry['urlPrefix']}/readyz?verbose"
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:
            return str(answer.read().decode())

    def path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods{'/' if name else ''}{name}"

    def create(self, pod: PodMaker, *node_names: str) -> None:
        """Create a pod that may run on these nodes."""
        values = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(node_names)}
        affinity = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [values]}]}
        }
        self.plane.api.create(
            self.path(), pod.namespace(self._namespace).spec(affinity={"nodeAffinity": affinity}).build()
        )

    def node_of(self, name: str) -> str:
        """Return the node of a pod."""
        pod = eventually(lambda: self.plane.api.get(self.path(name)), until=lambda it: it["spec"].get("nodeName"))
        return str(pod["spec"]["nodeName"])

    def node_after_change(self, name: str, changed_node: str) -> str:
        """Return the node of a pod that was unschedulable; the scheduler retries it after a change of another node."""
        numbers = count()

        def change_node_and_get_pod() -> Json:
            label = {"metadata": {"labels": {"turn": str(next(numbers))}}}
            self.plane.api.patch(f"/api/v1/nodes/{changed_node}", label, "merge")
            return self.plane.api.get(self.path(name))

        return str(eventually(change_node_and_get_pod, until=lambda it: it["spec"].get("nodeName"))["spec"]["nodeName"])

    def schedule(self, pod: PodMaker, *node_names: str) -> str:
        """Create a pod, and return its node."""
        self.create(pod, *node_names)
        return self.node_of(pod.build()["metadata"]["name"])

    def pending_reason(self, name: str) -> str:
        """Return the reason why a pod is not scheduled."""
        pod = eventually(lambda: self.plane.api.get(self.path(name)), until=lambda it: it["status"].get("conditions"))
        return str(pod["status"]["conditions"][0].get("message"))


@contextmanager
def serve_extender(plane: Plane, folder: Path) -> Iterator[tuple[Process, Json]]:
    """Run `rightslice serve extender` for the block, and yield it with its entry in the scheduler's configuration."""
    port = free_port()
    pair = create_self_signed(["127.0.0.1"], datetime.now(UTC))
    certificate, key = pair.write(folder)
    policy = folder / "shares.yaml"
    policy.write_text(SHARES, encoding="utf-8")
    flags = ["--cluster", "live", "--kubeconfig", str(plane.kubeconfig), "--listen", f"127.0.0.1:{port}"]
    flags += ["--fair-share", str(policy)]
    command = [sys.executable, "-m", "webhook.cli", "serve", "extender", *flags]
    context = ssl.create_default_context(cadata=pair.authority.decode())

    def ready() -> bool:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/readyz", timeout=30, context=context) as answer:
            return bool(answer.status == 200)

    environment = [f"PYTHONPATH={ROOT}", "PATH=" + os.environ["PATH"]]
    command = ["/usr/bin/env", *environment, *command, "--tls-cert", str(certificate), "--tls-key", str(key)]
    process = Process("extender", command, folder / "extender.log", ready)
    process.start()
    try:
        yield (
            process,
            scheduler_config.extender_entry(f"https://127.0.0.1:{port}")
            | {"tlsConfig": {"caFile": str(folder / "ca.crt")}, "httpTimeout": PATIENT_TIMEOUT},
        )
    finally:
        process.kill()


@pytest.fixture
def site(plane: Plane, namespace: str, tmp_path: Path) -> Iterator[ScheduledCluster]:
    objects = [
        *node_with_report("ext-singles", "NVIDIA-A100-80GB-PCIe", SINGLES, set(range(8))),
        *node_with_report("ext-pair", "NVIDIA-A100-80GB-PCIe", BRIDGED, {0, 1, 2}, 4),
        *node_with_report("ext-odd", "NVIDIA-A100-80GB-PCIe", BRIDGED, {0, 2}, 4),
        *node_with_report("ext-torn", "Tesla-V100-SXM2-32GB", DGX1, {0, 3, 4, 5}),
        *node_with_report("ext-island", "Tesla-V100-SXM2-32GB", DGX1, {0, 1, 2, 3}),
        *node_with_report("ext-hgx", "NVIDIA-H100-80GB-HBM3", SWITCHED, set(range(8))),
        *half_used_pairs_node("ext-halves", namespace),
        *mig_objects("ext-mig-low", 0, namespace),
        *mig_objects("ext-mig-torn", 4, namespace),
        *(node for name, nodes in (("two", 2), ("four", 4), ("pair", 2), ("wide", 3)) for node in domain(name, nodes)),
    ]
    if not plane.api.exists(f"{DEFINITIONS}/gpunodes.rightslice.dev"):
        plane.api.create(DEFINITIONS, gpunode_crd())
    eventually(lambda: is_served(plane, GPUNODES))
    names = add_nodes(plane, [item for item in objects if item["kind"] == "Node"])
    reports = [item for item in objects if item["kind"] == "GPUNode"]
    for node_report in reports:
        plane.api.create(GPUNODES, {key: node_report[key] for key in ("apiVersion", "kind", "metadata")})
        plane.api.patch(
            f"{GPUNODES}/{node_report['metadata']['name']}/status", {"status": node_report["status"]}, "merge"
        )
    for pod in [item for item in objects if item["kind"] == "Pod"]:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    backdate_start(plane, f"/api/v1/namespaces/{namespace}/pods/half-0")
    try:
        with serve_extender(plane, tmp_path) as (process, entry), plane.scheduler_with(extenders=[entry]):
            yield ScheduledCluster(plane, namespace, process, entry)
    finally:
        for node_report in reports:
            plane.api.delete(f"{GPUNODES}/{node_report['metadata']['name']}")
        remove_nodes(plane, names)


def test_a_real_scheduler_respects_nvlink_fragmentation_and_gangs(
    site: ScheduledCluster,
) -> None:
    strict = make_pod("strict").gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")

    # The extender knows which queue is over its share.
    assert "[+]fair share 1 of" in eventually(site.health, until=lambda page: "over their share" in page)
    # One GPU does not break the last pair, and two go to a free pair instead of eight unconnected GPUs.
    assert site.schedule(make_pod("one").gpus(1), "ext-pair", "ext-odd") == "ext-odd"
    assert site.schedule(make_pod("pair").gpus(2), "ext-singles", "ext-pair", "ext-odd") == "ext-pair"
    # Four GPUs of a training job go to one island, and the next four to the one whole island that is left.
    assert site.schedule(make_pod("four").gpus(4), "ext-torn", "ext-island", "ext-singles") == "ext-island"
    assert site.schedule(make_pod("next").gpus(4), "ext-torn", "ext-hgx", "ext-singles") == "ext-hgx"
    # A small MIG pod does not take the last placement of a large one.
    assert site.schedule(make_pod("small").requests(MIG, "1"), "ext-mig-low", "ext-mig-torn") == "ext-mig-torn"

    # A pod whose required NVLink is not free stays pending with a reason; it runs once a pair is free, even if the
    # report is outdated.
    site.create(strict, "ext-singles", "ext-halves")
    assert NEVER_CONNECTED in eventually(
        lambda: site.pending_reason("strict"), until=lambda reason: NOT_CONNECTED in reason
    )
    site.plane.api.delete(site.path("half-2"))
    assert site.node_after_change("strict", changed_node="ext-singles") == "ext-halves"

    # A gang of four goes to the only domain with room for all, even if other pods are created in between.
    domains = [f"ext-{name}{i}" for name, nodes in (("two", 2), ("four", 4)) for i in range(nodes)]
    for i in range(4):
        site.create(gang_member(f"gang-{i}", "train", 4), *domains)
        if i < 2:
            site.create(make_pod(f"between-{i}").gpus(4), *domains)
    assert {site.node_of(f"gang-{i}") for i in range(4)} == {f"ext-four{i}" for i in range(4)}
    assert {site.node_of(f"between-{i}") for i in range(2)} == {"ext-two0", "ext-two1"}
    # Later members of a gang without a size join the first one, not the domain with more room.
    assert site.schedule(gang_member("first", "open"), "ext-pair0") == "ext-pair0"
    assert site.schedule(gang_member("later", "open"), "ext-pair1", *(f"ext-wide{i}" for i in range(3))) == "ext-pair1"

    # Without the extender scheduling continues, but rules that need the agents' reports are no longer enforced.
    site.extender.kill()
    assert site.schedule(make_pod("after").gpus(2), "ext-singles") == "ext-singles"
