"""What a pod will be once everything but its size is added: a slice must fit that pod, not the one that came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from webhook.engine.feasible_nodes import FeasibleNodes, NodeMaskTest
from webhook.engine.limits import policy_default_requests
from webhook.engine.matched_policies import PodAdditions
from webhook.engine.pod_context import PodContext
from webhook.engine.workload_labels import host_spread_constraint
from webhook.model.enums import PolicyMode
from webhook.model.pods import Container, NodeSelectorRequirement, Pod, QuantityText, TopologySpreadConstraint
from webhook.policy.policy_set import LimitRules


def project_feasible_nodes(case: PodContext, mode: PolicyMode) -> FeasibleNodes:
    """The nodes for a right-sizing to choose from, and the pod that has to fit there.

    Args:
        mode: That of the right-sizing. An enforced one reckons with what is enforced beside it; one on trial with
            everything, as if it were all enforced together.
    """
    rules = case.policies
    adds = rules.additions if mode is PolicyMode.ENFORCE else rules.unenforced_additions
    if adds is rules.additions and not adds.restricts_nodes:
        return case.feasible
    return _feasible_with_additions(case, adds)


def project_without_fit(case: PodContext, mode: PolicyMode) -> FeasibleNodes | None:
    """The same for the nodes that the pod will be held to if nothing becomes of its size; None where they are the same.

    A requirement that leaves only slices is then not added. Where another is, which those slices do not meet, the next
    look would not reckon with the first.
    """
    rules = case.policies
    adds = rules.additions if mode is PolicyMode.ENFORCE else rules.unenforced_additions
    if len(adds.required) < 2 or not case.offer_nodes:
        return None
    return _feasible_with_additions(
        case, adds, leaves=lambda left: case.leaves_suitable_node(left & case.offer_nodes, case.offer_nodes)
    )


def _feasible_with_additions(case: PodContext, adds: PodAdditions, leaves: NodeMaskTest | None = None) -> FeasibleNodes:
    pod, markers, required = _project_pod(case, adds), adds.gpu_taints, adds.required
    return FeasibleNodes(case.view, pod, adds.tolerations, markers=markers, required=required, leaves=leaves)


def _project_pod(case: PodContext, adds: PodAdditions) -> Pod:
    """The pod with the requests and the spread that it will be given."""
    spec, given = case.pod.spec, default_requests(case, adds.defaults)
    if given:
        containers = [_with_default_requests(each, given.get(index, {})) for index, each in enumerate(spec.containers)]
        spec = replace(spec, containers=tuple(containers))
    constraint = host_spread_constraint(case.pod, required=True) if adds.spread else None
    if constraint is not None:
        tie = TopologySpreadConstraint(constraint["topologyKey"], constraint["whenUnsatisfiable"])
        spec = replace(spec, topology_spread_constraints=(*spec.topology_spread_constraints, tie))
    return case.pod if spec is case.pod.spec else replace(case.pod, spec=spec)


def fits_with_defaults(case: PodContext, required: Sequence[NodeSelectorRequirement]) -> bool:
    """Does a pod that keeps its size still fit on a node once it has the requests that policies have a default for?

    What could run now must be able to run now with them. What cannot must fit on a node once that is empty. Where no
    node is known for it, nothing is.

    Args:
        required: What has been required of its nodes by now: it is judged as the next look will find it.
    """
    grown, allowed = (
        project_feasible_nodes(case, PolicyMode.ENFORCE),
        case.offer_nodes & case.feasible.matching_nodes(required),
    )
    nodes = allowed & case.feasible.nodes
    if grown.pod is case.pod:
        return True
    if case.fits_empty_node(case.pod, allowed) and not case.fits_empty_node(grown.pod, allowed):
        return False
    if not nodes or _has_free_gpus(grown, case, nodes):
        return True
    return not _has_free_gpus(case.feasible, case, nodes) and case.has_large_enough_node(grown.pod, nodes)


def _has_free_gpus(reach: FeasibleNodes, case: PodContext, nodes: int) -> bool:
    return all(reach.has_room(name, count, nodes) for name, count in case.gpu_requests.totals.items())


def _with_default_requests(container: Container, given: Mapping[str, QuantityText]) -> Container:
    resources = container.resources
    return replace(container, resources=replace(resources, requests={**given, **resources.requests}))


def default_requests(case: PodContext, sections: Sequence[LimitRules]) -> dict[int, Mapping[str, QuantityText]]:
    """Requests that policies have a default for, by container index, the first policy's first.

    Nothing where a LimitRange or quota of the namespace has a say. Those are checked after us: a request that nobody
    asked for must not be what gets a pod refused.
    """
    namespace = case.request.namespace
    if case.view.limit_ranges(namespace) or case.view.quotas(namespace):
        return {}
    given: dict[int, Mapping[str, QuantityText]] = {}
    for section in sections:
        for index, additions in policy_default_requests(section, case.pod, case.gpu_requests).items():
            given[index] = {**additions, **given[index]} if index in given else additions
    return given
