"""What is said about the claims of a pod agrees with the scheduler's plugin DynamicResources."""

from __future__ import annotations

import json
import os
from collections import Counter
from random import Random

from tests.builders import Json
from tests.example_cluster import view_of
from tests.filters.device_comparison import COMPARED_PLUGINS
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_devices import random_devices
from tests.filters.scheduler import SchedulerAnswer, SchedulerFilters
from webhook.engine.claim_review import pod_device_findings
from webhook.model.pods import parse_pod

CLUSTERS = max(100, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 1000)
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "claims of devices")
BATCH_SIZE = 50

TOGETHER = "GPU-D104 of all claims together"
UNALLOCATABLE = frozenset({"GPU-D101", "GPU-D104", "GPU-D105", "GPU-D106", TOGETHER})
"""Findings after which no node gets the pod."""

EXPECTED = ("GPU-D101", "GPU-D102", "GPU-D104", "GPU-D106")
"""Findings that random clusters give rise to."""


def test_no_node_gets_a_pod_whose_claims_cannot_be_allocated(device_scheduler: SchedulerFilters) -> None:
    counts: Counter[str] = Counter()
    for begin in range(0, CLUSTERS, BATCH_SIZE):
        clusters = [random_devices(Random(f"{SEED} {begin + number}")) for number in range(BATCH_SIZE)]
        answers = device_scheduler.answers(clusters, COMPARED_PLUGINS)
        for cluster, answer in zip(clusters, answers, strict=True):
            for name, codes in _codes_of_pods(cluster).items():
                counts.update(codes)
                wrong = UNALLOCATABLE & codes and _allocating_nodes(answer, name)
                assert not wrong, f"{name}: {sorted(codes)}, {wrong}\n{json.dumps([*cluster.objects, *cluster.pods])}"
    assert [code for code in EXPECTED if counts[code] < CLUSTERS / 20] == [], counts
    assert counts[TOGETHER] or "RIGHTSLICE_FUZZ_SEED" in os.environ


def _codes_of_pods(cluster: RandomCluster) -> dict[str, frozenset[str]]:
    view = view_of(*cluster.objects)
    return {
        pod.metadata.name: frozenset(
            TOGETHER if one.path == ("spec", "resourceClaims") else one.code
            for one in pod_device_findings(pod, view, pod.metadata.namespace)
        )
        for pod in map(parse_pod, cluster.pods)
    }


def _allocating_nodes(answer: SchedulerAnswer, pod: str) -> list[str]:
    """Return the nodes that take a pod. NodeResourcesFit rejects names of classes that do not exist."""
    others = answer.rejections[pod]
    return [
        node
        for node, found in answer.allocations[pod].items()
        if _is_allocated(found) and "NodeResourcesFit" not in others.get(node, ())
    ]


def _is_allocated(found: Json) -> bool:
    return not (found.get("error") or found.get("rejected"))
