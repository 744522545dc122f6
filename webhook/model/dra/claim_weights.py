"""The weight of resource claims in thousandths of a GPU, so that quotas count them together with resource names.

There are three ways to weigh, and a class that combines them for pods and namespaces:

* `weigh_allocated_claims`: the parts of cards that the devices of claims are.
* `weigh_unallocated_claims`: the most that claims without devices can get of the devices that are published now.
  `count_claim_units` counts the same in units of GPU resources, for limits.
* `weigh_class_units`: the most that resource names served by device classes weigh, beyond what their names weigh.
* `ClusterClaims`: the weight of a namespace, of a pod, or of each claim of a pod.

The most that a claim can get is, of the choices of a request, the largest. A request for all devices counts as many as
a claim can have. A request whose selectors match nothing, or are not evaluated here, may get whole cards, unless its
class surely holds no GPUs: what is unknown counts. Evaluating selectors is bounded for all claims that are weighed
together, in an order that is the same on every replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from webhook.model.bounded_cache import DependentCache
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    EXTENDED_RESOURCE_CLAIM,
    MAX_DEVICES,
    ClaimRequest,
    ClaimSpec,
    DeviceAllocation,
    DeviceRequest,
    ResourceClaim,
    claim_of_class,
    may_hold_gpus,
)
from webhook.model.derived_values import derived_value
from webhook.model.dra.capacity import consumed_amounts
from webhook.model.dra.device_pools import DevicePools, PoolId
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.device_view import NO_DEVICES, ClaimsByNamespace, DeviceView, NamespaceClaims, allocation_results
from webhook.model.dra.gpu_devices import GPU_DRIVERS, GpuPart, share_milli
from webhook.model.dra.pool_kinds import SIZE_KEYS, gpu_parts
from webhook.model.dra.published_devices import PublishedDevice, published_devices
from webhook.model.dra.selector_cache import evaluation_parts, keys_told_apart, select_device
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import CARD_MILLI, SHARED_SUFFIX, WHOLE_GPU
from webhook.model.node_masks import union_masks
from webhook.model.pod_summary import PodClaimUse, PodSummary, allowed_nodes
from webhook.model.pools import GpuWeight, ProductNames, pod_weight, scale_weight, sum_weights
from webhook.model.quantity import NANO, parse_nano

MAX_EVALUATION_STEPS = 100_000
"""Parts of selectors times devices, for all claims that are weighed together: about 50 ms."""

STEPS_PER_BYTE = 8
"""What a byte of an expression counts for: it is compiled once."""

MAX_CACHED_SPECS = 256
"""Specifications whose weights are remembered."""

NO_WEIGHT: GpuWeight = ()
NamedClaims = Mapping[str, ResourceClaim]
UNKNOWN_CLAIM_WEIGHT: GpuWeight = (((), CARD_MILLI),)
"""The weight of a claim of an existing pod, if neither the claim nor its template is known."""

_encode = msgspec.msgpack.Encoder(order="sorted").encode


# Claims with devices


def weigh_allocated_claims(claims: Iterable[ResourceClaim], pools: DevicePools) -> GpuWeight:
    """Return the weight of the devices of claims; those that the scheduler made count with their pods."""
    totals: Counter[ProductNames] = Counter()
    for claim in claims:
        if claim.status.allocation is not None and not is_made_by_scheduler(claim):
            for result in allocation_results(claim):
                products, milli = _weigh_result(result, pools)
                totals[products] += milli
    return tuple((products, milli) for products, milli in totals.items() if milli)


def is_made_by_scheduler(claim: ResourceClaim) -> bool:
    """Return whether the scheduler made a claim for a pod that requests an extended resource by name."""
    return EXTENDED_RESOURCE_CLAIM in claim.metadata.annotations


def weigh_saved_devices(claim: ResourceClaim, devices: DeviceView, fleet: Fleet) -> int:
    """Return the thousandths of GPUs that a claim has less than the last choices of its right-sized requests weigh."""
    sized = {request.name: request for request in claim.spec.devices.requests if request.is_right_sized}
    if not sized or claim.status.allocation is None:
        return 0
    weigher = _ClaimWeigher(devices, fleet)
    requested = {name: weigher.weigh_last_choice(request) for name, request in sized.items()}
    saved = (
        requested.get(result.request.partition("/")[0], 0) - _weigh_result(result, devices.pools)[1]
        for result in allocation_results(claim)
    )
    return sum([milli for milli in saved if milli > 0])


def _weigh_result(result: DeviceAllocation, pools: DevicePools) -> tuple[ProductNames, int]:
    """Return the weight of one device of a claim."""
    if result.driver not in GPU_DRIVERS:
        return (), 0
    part = gpu_parts(pools, PoolId(result.driver, result.pool)).get(result.device)
    if part is None:
        return (), CARD_MILLI
    return (part.product,) if part.product else (), allocation_milli(part, result)


def allocation_milli(part: GpuPart, result: DeviceAllocation) -> int:
    """Return the thousandths of a card that a claim has through a device."""
    if result.share_id is None:
        return part.milli
    consumed = {name: parse_nano(amount) for name, amount in (result.consumed_capacity or {}).items()}
    return share_milli(part.milli, part.device, consumed)


def carry_claim_weights(before: DevicePools, after: DevicePools, claims: ClaimsByNamespace) -> None:
    """Weigh the claims with devices of some namespaces again, after slices changed: those that were weighed before."""
    for namespace in tuple(_cached_allocations(before)):
        _weigh_allocated_in_namespace(after, namespace, claims.get(namespace, {}))


@derived_value()
def _cached_allocations(_pools: DevicePools) -> dict[str, tuple[NamedClaims, GpuWeight]]:
    return {}


def _weigh_allocated_in_namespace(pools: DevicePools, namespace: str, claims: NamedClaims) -> GpuWeight:
    """Return the weight of the devices of a namespace's claims. Known until one of them, or a slice, changes."""
    known = _cached_allocations(pools)
    found = known.get(namespace)
    if found is None or found[0] is not claims:
        found = known[namespace] = claims, weigh_allocated_claims(claims.values(), pools)
    return found[1]


