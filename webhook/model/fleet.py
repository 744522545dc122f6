"""Fleet: the nodes of a cluster, indexed so that evaluating a pod's constraints costs a few integer operations.

Every set of nodes is a bit mask in one Python integer: bit i is node i. Masks by labels, taints and names are built
once per change of the nodes; selecting combines them with AND, OR and NOT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.advertised_resources import advertised_resources, gpu_units, implausible_gpu_units, node_hardware
from webhook.model.derived_values import DerivedValues, derived_value
from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.filters.node_declared_features import SCHEDULING_FEATURES
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU, parse_gpu_resource
from webhook.model.mig_catalog import mig_card_spec
from webhook.model.node_labels import GKE_PARTIAL, PRODUCT_LABEL, Labels
from webhook.model.node_masks import (
    EMPTY_INDEX,
    LabelIndex,
    ThresholdIndex,
    bit_positions,
    nodes_matching_term,
    union_masks,
)
from webhook.model.objects import CORDON_TAINT, HARD_EFFECTS, Node, Taint, taint_sort_key, tolerates_all
from webhook.model.offer_groups import AdvertOnNode, build_offers
from webhook.model.offers import GpuOffer, NodeHardware
from webhook.model.pod_resources import MAX_OTHER_RESOURCES, is_other_resource
from webhook.model.pods import NodeSelectorTerm, PodSpec, QuantityText, Toleration, required_terms
from webhook.model.quantity import NANO, parse_nano_or_none

MAX_CACHED_ANSWERS = 1024
"""Selectors, toleration lists and names per kind of question: workloads share a few."""

_answer = derived_value(MAX_CACHED_ANSWERS, of_requests=True)
"""Of a method: keep its answers."""

DEFAULT_SLICES = 7
"""Compute slices of most MIG cards, for a profile that no node offers."""

FEW_NODES = 8
"""Fewer nodes than a share of all values of a label by this divisor are looked up one by one."""

DEVICES_BY_NAME_MINOR = 36
"""First minor version of Kubernetes in which pods get devices by the names of extended resources by default."""

_KUBELET_VERSION = re.compile(r"v1\.([0-9]{1,4})\.", re.ASCII)

MAX_CPU_MILLI, MAX_MEMORY = 1 << 40, 1 << 60
"""Millicores and bytes of a node that count; sums of them over all nodes stay numbers of a machine."""


class OfferSet(NamedTuple):
    """Offers, and the mask of all their nodes."""

    offers: tuple[GpuOffer, ...]
    nodes: int


class UnitWeight(NamedTuple):
    """One unit of a resource on any of some nodes.

    Attributes:
        products: Possible products, sorted; () if one is unknown, or none is offered.
        milli: The most that it weighs, thousandths of a whole GPU; by its name alone if none is offered.
    """

    products: tuple[str, ...]
    milli: int


class LabelDomains(NamedTuple):
    """The nodes with a label, by its value.

    Attributes:
        masks: For each value, the mask of its nodes.
        nodes: Mask of all of them.
        are_single_nodes: True if each value has one node, as `kubernetes.io/hostname` does.
    """

    masks: tuple[int, ...]
    nodes: int
    are_single_nodes: bool


class FleetNode(msgspec.Struct, frozen=True, gc=False):
    """One node as the scheduler sees it.

    Attributes:
        labels: All labels; `kubernetes.io/hostname` among them if the node has it.
        taints: NoSchedule and NoExecute taints (PreferNoSchedule excludes no pod).
        cpu_milli: Allocatable CPU in millicores.
        memory: Allocatable memory in bytes.
        gpus: Allocatable units by GPU resource name.
        usable: False while it is cordoned, not ready, or its GPUs are being reconfigured.
        pods: Pod limit; 0 if unknown.
        implausible_gpus: GPU resources with more units than any node can have: they are ignored.
        cordoned: True if only a cordon keeps it from being usable.
        others: Allocatable nano-units of every other resource; empty if there are more than `MAX_OTHER_RESOURCES`.
        features: Features that the node declares and pods may need.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    cpu_milli: int
    memory: int
    gpus: Mapping[str, int]
    usable: bool = True
    pods: int = 0
    implausible_gpus: Mapping[str, int] = {}
    cordoned: bool = False
    others: Mapping[str, int] = {}
    features: frozenset[str] = frozenset()


