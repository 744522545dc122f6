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
from tests.cluster.test_agent import DEFINITIONS, GPUNODES, is_served
from tests.conftest import ROOT
from tests.example_cluster import mig_node
from tests.placement.clusters import BRIDGED, DGX1, gpu_node, report
from webhook.certs.issuer import create_self_signed
from webhook.manifests import scheduler_config
from webhook.manifests.gpunode_crd import gpunode_crd
from webhook.model.annotations import GANG_SIZE_ANNOTATION, TOPOLOGY_ANNOTATION
from webhook.placement.nodes.filtering import NEVER_CONNECTED, NOT_CONNECTED

MIG = "nvidia.com/mig-1g.10gb"
SWITCHED = {(i, j): 18 for j in range(8) for i in range(j)}
SINGLES = dict.fromkeys(SWITCHED, 0)


SHARES = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: teams}
spec:
  fairShare: {by: queue, shares: [{name: q0, weight: 1}, {name: q2, weight: 9}]}
"""


def machine(name: str, product: str, links: Mapping[tuple[int, int], int], free: set[int], gpus: int = 8) -> list[Json]:
    """A node that advertises its free GPUs, and what its agent reports: the others are not to be used."""
    node = gpu_node(name, len(free), product)
    said = report(name, gpus, links)
    for device in said["status"]["gpus"]:
        device["healthy"] = device["index"] in free
    return [node, said]


def half_node_pod(number: int) -> PodMaker:
    return make_pod(f"half-{number}").gpus(1).label("queue", f"q{number}")


def backdate_start(plane: Plane, path: str) -> None:
    """A pod that runs has run for long."""
    eventually(lambda: plane.api.get(path), until=lambda pod: pod["status"].get("phase") == "Running")
    plane.api.patch(f"{path}/status", {"status": {"startTime": "2026-01-01T00:00:00Z"}}, "merge")


def half_used_pairs_node(name: str, namespace: str) -> list[Json]:
    """Two bridged pairs; of each a pod holds one card."""
    pods = [half_node_pod(i).namespace(namespace).spec(nodeName=name).build() for i in (0, 2)]
    held = {i: f"{namespace}/half-{i}" for i in (0, 2)}
    return [gpu_node(name), report(name, 4, BRIDGED, held), *pods]


def mig_objects(name: str, start: int, namespace: str) -> list[Json]:
    """Two MIG cards: on the second, a 1g is idle at `start`, and a pod holds another one, at 5."""
    held = make_pod(f"on-{name}").namespace(namespace).asks(MIG, "1").spec(nodeName=name).build()
    cut = {0: [("3g.40gb", 4, "")], 1: [("1g.10gb", start, ""), ("1g.10gb", 5, f"{namespace}/on-{name}")]}
    return [mig_node(name, small=2, large=1), report(name, 2, {}, cut=cut), held]


def domain(name: str, nodes: int) -> list[Json]:
    """Nodes of four GPUs each that NVLink connects."""
    return [gpu_node(f"ext-{name}{i}", 4, "NVIDIA-GB200", **{"nvidia.com__gpu.clique": name}) for i in range(nodes)]


def gang_member(name: str, gang: str, size: int = 0) -> PodMaker:
    pod = make_pod(name).gpus(4).label("scheduling.x-k8s.io/pod-group", gang)
    return pod.annotate(GANG_SIZE_ANNOTATION, str(size)) if size else pod


class ScheduledCluster:
    """A plane with nodes, reports, and an extender that its scheduler asks."""

    def __init__(self, plane: Plane, namespace: str, extender: Process, told: Json) -> None:
        self.plane, self._namespace, self.extender, self._told = plane, namespace, extender, told

    def health(self) -> str:
        """Return the extender's health page."""
        trusting = ssl.create_default_context(cafile=self._told["tlsConfig"]["caFile"])
        url = f"{self._told['urlPrefix']}/readyz?verbose"
        with urllib.request.urlopen(url, timeout=5, context=trusting) as answer:
            return str(answer.read().decode())

    def path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods{'/' if name else ''}{name}"

    def create(self, pod: PodMaker, *among: str) -> None:
        """Make a pod that may run on some nodes."""
        values = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(among)}
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

    def node_in_the_end(self, name: str, stirring: str) -> str:
        """The same of one that was refused: where the scheduler was faster than our watch, the next change counts."""
        turns = count()

        def look() -> Json:
            label = {"metadata": {"labels": {"turn": str(next(turns))}}}
            self.plane.api.patch(f"/api/v1/nodes/{stirring}", label, "merge")
            return self.plane.api.get(self.path(name))

        return str(eventually(look, until=lambda it: it["spec"].get("nodeName"))["spec"]["nodeName"])

    def put(self, pod: PodMaker, *among: str) -> str:
        """Create a pod, and return its node."""
        self.create(pod, *among)
        return self.node_of(pod.build()["metadata"]["name"])

    def waits(self, name: str) -> str:
        """Return the reason why a pod is not scheduled."""
        pod = eventually(lambda: self.plane.api.get(self.path(name)), until=lambda it: it["status"].get("conditions"))
        return str(pod["status"]["conditions"][0].get("message"))