# Claims without devices


def weigh_unallocated_claims(specs: Iterable[ClaimSpec], devices: DeviceView, fleet: Fleet) -> GpuWeight:
    """Return the most that claims without devices can weigh together."""
    weigher, contents = _ClaimWeigher(devices, fleet), [_encode(spec) for spec in specs]
    if len(contents) == 1:
        return weigher.weigh(contents[0])
    counts = sorted(Counter(contents).items())
    return sum_weights(scale_weight(weigher.weigh(content), count) for content, count in counts)


class RequestUnits(NamedTuple):
    """The most units of each GPU resource that a request may get.

    Attributes:
        name: The name of the request.
        units: Units by the name under which a device plugin would advertise such devices.
        is_known: False if it is not known which devices match; then they count as whole GPUs.
        nodes: Mask of the nodes that publish such devices; -1, all, if that is not known.
        may_be_others: True if it may get devices other than GPUs.
        before_sizing: The units of a right-sized request as it was; None of another, or if not known.
        products: Mask of the nodes that may give GPUs of each product, "" for an unknown one; -1 for all nodes.
    """

    name: str
    units: Mapping[str, int]
    is_known: bool
    nodes: int = -1
    may_be_others: bool = False
    before_sizing: Mapping[str, int] | None = None
    products: Mapping[str, int] = MappingProxyType({})


def count_claim_units(spec: ClaimSpec, devices: DeviceView, fleet: Fleet) -> tuple[RequestUnits, ...]:
    """Return the most units that each request of a claim may get; remembered until slices or classes change."""
    known, content = _cached_units(devices.pools, fleet).values_for(devices.classes), _encode(spec)
    if (found := known.get(content)) is None:
        found = known.store(content, tuple(map(_ClaimWeigher(devices, fleet).count_units, spec.devices.requests)))
    return found


class _TooManyStepsError(Exception):
    """The evaluation of selectors would take too long."""


