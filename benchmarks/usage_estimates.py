"""Cost of measured usage: the estimate for 20,000 containers, its view, and `decide` with it.

The records are two weeks of quarters of an hour; a third of the workloads have two or three pods. Bounds: 10 s of
CPU, 64 MiB, and a median of `decide` at most 1.1 times that of the same pods with the same need declared. Both are
evaluated alternately in one process. Usage: python -m benchmarks.usage_estimates
"""

from __future__ import annotations

import statistics
import sys
import time
from array import array
from collections.abc import Callable

import numpy as np

from benchmarks.api_objects import Json, as_stored
from benchmarks.decide import NAMESPACE, NOW, request_of
from benchmarks.fleet import grown_view
from webhook.cache.bundled_files import bundled_folder
from webhook.engine.decide import decide
from webhook.model.decisions import OfferChoice
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.usage.estimator import estimate_usage
from webhook.usage.history import MIB_TYPECODE, UsageHistory
from webhook.web.listener import freeze_and_tune_gc

CONTAINERS = 20_000
BINS = 14 * 96
QUARTER = 900
CARD_MIB = 81_920
MOST_CPU, MOST_MIB, MOST_RATIO = 10.0, 64.0, 1.1
ROUNDS = 4000


def records(count: int, rng: np.random.Generator) -> list[UsageHistory]:
    """Return records of this many containers in three quarters as many workloads, none of them constant."""
    workloads = count * 3 // 4
    levels = rng.uniform(1500, 60_000, workloads)
    return [_record(i, i % workloads, levels[i % workloads], rng) for i in range(count)]


def _record(number: int, workload: int, level: float, rng: np.random.Generator) -> UsageHistory:
    used = (level * (1 + 0.2 * rng.random(BINS))).astype(np.int32)
    return UsageHistory(
        namespace=NAMESPACE,
        workload=f"Deployment/serve-{workload}",
        container="main",
        pod=f"serve-{workload}-{number}",
        start=int(NOW.timestamp()) - QUARTER * BINS,
        step_seconds=QUARTER,
        peaks_mib=array(MIB_TYPECODE, used.tobytes()),
        image=f"registry.example/serve:{workload % 300}",
        mean_mib=int(used.mean()),
        capacity_mib=CARD_MIB,
        compute_milli=100,
    )


def size_of(value: object, observed: set[int]) -> int:
    """Return the bytes of a value and everything it references, each once."""
    if id(value) in observed:
        return 0
    observed.add(id(value))
    parts: list[object] = []
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, tuple):
        parts = [*value]
    elif hasattr(value, "__struct_fields__"):
        parts = [getattr(value, field) for field in value.__struct_fields__]
    return sys.getsizeof(value) + sum(size_of(part, observed) for part in parts)


def pod(workload: int, annotations: dict[str, str]) -> Json:
    """Return a pod of one of the workloads, as an API server sends it."""
    gpu = {"nvidia.com/gpu": "1"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"serve-{workload}-abc", "controller": True}
    metadata = {"labels": {"pod-template-hash": "abc"}, "annotations": annotations, "ownerReferences": [owner]}
    container = {"name": "main", "image": "registry.example/serve:1", "resources": {"limits": gpu, "requests": gpu}}
    return as_stored({"metadata": metadata, "spec": {"containers": [container]}}, NAMESPACE)


def medians(judgments: tuple[Callable[[], object], ...]) -> list[float]:
    """Return the microseconds of each call, alternating."""
    clock = time.perf_counter_ns
    spent: list[list[float]] = [[] for _ in judgments]
    for _ in range(ROUNDS):
        for judge, times in zip(judgments, spent, strict=True):
            start = clock()
            judge()
            times.append((clock() - start) / 1000)
    return [statistics.median(times) for times in spent]


def decided(view: UsageView) -> tuple[float, float]:
    """Return the median of `decide` for a pod with measured usage, and for one that declares the same need."""
    text = (bundled_folder("policies") / "right-sizing.yaml").read_text(encoding="utf-8")
    policies = load_policies([("right-sizing.yaml", text)]).policies
    assert policies is not None
    cluster = grown_view()
    for workload in range(CONTAINERS):
        by_use = request_of(pod(workload, {}))
        outcome = decide(by_use, policies, cluster, view, NOW).outcome
        if isinstance(outcome, OfferChoice):
            break
    else:
        raise SystemExit("no workload is right-sized")
    by_word = request_of(pod(workload, {"rightslice.dev/gpu-memory": f"{outcome.need.memory_mib}Mi"}))
    without = UsageView()
    freeze_and_tune_gc()
    observed, declared = medians(
        (
            lambda: decide(by_use, policies, cluster, view, NOW),
            lambda: decide(by_word, policies, cluster, without, NOW),
        )
    )
    return observed, declared


def main() -> int:
    """Print the figures; return 1 if a bound is exceeded."""
    histories = records(CONTAINERS, np.random.default_rng(1))
    start = time.process_time()
    view = estimate_usage(histories, int(NOW.timestamp()))
    cpu = time.process_time() - start
    mib = size_of(view, set()) / 2**20
    print(f"{CONTAINERS:,} containers, {len(view.observed):,} workloads: {cpu:.1f} s of CPU, {mib:.1f} MiB")
    observed, declared = decided(view)
    ratio = observed / declared
    print(f"decide p50: {observed:.1f} µs by observed usage, {declared:.1f} µs by declared amounts, ratio {ratio:.2f}")
    return 0 if cpu <= MOST_CPU and mib <= MOST_MIB and observed <= MOST_RATIO * declared else 1


if __name__ == "__main__":
    sys.exit(main())
