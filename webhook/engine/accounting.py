"""The accounting resource: what every container's GPUs weigh, in thousandths of a whole card.

One number for every form, so that one ResourceQuota on `requests.rightslice.dev/gpu-milli` bounds them all. A whole
GPU is 1000. A MIG instance is its share of its card's memory or compute slices, whichever is larger; a share of a card
is 1000 through its replicas. Both round up: a card cut up may weigh some thousandths more than a card, never less.
Where one name weighs differently on the nodes that the pod may come to, the most counts.

What is more than an API server takes for a whole number weighs as much as that: no quota leaves so much.

A pod must never wait for it. So it is written only where an admin says that every scheduler ignores it, or where every
node that has what the pod asks for, and that its selectors allow, advertises enough of it. State, taints and room of
such a node are not asked: each of these may change while the pod waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from webhook.engine.gpu_requests import GpuRequest
from webhook.engine.limitrange import paths_below_minimum
from webhook.engine.mutation import PodMutation
from webhook.engine.pod_context import PodContext
from webhook.engine.violations import Violation
from webhook.model.apimachinery import MAX_MILLI
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.model.limit_ranges import NamespaceLimitRanges
from webhook.model.node_masks import union_masks
from webhook.model.pod_summary import allowed_nodes, node_constraints
from webhook.model.pods import Container, Pod, QuantityText
from webhook.model.pools import max_unit_milli
from webhook.model.quantity import NANO, parse_nano_or_none
from webhook.policy.policy_set import LimitRules


def write_accounting(case: PodContext, shape: PodMutation) -> None:
    """Write what every container's GPUs weigh, whatever stands there: a user's own value is never trusted."""
    weighed = gpu_milli_by_container(case, shape) if is_accounting_schedulable(case, shape) else {}
    for path, milli in weighed.items():
        _write_accounting_amount(shape, path, str(milli))
    zero_other_accounting(shape, case.view.ranges(case.request.namespace), weighed)


def is_accounting_schedulable(case: PodContext, shape: PodMutation) -> bool:
    """Will a pod that asks for the accounting resource find a node?"""
    if case.policies.accounting_ignored:
        return True
    fleet = case.view.fleet
    having = union_masks(
        fleet.nodes_advertising(_final_resource_name(case, shape, ask)) for ask in case.gpu_requests.requests
    )
    return fleet.all_advertise_accounting(having & _accounting_nodes(case, shape))


def gpu_milli_by_container(case: PodContext, shape: PodMutation) -> dict[FieldPath, int]:
    """What the GPUs of each container that asks weigh, once the pod has its shape."""
    nodes, fleet = _accounting_nodes(case, shape), case.view.fleet
    return _sum_by_container(
        (ask.path, ask.count * max_unit_milli(_final_resource_name(case, shape, ask), fleet, nodes))
        for ask in case.gpu_requests.requests
    )


def _accounting_nodes(case: PodContext, shape: PodMutation) -> int:
    return case.feasible.selected if case.pod.is_stored else case.feasible.matching_nodes(shape.required_node_affinity)


def _final_resource_name(case: PodContext, shape: PodMutation, ask: GpuRequest) -> str:
    sized = shape.fit is not None and not case.pod.is_stored
    return shape.fit.resource if sized and shape.fit is not None else ask.resource.name


def _sum_by_container(each: Iterable[tuple[FieldPath, int]]) -> dict[FieldPath, int]:
    found: dict[FieldPath, int] = {}
    for path, milli in each:
        found[path] = min(found.get(path, 0) + milli, MAX_MILLI)
    return found


def zero_other_accounting(
    shape: PodMutation, ranges: NamespaceLimitRanges, weighed: Collection[FieldPath] = ()
) -> None:
    """Write "0" where a container that is not weighed names the accounting resource.

    Where a LimitRange would refuse that for being too little, what is there stays: more than it weighs escapes no
    quota.
    """
    others = [path for path in _containers_naming_accounting(shape.pod) if path not in weighed]
    kept = _zeros_below_minimum(shape, others, ranges) if ranges and others else set()
    for path in others:
        if not kept & {path, ("spec",)}:
            _write_accounting_amount(shape, path, "0")


def _zeros_below_minimum(
    shape: PodMutation, others: Sequence[FieldPath], ranges: NamespaceLimitRanges
) -> set[FieldPath]:
    """Where a LimitRange would refuse zeros in these containers."""
    limits, requests = dict(shape.limits), dict(shape.requests)
    for path in others:
        limited, requested = _current_resources(shape, path)
        limits[path], requests[path] = {**limited, ACCOUNTING_RESOURCE: "0"}, {**requested, ACCOUNTING_RESOURCE: "0"}
    return paths_below_minimum(shape, ranges, limits, requests)


def names_accounting_resource(pod: Pod) -> bool:
    """Does any container name the accounting resource?"""
    return any(True for _ in _containers_naming_accounting(pod))


def _containers_naming_accounting(pod: Pod) -> Iterator[FieldPath]:
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            if ACCOUNTING_RESOURCE in container.resources.limits or ACCOUNTING_RESOURCE in container.resources.requests:
                yield "spec", kind, index


def _write_accounting_amount(shape: PodMutation, path: FieldPath, amount: str) -> None:
    limits, requests = _current_resources(shape, path)
    if _amount_equals(limits.get(ACCOUNTING_RESOURCE), amount) and _amount_equals(
        requests.get(ACCOUNTING_RESOURCE, amount), amount
    ):
        return
    shape.limits[path] = {**limits, ACCOUNTING_RESOURCE: amount}
    shape.requests[path] = {**requests, ACCOUNTING_RESOURCE: amount}
    shape.record_change("accounting")


def _current_resources(
    shape: PodMutation, path: FieldPath
) -> tuple[Mapping[str, QuantityText], Mapping[str, QuantityText]]:
    """Limits and requests of a container as they stand by now."""
    resources = _container_at(shape.pod, path).resources
    return shape.limits.get(path, resources.limits), shape.requests.get(path, resources.requests)


def _amount_equals(found: QuantityText | None, amount: str) -> bool:
    return parse_nano_or_none(found) == int(amount) * NANO


def _container_at(pod: Pod, path: FieldPath) -> Container:
    _, kind, index = path
    assert isinstance(index, int)
    return pod.spec.containers[index] if kind == "containers" else pod.spec.init_containers[index]


def accounting_mismatches(case: PodContext, shape: PodMutation) -> list[Violation]:
    """What stands in a pod that can no longer be changed, and is less than its GPUs weigh.

    Nodes may have changed since the pod was priced, here or on a replica that saw it earlier. So what its GPUs weighed
    on the nodes of a moment ago is right too, and nothing where it was left out then; more than they weigh escapes no
    quota.
    """
    if not case.pod.is_stored or not is_accounting_schedulable(case, shape) or not _was_accounting_schedulable(case):
        return []
    now, before = gpu_milli_by_container(case, shape), _gpu_milli_by_container_before(case)
    found: list[Violation] = []
    for path, milli in now.items():
        limits = _container_at(case.pod, path).resources.limits
        if not _covers_milli(limits.get(ACCOUNTING_RESOURCE), min(milli, before.get(path, milli))):
            have = limits.get(ACCOUNTING_RESOURCE, "none")
            message = f"{ACCOUNTING_RESOURCE} must be {milli}, what its GPUs weigh (found {have})"
            field = (*path, "resources", "limits", ACCOUNTING_RESOURCE)
            found.append(Violation("GPU-Q302", field, message, "Leave it out: it is written when the pod is created."))
    return found


def _was_accounting_schedulable(case: PodContext) -> bool:
    """The same question as `is_accounting_schedulable`, before the nodes changed last."""
    fleet = case.view.before
    if fleet is None or case.policies.accounting_ignored:
        return True
    having = union_masks(fleet.nodes_advertising(ask.resource.name) for ask in case.gpu_requests.requests)
    return fleet.all_advertise_accounting(having & allowed_nodes(node_constraints(case.pod), fleet))


def _gpu_milli_by_container_before(case: PodContext) -> dict[FieldPath, int]:
    """What the GPUs of a pod weighed before the nodes changed last."""
    fleet = case.view.before
    if fleet is None:
        return {}
    nodes = allowed_nodes(node_constraints(case.pod), fleet)
    return _sum_by_container(
        (ask.path, ask.count * max_unit_milli(ask.resource.name, fleet, nodes)) for ask in case.gpu_requests.requests
    )


def _covers_milli(found: QuantityText | None, milli: int) -> bool:
    amount = parse_nano_or_none(found)
    return amount is not None and amount >= milli * NANO


def missing_accounting(case: PodContext, shape: PodMutation, sections: Sequence[LimitRules]) -> list[Violation]:
    """That the accounting resource is wanted and is not written.

    Args:
        sections: Those that bind together with the one that wants it: of one on trial, others on trial too.
    """
    if is_accounting_schedulable(case, shape) or not case.view.fleet.nodes:
        return []
    if any(section.accounting and section.scheduler_ignores_accounting for section in sections):
        return []
    message = (
        f"{ACCOUNTING_RESOURCE} is left out: not every node with these GPUs that the pod may come to "
        "advertises enough of it, "
        "and no scheduler is known to ignore it"
    )
    fix = "For admins: rightslice accounting check says what is missing."
    return [Violation("GPU-Q305", ("spec",), message, fix, at_most=PolicyMode.WARN)]