class _ChoiceWeight(NamedTuple):
    """The most that a choice of a request can weigh, and the products that its devices may be of; () for any."""

    products: tuple[str, ...]
    milli: int


class _ClaimWeigher:
    """Weighs specifications of claims, in a bounded number of steps for all of them."""

    def __init__(self, devices: DeviceView, fleet: Fleet) -> None:
        self._devices, self._fleet = devices, fleet
        self._steps_left = MAX_EVALUATION_STEPS
        self._is_exact = True

    def weigh(self, content: bytes) -> GpuWeight:
        """Return the most that a claim can weigh; remembered until slices or classes change."""
        known = _cached_weights(self._devices.pools).values_for(self._devices.classes)
        found = known.get(content)
        if found is not None and found.steps <= self._steps_left:
            self._steps_left -= found.steps
            return found.weight
        before, self._is_exact = self._steps_left, True
        weight = sum_weights(map(self.weigh_request, msgspec.msgpack.decode(content, type=ClaimSpec).devices.requests))
        if self._is_exact:
            known.store(content, _CachedWeight(weight, before - self._steps_left))
        return weight

    def weigh_request(self, request: ClaimRequest) -> GpuWeight:
        """Return the most that a request can weigh: of its choices the largest, of all their products."""
        weights = [each for each in map(self._weigh_choice, request.choices) if each.milli]
        if not weights:
            return NO_WEIGHT
        of_any = any(not each.products for each in weights)
        products = () if of_any else _products(one for each in weights for one in each.products)
        return ((products, max(each.milli for each in weights)),)

    def weigh_last_choice(self, request: ClaimRequest) -> int:
        """Return the most thousandths of GPUs that the last choice of a request can weigh."""
        return self._weigh_choice(request.choices[-1]).milli

    def _weigh_choice(self, choice: DeviceRequest) -> _ChoiceWeight:
        if choice.admin_access:  # uses up nothing
            return _ChoiceWeight((), 0)
        count, parts = _device_count(choice), self._parts_of(self._find_devices(choice))
        if not parts:
            milli = CARD_MILLI if may_hold_gpus(choice.device_class_name, self._devices.classes) else 0
            return _ChoiceWeight((), milli * count)
        return _ChoiceWeight(
            _products(part.product for part in parts if part.milli),
            count * max(_requested_milli(part, choice) for part in parts),
        )

    def count_units(self, request: ClaimRequest) -> RequestUnits:
        """Return the most units that a request may get: of its choices the largest for each resource."""
        most, is_known, nodes, others = Counter[str](), True, 0, False
        products: dict[str, int] = {}
        if not request.choices:  # of a later version
            return RequestUnits(request.name, {WHOLE_GPU: MAX_DEVICES}, is_known=False)
        for choice in request.choices:
            devices = [] if choice.admin_access else self._find_devices(choice)
            nodes |= union_masks(each.nodes or -1 for each in devices) if devices else -1
            parts = self._parts_of(devices)
            others = others or not parts or not all(part.milli for part in parts)
            names = {name for part in parts if part.milli for name in _requested_resources(part, choice)}
            if not parts and not choice.admin_access and may_hold_gpus(choice.device_class_name, self._devices.classes):
                names, is_known = {WHOLE_GPU}, False
                products[""] = -1
            for each, part in zip(devices, parts, strict=True):
                if part.milli:
                    products[part.product] = products.get(part.product, 0) | (each.nodes or -1)
            most |= Counter(dict.fromkeys(sorted(names), _device_count(choice)))
        return RequestUnits(request.name, most, is_known, nodes, others, self._units_before_sizing(request), products)

    def _units_before_sizing(self, request: ClaimRequest) -> Mapping[str, int] | None:
        """Return the units of the last choice of a right-sized request, if known; None unless all others are smaller.

        A user may write such choices too, so limits must still count one that is larger than the last, and all of them
        if the last gets no device that is known, or its selectors take too long.
        """
        if not request.is_right_sized:
            return None
        *smaller, requested = (self._weigh_choice(choice).milli for choice in request.choices)
        if max(smaller) >= requested:
            return None
        last = self.count_units(ClaimRequest(first_available=request.choices[-1:]))
        return last.units if last.is_known else None

    def _parts_of(self, devices: Sequence[PublishedDevice]) -> list[GpuPart]:
        return [_part_of_kind(each, self._devices.pools) for each in devices]

    def _find_devices(self, choice: DeviceRequest) -> list[PublishedDevice]:
        """Return the devices that a request may get, one of each kind; none if they are not known."""
        try:
            return self._matching_devices(choice)
        except _TooManyStepsError:
            self._is_exact = False
        except (SelectorRuntimeError, UnmodeledExpressionError):
            pass
        return []

    def _matching_devices(self, choice: DeviceRequest) -> list[PublishedDevice]:
        """Return the devices that a request may get, one of each kind; an error of a selector excludes none.

        Raises:
            SelectorRuntimeError: A selector does not compile.
            UnmodeledExpressionError: One is not evaluated here, or there are too many kinds of devices.
            _TooManyStepsError: It would take too long.
        """
        classes, pools = self._devices.classes, self._devices.pools
        if choice.device_class_name not in classes or not pools:
            return []
        selectors = (*classes[choice.device_class_name].selectors, *choice.selectors)
        expressions = [selector.cel.expression for selector in selectors]
        self._spend(STEPS_PER_BYTE * sum(map(len, expressions)))
        keys = keys_told_apart(expressions)
        read = None if keys is None else tuple(sorted({*keys, *SIZE_KEYS}))
        kinds = published_devices(pools, self._fleet, read).kinds
        self._spend(evaluation_parts(expressions) * len(kinds))
        return [each for each in kinds if all(_may_select(one, each) for one in expressions)]

    def _spend(self, steps: int) -> None:
        if steps > self._steps_left:
            raise _TooManyStepsError
        self._steps_left -= steps


