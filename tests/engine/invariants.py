"""Generated inputs for the invariants of `decide`: mostly GPU pods, four clusters, and policies of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

from hypothesis import strategies as st

from tests.builders import Json, make_namespace, make_node
from tests.example_cluster import (
    A100,
    GPU_TAINT,
    MIXED,
    NO_USAGE,
    NOW,
    mig_node,
    policies_of,
    policy,
    tainted,
    view_of,
    whole_node,
)
from tests.strategies import odd_pods, pods
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import read_snapshot
from webhook.engine.decide import decide
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.node_labels import ISLAND_LABEL
from webhook.model.pods import parse_pod
from webhook.policy.policy_set import PolicySet
from webhook.policy.written.sections import Bypass

GPU, SMALL, SHARED = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
SHARING = "nvidia.com/gpu.sharing-strategy"
RESERVED = {"key": "team", "value": "other", "effect": "NoExecute"}

L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068", "nvidia.com/gpu.replicas": "4"}
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
UNRENAMED = {
    "nvidia.com/gpu.product": "NVIDIA-A10G-SHARED",
    "nvidia.com/gpu.memory": "23028",
    "nvidia.com/gpu.replicas": "4",
    SHARING: "time-slicing",
}
NODES = (
    whole_node(),
    mig_node(),
    tainted(mig_node("mig-tainted"), GPU_TAINT),
    tainted(mig_node("mig-reserved"), GPU_TAINT, RESERVED),
    tainted(make_node("sliced", L40S | {"nvidia.com/gpu.sharing-strategy": "time-slicing"}, **{SHARED: 16}), GPU_TAINT),
    make_node(
        "mps", L40S | {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/mps.capable": "true"}, **{SHARED: 4}
    ),
    make_node("linked", A100 | {"nvidia.com/gpu.clique": "a.1"}, **{GPU: 4}),
)
TRUSTED = make_namespace("team", **{"rightslice.dev/right-sizing": "enforced"})
RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "range", "namespace": "team"},
    "spec": {"limits": [{"type": "Container", "max": {GPU: "4"}, "default": {GPU: "0"}, "defaultRequest": {GPU: "0"}}]},
}


def quota(name: str, hard: Json, **spec: Any) -> Json:
    """Return a quota of the team's namespace, half used."""
    status = {"hard": hard, "used": dict.fromkeys(hard, "1")}
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard} | spec} | {
        "status": status
    }


def island(name: str, size: str) -> Json:
    """Return a node with eight A100 whose agent reports the size of its NVLink islands."""
    return make_node(name, A100 | {ISLAND_LABEL: size, "nvidia.com/gpu.clique": "domain-1"}, **{GPU: 8})


QUOTAS = (
    quota("gpus", {f"requests.{GPU}": "4", f"requests.{SMALL}": "3"}),
    quota("idle", {f"requests.{GPU}": "8"}, scopes=["BestEffort"]),
)
VIEWS = {
    "free": view_of(TRUSTED, *NODES),
    "counted": view_of(TRUSTED, RANGE, *QUOTAS, *NODES),
    "islands": view_of(
        TRUSTED,
        *(island(name, size) for name, size in (("joined", "8"), ("halves", "4"), ("broken", "1"))),
        make_node("cards", {"nvidia.com/gpu.product": "NVIDIA-A40", ISLAND_LABEL: "2"}, **{GPU: 4}),
        make_node("silent", H100, **{GPU: 8}),
        mig_node(),
    ),
    "shares that keep the name": view_of(TRUSTED, make_node("turns", UNRENAMED, **{GPU: 16}), whole_node()),
    "small nodes, and two names apart": view_of(
        TRUSTED,
        make_node("joined", H100, cpu=3, **{GPU: 4}),
        make_node("cards", L40S | {"nvidia.com/gpu.replicas": "1"}, cpu=6, **{GPU: 4}),
        make_node("slices", MIXED | {"nvidia.com/gpu.product": "NVIDIA-A100-PCIE-80GB"}, cpu=5, **{GPU: 2, SMALL: 7}),
    ),
    "demo": read_snapshot("demo").view,
    "empty": view_of(),
}

JUDGING = f"""
match: {{namespaces: ["*"]}}
limits:
  perPod: [{{resource: {GPU}, allowed: [1, 2, 4]}}, {{resource: "nvidia.com/mig-*", max: 4}}]
  perContainer: [{{resource: memory, max: 64Gi, default: 4Gi}}]
  perGPU: [{{resource: cpu, default: "2", max: "24"}}]
  accounting: native
  accountingScheduler: configured
quotas: {{shared: [{{name: all, gpuMilli: 3000}}]}}
cuda: {{}}
security: {{deny: [DENY]}}
"""
SHAPING = """
rightSizing: {isolation: none, default: {memory: 8Gi}, minSavingPercent: 1}
injection:
  tolerations: auto
  nodeAffinity: {offer: auto, required: [{key: kubernetes.io/hostname, operator: Exists}]}
  runtimeClassName: nvidia
  spread: preferred
  labels: {example.com/a: b}
topology: {nvlink: required, multiNodeDomain: nvidia.com/gpu.clique}
"""


def everything(mode: str = "enforce", *, shapes: bool = True) -> str:
    """Return a policy with every section, or only with those that validate, all in one mode."""
    spec = JUDGING.replace("DENY", ", ".join(get_args(Bypass))) + (SHAPING if shapes else "")
    return policy(f"mode: {mode}\n{spec}", "everything")


