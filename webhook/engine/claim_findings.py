"""Findings about one claim: what prevents it from getting devices, or gives it larger ones than it needs.

There are none in a cluster without known devices, and none about selectors that are not evaluated here. While no node
publishes devices, those that new nodes will publish count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from itertools import chain, islice

import msgspec

from webhook.engine.claim_allocation import (
    allocate_anywhere,
    allocations,
    choices_of,
    new_nodes_have_devices,
    nodes_of_slices,
    other_nodes_may_allocate,
    requests_of,
    size_of_selectors,
)
from webhook.engine.claim_matches import MAX_NAMES, NODES_OF_POD, DevicePlace, RequestMatch, match_request
from webhook.engine.matched_devices import RequestSelector, claim_warning, compile_selector
from webhook.engine.new_nodes import publishing_view
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import abbreviate_names
from webhook.model.bounded_cache import DependentCache
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    MAX_DEVICES,
    ClaimRequest,
    ClaimSpec,
    DeviceClasses,
    DeviceRequest,
    may_hold_gpus,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.derived_values import derived_value
from webhook.model.dra.allocator import AllocationOutcome
from webhook.model.dra.constraints import attribute_names
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.device_selectors import MAX_EXPRESSION_BYTES, SelectorCompileError
from webhook.model.dra.device_view import DeviceKind
from webhook.model.dra.published_devices import PublishedDevice, published_devices
from webhook.model.dra.selector_advice import attribute_key, meant_key
from webhook.model.dra.selector_cache import keys_told_apart
from webhook.model.dra.twice_published import devices_published_twice
from webhook.model.field_paths import FieldPath
from webhook.model.node_masks import ALL_NODES, bit_positions, union_masks
from webhook.model.objects import HARD_EFFECTS, Taint, taint_sort_key, tolerates_all
from webhook.model.pods import Toleration

QUANTITY = "kubernetes.Quantity"
COMPARE_QUANTITIES = "To compare a capacity, write .compareTo(quantity('10Gi')) >= 0; texts are in device.attributes."
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
UNTOLERATED_TAINT = "UntoleratedTaint"
"""The reason of GPU-D104 if the devices that match have a taint."""

NO_MATCH, UNGUARDED, TWICE = "GPU-D101", "GPU-D102", "GPU-D112"
ASK_ADMIN = "Ask the admin to remove one of the two from these nodes."
UNALLOCATABLE = frozenset({NO_MATCH, UNGUARDED, "GPU-D104", "GPU-D105", "GPU-D106", "GPU-D107", "GPU-D110"})
"""Findings after which a pod gets no devices."""

NO_NODE = frozenset({NO_MATCH, "GPU-D104", "GPU-D105"})
"""Findings that no node has the devices of a claim."""

OF_SOME_NODES = frozenset({UNGUARDED, "GPU-D103", TWICE})
"""Findings that may follow from devices of some nodes alone; GPU-D104 of a request for all devices, too."""

MAX_KNOWN_CLAIMS = 256
"""Claims whose findings are remembered."""

MAX_VALUES = 8_000
"""Attributes and capacities that are looked at for all requests of a claim together: about 25 ms."""

MAX_PUBLISHERS = 3
"""Pairs of publishers of one device that are named."""

MAX_NODES_COMPARED = 16
"""Nodes whose pools are compared with devices that match and cannot be allocated."""

MAX_SELECTOR_BYTES = 10 * 1024
"""Size of all selectors of a claim that are compiled: as much as one may have."""


@derived_value()
def known_findings(_pools: DevicePools) -> DependentCache[bytes, list[PolicyFinding]]:
    """Return the findings that follow from devices and classes alone, by `findings_key`."""
    return DependentCache(MAX_KNOWN_CLAIMS)


def findings_key(*parts: object) -> bytes:
    """Return the key of a cache of findings: it is short, whatever the claims are.

    The claims are made of stored templates: a small request can name many large ones, so its bytes bound no key.
    """
    return sha256(msgspec.json.encode(parts)).digest()


def claim_findings(
    spec: ClaimSpec, view: ClusterView, namespace: str, path: FieldPath, nodes: int = ALL_NODES
) -> list[PolicyFinding]:
    """Return everything that prevents a claim from getting devices, or that gives it larger ones than it needs.

    What concerns devices is remembered until slices or classes change.

    Args:
        spec: The specification.
        view: The cluster.
        namespace: Its namespace.
        path: Where the specification stands in its object.
        nodes: The nodes that its pods may use: the scheduler reads no devices of others.
    """
    publishing = publishing_view(view)
    found = _findings_on_nodes(spec, publishing, nodes if publishing is view else ALL_NODES)
    if not NO_NODE.isdisjoint(one.code for one in found) and new_nodes_have_devices((spec,), view):
        found = [one for one in found if one.code not in NO_NODE]
    restricted = _restricted_requests(spec, view, view.labels_of(namespace), ("devices",))
    return [msgspec.structs.replace(one, path=(*path, *one.path)) for one in (*restricted, *found)]


def _findings_on_nodes(spec: ClaimSpec, view: ClusterView, nodes: int) -> list[PolicyFinding]:
    """Return the findings about devices, without those that follow from devices of other nodes alone."""
    found = _known_device_findings(spec, view, ALL_NODES)
    if not found:
        return found
    published = nodes_of_slices(view.devices.pools, view.fleet)
    codes = OF_SOME_NODES | ({"GPU-D104"} if _requests_all(spec) else set())
    if nodes & published == published or codes.isdisjoint(one.code for one in found):
        return found
    on_nodes = _known_device_findings(spec, view, nodes & published)
    places = {(one.code, one.path) for one in found if one.code in codes}
    if not _unguarded_paths(found) <= _unguarded_paths(on_nodes):
        return on_nodes  # the key of another node's device hid the other findings of its request, and of allocation
    kept = [one for one in found if one.code not in codes]
    return kept + [one for one in on_nodes if (one.code, one.path) in places]


def _unguarded_paths(findings: Iterable[PolicyFinding]) -> set[FieldPath]:
    return {one.path for one in findings if one.code == UNGUARDED}


def _requests_all(spec: ClaimSpec) -> bool:
    return any(request.allocation_mode == "All" for request, _ in requests_of(spec, ()))


def _known_device_findings(spec: ClaimSpec, view: ClusterView, nodes: int) -> list[PolicyFinding]:
    knows_classes = DeviceKind.CLASS not in view.devices.unlisted
    key = findings_key(spec, f"{nodes:x}", knows_classes)
    known = known_findings(view.devices.pools).values_for(view.classes)
    found = known.get(key)
    return found if found is not None else known.store(key, _device_findings(spec, view, nodes))


def _device_findings(spec: ClaimSpec, view: ClusterView, nodes: int) -> list[PolicyFinding]:
    devices: FieldPath = ("devices",)
    found, matching = list[PolicyFinding](), dict[str, list[PublishedDevice]]()
    if size_of_selectors(spec, view.classes) > MAX_SELECTOR_BYTES:
        return list(islice(_overlong_selectors(spec, devices), 1))
    is_known, most = bool(spec.devices.requests and view.devices.pools), MAX_VALUES // max(1, _count_choices(spec))
    for index, request in enumerate(spec.devices.requests):
        choices = [
            _match_request(one, where, view, most, nodes)
            for one, where in choices_of(request, (*devices, "requests", index))
        ]
        found += _needed_findings([one.findings for one in choices])
        is_known = is_known and all(one.is_known for one in choices)
        matching[request.name] = [each for one in choices for each in one.devices]
    found += _too_many_devices(spec, (*devices, "requests"))
    every = list(chain.from_iterable(matching.values()))
    twice = list(_twice_published(every, view, (*devices, "requests"), nodes))
    if is_known and UNALLOCATABLE.isdisjoint(one.code for one in found):
        with suppress(UnmodeledExpressionError):
            found += _allocation_findings(spec, matching, view, devices, nodes)
    return found + twice


def _twice_published(
    devices: Sequence[PublishedDevice], view: ClusterView, path: FieldPath, allowed: int
) -> Iterator[PolicyFinding]:
    """Yield that some of these devices are published twice, with all allowed nodes where they are."""
    nodes, publishers = 0, list[str]()
    for pair, mask in devices_published_twice(view.devices.pools, view.fleet).items() if devices else ():
        common = (
            union_masks(each.named_nodes for each in devices if pair.publish(each, view.devices.pools)) & mask & allowed
        )
        nodes |= common
        publishers += [f"by {pair.first} and by {pair.second}"] if common else []
    if nodes:
        names = abbreviate_names(view.fleet.names_of(nodes))
        twice = " or ".join(publishers[:MAX_PUBLISHERS])
        message = f"may be devices that are published twice, {twice}, on {names}: another pod can get the same one"
        yield claim_warning(TWICE, path, message, ASK_ADMIN)


def _overlong_selectors(spec: ClaimSpec, path: FieldPath) -> Iterator[PolicyFinding]:
    for request, where in requests_of(spec, path):
        for index, selector in enumerate(request.selectors):
            if len(selector.cel.expression.encode()) > MAX_EXPRESSION_BYTES:
                message = f"must be at most {MAX_EXPRESSION_BYTES} bytes long"
                yield claim_warning(
                    "GPU-D107", (*where, "selectors", index, "cel", "expression"), message, "Shorten it."
                )


def _needed_findings(choices: Sequence[Sequence[PolicyFinding]]) -> list[PolicyFinding]:
    """Return the findings of the choices of a request; one may match no device if another does."""
    unmatched = [any(one.code == NO_MATCH for one in findings) for findings in choices]
    return [one for findings in choices for one in findings if one.code != NO_MATCH or all(unmatched)]


def _count_choices(spec: ClaimSpec) -> int:
    return sum(1 for _ in requests_of(spec, ()))


def _restricted_requests(
    spec: ClaimSpec, view: ClusterView, labels: Mapping[str, str], path: FieldPath
) -> Iterator[PolicyFinding]:
    """Yield requests that only namespaces for administration should have: access to devices in use, or all devices."""
    if labels.get(ADMIN_ACCESS_LABEL) == "true":
        return
    for request, where in requests_of(spec, path):
        if request.admin_access:
            message = f"must not be true without the label {ADMIN_ACCESS_LABEL}: true of the namespace"
            yield claim_warning("GPU-D108", (*where, "adminAccess"), message, "Remove it.")
        elif request.allocation_mode == "All" and may_hold_gpus(request.device_class_name, view.classes):
            message = "requests every matching device of a node, and waits while another claim holds one alone"
            yield claim_warning("GPU-D111", (*where, "allocationMode"), message, "Write ExactCount, and a count.")


def _match_request(request: DeviceRequest, path: FieldPath, view: ClusterView, most: int, nodes: int) -> RequestMatch:
    """Return the findings of a request, and the devices that it may get.

    Args:
        request: The request, or a choice of one.
        path: Where it stands.
        view: The cluster.
        most: Attributes and capacities of devices that may be looked at.
        nodes: The nodes whose devices it may get.
    """
    name = request.device_class_name
    if name not in view.classes and (view.classes or view.devices.pools):
        return RequestMatch([_absent_class(name, path, view.classes)] if view.devices.lacks_class(name) else [])
    try:
        selectors = list(_selectors_of(request, path, view.classes))
        if not view.devices.pools:
            return RequestMatch()
        keys = keys_told_apart(one.program.expression for one in selectors)
        published = published_devices(view.devices.pools, view.fleet, keys)
        if published.values > most:
            return RequestMatch()
        place = DevicePlace("this cluster", f"its {published.total} devices") if nodes == ALL_NODES else NODES_OF_POD
        amounts, where = request.capacity.requests, (*path, "capacity", "requests")
        of_nodes = published.on_nodes(nodes)
        found = match_request(selectors, of_nodes, place, amounts, where, view.classes, view.devices.pools)
        return found._replace(is_known=name in view.classes)
    except _RejectedSelectorError as error:
        return RequestMatch([error.finding])
    except UnmodeledExpressionError:
        return RequestMatch()


class _RejectedSelectorError(Exception):
    """A selector that the API server rejects, as a finding."""

    def __init__(self, finding: PolicyFinding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _selectors_of(request: DeviceRequest, path: FieldPath, classes: DeviceClasses) -> Iterator[RequestSelector]:
    """Yield the selectors of a request's class, then those of the request, as the scheduler evaluates them."""
    name = request.device_class_name
    for selector in classes[name].selectors if name in classes else ():
        yield _compile_or_reject(selector.cel.expression, (*path, "deviceClassName"), name)
    for index, selector in enumerate(request.selectors):
        yield _compile_or_reject(selector.cel.expression, (*path, "selectors", index, "cel", "expression"), "")


