"""Reach: how many of the pods that could use a smaller GPU are right-sized, and why the others keep their card.

Every pod of real manifests declares a need of 8 GiB in a namespace that right-sizes, and is evaluated by itself against
a cluster with free slices. A pod is *eligible* if one of its nodes could run it on a slice: it requests one whole GPU
at a time, is no worker of a gang, no pod of a DaemonSet and uses no resource claims, and an empty node with slices
satisfies its selectors and has all that it requests. Whether it is right-sized does not decide that. The nodes also
have the labels that the pod's node selector names, as in the cluster that it was written for; NVIDIA's labels stay.
Each volume claim of the pod is bound to a volume that every node reaches, and the default StorageClass waits for pods.

The manifests are those of the corpus, or of `examples/pods` without it. Usage: python -m benchmarks.reach
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.api_objects import Json
from benchmarks.decide import manifests, pods_of, request_of
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import view_of_objects
from webhook.engine.decide import decide
from webhook.errors import SourceLocation
from webhook.model.batch import gang_sign
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import OfferChoice
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_masks import bit_positions
from webhook.model.pod_resources import count_gpu_units, effective_requests
from webhook.model.pod_volumes import pod_volumes
from webhook.model.pods import Pod, is_daemon_pod, parse_pod
from webhook.model.quantity import parse_nano
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NEED = {"rightslice.dev/gpu-memory": "8Gi"}

SLICE = "nvidia.com/mig-1g.10gb"
KUBELET = {"cpu": "96", "memory": "1000Gi", "ephemeral-storage": "800Gi", "pods": "110"}
"""What each kubelet reports besides its devices."""

FABRIC = {"hugepages-2Mi": "8Gi", "hugepages-1Gi": "0", "rdma/ib": "8", "rdma/hca": "8", "vpc.amazonaws.com/efa": "4"}
"""Huge pages and network devices of a node for training."""

PRODUCT = "NVIDIA-A100-SXM4-80GB"
LABELS = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "topology.kubernetes.io/zone": "zone-a",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": PRODUCT,
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
}
PARTITIONED = {
    "nvidia.com/mig.strategy": "mixed",
    f"{SLICE}.product": f"{PRODUCT}-MIG-1g.10gb",
    f"{SLICE}.memory": "9728",
    f"{SLICE}.count": "28",
}

DEFAULT_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "disk.example.com",
    "volumeBindingMode": "WaitForFirstConsumer",
}

POLICY = """
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: everywhere}
spec:
  mode: enforce
  match: {resources: ["nvidia.com/*"]}
  rightSizing: {isolation: hardware, forms: [mig], evidence: [declared], whenFull: keep, templates: enforce}
  injection: {tolerations: auto, nodeAffinity: auto}
"""


class ReachCounts(NamedTuple):
    """How many pods were right-sized, and why others were not.

    Attributes:
        pods: All pods that request GPUs.
        eligible: Those that could run on a slice.
        right_sized: Those of them that get one.
        kept: The reasons of the others, and how many have each.
        beyond: Right-sized pods that are not eligible: each is an error.
    """

    pods: int
    eligible: int
    right_sized: int
    kept: Counter[str]
    beyond: tuple[str, ...]

    @property
    def percent(self) -> int:
        """Return the share of the eligible pods that are right-sized."""
        return 100 * self.right_sized // max(1, self.eligible)


def reach_nodes(labels: Mapping[str, str]) -> list[Json]:
    """Return whole cards and slices, each on a plain node and on one with a fabric, all with these labels."""
    whole, partitioned = {WHOLE_GPU: "8"}, {WHOLE_GPU: "4", SLICE: "28"}
    return [
        _node("whole", labels, whole),
        _node("whole-fabric", labels, whole | FABRIC),
        _node("slices", PARTITIONED | dict(labels), partitioned),
        _node("slices-fabric", PARTITIONED | dict(labels), partitioned | FABRIC),
    ]


def _node(name: str, labels: Mapping[str, str], amounts: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": LABELS | {"kubernetes.io/hostname": name} | dict(labels)},
        "status": {
            "allocatable": KUBELET | amounts,
            "capacity": KUBELET | amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def bound_claims(pod: Pod) -> Iterator[Json]:
    """Yield the volume claims of a pod, each with its volume."""
    for use in filter(lambda use: use.claim, pod_volumes(pod)):
        bound = {"name": use.claim, "namespace": pod.metadata.namespace or "default"}
        marks = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        yield {"kind": "PersistentVolumeClaim", "metadata": bound | marks, "spec": {"volumeName": f"of-{use.claim}"}}
        yield {"kind": "PersistentVolume", "metadata": {"name": f"of-{use.claim}"}, "spec": {"claimRef": bound}}


def reach_cluster(pod: Pod) -> tuple[list[Json], ClusterView]:
    """Return the nodes for a pod, with the labels that it selects by, and their view with the pod's claims."""
    labels = {key: value for key, value in pod.spec.node_selector.items() if not key.startswith("nvidia.com/")}
    nodes = reach_nodes(labels)
    return nodes, view_of_objects(
        (each, SourceLocation("nodes")) for each in (*nodes, DEFAULT_CLASS, *bound_claims(pod))
    )


