"""Step 6, topology: GPUs of one container that NVLink joins, and pods of one workload in one NVLink domain.

Affinity says it to every scheduler, as far as labels go; the annotation `rightslice.dev/topology` says it to the
extender, which knows each link. Several nodes that form one NVLink domain share a label value, by default
`nvidia.com/gpu.clique`.
"""

from __future__ import annotations

from typing import NamedTuple

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import GpuRequest
from webhook.engine.hints import is_already_required, report_additions
from webhook.engine.mutation import Json, PodMutation
from webhook.engine.pod_context import PodContext
from webhook.engine.violations import Violation
from webhook.engine.workload_labels import workload_label_key, workload_selector
from webhook.model.annotations import GANG_SIZE_ANNOTATION, TOPOLOGY_ANNOTATION
from webhook.model.batch import MAX_GANG_SIZE, invalid_gang_size
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import ISLAND_LABEL, PRODUCT_LABEL, SHARING_LABEL
from webhook.model.node_masks import union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, Pod
from webhook.model.products import has_nvlink
from webhook.policy.policy_set import NvlinkMode, TopologyRules


class LinkedNodes(NamedTuple):
    """Nodes that can join GPUs, and what tells them from others.

    Attributes:
        nodes: Their mask; 0 where labels know of none.
        rules: Expressions that hold on these, and on no node where labels do not say so.
    """

    nodes: int
    rules: tuple[NodeSelectorRequirement, ...]


NO_LINKED_NODES = LinkedNodes(0, ())

NOT_SHARED = NodeSelectorRequirement(SHARING_LABEL, "NotIn", ("mps", "time-slicing"))
"""Holds too where nobody says how cards are shared. Where they are, the agent's label is still about whole cards."""

MAX_LINKED_GPUS = 256
"""GPUs of one node; beyond what any machine joins, labels are taken to know of none. Pods may ask for any number."""


AFFINITY_WEIGHT = 50
"""Half of the scale: nearness to other GPUs should not silence what the user prefers."""

REPLICA_LABELS = frozenset({"pod-template-hash", "controller-revision-hash"})
"""Labels of workloads whose pods are copies that do not talk to each other, as those of a Job do."""

NVLINK_ANNOTATIONS = {f"nvlink={each}": each for each in NvlinkMode}
NVLINK_REQUIRED = f"nvlink={NvlinkMode.REQUIRED}"


def add_nvlink_affinity(section: TopologyRules, shape: PodMutation, case: PodContext) -> list[Violation]:
    """Steer pods whose GPUs talk to each other to nodes that link them."""
    if shape.fit is not None or case.gpu_requests.max_count < section.when_gpus_at_least:
        return []
    whole = [ask for ask in case.gpu_requests.requests if ask.resource.name == WHOLE_GPU]
    largest = max(whole, key=lambda ask: ask.count, default=None)
    if largest is None or largest.count < section.when_gpus_at_least:
        return []
    wanted = _nvlink_preference(section, case.pod)
    if wanted is NvlinkMode.IGNORED:
        return []
    allowed = case.feasible.matching_nodes(shape.required_node_affinity)
    nodes = allowed & case.feasible.tolerated
    found = find_linked_nodes(
        largest.count, case.nodes_with_all_gpus(nodes & _nodes_with_all_cards(case)), case.view.fleet
    )
    if wanted is NvlinkMode.REQUIRED and not case.leaves_suitable_node(found.nodes, allowed):
        return [_no_links_violation(largest, case)] if _whole_card_nodes(case.feasible) else []
    before = len(shape.changed)
    if wanted is NvlinkMode.REQUIRED:
        _require_links(found, shape)
    elif found.nodes != nodes & _whole_card_nodes(case.feasible):
        _prefer_links(found, shape)
    _add_domain_affinity(section, wanted, found, shape, case.feasible)
    _annotate_topology(wanted, shape)
    added = shape.changed[before:]
    return [report_additions(section.mode, added)] if added else []


def invalid_annotations(pod: Pod) -> tuple[Violation, ...]:
    """Where a pod says what its GPUs need, or how many pods belong together, in words that nobody understands."""
    if not pod.metadata.annotations:
        return ()
    said, size = pod.metadata.annotations.get(TOPOLOGY_ANNOTATION), invalid_gang_size(pod)
    found = []
    if said is not None and said not in NVLINK_ANNOTATIONS:
        found.append(
            _invalid_annotation(TOPOLOGY_ANNOTATION, said, ", ".join(NVLINK_ANNOTATIONS), "Write nvlink=preferred.")
        )
    if size is not None:
        found.append(
            _invalid_annotation(
                GANG_SIZE_ANNOTATION, size, f"a number of pods from 1 to {MAX_GANG_SIZE}", 'Write "4" for four pods.'
            )
        )
    return tuple(found)


