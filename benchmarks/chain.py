"""Cost of a namespace's LimitRanges and quotas in `decide`: microseconds, relative to `json.loads` of the same
review.

A GPU pod with a helper is right-sized in two namespaces of one cluster: a bare one, and one with two LimitRanges
(defaults, and bounds for containers and pods) and three quotas that count its resources. Both are evaluated
alternately in one run. In the second, the passes of LimitRanger are predicted for the candidate and for the final
pod, and every quota is charged.

Bound: median at most 40 µs more, or on a slower machine 1.3 times `json.loads`. Usage: python -m benchmarks.chain
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from benchmarks.api_objects import Json, as_stored, review_bytes
from webhook.cache.snapshot import view_of_objects
from webhook.engine.decide import decide
from webhook.errors import SourceLocation
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.pods import parse_pod
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.web.listener import freeze_and_tune_gc

NOW = datetime(2026, 6, 1, tzinfo=UTC)
BARE, BOUNDED = "bare", "bounded"
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
ROUNDS = 4000
MAX_ADDED, MAX_RATIO = 40.0, 1.3

POLICY = """
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: all}
spec:
  mode: enforce
  rightSizing: {}
  limits: {}
"""
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/mig.strategy": "mixed",
    f"{SLICE}.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    f"{SLICE}.memory": "9728",
    f"{SLICE}.count": "56",
}


def view() -> ClusterView:
    """Return a cluster with slices, a bare namespace and a bounded one."""
    return view_of_objects((item, SourceLocation("chain.yaml", 1, 1)) for item in [*_nodes(), *_ranges(), *_quotas()])


def _nodes() -> list[Json]:
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "110", GPU: "8", SLICE: "56"}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}", "labels": LABELS}, "status": status}
        for i in range(20)
    ]


def _ranges() -> list[Json]:
    defaults = {"type": "Container", "default": {"cpu": "2", "memory": "4Gi"}, "defaultRequest": {"cpu": "500m"}}
    gpus = {"type": "Container", "max": {GPU: "4", SLICE: "4"}, "default": {GPU: "0", SLICE: "0"}}
    pods = {"type": "Pod", "max": {"cpu": "64", "memory": "256Gi", SLICE: "4"}}
    return [_object("LimitRange", "defaults", limits=[defaults]), _object("LimitRange", "gpus", limits=[gpus, pods])]


def _quotas() -> list[Json]:
    gpus = {f"requests.{GPU}": "64", f"requests.{SLICE}": "64"}
    compute = {"requests.cpu": "512", "requests.memory": "4Ti", "limits.cpu": "1k", "limits.memory": "8Ti"}
    return [
        _object("ResourceQuota", "gpus", hard=gpus),
        _object("ResourceQuota", "compute", hard=compute),
        _object("ResourceQuota", "pods", hard={"pods": "500"}, scopes=["NotTerminating"]),
    ]


def _object(kind: str, name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": BOUNDED}, "spec": spec}


def pod() -> Json:
    """Return a GPU pod with a sidecar, as LimitRanger leaves it."""
    helper = {"cpu": "500m", "memory": "1Gi", GPU: "0", SLICE: "0"}
    main = {"cpu": "8", "memory": "64Gi", GPU: "1", SLICE: "0"}
    containers = [
        {"name": "train", "image": "example/train:1", "resources": {"limits": main, "requests": main}},
        {"name": "helper", "image": "example/helper:1", "resources": {"limits": helper, "requests": helper}},
    ]
    notes = {"rightslice.dev/gpu-memory": "8Gi"}
    return {"metadata": {"name": "train", "annotations": notes}, "spec": {"containers": containers}}


def request_in(namespace: str, data: Json) -> AdmissionRequest:
    """Return a request for the pod in a namespace."""
    found = parse_pod(data)
    return AdmissionRequest("CREATE", "", "Pod", namespace, "train", found, load_object=lambda: data)


def in_turn(*works: Callable[[], object]) -> list[float]:
    """Return the median microseconds of each call, alternating between them."""
    clock = time.perf_counter_ns
    spent: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for work, times in zip(works, spent, strict=True):
            start = clock()
            work()
            times.append((clock() - start) / 1000)
    return [statistics.median(times) for times in spent]


def policies() -> PolicySet:
    """Return one policy that right-sizes and predicts LimitRanges and quotas."""
    loaded = load_policies([("all.yaml", POLICY)]).policies
    assert loaded is not None
    return loaded


def main() -> int:
    """Print the figures; return 1 if the bound is exceeded."""
    data, cluster, rules, usage = as_stored(pod(), BOUNDED), view(), policies(), UsageView()
    bare, bounded = request_in(BARE, data), request_in(BOUNDED, data)
    text = review_bytes(data)
    for request in (bare, bounded):
        decision = decide(request, rules, cluster, usage, NOW)
        assert decision.applied, decision.outcome
        assert not decision.denials, decision.denials
    freeze_and_tune_gc()
    without, held, parsed = in_turn(
        lambda: decide(bare, rules, cluster, usage, NOW),
        lambda: decide(bounded, rules, cluster, usage, NOW),
        lambda: json.loads(text),
    )
    added = held - without
    print(
        f"decide p50 {without:.1f} µs in a bare namespace, {held:.1f} µs with two LimitRanges and three quotas: "
        f"{added:.1f} µs more; json.loads p50 {parsed:.1f} µs, ratio {added / parsed:.2f}"
    )
    return 0 if added <= max(MAX_ADDED, MAX_RATIO * parsed) else 1


if __name__ == "__main__":
    sys.exit(main())
