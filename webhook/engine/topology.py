"""Topology hints of step 5: NVLink between the GPUs of one container, and one NVLink domain for a workload.

Node affinity expresses it to every scheduler, as far as node labels can; the annotation `rightslice.dev/topology`
expresses it to the extender, which knows each link. The nodes of one multi-node NVLink domain share a label value, by
default of `nvidia.com/gpu.clique`.

The agent writes the size of its node's largest NVLink island to a label, without unhealthy GPUs and broken links. Where
agents run, this label decides, whatever the cards are: nodes that join later are labeled by their own agent. Where no
agent runs, a product with NVLink is recognized by name (`model.products`).
"""

from __future__ import annotations

from typing import NamedTuple

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import GpuRequest
from webhook.engine.injection import is_already_required, prefer_nodes, report_additions
from webhook.engine.own_annotations import NVLINK_ANNOTATIONS
from webhook.engine.pod_context import GpuPodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.projected_pod import workload_label_key
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.batch import REPLICA_LABELS
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import ISLAND_LABEL, PRODUCT_LABEL, SHARING_LABEL, has_nvlink
from webhook.model.node_masks import union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm
from webhook.policy.policy_set import NvlinkMode, TopologyRules
from webhook.well_known import Json


class LinkedNodes(NamedTuple):
    """Nodes that link GPUs by NVLink.

    Attributes:
        nodes: Their mask; 0 if labels show none.
        expressions: Node affinity expressions that select nodes whose labels show it.
    """

    nodes: int
    expressions: tuple[NodeSelectorRequirement, ...]


NO_LINKED_NODES = LinkedNodes(0, ())

NOT_SHARED = NodeSelectorRequirement(SHARING_LABEL, "NotIn", ("mps", "time-slicing"))
"""Also holds without the label. Where cards are shared, the agent's label still describes whole cards."""

MAX_LINKED_GPUS = 256
"""GPUs of one node, more than any machine links. Pods may request any number."""

AFFINITY_WEIGHT = 50
"""Half of the scale: links to other GPUs should not override the user's preferences."""

NVLINK_REQUIRED = f"nvlink={NvlinkMode.REQUIRED}"


def add_nvlink_affinity(section: TopologyRules, mutation: PodMutation, context: GpuPodContext) -> list[PolicyFinding]:
    """Prefer or require nodes that link the GPUs of a pod; report what was added, or that no node does."""
    gpu_requests, feasible = context.gpu_requests, context.feasible
    if mutation.applied_choice is not None:
        return []
    whole = [one for one in gpu_requests.requests if one.resource.name == WHOLE_GPU]
    largest = max(whole, key=lambda one: one.count, default=None)
    if largest is None or largest.count < section.when_gpus_at_least:
        return []
    mode = section.nvlink
    if mode is NvlinkMode.PREFERRED:
        # The pod's annotation counts if the policy only prefers NVLink.
        mode = NVLINK_ANNOTATIONS.get(context.pod.metadata.annotations.get(TOPOLOGY_ANNOTATION, ""), mode)
    if mode is NvlinkMode.IGNORED:
        return []
    fleet, allowed = context.view.fleet, feasible.matching_nodes(mutation.required_node_affinity)
    nodes = allowed & feasible.tolerated
    enough = fleet.nodes_advertising(WHOLE_GPU, gpu_requests.totals[WHOLE_GPU])
    linked = find_linked_nodes(largest.count, context.nodes_with_all_gpus(nodes & enough), fleet)
    offers = fleet.by_resource.get(WHOLE_GPU, ())
    whole_card_nodes = union_masks([offer.nodes for offer in offers if offer.form is GpuForm.WHOLE])
    if mode is NvlinkMode.REQUIRED and not context.leaves_suitable_node(linked.nodes, allowed):
        return [_no_links_violation(largest, context)] if whole_card_nodes else []
    before = len(mutation.changed)
    linked_everywhere = linked.nodes == nodes & whole_card_nodes
    _add_links(section, mode, linked, mutation, feasible, linked_everywhere=linked_everywhere)
    added = mutation.changed[before:]
    return [report_additions(section.mode, added)] if added else []


def _add_links(
    section: TopologyRules,
    mode: NvlinkMode,
    linked: LinkedNodes,
    mutation: PodMutation,
    feasible: FeasibleNodes,
    *,
    linked_everywhere: bool,
) -> None:
    """Add node affinity, affinity to one NVLink domain, and the annotation for the extender if the pod has none."""
    if mode is NvlinkMode.REQUIRED:
        _require_links(linked, mutation)
    elif not linked_everywhere:
        prefer_nodes(linked.expressions if linked.nodes else (), AFFINITY_WEIGHT, mutation)
    if section.multi_node_domain:
        _add_domain_affinity(section.multi_node_domain, mode, linked, mutation, feasible)
    value, known = f"nvlink={mode}", mutation.annotations.get(TOPOLOGY_ANNOTATION)
    if TOPOLOGY_ANNOTATION not in mutation.pod.metadata.annotations and known not in (value, NVLINK_REQUIRED):
        mutation.annotations[TOPOLOGY_ANNOTATION] = value
        mutation.record_change("topology")


def _require_links(linked: LinkedNodes, mutation: PodMutation) -> None:
    required = mutation.required_node_affinity
    missing = [one for one in linked.expressions if one not in required and not is_already_required(mutation.pod, one)]
    if missing:
        required += missing
        mutation.record_change("nodeAffinity")


