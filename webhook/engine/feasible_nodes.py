"""Which nodes a pod may run on, and which of them have room: asked often, answered once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.model.annotations import DECISION_ANNOTATION, parse_decision_record
from webhook.model.cluster_view import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.objects import Taint
from webhook.model.pod_resources import cpu_and_memory
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, Pod, Toleration


class AssumedUsage(NamedTuple):
    """Units of one GPU resource, and the mask of the nodes of which one will give them."""

    resource: str
    nodes: int
    units: int


NodeMaskTest = Callable[[int], bool]
"""Is the mask of the nodes that are left enough?"""


def is_gpu_taint(key: str, value: str) -> bool:
    """Does a taint only say that a node has GPUs?

    The NVIDIA stack's own taints and AKS's sku=gpu do. Any other taint reserves a node for somebody, and is
    never tolerated on a pod's behalf.
    """
    return key.startswith("nvidia.com/") or (key == "sku" and value == "gpu")


@lru_cache(maxsize=4)
def gpu_taints(fleet: Fleet) -> tuple[tuple[Taint, int], ...]:
    """The taints of a fleet that only say that a node has GPUs, with the mask of the nodes that carry each."""
    return tuple((taint, nodes) for taint, nodes in fleet.nodes_by_taint if is_gpu_taint(taint.key, taint.value))


@lru_cache(maxsize=4)
def _gpu_taint_tolerations(fleet: Fleet) -> tuple[Toleration, ...]:
    taints = [taint for taint, _ in gpu_taints(fleet)]
    return tuple(Toleration(key=t.key, operator="Equal", value=t.value, effect=t.effect) for t in taints)


class FeasibleNodes:
    """A pod against a cluster: what selectors, affinity and taints leave of it.

    Args:
        added: Tolerations that a policy gives the pod.
        markers: True if a policy adds tolerations for the GPU taints of the nodes chosen.
        required: Expressions that policies require of nodes, list by list. One that would leave no node with GPUs
            is not going to be added, and does not count.
        leaves: Whether a requirement counts that leaves these nodes; None where any with GPUs will do.

    Attributes:
        pod: The pod that has to fit.
        selected: Mask of the nodes that node selector and required affinity allow, additions counted.
        tolerated: Mask of the nodes whose taints the pod tolerates, additions counted.
        nodes: Mask of the nodes that may take the pod now, resources aside.
        passed_over: The requirements that do not count.
    """

    __slots__ = ("_cpu_milli", "_memory", "ignored_requirements", "nodes", "pod", "selected", "tolerated", "view")

    def __init__(
        self,
        view: ClusterView,
        pod: Pod,
        added: tuple[Toleration, ...],
        *,
        markers: bool,
        required: tuple[tuple[NodeSelectorRequirement, ...], ...] = (),
        leaves: NodeMaskTest | None = None,
    ) -> None:
        fleet, spec = view.fleet, pod.spec
        self.view = view
        self.pod = pod
        self._cpu_milli = self._memory = -1
        self.selected = fleet.nodes_selected_by(spec)
        self.ignored_requirements: tuple[tuple[NodeSelectorRequirement, ...], ...] = ()
        if required:
            self._apply_requirements(required, leaves)
        tolerations = spec.tolerations + added if added else spec.tolerations
        if markers:
            tolerations += _gpu_taint_tolerations(fleet)
        self.tolerated = fleet.tolerated_nodes(tolerations)
        self.nodes = self.selected & self.tolerated & fleet.usable_nodes

    def _apply_requirements(
        self, required: tuple[tuple[NodeSelectorRequirement, ...], ...], leaves: NodeMaskTest | None
    ) -> None:
        leaves = leaves or self._has_gpu_nodes
        for rules in required:
            left = self.matching_nodes(rules)
            if leaves(left):
                self.selected = left
            else:
                self.ignored_requirements += (rules,)

    def _has_gpu_nodes(self, left: int) -> bool:
        fleet = self.view.fleet
        return any(left & fleet.nodes_advertising(name) for name in fleet.resources())

    def matching_nodes(self, rules: Sequence[NodeSelectorRequirement]) -> int:
        """Mask of the selected nodes for which further expressions hold too."""
        if not rules:
            return self.selected
        return self.selected & self.view.fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=tuple(rules)),))

    def has_room(self, resource: str, count: int, nodes: int) -> bool:
        """Is there a node in the mask with these units, and the pod's CPU and memory, free now?"""
        if self._cpu_milli < 0:
            self._cpu_milli, self._memory = cpu_and_memory(self.pod)
        return self.view.has_free_node(resource, count, nodes, cpu_milli=self._cpu_milli, memory=self._memory)


def assumed_usage(pod: Pod, view: ClusterView) -> Iterator[AssumedUsage]:
    """What a pod will take that may land now.

    Left out is what no node has free that may take the pod, for it holds nothing while it waits; and what Rightslice
    gave it, by its record: that is assumed since then.
    """
    asked = gpu_requests_of_pod(pod).totals
    if not asked:
        return
    record = parse_decision_record(pod.metadata.annotations.get(DECISION_ANNOTATION, ""))
    given = record.offer if record else ""
    reach = FeasibleNodes(view, pod, (), markers=False).nodes
    for resource, count in asked.items():
        nodes = view.with_room(resource, count, reach)
        if nodes and resource != given:
            yield AssumedUsage(resource, nodes, count)