def _compile_or_reject(expression: str, path: FieldPath, class_name: str) -> RequestSelector:
    try:
        return compile_selector(expression, path, class_name)
    except SelectorCompileError as error:
        message = f"must be CEL on a device, found at {error.place_in(expression)}: {error.reason}"
        fix = COMPARE_QUANTITIES if QUANTITY in error.reason else ""
        raise _RejectedSelectorError(claim_warning("GPU-D107", path, message, fix)) from None


def _absent_class(name: str, path: FieldPath, classes: DeviceClasses) -> PolicyFinding:
    near = get_close_matches(name, classes, n=1) or sorted(classes)[:3]
    found = f"{'' if classes else 'which has none, '}found {name or 'no name'}"
    message = f"must be a device class of this cluster, {found}"
    fix = f"Write {' or '.join(near)}." if near else "Create it."
    return claim_warning("GPU-D106", (*path, "deviceClassName"), message, fix)


def _allocation_findings(
    spec: ClaimSpec, matching: Mapping[str, Sequence[PublishedDevice]], view: ClusterView, path: FieldPath, nodes: int
) -> list[PolicyFinding]:
    """Return why no node of a mask could allocate a claim even if all its devices were free.

    A request for all devices is for fewer of them while others have no room, so it may succeed only then.
    """
    if _requests_all(spec):
        return [*_all_are_too_many(spec, view, path, nodes), *_all_of_incomplete_pools(view, path, nodes)]
    outcome = allocate_anywhere((spec,), view, nodes)
    if outcome is not AllocationOutcome.REJECTED:
        return []
    elsewhere = other_nodes_may_allocate((spec,), view, nodes)  # then that is said of the pod
    if not elsewhere and (violated := _violated_constraint(spec, view, nodes)) is not None:
        return [_constraint_finding(spec, violated, matching, (*path, "constraints"))]
    devices = list(chain.from_iterable(matching.values()))
    taints = _untolerated_taints(spec, devices)
    if taints and allocate_anywhere([_tolerating_all(spec)], view, nodes) is AllocationOutcome.ALLOCATED:
        return [_untolerated_finding(taints, (*path, "requests"))]
    if not elsewhere and devices and (pools := _pools_without(devices, view)):
        message = f"must be devices that can be allocated; those that match are not: {pools}"
        fix = "Request other devices, or wait until the driver has published them."
        return [claim_warning("GPU-D104", (*path, "requests"), message, fix)]
    if nodes != ALL_NODES:
        return []  # that other nodes may have the devices is said of the pod
    message = "must be devices that one node has, found no node of this cluster that has all of them"
    most = _most_on_a_node(spec, view)
    fix = f"Request at most {most}." if most else "Request fewer devices."
    return [claim_warning("GPU-D104", (*path, "requests"), message, fix)]