def _no_links_violation(largest: GpuRequest, context: GpuPodContext) -> PolicyFinding:
    field, count = (*largest.path, "resources", "limits", WHOLE_GPU), largest.count
    feasible, total, fleet = context.feasible, context.gpu_requests.totals[WHOLE_GPU], context.view.fleet
    nodes = feasible.selected & feasible.tolerated
    if find_linked_nodes(count, nodes & fleet.nodes_advertising(WHOLE_GPU, total), fleet).nodes:
        message = f"{count} GPUs must be connected by NVLink, and no node with {count} connected GPUs can take the pod"
        fix = "Request less CPU or memory, or fewer GPUs, or ask the admin for nvlink: preferred."
    elif count < total and find_linked_nodes(count, nodes, fleet).nodes:
        message = (
            f"{count} of {total} GPUs must be connected by NVLink, and no node with {count} connected GPUs has {total}"
        )
        fix = "Request fewer GPUs in all containers together, or ask the admin for nvlink: preferred."
    else:
        largest_node = min(count - 1, fleet.max_units(WHOLE_GPU, nodes), MAX_LINKED_GPUS)
        fewer = range(largest_node, 1, -1)
        most = next((each for each in fewer if find_linked_nodes(each, nodes, fleet).nodes), 0)
        message = f"{count} GPUs must be connected by NVLink, and no node that this pod may use connects that many"
        fix = f"Request at most {most} GPUs." if most > 1 else "Ask the admin for nvlink: preferred."
    return PolicyFinding("GPU-T301", field, message, fix, at_most=PolicyMode.WARN)


def _add_domain_affinity(
    domain: str, mode: NvlinkMode, linked: LinkedNodes, mutation: PodMutation, feasible: FeasibleNodes
) -> None:
    """Keep the pods of one workload in one NVLink domain: preferred, or required if NVLink is and domains exist."""
    key = workload_label_key(mutation.pod)
    if not key:
        return
    selector = {"matchLabels": {key: mutation.pod.metadata.labels[key]}}
    term: Json = {"topologyKey": domain, "labelSelector": selector}
    affinity = mutation.pod.spec.affinity.pod_affinity if mutation.pod.spec.affinity else None
    in_domain = linked.nodes & feasible.view.fleet.nodes_with_label(domain)
    if mode is NvlinkMode.REQUIRED and key not in REPLICA_LABELS and in_domain:
        own, added = affinity.required if affinity else (), mutation.required_pod_affinity
    else:
        term = {"weight": AFFINITY_WEIGHT, "podAffinityTerm": term}
        own, added = affinity.preferred if affinity else (), mutation.preferred_pod_affinity
    if term not in own and term not in added:
        added.append(term)
        mutation.record_change("podAffinity")


def find_linked_nodes(count: int, nodes: int, fleet: Fleet) -> LinkedNodes:
    """Return the nodes of a mask on which NVLink links `count` whole GPUs pairwise, as far as labels show.

    An agent's label is better evidence than a product name. But node affinity cannot express "the label, or else the
    name", so if names identify nodes without an agent, the names are used, without nodes whose label contradicts.
    """
    large = nodes & fleet.nodes_advertising(WHOLE_GPU, count)
    if not large or count > MAX_LINKED_GPUS:
        return NO_LINKED_NODES
    whole = [offer for offer in fleet.by_resource.get(WHOLE_GPU, ()) if offer.form is GpuForm.WHOLE]
    wired = [offer for offer in whole if has_nvlink(offer.product)]
    if count < 2 or not fleet.nodes_with_label(ISLAND_LABEL):
        return _linked_by_product(wired, large, fleet)
    labeled = _linked_by_agent_label(count, large & union_masks([offer.nodes for offer in whole]), fleet)
    small = NodeSelectorRequirement(ISLAND_LABEL, "NotIn", tuple(str(size) for size in range(1, count)))
    named = _linked_by_product(wired, large, fleet, small)
    return named if named.nodes & ~labeled.nodes else labeled


def _linked_by_agent_label(count: int, whole: int, fleet: Fleet) -> LinkedNodes:
    """Return the nodes of a mask with a sufficient agent's label; nodes with shared cards are excluded."""
    expressions: tuple[NodeSelectorRequirement, ...] = (
        NodeSelectorRequirement(ISLAND_LABEL, "Gt", (str(count - 1),)),
        NOT_SHARED,
    )
    labeled = fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=expressions),))
    if labeled & fleet.partial_gpu_nodes and fleet.partial_gpu_products:
        expressions += (NodeSelectorRequirement(PRODUCT_LABEL, "NotIn", fleet.partial_gpu_products),)
    return LinkedNodes(labeled & whole, expressions) if labeled & whole else NO_LINKED_NODES


def _linked_by_product(
    offers: list[GpuOffer], nodes: int, fleet: Fleet, *sizes: NodeSelectorRequirement
) -> LinkedNodes:
    """Return the nodes of these offers on which expressions about the island size hold."""
    nodes &= union_masks([offer.nodes for offer in offers])
    if sizes:
        nodes &= fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=sizes),))
    products = tuple(dict.fromkeys(offer.product for offer in offers if offer.nodes & nodes))
    by_product = (NodeSelectorRequirement(PRODUCT_LABEL, "In", products),) if all(products) else ()
    return LinkedNodes(nodes, (*by_product, *sizes)) if nodes else NO_LINKED_NODES