class Fleet:
    """The nodes. Immutable; `nodes[i]` is bit i of every mask.

    Attributes:
        nodes: Every node.
        offers: Every offer, in a fixed order (least GPU share first, then resource, product, taints).
        by_resource: Offers by resource name.
        all_nodes: Mask of all nodes.
        usable_nodes: Mask of the nodes that accept new pods.
        cordoned_nodes: Mask of those that would, but for a cordon.
        gpu_nodes: Mask of the nodes with GPUs.
        by_name: Index of a node by its name.
        partial_gpu_nodes: Mask of the nodes on which `nvidia.com/gpu` is a slice or a share.
        partial_gpu_products: Their product labels; () if nodes with whole cards have one of them too.
        partial_gpu_labels: The labels of GKE that all of them have, by one of these, and no node with whole cards.
        nodes_by_taint: Every hard taint, with the mask of its nodes.
        extended_resources: Names that nodes advertise, other than CPU, memory and the like.
        other_resources: Names of `FleetNode.others` of nodes that have GPUs, or whose kubelet may get devices for pods.
        accounting_nodes: Mask of the nodes that advertise enough of the accounting resource for all their GPUs.
        derived: Values that other modules derive from the nodes.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.derived: DerivedValues = {}
        self.nodes = tuple(map(fleet_node, nodes))
        self.all_nodes = (1 << len(self.nodes)) - 1
        self.usable_nodes = union_masks(1 << i for i, node in enumerate(self.nodes) if node.usable)
        self.cordoned_nodes = union_masks(1 << i for i, node in enumerate(self.nodes) if node.cordoned)
        self.gpu_nodes = union_masks(1 << i for i, node in enumerate(self.nodes) if node.gpus)
        self.extended_resources = frozenset(name for node in nodes for name in node.status.allocatable if "/" in name)
        kubelets = list(map(kubelet_minor, nodes))
        self._kubelets = {
            minor: union_masks(1 << i for i, each in enumerate(kubelets) if each == minor) for minor in {*kubelets}
        }
        may_serve = self.gpu_nodes | self.nodes_with_kubelet(DEVICES_BY_NAME_MINOR)
        self.other_resources = frozenset(name for i in bit_positions(may_serve) for name in self.nodes[i].others)
        self.accounting_nodes = union_masks(1 << i for i, node in enumerate(nodes) if _advertises_accounting(node))
        self.by_name = {node.name: i for i, node in enumerate(self.nodes)}
        self._index = LabelIndex(node.labels for node in self.nodes)

        self._by_taints: dict[tuple[Taint, ...], int] = {}
        for i, node in enumerate(self.nodes):
            self._by_taints[node.taints] = self._by_taints.get(node.taints, 0) | 1 << i
        names = sorted({name for node in self.nodes for name in node.gpus})
        self._levels = {
            name: ThresholdIndex({i: node.gpus[name] for i, node in enumerate(self.nodes) if name in node.gpus})
            for name in names
        }
        adverts = [
            AdvertOnNode(i, self.nodes[i].taints, advert)
            for i, node in enumerate(nodes)
            for advert in advertised_resources(node)
        ]
        self._advertising = {name: index.nodes_with_at_least(1) for name, index in self._levels.items()}
        labels = [node.labels for node in self.nodes]
        self.offers = tuple(build_offers(adverts, self._advertising, self._index, labels))
        whole = [offer for offer in self.offers if offer.resource == WHOLE_GPU]
        self.partial_gpu_nodes = union_masks(offer.nodes for offer in whole if offer.form is not GpuForm.WHOLE)
        products = {offer.product for offer in whole if offer.form is not GpuForm.WHOLE}
        distinct = "" not in products and products.isdisjoint({o.product for o in whole if o.form is GpuForm.WHOLE})
        self.partial_gpu_products = tuple(sorted(products)) if distinct else ()
        self.partial_gpu_labels = tuple(key for key in GKE_PARTIAL if self.nodes_with_label(key))
        if union_masks(map(self.nodes_with_label, self.partial_gpu_labels)) & self.gpu_nodes != self.partial_gpu_nodes:
            self.partial_gpu_labels = ()
        taints = sorted({taint for node in self.nodes for taint in node.taints}, key=taint_sort_key)
        self.nodes_by_taint = tuple(
            (taint, union_masks(mask for carried, mask in self._by_taints.items() if taint in carried))
            for taint in taints
        )
        self.by_resource = {name: tuple(offer for offer in self.offers if offer.resource == name) for name in names}

    def select_nodes(self, node_selector: Mapping[str, str], terms: Sequence[NodeSelectorTerm] | None) -> int:
        """Return the nodes that a node selector and required affinity terms allow.

        Args:
            node_selector: Label pairs that must all match.
            terms: Required terms; a node must match at least one. None without required affinity.
        """
        if not node_selector and terms is None:
            return self.all_nodes
        return self._select_nodes(tuple(node_selector.items()), None if terms is None else tuple(terms))

    def nodes_selected_by(self, spec: PodSpec) -> int:
        """Return the nodes that a pod's node selector and required affinity allow."""
        if not spec.node_selector and spec.affinity is None:
            return self.all_nodes
        return self.select_nodes(spec.node_selector, required_terms(spec))

    @_answer
    def _select_nodes(
        self, node_selector: tuple[tuple[str, str], ...], terms: tuple[NodeSelectorTerm, ...] | None
    ) -> int:
        mask = self.all_nodes
        for key, value in node_selector:
            mask &= self._index.nodes_with(key, value)
        if terms is None:
            return mask
        return mask & union_masks(
            nodes_matching_term(term, self._index, self.by_name, self.all_nodes) for term in terms
        )

    def nodes_with_labels(self, terms: Iterable[NodeSelectorTerm]) -> int:
        """Return the nodes whose labels match one of some terms, as if they had no names."""
        return union_masks(nodes_matching_term(term, self._index, {}, self.all_nodes) for term in terms)

    def common_label(self, key: str, nodes: int) -> str | None:
        """Return the value of a label on all nodes of a mask; None if they differ, or one lacks it."""
        return self._index.common_value(key, nodes)

    @_answer
    def tolerated_nodes(self, tolerations: tuple[Toleration, ...]) -> int:
        """Return the nodes whose NoSchedule and NoExecute taints are all tolerated."""
        return union_masks(nodes for taints, nodes in self._by_taints.items() if tolerates_all(tolerations, taints))

    @_answer
    def schedulable_nodes(self, tolerations: tuple[Toleration, ...]) -> int:
        """Return the nodes whose state accepts a new pod with these tolerations, ignoring other taints."""
        if not self.cordoned_nodes or not tolerates_all(tolerations, (CORDON_TAINT,)):
            return self.usable_nodes
        return self.usable_nodes | self.cordoned_nodes

    def nodes_declaring(self, features: Iterable[str]) -> int:
        """Return the nodes that declare some features."""
        wanted = set(features)
        if not wanted:
            return self.all_nodes
        return union_masks(1 << i for i, node in enumerate(self.nodes) if node.features >= wanted)

    def nodes_with_kubelet(self, minor: int) -> int:
        """Return the nodes whose kubelet is known to be of this minor version or a newer one."""
        return union_masks(mask for version, mask in self._kubelets.items() if version >= minor)

    @_answer
    def offers_on_nodes(self, names: tuple[str, ...], nodes: int) -> OfferSet:
        """Return the offers of some resource names on the nodes of a mask."""
        offers = tuple(o for name in names for o in self.by_resource.get(name, ()) if o.nodes & nodes)
        return OfferSet(offers, union_masks(offer.nodes for offer in offers))

    @_answer
    def unit_weight(self, resource: str, nodes: int) -> UnitWeight:
        """Return the possible products and weight of one unit of a resource on the nodes of a mask."""
        offers, _ = self.offers_on_nodes((resource,), nodes)
        products = {offer.product for offer in offers}
        known = () if "" in products else tuple(sorted(products))
        return UnitWeight(known, max([offer.gpu_milli for offer in offers], default=self.unit_milli(resource)))

    @_answer
    def unit_milli(self, resource: str) -> int:
        """Return thousandths of a whole card that one unit of a resource takes.

        `nvidia.com/gpu` counts as a whole card: that is what was requested, whatever it stands for on a node.
        """
        if resource == WHOLE_GPU:
            return 1000
        if offers := self.by_resource.get(resource):
            return max(offer.gpu_milli for offer in offers)
        named = parse_gpu_resource(resource)
        return min(1000, -(-1000 * named.slices // DEFAULT_SLICES)) if named is not None and named.mig else 1000

    @_answer
    def hardware_of_nodes(self, nodes: int) -> frozenset[NodeHardware]:
        """Return drivers and GPUs of the nodes of a mask that have GPUs."""
        return frozenset(kind for kind, mask in self._nodes_by_hardware().items() if mask & nodes)

    @derived_value()
    def _nodes_by_hardware(self) -> Mapping[NodeHardware, int]:
        found: dict[NodeHardware, int] = {}
        for i, node in enumerate(self.nodes):
            if node.gpus:
                kind = node_hardware(node.labels)
                found[kind] = found.get(kind, 0) | 1 << i
        return found

    @_answer
    def offers_by_form(self, forms: tuple[GpuForm, ...], isolation: IsolationLevel, most: int) -> tuple[GpuOffer, ...]:
        """Return offers of some forms, in the order of the forms, the smallest share of a card first.

        Args:
            forms: The forms, in order of preference.
            isolation: Minimum isolation.
            most: Largest share of a card, in thousandths.
        """
        return tuple(
            offer
            for form in forms
            for offer in self.offers
            if offer.form is form and offer.isolation >= isolation and offer.gpu_milli <= most
        )

    def largest_card_mib(self) -> int | None:
        """Return the memory of the largest whole card; None if there is none, or the memory of one is unknown."""
        cards = [offer.memory_mib for offer in self.offers_by_form((GpuForm.WHOLE,), IsolationLevel.NONE, 1000)]
        return max((size for size in cards if size is not None), default=None) if None not in cards else None

    @_answer
    def memory_sizes(self, forms: tuple[GpuForm, ...], isolation: IsolationLevel, most: int) -> tuple[int, ...]:
        """Return the memory in MiB of these offers, ascending."""
        offers = self.offers_by_form(forms, isolation, most)
        return tuple(sorted({offer.memory_mib for offer in offers if offer.memory_mib}))

    def resources(self) -> tuple[str, ...]:
        """Return the advertised GPU resource names, sorted."""
        return tuple(self._levels)

    def all_advertise_accounting(self, nodes: int) -> bool:
        """Return whether the mask has a node, and each advertises enough of the accounting resource."""
        return bool(nodes) and not nodes & ~self.accounting_nodes

    def offer_on(self, resource: str, node: int) -> GpuOffer | None:
        """Return the offer of a resource name on a node."""
        return self._offers_by_node().get((resource, node))

    @derived_value()
    def _offers_by_node(self) -> Mapping[tuple[str, int], GpuOffer]:
        return {(offer.resource, bit): offer for offer in self.offers for bit in bit_positions(offer.nodes)}

    def nodes_advertising(self, resource: str, units: int = 1) -> int:
        """Return the nodes with at least this many units of a GPU resource."""
        if units == 1:
            return self._advertising.get(resource, 0)
        return self._levels.get(resource, EMPTY_INDEX).nodes_with_at_least(units)

    def names_of(self, nodes: int) -> list[str]:
        """Return the names of the nodes of a mask."""
        return [self.nodes[index].name for index in bit_positions(nodes)]

    def nodes_with_label(self, key: str) -> int:
        """Return the nodes with a label, whatever its value."""
        return self._index.keys.get(key, 0)

    @_answer
    def domains_of_label(self, key: str) -> LabelDomains:
        """Return the sets of nodes with equal values of a label."""
        masks = tuple(self._index.values.get(key, {}).values())
        are_single = all(mask & (mask - 1) == 0 for mask in masks)
        return LabelDomains(masks, self.nodes_with_label(key), are_single)

    def nodes_in_domains(self, key: str, nodes: int) -> int:
        """Return the nodes with the same value of a label as any node of a mask that has it."""
        domains, nodes = self.domains_of_label(key), nodes & self.nodes_with_label(key)
        if domains.are_single_nodes or not nodes:
            return nodes
        if len(domains.masks) < FEW_NODES or nodes.bit_count() * FEW_NODES > len(domains.masks):
            return union_masks(mask for mask in domains.masks if mask & nodes)
        return union_masks(self._index.nodes_with(key, self.nodes[bit].labels[key]) for bit in bit_positions(nodes))

    def max_units(self, resource: str, nodes: int) -> int:
        """Return the most units of a GPU resource on one node of the mask; 0 for none."""
        return self._levels.get(resource, EMPTY_INDEX).max_amount(nodes)

    def units_index(self, resource: str) -> ThresholdIndex:
        """Return the allocatable units of a GPU resource by node."""
        return self._levels.get(resource, EMPTY_INDEX)

    def products_of_nodes(self, nodes: int) -> tuple[str, ...]:
        """Return the product labels of nodes in the mask, sorted."""
        return tuple(sorted(value for value, mask in self._index.values.get(PRODUCT_LABEL, {}).items() if mask & nodes))


def fleet_node(node: Node) -> FleetNode:
    """Return a node as the scheduler sees it. Invalid and negative amounts count as zero."""
    allocatable, labels = node.status.allocatable, node.metadata.labels
    gpus = gpu_units(allocatable)
    ready = all(condition.status == "True" for condition in node.status.conditions if condition.type == "Ready")
    healthy = ready and (not gpus or is_gpu_setup_settled(labels))
    return FleetNode(
        name=node.metadata.name,
        labels=labels,
        taints=tuple(sorted({taint for taint in node.spec.taints if taint.effect in HARD_EFFECTS}, key=taint_sort_key)),
        cpu_milli=min(MAX_CPU_MILLI, _readable_amount(allocatable.get("cpu", 0)) // 1_000_000),
        memory=min(MAX_MEMORY, _readable_amount(allocatable.get("memory", 0)) // NANO),
        gpus=gpus,
        pods=_readable_amount(allocatable.get("pods", 0)) // NANO,
        usable=healthy and not node.spec.unschedulable,
        implausible_gpus=implausible_gpu_units(allocatable),
        cordoned=healthy and node.spec.unschedulable,
        others=_other_amounts(allocatable),
        features=SCHEDULING_FEATURES.intersection(node.status.declared_features),
    )


def kubelet_minor(node: Node) -> int:
    """Return the minor version of a node's kubelet, which is never newer than the API server; 0 if it is unknown."""
    version = _KUBELET_VERSION.match(node.status.node_info.kubelet_version)
    return int(version[1]) if version else 0


def counts_names(api_minor: int) -> bool:
    """Return whether quotas count devices of claims by the names of extended resources; an unknown version, 0, does."""
    return not api_minor or api_minor >= DEVICES_BY_NAME_MINOR


def _other_amounts(allocatable: Mapping[str, QuantityText]) -> dict[str, int]:
    others = {name: _readable_amount(amount) for name, amount in allocatable.items() if is_other_resource(name)}
    return others if len(others) <= MAX_OTHER_RESOURCES else {}


def is_gpu_setup_settled(labels: Labels) -> bool:
    """Return whether the node's GPUs are not being changed: no MIG change, driver upgrade or operator at work."""
    mig_state = labels.get("nvidia.com/mig.config.state", "" if "nvidia.com/mig.config" in labels else "success")
    return (
        labels.get("nvidia.com/gpu.present", "true") == "true"
        and mig_state == "success"
        and labels.get("nvidia.com/gpu-driver-upgrade-state", "") in ("", "upgrade-done")
        and not labels.get("nvidia.com/gpu.deploy.device-plugin", "").startswith("paused")
    )


def _advertises_accounting(node: Node) -> bool:
    """Return whether it advertises 1000 for each unit of its GPU resources, the most that a unit can weigh."""
    allocatable = node.status.allocatable
    enough = max(1, 1000 * sum(gpu_units(allocatable).values()))
    return _readable_amount(allocatable.get(ACCOUNTING_RESOURCE, 0)) >= enough * NANO


def _readable_amount(amount: QuantityText) -> int:
    return max(0, parse_nano_or_none(amount) or 0)


@derived_value()
def largest_slice_mib(fleet: Fleet) -> int:
    """Return the memory of the largest MIG slice that the cards of the nodes could have, in MiB; 0 for none."""
    products = {node.labels.get(PRODUCT_LABEL, "") for node in fleet.nodes if node.gpus}
    cards = filter(None, map(mig_card_spec, products))
    slices = (each for card in cards for each in card.profiles.values() if each.memory_units < card.memory_units)
    return max((each.memory_mib for each in slices), default=0)


def largest_part_mib(fleet: Fleet) -> int:
    """Return the memory of the largest part of a card that other layouts could give: a MIG slice, or half a card."""
    cards = (each for each in fleet.offers if not each.profile)
    halves = ((each.memory_mib or 0) * each.replicas // 2 for each in cards)
    return max(largest_slice_mib(fleet), *halves, 0)