def _most_on_a_node(spec: ClaimSpec, view: ClusterView) -> int:
    """Return the most devices of its only request that a node has; 0 if the claim has several, or it is not known."""
    requested = spec.devices.requests[0].exactly
    if requested is None or len(spec.devices.requests) > 1:
        return 0

    def outcome(count: int) -> AllocationOutcome:
        exactly = msgspec.structs.replace(requested, count=count)
        fewer = msgspec.structs.replace(spec.devices.requests[0], exactly=exactly)
        devices = msgspec.structs.replace(spec.devices, requests=(fewer,))
        return allocate_anywhere((msgspec.structs.replace(spec, devices=devices),), view, ALL_NODES)

    counts = range(1, min(requested.count, MAX_DEVICES + 1))
    most = bisect_left(counts, True, key=lambda count: outcome(count) is AllocationOutcome.REJECTED)
    return most if most and outcome(most) is AllocationOutcome.ALLOCATED else 0


def _violated_constraint(spec: ClaimSpec, view: ClusterView, nodes: int) -> int | None:
    """Return the first constraint that no node of a mask satisfies together with those before it.

    None if no node has the devices without constraints either.
    """

    def outcome(count: int) -> AllocationOutcome:
        devices = msgspec.structs.replace(spec.devices, constraints=spec.devices.constraints[:count])
        return allocate_anywhere([msgspec.structs.replace(spec, devices=devices)], view, nodes)

    count = len(spec.devices.constraints)
    if not count or outcome(0) is not AllocationOutcome.ALLOCATED:
        return None
    return bisect_left(range(1, count), True, key=lambda some: outcome(some) is AllocationOutcome.REJECTED)


