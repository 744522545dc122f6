"""A small cluster to evaluate pods in: nodes of every sharing form, and policies from text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from textwrap import indent
from typing import Any

import jsonpatch

from tests.builders import Json, PodMaker, make_namespace, make_node
from webhook.audit.object_files import SkippedDocument, SourceObject, parse_objects
from webhook.cache.snapshot import view_of_objects
from webhook.engine.decide import decide
from webhook.errors import SourceLocation
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.pods import parse_pod
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NO_USAGE = UsageView()
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}

A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/cuda.driver-version.full": "550.54.15",
    "nvidia.com/cuda.driver-version.major": "550",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "4",
}
MIXED = A100 | {
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    "nvidia.com/mig-1g.10gb.memory": "9728",
    "nvidia.com/mig-1g.10gb.count": "7",
    "nvidia.com/mig-3g.40gb.product": "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb",
    "nvidia.com/mig-3g.40gb.memory": "40192",
    "nvidia.com/mig-3g.40gb.count": "2",
}


def tainted(node: Json, *taints: Json) -> Json:
    """Return the node with taints."""
    return node | {"spec": {"taints": list(taints)}}


def whole_node(name: str = "whole", count: int = 8) -> Json:
    """Return a node with eight whole A100."""
    return make_node(name, A100, **{"nvidia.com/gpu": count})


def mig_node(name: str = "mig", small: int = 7, large: int = 2) -> Json:
    """Return a node with A100 partitioned with the mixed strategy."""
    gpus = {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": small, "nvidia.com/mig-3g.40gb": large}
    return make_node(name, MIXED, **gpus)


def view_of(*objects: Json) -> ClusterView:
    """Return a view of these objects, as a snapshot file would give it."""
    return view_of_objects((item, SourceLocation("test.yaml", 1, 1)) for item in objects)


def parse_documents(objects: Iterable[Json]) -> Iterator[SourceObject | SkippedDocument]:
    """Parse objects as the documents of one file."""
    return parse_objects("file.yaml", "\n---\n".join(map(json.dumps, objects)).encode())


def policy(spec: str, name: str = "test") -> str:
    """Return the text of a GPUPolicy with a spec."""
    head = f"apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {{name: {name}}}\nspec:\n"
    return head + indent(spec.strip("\n"), "  ") + "\n"


def policies_of(*texts: str) -> PolicySet:
    """Compile policies; a text that does not load is an error of the test."""
    loaded = load_policies((f"policy{index}.yaml", text) for index, text in enumerate(texts))
    assert loaded.policies is not None, [str(error) for error in loaded.errors]
    return loaded.policies


def request_of(data: Json, *, operation: str = "CREATE", **fields: Any) -> AdmissionRequest:
    """Return a request for an object as plain data."""
    group, _, _ = data.get("apiVersion", "v1").rpartition("/")
    kind = data.get("kind", "Pod")
    metadata = data.get("metadata", {})
    return AdmissionRequest(
        operation=operation,
        group=group,
        kind=kind,
        namespace=metadata.get("namespace", "team"),
        name=metadata.get("name", ""),
        pod=parse_pod(data) if kind == "Pod" else None,
        load_object=lambda: data,
        **fields,
    )


def review(
    pod: PodMaker | Json,
    *policies: str,
    nodes: Sequence[Json] = (),
    usage: UsageView = NO_USAGE,
    now: datetime = NOW,
    view: ClusterView | None = None,
    **fields: Any,
) -> Decision:
    """Decide on a pod: policies as spec texts, the cluster as objects."""
    data = pod if isinstance(pod, dict) else pod.build()
    seen = view or view_of(make_namespace("team"), *nodes)
    texts = [policy(spec, f"test-{index}") for index, spec in enumerate(policies)]
    return decide(request_of(data, **fields), policies_of(*texts), seen, usage, now)


def apply_patch(pod: PodMaker | Json, decision: Decision) -> Json:
    """Return the object after the patch, applied by the jsonpatch library."""
    data = pod if isinstance(pod, dict) else pod.build()
    operations: Any = list(decision.patch)
    after: Json = jsonpatch.apply_patch(data, operations)
    return after


def codes(decision: Decision) -> list[str]:
    """Return the codes found, with their modes: "enforce GPU-S101"."""
    return [f"{finding.mode} {finding.code}" for finding in decision.findings]