@contextmanager
def serve_extender(plane: Plane, folder: Path) -> Iterator[tuple[Process, Json]]:
    """`rightslice serve extender` over the plane, until the block ends; and what the scheduler is told of it."""
    port = free_port()
    pair = create_self_signed(["127.0.0.1"], datetime.now(UTC))
    certificate, key = pair.write(folder)
    policy = folder / "shares.yaml"
    policy.write_text(SHARES, encoding="utf-8")
    flags = ["--cluster", "live", "--kubeconfig", str(plane.kubeconfig), "--listen", f"127.0.0.1:{port}"]
    flags += ["--fair-share", str(policy)]
    command = [sys.executable, "-m", "webhook.cli", "serve", "extender", *flags]
    trusting = ssl.create_default_context(cadata=pair.authority.decode())

    def ready() -> bool:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/readyz", timeout=30, context=trusting) as answer:
            return bool(answer.status == 200)

    environment = [f"PYTHONPATH={ROOT}", "PATH=" + os.environ["PATH"]]
    command = ["/usr/bin/env", *environment, *command, "--tls-cert", str(certificate), "--tls-key", str(key)]
    process = Process("extender", command, folder / "extender.log", ready)
    process.start()
    try:
        yield (
            process,
            scheduler_config.extender_entry(f"https://127.0.0.1:{port}")
            | {"tlsConfig": {"caFile": str(folder / "ca.crt")}},
        )
    finally:
        process.kill()