def reach_policies() -> PolicySet:
    """Return a policy that right-sizes everywhere."""
    loaded = load_policies([("everywhere.yaml", POLICY)])
    assert loaded.policies is not None, loaded
    return loaded.policies


def is_eligible(pod: Pod, nodes: Sequence[Json], view: ClusterView) -> bool:
    """Return whether an empty node could run the pod on a slice, whatever right-sizing does."""
    spec = pod.spec
    requested = effective_requests(pod)
    if count_gpu_units(requested.items()) != {WHOLE_GPU: 1} or gang_sign(pod) or spec.resource_claims:
        return False
    if is_daemon_pod(pod):
        return False
    fleet = view.fleet
    selected = fleet.nodes_selected_by(spec) & fleet.nodes_advertising(SLICE)
    names = {fleet.nodes[position].name for position in bit_positions(selected)}
    offered = [node["status"]["allocatable"] for node in nodes if node["metadata"]["name"] in names]
    del requested[WHOLE_GPU]
    return any(_covers(allocatable, requested) for allocatable in offered)


def _covers(allocatable: Json, requested: dict[str, int]) -> bool:
    return all(parse_nano(allocatable.get(name, "0")) >= amount for name, amount in requested.items())


def measure_reach(objects: Iterable[Json]) -> ReachCounts:
    """Evaluate every pod of some manifests that requests GPUs."""
    policies = reach_policies()
    pods = [_with_need(pod) for data in objects for pod in pods_of(data, policies)]
    counted = eligible = right_sized = 0
    kept: Counter[str] = Counter()
    beyond: list[str] = []
    for data in pods:
        pod = parse_pod(data)
        nodes, view = reach_cluster(pod)
        decision, could = decide(request_of(data), policies, view, UsageView(), NOW), is_eligible(pod, nodes, view)
        counted += bool(count_gpu_units(effective_requests(pod).items()))
        eligible += could
        chosen = isinstance(decision.outcome, OfferChoice) and decision.applied
        if chosen and not could:
            beyond.append(pod.metadata.name or pod.metadata.generate_name)
        elif could:
            right_sized += chosen
            kept.update(() if chosen else [_reason(decision.outcome)])
    return ReachCounts(counted, eligible, right_sized, kept, tuple(beyond))


def _reason(outcome: object) -> str:
    detail = str(getattr(outcome, "detail", ""))
    return ": ".join(filter(None, (str(getattr(outcome, "reason", outcome)), detail)))


def _with_need(pod: Json) -> Json:
    metadata = pod["metadata"]
    return pod | {"metadata": metadata | {"annotations": (metadata.get("annotations") or {}) | NEED}}


def default_manifests() -> Sequence[Json]:
    """Return the objects of the corpus, or without it those of the examples."""
    corpus = Path(os.environ.get("RIGHTSLICE_SHARED", "../shared")) / "corpus" / "manifests"
    return manifests(corpus if corpus.is_dir() else bundled_folder("examples") / "pods")


def main() -> int:
    """Print the counts; return 1 if a pod was right-sized that no node could run on a slice."""
    found = measure_reach(default_manifests())
    print(f"{found.pods} pods with GPUs, {found.eligible} eligible, {found.right_sized} right-sized: {found.percent} %")
    for reason, count in found.kept.most_common():
        print(f"  {count:4} kept: {reason}")
    for name in found.beyond:
        print(f"  right-sized, but no node could run it on a slice: {name}")
    return 1 if found.beyond else 0


if __name__ == "__main__":
    sys.exit(main())