LIBRARY = policies_of(*(file.read_text() for file in sorted(bundled_folder("policies").glob("*.yaml"))))
STRICT = policies_of(everything())
SHRINKING = policies_of(
    policy("mode: enforce\nrightSizing: {isolation: none}\ninjection: {tolerations: auto}", "shrink")
)
ABOUT_PARTS = policies_of(
    policy("mode: enforce\nrightSizing: {isolation: none, default: {memory: 8Gi}, minSavingPercent: 1}", "shrink"),
    policy("mode: enforce\nsecurity: {deny: [sharedProcessNamespace]}", "guard"),
    policy(
        f'mode: enforce\nmatch: {{resources: ["{SMALL}"]}}\n'
        "limits: {perPod: [{resource: memory, max: 1Mi}]}\ninjection: {tolerations: auto}",
        "about-small-slices",
    ),
)
"""Right-sizing with policies that restrict its choice."""

POLICIES = {"the library": LIBRARY, "everything": STRICT, "shrinking": SHRINKING}


class Scenario(NamedTuple):
    """A cluster and the policies in it, by their names: what an example shows when it fails."""

    view: str
    policies: str

    def decide(self, pod: Json, operation: str = "CREATE") -> Decision:
        """Return the decision about a pod in the team's namespace."""
        return decision(pod, VIEWS[self.view], POLICIES[self.policies], operation)


def scenarios() -> st.SearchStrategy[Scenario]:
    """Generate any cluster with any policies."""
    return st.builds(Scenario, st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(POLICIES)))


def decision(pod: Json, view: ClusterView, policies: PolicySet, operation: str = "CREATE") -> Decision:
    """Return the decision about a pod in its namespace, by default the team's."""
    metadata = pod.get("metadata")
    namespace = metadata.get("namespace", "team") if isinstance(metadata, dict) else "team"
    read = parse_pod(pod)
    return decide(
        AdmissionRequest(operation, "", "Pod", namespace, "", read, load_object=lambda: pod),
        policies,
        view,
        NO_USAGE,
        NOW,
    )


OWNERS = ["ReplicaSet", "Job", "DaemonSet"]
TERMS = [
    {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]}]},
    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["whole"]}]},
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["mig"]}]},
    {},
]
TOLERATIONS = [
    {"operator": "Exists"},
    {"key": "disk", "operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule", "tolerationSeconds": 5},
]


ONE: list[Json] = [{GPU: "1"}, {GPU: 1}, {GPU: "1", "cpu": "4", "memory": "16Gi"}]
OTHERS: list[Json] = [{GPU: "2"}, {SMALL: "1"}]
NAMESPACES = ["team", "team", "team", "team-vision", "notebooks", "batch"]


def gpu_requests() -> st.SearchStrategy[Json]:
    """Generate GPU resources as users write them."""
    amount = st.sampled_from([*ONE, *ONE, *ONE, *OTHERS])
    both = amount.map(lambda amounts: {"limits": amounts, "requests": dict(amounts)})
    return st.one_of(both, amount.map(lambda amounts: {"limits": amounts}), st.just({}))


def plain_containers(prefix: str) -> st.SearchStrategy[list[Json]]:
    """Generate one to three containers with different names, with or without GPU requests."""
    image = st.sampled_from(["example/app:1", "nvidia/cuda:12.4.1-base"])
    one = st.fixed_dictionaries({"resources": gpu_requests(), "image": image})
    return st.lists(one, min_size=1, max_size=3).map(
        lambda found: [{"name": f"{prefix}{index}"} | container for index, container in enumerate(found)]
    )


@st.composite
def gpu_metadata(draw: st.DrawFn) -> Json:
    """Generate metadata of a pod that may declare its need and may belong to a workload."""
    metadata: Json = {"name": "pod", "namespace": draw(st.sampled_from(NAMESPACES))}
    memory = draw(st.sampled_from(["", "4Gi", "8Gi", "8Gi", "20Gi", "60Gi"]))
    if memory:
        metadata["annotations"] = {"rightslice.dev/gpu-memory": memory}
    if draw(st.booleans()):
        owner = {"kind": draw(st.sampled_from(OWNERS)), "name": "owner", "controller": True}
        metadata |= {"ownerReferences": [owner], "labels": {"pod-template-hash": "1", "~/~1": "odd"}}
    return metadata


@st.composite
def gpu_pods(draw: st.DrawFn) -> Json:
    """Generate valid pods; most are mutated."""
    spec: Json = {"containers": draw(plain_containers("main-"))}
    if draw(st.booleans()):
        spec["shareProcessNamespace"] = True
    if draw(st.booleans()):
        terms = draw(st.lists(st.sampled_from(TERMS), min_size=1, max_size=2))
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if draw(st.booleans()):
        spec["initContainers"] = draw(plain_containers("init-"))
    spec["tolerations"] = draw(st.lists(st.sampled_from(TOLERATIONS), max_size=2))
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": draw(gpu_metadata()), "spec": spec}
    pod: Json = json.loads(json.dumps(whole))
    return pod


def any_pods() -> st.SearchStrategy[Json]:
    """Generate pods that can be parsed, likely ones twice as often as unusual ones."""
    return st.one_of(gpu_pods(), gpu_pods(), pods())


def all_pods() -> st.SearchStrategy[Json]:
    """Generate the same pods, and pods with a part of the wrong type."""
    return st.one_of(any_pods(), odd_pods())


def containers_of(pod: Json) -> Iterable[tuple[str, int, Json]]:
    """Return main and init containers with their fields and indices."""
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(pod["spec"].get(kind) or ()):
            yield kind, index, container