def _products(found: Iterable[str]) -> tuple[str, ...]:
    """Return products; () if one is unknown."""
    products = set(found)
    return () if "" in products else tuple(sorted(products))


def _device_count(choice: DeviceRequest) -> int:
    return choice.count if choice.allocation_mode == "ExactCount" else MAX_DEVICES


def _requested_resources(part: GpuPart, request: DeviceRequest) -> Sequence[str]:
    """Return the names that a request may have of a device: those of a share if others may have the rest."""
    if _requested_milli(part, request) >= part.milli:
        return part.resources
    return [f"{resource}{SHARED_SUFFIX}" for resource in part.resources]


def _may_select(expression: str, published: PublishedDevice) -> bool:
    try:
        return select_device(expression, published.pool.driver, published.device)
    except SelectorRuntimeError:
        return True


def _part_of_kind(published: PublishedDevice, pools: DevicePools) -> GpuPart:
    """Return the part of a card that a device is; of a driver that has GPUs, an unknown one is a whole card."""
    if published.pool.driver not in GPU_DRIVERS:
        return GpuPart("", 0, published.device)
    part = gpu_parts(pools, published.pool).get(published.device.name)
    return GpuPart("", CARD_MILLI, published.device) if part is None else part


def consumed_milli(published: PublishedDevice, request: DeviceRequest, pools: DevicePools) -> int:
    """Return the thousandths of a card that a request takes of a device, of one that claims share what it consumes."""
    return _requested_milli(_part_of_kind(published, pools), request)


def _requested_milli(part: GpuPart, request: DeviceRequest) -> int:
    if part.device.allow_multiple_allocations is not True:
        return part.milli
    return share_milli(part.milli, part.device, consumed_amounts(part.device, request.capacity.requests))


class _CachedWeight(NamedTuple):
    """The weight of a claim specification, and the steps of its evaluation."""

    weight: GpuWeight
    steps: int


@derived_value()
def _cached_weights(_pools: DevicePools) -> DependentCache[bytes, _CachedWeight]:
    return DependentCache(MAX_CACHED_SPECS)