def _invalid_annotation(key: str, said: str, must: str, fix: str) -> Violation:
    message = f"must be {must} (found {said[:60]!r}), so it is as if it were not there"
    return Violation("GPU-R104", ("metadata", "annotations", key), message, fix, PolicyMode.WARN)


def _nvlink_preference(section: TopologyRules, pod: Pod) -> NvlinkMode:
    """What the policy asks for; a pod's own word counts where the policy leaves it a choice."""
    if section.nvlink is not NvlinkMode.PREFERRED:
        return section.nvlink
    return NVLINK_ANNOTATIONS.get(pod.metadata.annotations.get(TOPOLOGY_ANNOTATION, ""), section.nvlink)


def _nodes_with_all_cards(case: PodContext) -> int:
    """Mask of the nodes with as many `nvidia.com/gpu` as all containers need."""
    return case.view.fleet.nodes_with_units(WHOLE_GPU, case.gpu_requests.totals[WHOLE_GPU])


def _whole_card_nodes(reach: FeasibleNodes) -> int:
    """Mask of the nodes on which `nvidia.com/gpu` is a whole card."""
    offers = reach.view.fleet.by_resource.get(WHOLE_GPU, ())
    return union_masks(offer.nodes for offer in offers if offer.form is GpuForm.WHOLE)


def _require_links(found: LinkedNodes, shape: PodMutation) -> None:
    missing = [
        rule
        for rule in found.rules
        if rule not in shape.required_node_affinity and not is_already_required(shape.pod, rule)
    ]
    if missing:
        shape.required_node_affinity += missing
        shape.record_change("nodeAffinity")


def _prefer_links(found: LinkedNodes, shape: PodMutation) -> None:
    wish = _preferred_term(found.rules)
    if found.nodes and wish not in shape.preferred_node_affinity and not _is_already_preferred(shape.pod, found.rules):
        shape.preferred_node_affinity.append(wish)
        shape.record_change("nodeAffinity")


def _no_links_violation(ask: GpuRequest, case: PodContext) -> Violation:
    field, reach, total = (
        (*ask.path, "resources", "limits", WHOLE_GPU),
        case.feasible,
        case.gpu_requests.totals[WHOLE_GPU],
    )
    nodes, fleet = reach.selected & reach.tolerated, case.view.fleet
    if find_linked_nodes(ask.count, nodes & _nodes_with_all_cards(case), fleet).nodes:
        message = f"{ask.count} GPUs must be linked by NVLink, and no node that links so many could take the whole pod"
        fix = "Ask for less beside these GPUs, or ask the admin for nvlink: preferred."
        return Violation("GPU-T301", field, message, fix, at_most=PolicyMode.WARN)
    if ask.count < total and find_linked_nodes(ask.count, nodes, fleet).nodes:
        message = f"of {total} GPUs {ask.count} must be linked by NVLink, and no node that links so many has {total}"
        fix = "Ask for fewer GPUs in all containers together, or ask the admin for nvlink: preferred."
        return Violation("GPU-T301", field, message, fix, at_most=PolicyMode.WARN)
    most = _max_linked_gpus(ask.count, reach)
    fix = f"Ask for at most {most} GPUs." if most > 1 else "Ask the admin for nvlink: preferred."
    message = f"{ask.count} GPUs must be linked by NVLink, and no node that this pod may use links so many"
    return Violation("GPU-T301", field, message, fix, at_most=PolicyMode.WARN)


def _max_linked_gpus(count: int, reach: FeasibleNodes) -> int:
    """The most GPUs below a count that some node links, as far as labels say."""
    fleet, nodes = reach.view.fleet, reach.selected & reach.tolerated
    count = min(count - 1, fleet.max_units(WHOLE_GPU, nodes), MAX_LINKED_GPUS)
    return next((fewer for fewer in range(count, 1, -1) if find_linked_nodes(fewer, nodes, fleet).nodes), 0)


def _preferred_term(rules: tuple[NodeSelectorRequirement, ...]) -> Json:
    expressions = [{"key": rule.key, "operator": rule.operator, "values": list(rule.values)} for rule in rules]
    return {"weight": AFFINITY_WEIGHT, "preference": {"matchExpressions": expressions}}


