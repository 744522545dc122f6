"""All reasons why a node cannot run a pod, in the scheduler's words and with our details; and constraints not modeled.

Source of the scheduler's messages: its plugins NodeUnschedulable, NodeName, NodeAffinity, NodePorts, TaintToleration,
InterPodAffinity, PodTopologySpread and NodeResourcesFit, as `kubectl describe pod` shows them; of the API server's, its
check for negative amounts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.enums import GpuForm
from webhook.model.filters.inter_pod_affinity import (
    AFFINITY_UNMATCHED,
    ANTI_AFFINITY_VIOLATED,
    EXISTING_ANTI_AFFINITY_VIOLATED,
    RequiredTerm,
)
from webhook.model.filters.node_declared_features import FEATURES_UNMATCHED, required_features
from webhook.model.filters.node_ports import HostPort, find_port_conflicts, host_ports
from webhook.model.filters.node_resources_fit import Amounts, find_shortages, other_requests, requests_of_plugins
from webhook.model.filters.pod_ties import ClusterPods, find_own_affinity, ties_of
from webhook.model.filters.pod_topology_spread import (
    SPREAD_KEY_MISSING,
    SPREAD_VIOLATED,
    SpreadConstraint,
    count_spread_pods,
    find_skewed_nodes,
    find_spread_nodes,
)
from webhook.model.filters.volume_rejections import VolumeRejection
from webhook.model.filters.volumes import rejections_by_node
from webhook.model.fleet import Fleet, FleetNode, is_gpu_setup_settled
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.node_labels import PRODUCT_LABEL, STRATEGY_LABEL
from webhook.model.node_masks import bit_positions
from webhook.model.objects import tolerates_all
from webhook.model.pod_resources import negative_resources
from webhook.model.pod_volumes import has_inline_disk
from webhook.model.pods import DEFAULT_NAMESPACE, Pod
from webhook.placement.mig import mig_card_value, mig_geometry, plan_repartition
from webhook.placement.nodes.device_plugin import (
    allocate_containers,
    gets_connected_gpus,
    largest_request,
)
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_sets

NODE_NAME_UNMATCHED = "node(s) didn't match the requested node name"
SELECTOR_UNMATCHED = "node(s) didn't match Pod's node affinity/selector"
VOLUME_TOPOLOGY = "volume topology"
NOT_CONNECTED = "node(s) had no free GPUs connected by NVLink"
NOT_WHOLE = "node(s) had slices or shares instead of whole GPUs"
_SHARES = {GpuForm.MPS: "an MPS share", GpuForm.TIME_SLICING: "a time-sliced share"}
NEVER_CONNECTED = "node(s) could not connect that many GPUs by NVLink"


class FilterReason(msgspec.Struct, frozen=True):
    """A reason against a node.

    Attributes:
        scheduler_message: The scheduler's message, or one in its style for what only we check.
        detail: Our message, with figures and names.
    """

    scheduler_message: str
    detail: str


NO_DAEMON_POD = FilterReason(
    "node(s) get no pod of the DaemonSet", "its template, by which alone its controller chooses nodes, excludes it"
)


class NodeExclusion(NamedTuple):
    """Nodes that a filter excludes for one reason, with the messages of `FilterReason`."""

    nodes: int
    scheduler_message: str
    detail: str


def filter_reasons(snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int) -> list[FilterReason]:
    """Return every reason against a node; none if the pod fits."""
    return [
        *static_filter_reasons(snapshot, requirements, node),
        *_insufficient_cpu_memory_pods(snapshot, requirements, node),
        *_insufficient_gpus(snapshot, requirements, node),
    ]


def static_filter_reasons(
    snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int
) -> Iterator[FilterReason]:
    """Yield why a node does not accept the pod, however much is free."""
    bit, known = 1 << node, snapshot.fleet.nodes[node]
    if not snapshot.fleet.schedulable_nodes(requirements.tolerations) & bit:
        reconfigured = known.gpus and not is_gpu_setup_settled(known.labels)
        state = "cordoned" if known.cordoned else "its GPUs are being reconfigured" if reconfigured else "not ready"
        yield FilterReason("node(s) were unschedulable", state)
    if not requirements.selected_nodes & bit:
        yield FilterReason(SELECTOR_UNMATCHED, "excluded by node selector or affinity")
    if requirements.unsuitable_nodes & bit:
        yield unsuitable_reason(snapshot, requirements, node)
    for taint in known.taints:
        if not tolerates_all(requirements.tolerations, (taint,)):
            yield FilterReason(f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}", f"taint {taint.text}")


def unsuitable_reason(snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int) -> FilterReason:
    """Return why the slices or shares of a node must not serve a pod with several units."""
    text, offer = (
        partial_gpu_text(snapshot, requirements.resource, node),
        snapshot.fleet.offer_on(requirements.resource, node),
    )
    is_mps = offer is not None and offer.form is GpuForm.MPS
    why = "the kubelet rejects several in one container" if is_mps else "several have no peer-to-peer access"
    return FilterReason(NOT_WHOLE, f"{text}, and {why}")


def partial_gpu_text(snapshot: SchedulingSnapshot, resource: str, node: int) -> str:
    """Return what a resource is on a node where it is no whole card; "" where it is one, or names a slice or share."""
    offer = snapshot.fleet.offer_on(resource, node)
    if offer is None or offer.form is GpuForm.WHOLE:
        return ""
    part = f"a {offer.profile} slice" if offer.form is GpuForm.MIG else _SHARES[offer.form]
    return f"{resource} is {part} here" if resource == WHOLE_GPU else f"it offers {part}"


def _insufficient_cpu_memory_pods(
    snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int
) -> Iterator[FilterReason]:
    if snapshot.free[node].full:
        yield FilterReason("Too many pods", f"at its pod limit of {snapshot.fleet.nodes[node].pods}")
    cpu, memory = max(0, snapshot.free[node].cpu_milli), max(0, snapshot.free[node].memory)
    if requirements.cpu_milli > cpu:
        yield FilterReason("Insufficient cpu", f"{cpu / 1000:g} CPU free, {requirements.cpu_milli / 1000:g} requested")
    if requirements.memory > memory:
        yield FilterReason("Insufficient memory", _insufficient_memory_detail(memory, requirements.memory))


def _insufficient_memory_detail(free: int, requested: int) -> str:
    """Exact to the MiB; to the byte if no more than that is missing."""
    digits = 3 if free >> 20 < requested >> 20 else 9
    texts = [f"{size / 2**30:.{digits}f}".rstrip("0").rstrip(".") for size in (free, requested)]
    return f"{texts[0]} GiB of memory free, {texts[1]} requested"


def _insufficient_gpus(
    snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int
) -> Iterator[FilterReason]:
    free = snapshot.free[node]
    shortages = [(resource, count) for resource, count in requirements.gpu_resources if free.units(resource) < count]
    for resource, count in shortages:
        yield FilterReason(f"Insufficient {resource}", _insufficient_detail(snapshot, resource, count, node))
    if not shortages and requirements.nvlink_required:
        detail = _not_connected_detail(snapshot, requirements, node)
        yield from [FilterReason(NOT_CONNECTED, detail)] if detail else []


def _not_connected_detail(snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int) -> str:
    """Return why NVLink would not connect the GPUs of each container on a node; "" if it would."""
    offer, devices = snapshot.fleet.offer_on(requirements.resource, node), snapshot.devices[node]
    free, requests = snapshot.free[node].units(requirements.resource), requirements.container_requests
    if offer is None or offer.form is not GpuForm.WHOLE:
        return f"{free} free, but not as whole cards: NVLink connects none of them"
    topology, mask, most = devices.topology, devices.free, largest_request(requests)
    if gets_connected_gpus(topology, mask, requests, devices.free_count):
        return ""
    if gpu_sets(topology).largest_island((1 << topology.gpu_count) - 1 if mask is None else mask) < most:
        return f"{free} free, no {most} of them connected by NVLink{_free_gpus_suffix(snapshot, node)}"
    if mask is None:
        return f"{free} free, unknown which, and NVLink does not connect every choice"
    sets = allocate_containers(topology, mask, requests) or ()  # () if there are too few GPUs
    unconnected = next((each for each in sets if not gpu_sets(topology).is_nvlink_connected(each)), 0)
    if not unconnected:
        reported = f"{mask.bit_count()} by the agent's report{_free_gpus_suffix(snapshot, node)}"
        return f"{free} free by the pods' requests, {reported}"
    recipient = f" to the container with {unconnected.bit_count()}" if len(requests) > 1 else ""
    allocated = f"{_format_gpus(unconnected)}{recipient}"
    return f"{free} free, and the device plugin allocates {allocated}, which NVLink does not connect"


def _insufficient_detail(snapshot: SchedulingSnapshot, resource: str, count: int, node: int) -> str:
    installed, free = snapshot.fleet.nodes[node].gpus.get(resource, 0), snapshot.free[node].units(resource)
    implausible = snapshot.fleet.nodes[node].implausible_gpus.get(resource, 0)
    if implausible:
        return f"advertises {implausible} {resource}, more than any node can have: ignored"
    if not installed:
        text = f"offers no {resource}"
    elif installed < count:
        text = f"{installed} on the node, {count} requested"
    else:
        text = "full" if not free else f"{free} free, {count} requested"
    hint = _repartition_hint(snapshot, resource, node)
    return f"{text}; {hint}" if hint else text


def _repartition_hint(snapshot: SchedulingSnapshot, resource: str, node: int) -> str:
    """Return how a MIG card could be repartitioned for the pod; "" if that does not help."""
    cards, profile = snapshot.devices[node].mig_cards, _mig_profile_of_resource(snapshot, resource, node)
    geometry = mig_geometry(snapshot.fleet.nodes[node].labels.get(PRODUCT_LABEL, "")) if cards and profile else None
    plan = plan_repartition(mig_card_value(geometry), cards, profile) if geometry else None
    if plan is None:
        return ""
    removed = ", ".join(sorted(f"{one.profile} at {one.start}" for one in plan.remove)) or "nothing"
    created = f"{plan.create.profile} at {plan.create.start}"
    return f"GPU {plan.index} could be repartitioned: remove {removed}, create {created}"


def _mig_profile_of_resource(snapshot: SchedulingSnapshot, resource: str, node: int) -> str:
    """Return the MIG profile of a resource name on a node, or that it would have after repartitioning; "" for none."""
    offer, named = snapshot.fleet.offer_on(resource, node), parse_gpu_resource(resource)
    if offer is not None:
        return offer.profile if offer.form is GpuForm.MIG else ""
    is_single_strategy = snapshot.fleet.nodes[node].labels.get(STRATEGY_LABEL) == "single"
    return "" if named is None or is_single_strategy else named.profile


def _free_gpus_suffix(snapshot: SchedulingSnapshot, node: int) -> str:
    free = snapshot.devices[node].free
    return f" (GPUs {_format_gpus(free)})" if free else ""


def _format_gpus(gpus: int) -> str:
    return ", ".join(map(str, bit_positions(gpus)))


PORTS_IN_USE = "node(s) didn't have free ports for the requested pod ports"


def stock_filter_reasons(
    pod: Pod,
    nodes: Sequence[FleetNode],
    free: Sequence[Amounts],
    ports: Mapping[str, Collection[HostPort]],
    volumes: Sequence[VolumeRejection] = (),
    served: Collection[str] = (),
) -> dict[int, tuple[FilterReason, ...]]:
    """Return why the scheduler or the API server rejects a pod, GPUs aside, by node position.

    `free` has the free amounts of other resources on each node, `ports` the allocated host ports by node name,
    `volumes` what excludes the pod's volumes from nodes, and `served` the resources that device classes serve.
    """
    requested, ports_requested, features = other_requests(pod), host_ports(pod), required_features(pod)
    on_every_node = tuple(
        FilterReason(
            f"Invalid value: {name} must be greater than or equal to 0", f"it requests a negative amount of {name}"
        )
        for name in negative_resources(pod)
    )
    found = {
        i: (
            *on_every_node,
            *_node_reasons(pod, requests_of_plugins(requested, node.others, served), node, free[i]),
            *_missing_feature_reasons(features, node),
            *_port_conflict_reasons(ports_requested, ports.get(node.name, ())),
            *(FilterReason(each.message, each.detail) for each in rejections_by_node(volumes, i)),
        )
        for i, node in enumerate(nodes)
    }
    return {node: reasons for node, reasons in found.items() if reasons}


def pod_tie_reasons(pod: Pod, pods: ClusterPods, fleet: Fleet) -> dict[int, tuple[FilterReason, ...]]:
    """Return why affinity and spread between pods exclude a pod from nodes, by node position."""
    found: defaultdict[int, list[FilterReason]] = defaultdict(list)
    for nodes, message, detail in tie_exclusions(pod, pods, fleet):
        for node in bit_positions(nodes):
            found[node].append(FilterReason(message, detail))
    return {node: tuple(reasons) for node, reasons in found.items()}


def tie_exclusions(pod: Pod, pods: ClusterPods, fleet: Fleet) -> Iterator[NodeExclusion]:
    """Yield the nodes from which affinity and spread between pods exclude a pod.

    Terms that name the index of a pod, or are too large, are not evaluated: see `unsupported_constraints`.
    """
    ties = ties_of(pod)
    others = pods.anti_affinity.exclusion(ties.namespace, pods.labels_of(ties.namespace), pod.metadata.labels)
    if not ties and not others.nodes:
        return
    selected, tolerated = fleet.nodes_selected_by(pod.spec), fleet.tolerated_nodes(pod.spec.tolerations)
    affinity = find_own_affinity(ties, pods, fleet)
    if affinity is not None:
        unmatched = fleet.all_nodes & ~affinity.matching
        same, other = _topology_keys(ties.affinity), _topology_keys(ties.anti_affinity)
        message = f"no pod that its required affinity selects runs on a node with its {same}"
        yield NodeExclusion(unmatched, AFFINITY_UNMATCHED, message)
        message = f"a pod that its required anti-affinity selects runs on a node with its {other}"
        yield NodeExclusion(affinity.excluded, ANTI_AFFINITY_VIOLATED, message)
    message = "the required anti-affinity of a pod there selects it"
    yield NodeExclusion(others.nodes, EXISTING_ANTI_AFFINITY_VIOLATED, message)
    counts = count_spread_pods(ties.spread, pods.groups, pods.nominated)
    spread = find_spread_nodes(ties.spread, counts, fleet, selected, tolerated) if counts is not None else ()
    without_key, skewed = find_skewed_nodes(spread, fleet)
    keys = _topology_keys(ties.spread)
    yield NodeExclusion(without_key, SPREAD_KEY_MISSING, f"it lacks {keys}, by which the pod is spread")
    message = f"too many of the pods with which it is spread run on nodes with its {keys}"
    yield NodeExclusion(skewed, SPREAD_VIOLATED, message)


def _topology_keys(terms: Iterable[RequiredTerm | SpreadConstraint]) -> str:
    return " or ".join(dict.fromkeys(term.topology_key or "cluster" for term in terms))


def _node_reasons(pod: Pod, requested: Amounts, node: FleetNode, free: Amounts) -> Iterator[FilterReason]:
    if pod.spec.node_name not in ("", node.name):
        yield FilterReason(NODE_NAME_UNMATCHED, f"spec.nodeName is {pod.spec.node_name}")
    for name, detail in find_shortages(requested, free):
        yield FilterReason(f"Insufficient {name}", detail)


def _missing_feature_reasons(required: Collection[str], node: FleetNode) -> Iterator[FilterReason]:
    if missing := [name for name in required if name not in node.features]:
        yield FilterReason(FEATURES_UNMATCHED, f"it does not declare the feature {', '.join(missing)}")


def _port_conflict_reasons(requested: Collection[HostPort], taken: Collection[HostPort]) -> Iterator[FilterReason]:
    conflicts = find_port_conflicts(requested, taken)
    if conflicts:
        text = ", ".join(f"{one.number}/{one.protocol}" for one in conflicts)
        yield FilterReason(PORTS_IN_USE, f"host port {text} is in use")


def constraints_between_replicas(pod: Pod) -> Iterator[str]:
    """Yield what the replicas of a pod require of each other and no count of them considers."""
    ties, home = ties_of(pod), pod.metadata.namespace or DEFAULT_NAMESPACE
    labels = pod.metadata.labels
    if any(each.pods.selects(home, {}, labels) for each in ties.affinity):
        yield "affinity between the replicas"
    if any(each.counts_itself for each in ties.spread):
        yield "topology spread between the replicas"


def unsupported_constraints(pod: Pod) -> Iterator[str]:
    """Yield the scheduling constraints of a pod that nothing here checks; none for most pods."""
    if ties_of(pod).selects_unknown:
        yield "affinity or spread of pods that are not known: by an index, a scheduler's default, or too large a term"
    if has_inline_disk(pod):
        yield "disks without a volume claim, which other pods may use"
    if pod.spec.scheduling_gates:
        yield "scheduling gates, which keep it off every node until they are removed"