@derived_value()
def _cached_units(_pools: DevicePools, _fleet: Fleet) -> DependentCache[bytes, tuple[RequestUnits, ...]]:
    return DependentCache(MAX_CACHED_SPECS)


# Resource names that device classes serve


class ServedUnit(NamedTuple):
    """A unit of an extended resource that a device class serves.

    Attributes:
        name: The resource.
        weight_by_name: What it weighs by its name.
        products: The products that it may be of; () for any.
    """

    name: str
    weight_by_name: GpuWeight = NO_WEIGHT
    products: ProductNames = ()


def served_unit(name: str, weight_by_name: GpuWeight, nodes: int, devices: DeviceView, fleet: Fleet) -> ServedUnit:
    """Return a unit of a resource of a device class for a pod that may run on the nodes of a mask."""
    (request,) = count_claim_units(claim_of_class(devices.class_by_resource[name]), devices, fleet)
    given = {product for product, mask in request.products.items() if mask & nodes}
    by_name = {product for products, _ in weight_by_name for product in products}
    if not given or (not by_name and fleet.nodes_advertising(name) & nodes):
        return ServedUnit(name, weight_by_name, tuple(by_name))
    return ServedUnit(name, weight_by_name, _products(given | by_name))


def weigh_class_units(units: Mapping[ServedUnit, int], devices: DeviceView, fleet: Fleet) -> GpuWeight:
    """Return the most that units of resources of device classes can weigh beyond their names.

    What they weigh by their names moves to the products that they may be of.
    """
    weigher, weights = _ClaimWeigher(devices, fleet), list[GpuWeight]()
    for unit, count in sorted(units.items()):
        found = weigher.weigh(_encode(claim_of_class(devices.class_by_resource[unit.name])))
        most = max(sum([milli for _, milli in some]) for some in (found, unit.weight_by_name))
        weights += [scale_weight(unit.weight_by_name, -count), ((unit.products, most * count),)]
    return tuple([one for one in sum_weights(weights) if one[1]])


# Pods and namespaces


