"""Values of nodes for pods with claims: those of nodes that are alike are found together."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.builders import make_node
from tests.device_builders import allocated, device_class, partitionable_gpus, resource_claim
from tests.example_cluster import view_of
from tests.filters.random_devices import random_devices
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.allocator import AllocationOutcome
from webhook.model.dra.pod_devices import claim_specs, is_partly_served, resolve_claims
from webhook.model.pods import Pod, parse_pod
from webhook.placement.nodes.device_values import (
    MAX_SEARCHES,
    NO_VALUE,
    DeviceValue,
    DeviceValueFinder,
    NeededDevices,
    find_device_value,
)

CLUSTERS = 150
WEIGHTS = (("1g.10gb", 3.0), ("3g.40gb", 1.0))


def needed_in(view: ClusterView, pod: Pod) -> NeededDevices | None:
    """Return the devices that a pod needs in a cluster; None without any that classes alone provide."""
    claims = resolve_claims(pod, view.namespace_claims(pod.metadata.namespace), view.devices, view.fleet)
    if claims.rejection or claims.is_empty() or is_partly_served(claims, view.fleet):
        return None
    return NeededDevices(pod, claims, view.devices)


def found_together(finder: DeviceValueFinder, needed: NeededDevices, view: ClusterView) -> list[DeviceValue]:
    """Return the values of all nodes from the finder."""
    nodes = range(len(view.fleet.nodes))
    found = finder.find(needed, nodes, view.fleet, WEIGHTS)
    return [DeviceValue(*each) for each in zip(*[part.tolist() for part in found], strict=True)]


def found_alone(needed: NeededDevices, view: ClusterView, node: int) -> DeviceValue:
    """Return the value of one node by its own devices."""
    found = needed._replace(claims=needed.claims._replace(nodes=view.fleet.all_nodes)).find_on_node(node, view.fleet)
    pools = [pool.id for pool in view.devices.pools.pools_of_node(node)]
    is_served = found.outcome is AllocationOutcome.ALLOCATED
    specs = claim_specs(needed.pod, needed.claims, view.devices.class_by_resource)
    return find_device_value(found, specs, pools, view.devices, WEIGHTS) if is_served else NO_VALUE


@pytest.mark.no_cover
def test_nodes_have_the_values_that_each_has_alone() -> None:
    served: Counter[bool] = Counter()
    for number in range(CLUSTERS):
        cluster, finder = random_devices(Random(f"values {number}")), DeviceValueFinder()
        view = view_of(*cluster.objects)
        for needed in filter(None, (needed_in(view, parse_pod(pod)) for pod in cluster.pods)):
            alone = [found_alone(needed, view, node) for node in range(len(view.fleet.nodes))]
            assert found_together(finder, needed, view) == alone
            assert found_together(finder, needed, view) == alone  # remembered
            served.update(each is not NO_VALUE for each in alone)
    assert min(served[True], served[False]) > CLUSTERS


MANY = MAX_SEARCHES + 20


def test_of_too_many_different_nodes_the_fullest_are_searched_first() -> None:
    taken = {f"n{i:03}": [f"gpu-0-mig-1g10gb-1-{j}" for j in range(8) if i >> j & 1] for i in range(MANY)}
    claims = [resource_claim(node, *(allocated(node, name) for name in some)) for node, some in taken.items()]
    slices = [one for node in taken for one in partitionable_gpus(node, 2)]
    objects = [*(make_node(node, {}) for node in taken), *slices, *claims, device_class("gpu", "true")]
    view, finder = view_of(*objects, resource_claim("mine")), DeviceValueFinder()
    spec = {"resourceClaims": [{"name": "g", "resourceClaimName": "mine"}], "containers": []}
    needed = needed_in(view, parse_pod({"metadata": {"name": "p", "namespace": "team"}, "spec": spec}))
    assert needed is not None

    first = dict(zip(taken, found_together(finder, needed, view), strict=True))
    left = [node for node, value in first.items() if value == NO_VALUE]
    assert len(left) == MANY - MAX_SEARCHES
    assert max(len(taken[node]) for node in left) <= min(len(taken[node]) for node in taken if node not in left)
    assert NO_VALUE not in found_together(finder, needed, view)