def _is_already_preferred(pod: Pod, rules: tuple[NodeSelectorRequirement, ...]) -> bool:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    wishes = affinity.preferred if affinity else ()
    return any(set(rules) <= set(wish.preference.match_expressions) for wish in wishes)


def _add_domain_affinity(
    section: TopologyRules, wanted: NvlinkMode, found: LinkedNodes, shape: PodMutation, reach: FeasibleNodes
) -> None:
    """Keep the pods of one workload in one NVLink domain: where they can be, or where they must, in none other."""
    selector = workload_selector(shape.pod) if section.multi_node_domain else None
    if selector is None:
        return
    term = {"topologyKey": section.multi_node_domain, "labelSelector": selector}
    affinity = shape.pod.spec.affinity.pod_affinity if shape.pod.spec.affinity else None
    talk = workload_label_key(shape.pod) not in REPLICA_LABELS
    if (
        wanted is NvlinkMode.REQUIRED
        and talk
        and found.nodes & reach.view.fleet.nodes_with_label(section.multi_node_domain)
    ):
        if term not in (affinity.required if affinity else ()) and term not in shape.required_pod_affinity:
            shape.required_pod_affinity.append(term)
            shape.record_change("podAffinity")
        return
    wish = {"weight": AFFINITY_WEIGHT, "podAffinityTerm": term}
    if wish not in (affinity.preferred if affinity else ()) and wish not in shape.preferred_pod_affinity:
        shape.preferred_pod_affinity.append(wish)
        shape.record_change("podAffinity")


def _annotate_topology(wanted: NvlinkMode, shape: PodMutation) -> None:
    """Tell the extender. What the user wrote stays."""
    said = f"nvlink={wanted}"
    if TOPOLOGY_ANNOTATION in shape.pod.metadata.annotations or shape.annotations.get(TOPOLOGY_ANNOTATION) in (
        said,
        NVLINK_REQUIRED,
    ):
        return
    shape.annotations[TOPOLOGY_ANNOTATION] = said
    shape.record_change("topology")


def find_linked_nodes(count: int, nodes: int, fleet: Fleet) -> LinkedNodes:
    """The nodes of a mask on which NVLink joins so many whole GPUs pair by pair, as far as labels say.

    An agent's word is enough and better than a name. But terms cannot say "the agent's word, or else the name", so
    where names speak for nodes without an agent, it is the names, and no node whose agent says otherwise.
    """
    whole = [offer for offer in fleet.by_resource.get(WHOLE_GPU, ()) if offer.form is GpuForm.WHOLE]
    wired = [offer for offer in whole if has_nvlink(offer.product)]
    large = nodes & fleet.nodes_with_units(WHOLE_GPU, count)
    if not large or count > MAX_LINKED_GPUS:
        return NO_LINKED_NODES
    if count < 2 or not fleet.nodes_with_label(ISLAND_LABEL):
        return _linked_by_product(wired, large, fleet)
    told = _linked_by_agent_label(count, large & union_masks(offer.nodes for offer in whole), fleet)
    small = NodeSelectorRequirement(ISLAND_LABEL, "NotIn", tuple(str(size) for size in range(1, count)))
    named = _linked_by_product(wired, large, fleet, small)
    return named if named.nodes & ~told.nodes else told


def _linked_by_agent_label(count: int, whole: int, fleet: Fleet) -> LinkedNodes:
    """The nodes of a mask whose agents say so. Shares of cards are ruled out, those of nodes to come too."""
    rules: tuple[NodeSelectorRequirement, ...] = (
        NodeSelectorRequirement(ISLAND_LABEL, "Gt", (str(count - 1),)),
        NOT_SHARED,
    )
    left = fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=rules),))
    if left & fleet.partial_gpu_nodes and fleet.partial_gpu_products:
        rules += (NodeSelectorRequirement(PRODUCT_LABEL, "NotIn", fleet.partial_gpu_products),)
    return LinkedNodes(left & whole, rules) if left & whole else NO_LINKED_NODES


def _linked_by_product(
    offers: list[GpuOffer], nodes: int, fleet: Fleet, *sizes: NodeSelectorRequirement
) -> LinkedNodes:
    """The nodes of these offers on which expressions about the island hold."""
    nodes &= union_masks(offer.nodes for offer in offers)
    if sizes:
        nodes &= fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=sizes),))
    products = tuple(dict.fromkeys(offer.product for offer in offers if offer.nodes & nodes))
    named = (NodeSelectorRequirement(PRODUCT_LABEL, "In", products),) if all(products) else ()
    return LinkedNodes(nodes, (*named, *sizes)) if nodes else NO_LINKED_NODES