class ClusterClaims(NamedTuple):
    """The claims, templates and devices of a cluster.

    Attributes:
        templates: Specifications of claim templates, by namespace and name.
    """

    devices: DeviceView
    templates: Mapping[str, Mapping[str, ClaimSpec]] = MappingProxyType({})

    def in_namespace(self, namespace: str) -> NamespaceClaims:
        """Return the claims and templates of a namespace."""
        return NamespaceClaims(self.devices.claims.get(namespace, {}), self.templates.get(namespace, {}))

    def has_same_weights(self, other: ClusterClaims, namespace: str) -> bool:
        """Return whether claims of a namespace surely weigh what they did."""
        before, after = other.devices, self.devices
        same = before.pools is after.pools and before.classes is after.classes
        same = same and before.class_by_resource is after.class_by_resource
        same = same and before.claims.get(namespace) is after.claims.get(namespace)
        return same and self.templates.get(namespace) is other.templates.get(namespace)

    def without(self, namespace: str, names: Container[str]) -> ClusterClaims:
        """Return the claims without some of a namespace."""
        claims = self.devices.claims
        left = {name: claim for name, claim in claims.get(namespace, {}).items() if name not in names}
        return self._replace(devices=self.devices._replace(claims={**claims, namespace: left}))

    def weigh_namespace(self, namespace: str, pods: Iterable[PodSummary], fleet: Fleet) -> GpuWeight:
        """Return the weight of the claims of a namespace that have devices, or that a pod waits for, each once.

        `weigh_class_resources` weighs the extended resources of these pods.

        Args:
            namespace: The namespace.
            pods: Its pods that have not ended.
            fleet: The nodes.
        """
        known = self.in_namespace(namespace)
        uses = _split_uses((each for pod in pods for each in pod.claims), known)
        waiting = self._weigh_unallocated(uses, known, fleet)
        return sum_weights((_weigh_allocated_in_namespace(self.devices.pools, namespace, known.claims), waiting))

    def weigh_pod(self, namespace: str, pod: PodSummary, fleet: Fleet) -> GpuWeight:
        """Return the weight of the claims of a pod, also those that it shares, and of its resources of classes."""
        by_class = self.weigh_class_resources([pod], fleet)
        return sum_weights((self.weigh_pod_claims(namespace, pod.claims, fleet), by_class)) if pod.claims else by_class

    def weigh_pod_claims(self, namespace: str, claims: Iterable[PodClaimUse], fleet: Fleet) -> GpuWeight:
        """Return the weight of claims that pods name, without extended resources; each claim once."""
        known = self.in_namespace(namespace)
        uses = _split_uses(claims, known)
        allocated = weigh_allocated_claims([known.claims[name] for name in uses.named], self.devices.pools)
        return sum_weights((allocated, self._weigh_unallocated(uses, known, fleet)))

    def weigh_each_claim(self, namespace: str, claims: Sequence[PodClaimUse], fleet: Fleet) -> list[int]:
        """Return the thousandths of each claim of a pod; of one that is not known, the most that a claim can have."""
        known, weigher = self.in_namespace(namespace), _ClaimWeigher(self.devices, fleet)
        return [sum(milli for _, milli in self._weigh_use(one, known, weigher)) for one in claims]

    def _weigh_use(self, use: PodClaimUse, known: NamespaceClaims, weigher: _ClaimWeigher) -> GpuWeight:
        claim = known.claims.get(use.name)
        if claim is not None and claim.status.allocation is not None:
            return weigh_allocated_claims([claim], self.devices.pools)
        spec = known.spec_of(use.name, use.template)
        return weigher.weigh(_encode(spec)) if spec is not None else scale_weight(UNKNOWN_CLAIM_WEIGHT, MAX_DEVICES)

    def _weigh_unallocated(self, uses: _ClaimUses, known: NamespaceClaims, fleet: Fleet) -> GpuWeight:
        """Return the weight of claims without devices that pods wait for."""
        waiting = [known.claims[name].spec for name in uses.named if known.claims[name].status.allocation is None]
        weight = weigh_unallocated_claims((*uses.unmade, *waiting), self.devices, fleet)
        return sum_weights((weight, *[UNKNOWN_CLAIM_WEIGHT] * uses.unknown))

    def weigh_class_resources(self, pods: Iterable[PodSummary], fleet: Fleet) -> GpuWeight:
        """Return the weight of extended resources that device classes serve, beyond what their names weigh."""
        served, units = self.devices.class_by_resource, Counter[ServedUnit]()
        for pod in pods if served else ():
            node = fleet.by_name.get(pod.node, -1)
            for name, amount in pod.requests:
                if name in served and amount >= NANO and fleet.offer_on(name, node) is None:
                    units[self._served_unit(name, pod, node, fleet)] += amount // NANO
        return weigh_class_units(units, self.devices, fleet) if units else NO_WEIGHT

    def _served_unit(self, name: str, pod: PodSummary, node: int, fleet: Fleet) -> ServedUnit:
        one = msgspec.structs.replace(pod, requests=((name, NANO),))
        where = pod.constraints
        nodes = allowed_nodes(where, fleet) if where is not None else 1 << node if node >= 0 else -1
        return served_unit(name, pod_weight(one, fleet), nodes, self.devices, fleet)


NO_CLUSTER_CLAIMS = ClusterClaims(NO_DEVICES)


class _ClaimUses(NamedTuple):
    """The claims that pods use.

    Attributes:
        named: Names of known claims.
        unmade: Specifications of those that will be made from templates.
        unknown: How many are not known.
    """

    named: Set[str]
    unmade: Sequence[ClaimSpec]
    unknown: int


def _split_uses(claims: Iterable[PodClaimUse], known: NamespaceClaims) -> _ClaimUses:
    named, unmade, unknown = set[str](), list[ClaimSpec](), 0
    for one in claims:
        if one.name in known.claims:
            named.add(one.name)
        elif one.template in known.templates:
            unmade.append(known.templates[one.template])
        else:
            unknown += 1
    return _ClaimUses(named, unmade, unknown)