def _constraint_finding(
    spec: ClaimSpec, index: int, matching: Mapping[str, Sequence[PublishedDevice]], path: FieldPath
) -> PolicyFinding:
    """Report a constraint that no devices satisfy, with the attribute that is meant if none of them has it."""
    constraint = spec.devices.constraints[index]
    is_equal = constraint.match_attribute is not None
    attribute = (constraint.match_attribute if is_equal else constraint.distinct_attribute) or ""
    where = (*path, index, "matchAttribute" if is_equal else "distinctAttribute")
    names = {request.partition("/")[0] for request in constraint.requests} or set(matching)
    devices = [each for name in names for each in matching.get(name, ())]
    published = {name for each in devices for name in attribute_names(each.pool.driver, each.device)}
    if attribute in published:
        values = f"{'equal' if is_equal else 'different'} values of {attribute}"
        earlier = " that satisfy the constraints before it too" if index else ""
        none_has = f"none has enough with {values}{earlier}; without constraints one has"
        message = f"must hold for devices of one node, and {none_has}"
        return claim_warning("GPU-D105", where, message, "Remove the constraint, or request fewer devices.")
    message = f"must be an attribute of the devices, and none that matches has {attribute}"
    return claim_warning("GPU-D105", where, message, _attribute_fix(attribute, published))


