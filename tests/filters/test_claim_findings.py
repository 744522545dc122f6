"""Findings about the claims of a pod agree with the scheduler's plugin DynamicResources."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from random import Random

import pytest

from tests.builders import Json
from tests.example_cluster import NO_USAGE, request_of, view_of
from tests.filters.device_comparison import COMPARED_PLUGINS, TIMEOUT_MESSAGE
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_devices import NAMESPACE, random_devices
from tests.filters.scheduler import SchedulerAnswer, SchedulerFilters
from webhook.engine.claim_allocation import MAX_STEPS
from webhook.engine.match import match_policies
from webhook.engine.pod_claim_review import pod_device_findings
from webhook.engine.pod_context import PodContext
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.allocator import AllocationOutcome
from webhook.model.dra.pod_devices import allocate_for_pod, resolve_claims
from webhook.model.dra.selector_cache import select_device
from webhook.model.pods import parse_pod
from webhook.policy.policy_set import PolicySet

CLUSTERS = max(100, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 1000)
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "claims of devices")
BATCH_SIZE = 50

RACKS = ("", "a")
"""Racks of which pods may use the nodes; "" for all."""

TOGETHER = "GPU-D104 of all claims together"
UNALLOCATABLE = frozenset({"GPU-D101", "GPU-D104", "GPU-D105", "GPU-D106", TOGETHER})
"""Findings after which no node gets the pod."""

ENDING = "GPU-D104 of one node"
"""Scheduling of the pod ends at a node, for example of a pool that lacks slices; other nodes would allocate."""

EXPECTED = ("GPU-D101", "GPU-D102", "GPU-D104", "GPU-D106")
"""Findings that random clusters give rise to."""


AnsweredClusters = list[tuple[RandomCluster, SchedulerAnswer]]


@pytest.mark.parametrize("rack", RACKS)
def test_no_node_gets_a_pod_whose_claims_cannot_be_allocated(rack: str, device_scheduler: SchedulerFilters) -> None:
    counts: Counter[str] = Counter()
    for begin in range(0, CLUSTERS, BATCH_SIZE):
        for cluster, answer in _answered_clusters(device_scheduler, SEED, begin):
            selected = _nodes_of_rack(cluster, rack)
            for name, codes in _codes_of_pods(cluster, rack).items():
                counts.update(codes)
                allocating = selected & set(_allocating_nodes(answer, name))
                wrong = UNALLOCATABLE & codes and allocating
                if ENDING in codes and allocating:
                    assert any(answer.allocations[name][node].get("error") for node in selected)
                assert not wrong, f"{name}: {sorted(codes)}, {wrong}\n{json.dumps([*cluster.objects, *cluster.pods])}"
    assert [code for code in EXPECTED if counts[code] < CLUSTERS / 20] == [], counts
    assert counts[TOGETHER] or "RIGHTSLICE_FUZZ_SEED" in os.environ


@pytest.mark.parametrize("rack", RACKS)
def test_claims_that_no_node_allocates_are_reported(rack: str, device_scheduler: SchedulerFilters) -> None:
    """All devices are free, as they are for findings. It is not known what a long search would find."""
    counts: Counter[bool] = Counter()
    for begin in range(0, CLUSTERS, BATCH_SIZE):
        for cluster, answer in _answered_clusters(device_scheduler, f"{SEED} free", begin):
            codes, selected = _codes_of_pods(cluster, rack), _nodes_of_rack(cluster, rack)
            for name in _comparable_pods(cluster) if selected else ():
                is_reported = not UNALLOCATABLE.union({"GPU-D102"}).isdisjoint(codes[name])
                is_allocated = any(_is_allocated(answer.allocations[name][node]) for node in selected)
                counts[is_reported] += 1
                message = f"{name}: {sorted(codes[name])}\n{json.dumps([*cluster.objects, *cluster.pods])}"
                assert is_reported or is_allocated or TIMEOUT_MESSAGE in json.dumps(answer.allocations[name]), message
    assert min(counts[True], counts[False]) > CLUSTERS / 2, counts


@lru_cache(maxsize=4)
def _answered_clusters(scheduler: SchedulerFilters, seed: str, begin: int) -> AnsweredClusters:
    """Return a batch of clusters with the scheduler's answers; of a seed that ends in "free", without allocations."""
    clusters = [random_devices(Random(f"{seed} {begin + number}")) for number in range(BATCH_SIZE)]
    known = [_without_allocations(each) if seed.endswith("free") else each for each in clusters]
    return list(zip(known, scheduler.answers(known, COMPARED_PLUGINS), strict=True))


def _without_allocations(cluster: RandomCluster) -> RandomCluster:
    """Return the cluster with every claim of its pods, without allocated devices."""
    objects = [
        {key: value for key, value in each.items() if key != "status" or each["kind"] != "ResourceClaim"}
        for each in cluster.objects
        if not (each["kind"] == "ResourceClaim" and each["metadata"]["name"].startswith("taken"))
    ]
    return RandomCluster(objects, cluster.pods)


def _comparable_pods(cluster: RandomCluster) -> Iterator[str]:
    """Yield the pods that have only claims, in a cluster with devices, if it is known what each node allocates.

    A request for all devices may be for fewer of them later, and one for administration takes none.
    """
    view = view_of(*cluster.objects)
    for pod in map(parse_pod, cluster.pods):
        claims = resolve_claims(pod, view.namespace_claims(NAMESPACE), view.devices, view.fleet)
        requests = [one for each in claims.unallocated for one in each.spec.devices.requests]
        choices = [choice for one in requests for choice in one.choices]
        is_simple = not any(one.allocation_mode == "All" or one.admin_access for one in choices)
        if view.devices.pools and claims.unallocated and not claims.extended and is_simple:
            nodes = range(len(view.fleet.nodes))
            found = [allocate_for_pod(pod, claims, i, view.devices, view.fleet, select_device) for i in nodes]
            is_known = all(each.outcome is not AllocationOutcome.UNKNOWN for each in found)
            if is_known and sum(each.steps for each in found) < MAX_STEPS // 2:
                yield pod.metadata.name


def _nodes_of_rack(cluster: RandomCluster, rack: str) -> set[str]:
    """Return the nodes that a pod of a rack may use; all if it may use any rack."""
    nodes = [each["metadata"] for each in cluster.objects if each["kind"] == "Node"]
    return {each["name"] for each in nodes if rack in ("", each["labels"]["rack"])}


def _codes_of_pods(cluster: RandomCluster, rack: str) -> dict[str, frozenset[str]]:
    """Return the codes of the findings about each pod if it may use only nodes of a rack."""
    view, selector = view_of(*cluster.objects), {"nodeSelector": {"rack": rack}} if rack else {}
    return {
        pod["metadata"]["name"]: frozenset(
            TOGETHER
            if one.path in (("spec", "resourceClaims"), ("spec", "containers"))
            else ENDING
            if one.code == "GPU-D104" and "ends scheduling" in one.message
            else one.code
            for one in pod_device_findings(_context_of(pod | {"spec": pod["spec"] | selector}, view))
        )
        for pod in cluster.pods
    }


def _context_of(pod: Json, view: ClusterView) -> PodContext:
    context, _ = match_policies(request_of(pod), parse_pod(pod), PolicySet(), view, NO_USAGE)
    return context


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
