"""The nodes on which a pod may run, by selectors, affinity and taints, and those with free capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.derived_values import derived_value
from webhook.model.filters.inter_pod_affinity import ExclusionByOthers, PodIdentity, identity_of
from webhook.model.filters.node_declared_features import required_features
from webhook.model.filters.node_ports import HostPort, held_ports
from webhook.model.filters.pod_ties import UNTIED, PodTies, TiedNodes, ties_of
from webhook.model.filters.pod_topology_spread import controller_of
from webhook.model.filters.volumes import VolumeFit
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.node_masks import bit_positions
from webhook.model.objects import Taint, is_gpu_taint, tolerates_all
from webhook.model.pod_resources import RequestedAmounts, requested_amounts
from webhook.model.pod_volumes import pod_volumes
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, Pod, PodLabelSelector, Toleration
from webhook.model.queues import ResourceFlavor
from webhook.model.schedulers import USUAL_RULES, rules_of_scheduler, with_default_spread

NodeMaskTest = Callable[[int], bool]
"""Tests whether the remaining nodes, a mask, are enough."""

NODE_STATE_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{state}", operator="Exists")
    for state in ("not-ready", "unreachable", "unschedulable")
)
"""Tolerations of the taints of nodes that are not ready, or cordoned."""


@derived_value(256, of_requests=True)
def has_large_enough_node(fleet: Fleet, amounts: RequestedAmounts, nodes: int) -> bool:
    """Return whether a node of a mask is large enough for what a pod requests besides GPUs."""
    return any(is_large_enough(fleet.nodes[node], amounts) for node in bit_positions(nodes))


def is_large_enough(node: FleetNode, amounts: RequestedAmounts) -> bool:
    """Return whether a node is large enough for what a pod requests besides GPUs."""
    cpu_milli, memory, others = amounts
    has_others = all(node.others.get(name, 0) >= amount for name, amount in others)
    return node.cpu_milli >= cpu_milli and node.memory >= memory and has_others


@derived_value()
def gpu_taints(fleet: Fleet) -> tuple[tuple[Taint, int], ...]:
    """Return the GPU taints of a fleet, each with the mask of its nodes."""
    return tuple((taint, nodes) for taint, nodes in fleet.nodes_by_taint if is_gpu_taint(taint.key, taint.value))


@derived_value()
def _gpu_taint_tolerations(fleet: Fleet) -> tuple[Toleration, ...]:
    taints = [taint for taint, _ in gpu_taints(fleet)]
    return tuple(Toleration(key=t.key, operator="Equal", value=t.value, effect=t.effect) for t in taints)


class FeasibleNodes:
    """The nodes of a cluster on which a pod may run.

    Args:
        added: Tolerations that policies add to the pod.
        tolerate_gpu_taints: True if policies add tolerations for GPU taints.
        required: Node affinity expressions of policies, a list per section. A list that leaves too few nodes is
            not added to the pod, and is ignored.
        identity: Its namespace and labels as they will be stored; None if they are those of the pod.
        exclusion: The nodes from which other pods exclude it; None: read from the view.
        volumes: The nodes on which it can use its volume claims; None: read from the view.
        leaves_enough: Tests the nodes that a list leaves; None: any node with GPUs is enough.
        request: The request for it, if other pods of its template start together with it.

    Attributes:
        pod: The pod that has to fit.
        selected: Mask of the nodes that node selector and required affinity allow, with additions.
        tolerated: Mask of the nodes whose taints the pod tolerates, with additions.
        identity: Its namespace and labels as they will be stored.
        exclusion: The nodes from which other pods exclude it by their anti-affinity.
        nodes: Mask of the nodes that may take the pod now, apart from resources.
        ignored_requirements: The lists of `required` that are ignored.
        lacks: Masks of nodes that lack something else, each with that in words.
    """

    __slots__ = (
        "_accepting",
        "_amounts",
        "_nodes_with_ports",
        "_ports",
        "_request",
        "_rules",
        "_selections",
        "_tied",
        "_ties",
        "_tolerations",
        "_volumes",
        "exclusion",
        "identity",
        "ignored_requirements",
        "lacks",
        "nodes",
        "pod",
        "selected",
        "tolerated",
        "view",
    )

    def __init__(
        self,
        view: ClusterView,
        pod: Pod,
        added: tuple[Toleration, ...] = (),
        *,
        tolerate_gpu_taints: bool = False,
        required: tuple[tuple[NodeSelectorRequirement, ...], ...] = (),
        leaves_enough: NodeMaskTest | None = None,
        identity: PodIdentity | None = None,
        exclusion: ExclusionByOthers | None = None,
        volumes: VolumeFit | None = None,
        request: AdmissionRequest | None = None,
    ) -> None:
        fleet, spec = view.fleet, pod.spec
        self.view = view
        self.pod = pod
        self._rules = rules_of_scheduler(view.schedulers, spec.scheduler_name) if view.schedulers else USUAL_RULES
        self._nodes_with_ports = -1
        self._amounts: RequestedAmounts | None = None
        self._ties: PodTies | None = None
        self._selections: list[int] = []
        self._tied: list[TiedNodes | None] = []
        self._ports: tuple[HostPort, ...] | None = None
        self.selected = fleet.nodes_selected_by(spec)
        self.lacks: list[tuple[int, str]] = []
        self.ignored_requirements: tuple[tuple[NodeSelectorRequirement, ...], ...] = ()
        for expressions in required:
            remaining = self.matching_nodes(expressions)
            if (leaves_enough or self._has_gpu_nodes)(remaining):
                self.selected = remaining
            else:
                self.ignored_requirements += (expressions,)
        tolerations = spec.tolerations + added if added else spec.tolerations
        if tolerate_gpu_taints:
            tolerations += _gpu_taint_tolerations(fleet)
        self._tolerations = tolerations
        self.tolerated = fleet.tolerated_nodes(tolerations)
        self.identity = own = identity or identity_of(pod)
        self.exclusion = exclusion or view.exclusion_by_pods(own.namespace, tuple(own.labels.items()))
        self._volumes, self._request = volumes, request
        self._accepting = fleet.schedulable_nodes(tolerations) & ~self.exclusion.nodes
        if features := required_features(pod):
            self._accepting &= fleet.nodes_declaring(features)
        if self._rules.terms is not None:
            self._accepting &= fleet.select_nodes({}, self._rules.terms)
        self.nodes = self.selected & self.tolerated & self._accepting

    def _has_gpu_nodes(self, nodes: int) -> bool:
        fleet = self.view.fleet
        if any(nodes & fleet.nodes_advertising(name) for name in fleet.resources()):
            return True
        return any(nodes & each.offer.nodes for each in self.view.class_offers().by_resource.values())

    def exclude_lacking(self, nodes: int, lack: str) -> None:
        """Exclude the nodes of a mask, which lack something."""
        self.nodes &= ~nodes
        self.lacks.append((nodes, lack))

    def matching_nodes(self, expressions: Sequence[NodeSelectorRequirement]) -> int:
        """Return the mask of the selected nodes on which further expressions hold."""
        if not expressions:
            return self.selected
        return self.selected & self.view.fleet.select_nodes(
            {}, (NodeSelectorTerm(match_expressions=tuple(expressions)),)
        )

    def nodes_of_flavor(self, flavor: ResourceFlavor, more: Sequence[Toleration] = ()) -> int:
        """Return the nodes that may take the pod with the node selector and the tolerations of a flavor.

        Args:
            more: Further tolerations.
        """
        fleet, tolerations = self.view.fleet, (*self.pod.spec.tolerations, *flavor.spec.tolerations, *more)
        tolerated = self.tolerated | fleet.tolerated_nodes(tolerations)
        nodes = self.selected & tolerated & self._accepting & self.nodes_with_volumes
        return nodes & fleet.select_nodes(flavor.spec.node_labels, None)

    def has_free_node(self, resource: str, count: int, nodes: int, tied: TiedNodes | None = None) -> bool:
        """Return whether a node of the mask has these units, and what else the pod requests, free now.

        Pods without a node may exclude it from some domains, so that more of these must have a free node.

        Args:
            tied: The nodes to which its ties will allow it, if its node affinity will change.
        """
        if tied is None and (tied := self.tied_nodes(self.selected)[0]) is None:
            return False
        allowed = self.with_free_ports(nodes) & tied.allowed & self.volumes.nodes
        if not tied.blocked:
            return self._has_free_node(resource, count, allowed, tied.on_nodes)
        domains = (allowed & domain for domain in tied.domains)
        return sum(self._has_free_node(resource, count, each, tied.on_nodes) for each in domains) > tied.blocked

    def find_free_nodes(self, resource: str, nodes: int) -> int:
        """Return the nodes of a mask that may take the pod and have what it requests, with one unit, free now.

        Pods without a node take nothing.
        """
        [tied] = self.tied_nodes(self.selected)
        allowed = nodes & self.nodes & self.volumes.nodes & (tied.allowed if tied is not None else 0)
        return self.view.find_free_nodes(resource, self.with_free_ports(allowed), 1, *self.amounts())

    def _has_free_node(self, resource: str, count: int, nodes: int, takers: int) -> bool:
        volumes = self.volumes
        if nodes & volumes.exclusive:
            takers += volumes.takers
        return self.view.has_free_node(resource, count, nodes, *self.amounts(), self.ports, takers)

    def tied_nodes(self, *selections: int) -> list[TiedNodes | None]:
        """Return the nodes to which its ties to other pods allow the pod, for each selection; None if not known.

        Args:
            selections: The nodes that its node affinity selects, or will select.
        """
        ties, waiting = self.ties(), self.exclusion.waiting
        if not ties and not waiting:
            return [UNTIED] * len(selections)
        if not ties.spread:  # affinity and anti-affinity ignore node affinity
            selections = (self.selected,) * len(selections)
        known = self._selections  # a large mask takes long to hash, and not to compare
        unknown: list[int] = []
        for each in selections:
            if each not in known and each not in unknown:
                unknown.append(each)
        if unknown:
            self._tied += self.view.find_tied_nodes(ties, waiting, tuple(unknown), self.tolerated)
            known += unknown
        return [self._tied[known.index(each)] for each in selections]

    def ties(self) -> PodTies:
        """Return what ties the pod to others. Computed once."""
        if self._ties is None:
            self._ties = ties_of(with_default_spread(self.pod, self._rules, self._find_peers), self.identity)
        return self._ties

    def _find_peers(self) -> PodLabelSelector | None:
        namespace, labels = self.identity
        return self.view.find_peers(namespace, tuple(labels.items()), controller_of(self.pod))

    def with_free_ports(self, nodes: int) -> int:
        """Return the nodes of a mask on which no running or waiting pod holds a host port of the pod."""
        if not self.ports:
            return nodes
        if self._nodes_with_ports < 0:
            self._nodes_with_ports = self.view.nodes_with_ports_in_use(self.ports)
        return nodes & ~self._nodes_with_ports

    def amounts(self) -> RequestedAmounts:
        """Return what the pod requests besides GPUs. Computed once."""
        if self._amounts is None:
            self._amounts = requested_amounts(self.pod)
        return self._amounts

    def untolerated_taint(self, index: int) -> Taint | None:
        """Return a taint that keeps the pod off a node; None without any."""
        taints = self.view.fleet.nodes[index].taints
        return next((taint for taint in taints if not tolerates_all(self._tolerations, (taint,))), None)

    @property
    def tolerated_when_usable(self) -> int:
        """The nodes whose taints the pod tolerates once they are ready and not cordoned."""
        return self.view.fleet.tolerated_nodes(self._tolerations + NODE_STATE_TOLERATIONS)

    @property
    def ports(self) -> tuple[HostPort, ...]:
        """The host ports of the pod. Computed once."""
        if self._ports is None:
            self._ports = held_ports(self.pod)
        return self._ports

    @property
    def volumes(self) -> VolumeFit:
        """The nodes on which the pod can use its volume claims, whatever other pods take first. Computed once."""
        if self._volumes is None:
            uses = pod_volumes(self.pod)
            self._volumes = self.view.fit_volumes(self.identity.namespace, uses, self._siblings())
        return self._volumes

    @property
    def nodes_with_volumes(self) -> int:
        """The nodes on which the pod and all of its template can use their claims, even on one node."""
        fit = self.volumes
        return fit.nodes & ~fit.exclusive if fit.exclusive and self._siblings() else fit.nodes

    def _siblings(self) -> int:
        """Return how many other pods of its template start together with the pod."""
        return 0 if self._request is None else self._request.siblings