def _attribute_fix(attribute: str, published: Collection[str]) -> str:
    """Return the attribute to write instead of one that no device has, else those that devices have."""
    keys = {attribute_key(name) for name in published}
    if (meant := meant_key(attribute_key(attribute), keys)) is not None:
        return f"Write {meant.domain}/{meant.name}."
    has = f", or write one that devices have: {abbreviate_names(sorted(published), MAX_NAMES)}" if published else ""
    return f"Remove the constraint{has}."


def _untolerated_taints(spec: ClaimSpec, matching: Sequence[PublishedDevice]) -> list[Taint]:
    """Return the taints of some devices that keep a request of a claim from them."""
    requests = [request for request, _ in requests_of(spec, ())]
    taints = {taint for each in matching for taint in each.device.taints if taint.effect in HARD_EFFECTS}
    untolerated = (each for each in taints if not all(tolerates_all(one.tolerations, [each]) for one in requests))
    return sorted(untolerated, key=taint_sort_key)


def _untolerated_finding(taints: Sequence[Taint], path: FieldPath) -> PolicyFinding:
    names = abbreviate_names([each.text for each in taints])
    message = f"must tolerate a taint of the devices that match, found {names}; tolerations of pods do not count"
    example = taints[0]
    operator = f"operator: Equal, value: {example.value}" if example.value else "operator: Exists"
    toleration = f"{{key: {example.key}, {operator}, effect: {example.effect}}}"
    fix = f"Write tolerations: [{toleration}] in the request of the claim."
    return claim_warning("GPU-D104", path, message, fix, UNTOLERATED_TAINT)