@pytest.fixture
def site(plane: Plane, namespace: str, tmp_path: Path) -> Iterator[ScheduledCluster]:
    objects = [
        *machine("ext-singles", "NVIDIA-A100-80GB-PCIe", SINGLES, set(range(8))),
        *machine("ext-pair", "NVIDIA-A100-80GB-PCIe", BRIDGED, {0, 1, 2}, 4),
        *machine("ext-odd", "NVIDIA-A100-80GB-PCIe", BRIDGED, {0, 2}, 4),
        *machine("ext-torn", "Tesla-V100-SXM2-32GB", DGX1, {0, 3, 4, 5}),
        *machine("ext-island", "Tesla-V100-SXM2-32GB", DGX1, {0, 1, 2, 3}),
        *machine("ext-hgx", "NVIDIA-H100-80GB-HBM3", SWITCHED, set(range(8))),
        *half_used_pairs_node("ext-halves", namespace),
        *mig_objects("ext-mig-low", 0, namespace),
        *mig_objects("ext-mig-torn", 4, namespace),
        *(node for name, nodes in (("two", 2), ("four", 4), ("pair", 2), ("wide", 3)) for node in domain(name, nodes)),
    ]
    if not plane.api.exists(f"{DEFINITIONS}/gpunodes.rightslice.dev"):
        plane.api.create(DEFINITIONS, gpunode_crd())
    eventually(lambda: is_served(plane))
    names = add_nodes(plane, [item for item in objects if item["kind"] == "Node"])
    reports = [item for item in objects if item["kind"] == "GPUNode"]
    for said in reports:
        plane.api.create(GPUNODES, {key: said[key] for key in ("apiVersion", "kind", "metadata")})
        plane.api.patch(f"{GPUNODES}/{said['metadata']['name']}/status", {"status": said["status"]}, "merge")
    for pod in [item for item in objects if item["kind"] == "Pod"]:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    backdate_start(plane, f"/api/v1/namespaces/{namespace}/pods/half-0")
    try:
        with serve_extender(plane, tmp_path) as (process, told), plane.scheduler_with(extenders=[told]):
            yield ScheduledCluster(plane, namespace, process, told)
    finally:
        for said in reports:
            plane.api.delete(f"{GPUNODES}/{said['metadata']['name']}")
        remove_nodes(plane, names)


def test_a_real_scheduler_respects_nvlink_fragmentation_and_gangs(
    site: ScheduledCluster,
) -> None:
    strict = make_pod("strict").gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")

    # It has looked up who is over the share.
    assert "[+]fair share 1 of" in eventually(site.health, until=lambda said: "over their share" in said)
    # One GPU does not break the last pair, and two go where a pair is free, not where eight singles are.
    assert site.put(make_pod("one").gpus(1), "ext-pair", "ext-odd") == "ext-odd"
    assert site.put(make_pod("pair").gpus(2), "ext-singles", "ext-pair", "ext-odd") == "ext-pair"
    # Four of a training land in one island, and the next four, in the whole one that is left.
    assert site.put(make_pod("four").gpus(4), "ext-torn", "ext-island", "ext-singles") == "ext-island"
    assert site.put(make_pod("next").gpus(4), "ext-torn", "ext-hgx", "ext-singles") == "ext-hgx"
    # A small MIG pod does not take the last place of a large one.
    assert site.put(make_pod("small").asks(MIG, "1"), "ext-mig-low", "ext-mig-torn") == "ext-mig-torn"

    # What is required and not there waits, and says why; once a pair is free, it runs, whatever the report still says.
    site.create(strict, "ext-singles", "ext-halves")
    assert NEVER_CONNECTED in eventually(lambda: site.waits("strict"), until=lambda said: NOT_CONNECTED in said)
    site.plane.api.delete(site.path("half-2"))
    assert site.node_in_the_end("strict", stirring="ext-singles") == "ext-halves"

    # A gang of four lands whole in the one domain that takes it, whoever comes in between.
    domains = [f"ext-{name}{i}" for name, nodes in (("two", 2), ("four", 4)) for i in range(nodes)]
    for i in range(4):
        site.create(gang_member(f"gang-{i}", "train", 4), *domains)
        if i < 2:
            site.create(make_pod(f"between-{i}").gpus(4), *domains)
    assert {site.node_of(f"gang-{i}") for i in range(4)} == {f"ext-four{i}" for i in range(4)}
    assert {site.node_of(f"between-{i}") for i in range(2)} == {"ext-two0", "ext-two1"}
    # Of one that says no number, the later ones join the first, and not the domain with more room.
    assert site.put(gang_member("first", "open"), "ext-pair0") == "ext-pair0"
    assert site.put(gang_member("later", "open"), "ext-pair1", *(f"ext-wide{i}" for i in range(3))) == "ext-pair1"

    # Without the extender scheduling goes on; what it alone knows is not held any more.
    site.extender.kill()
    assert site.put(make_pod("after").gpus(2), "ext-singles") == "ext-singles"