def _pools_without(matching: Sequence[PublishedDevice], view: ClusterView) -> str:
    """Return why no pool of a node has any of some devices: they are being replaced; "" if one has, or not known."""
    pools, reasons = view.devices.pools, dict[str, None]()
    incomplete = pools.incomplete_pools()
    for each in matching:
        nodes = list(bit_positions(each.named_nodes))
        if not each.nodes or len(nodes) > MAX_NODES_COMPARED or any(_has_device(each, node, pools) for node in nodes):
            return ""
        is_missing = each.pool in incomplete
        state = "lacks slices" if is_missing else "has a newer generation without them"
        reasons[f"pool {each.pool.pool} {state}"] = None
    return ", ".join(islice(reasons, MAX_PUBLISHERS))


def _has_device(one: PublishedDevice, node: int, pools: DevicePools) -> bool:
    of_driver = [pool for pool in pools.pools_of_node(node) if pool.id.driver == one.pool.driver]
    devices = (each.device for pool in of_driver for each in pool.devices)
    return any(each.name == one.device.name and each.capacity == one.device.capacity for each in devices)


def _tolerating_all(spec: ClaimSpec) -> ClaimSpec:
    requests = tuple(map(_request_tolerating_all, spec.devices.requests))
    return msgspec.structs.replace(spec, devices=msgspec.structs.replace(spec.devices, requests=requests))


def _request_tolerating_all(request: ClaimRequest) -> ClaimRequest:
    tolerations = (Toleration(operator="Exists"),)
    choices = [msgspec.structs.replace(one, tolerations=tolerations) for one in request.choices]
    if request.first_available:
        return msgspec.structs.replace(request, first_available=tuple(choices))
    return msgspec.structs.replace(request, exactly=choices[0] if choices else None)


def _too_many_devices(spec: ClaimSpec, path: FieldPath) -> Iterator[PolicyFinding]:
    """Yield that a claim requests more devices than it can get, whatever its choices."""
    counted = [one.choices for one in spec.devices.requests if one.choices]
    least = sum(min(0 if one.allocation_mode == "All" else one.count for one in choices) for choices in counted)
    if least > MAX_DEVICES:
        message = f"must be at most {MAX_DEVICES} devices together, found {least}, which ends scheduling on all nodes"
        yield claim_warning("GPU-D104", path, message, "Request fewer devices, or make several claims.")


def _all_of_incomplete_pools(view: ClusterView, path: FieldPath, nodes: int) -> Iterator[PolicyFinding]:
    """Yield that a request for all devices is an error on the nodes of a pool of any driver that lacks slices."""
    names = ["/".join(pool) for pool in view.devices.pools.incomplete_pools(nodes)]
    if names:
        about = f"pool{'s' * (len(names) > 1)} {abbreviate_names(names)}, for which slices are missing"
        message = f"must be for counted devices: a request for all is an error on the nodes of {about}"
        ends = "it ends scheduling on all nodes, unless the pod excludes these nodes"
        yield claim_warning("GPU-D104", (*path, "requests"), f"{message}; {ends}", "Write ExactCount, and a count.")


def _all_are_too_many(spec: ClaimSpec, view: ClusterView, path: FieldPath, nodes: int) -> Iterator[PolicyFinding]:
    """Yield that all devices of some node are more than a claim can get: devices that are in use count."""
    for node, found in allocations((spec,), view, nodes):
        if found.exceeds_device_limit:
            name = view.fleet.nodes[node].name
            message = f"must be for at most {MAX_DEVICES} devices: all of node {name} are more"
            fix = "Write ExactCount, or selectors that match fewer devices of a node."
            yield claim_warning("GPU-D104", (*path, "requests"), f"{message}, which ends scheduling on all nodes", fix)
            return
