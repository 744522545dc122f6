"""What a pod will be once everything but its size is added: a slice must fit that pod, not the one that came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from webhook.engine.case import Case
from webhook.engine.limits import defaults
from webhook.engine.reach import Leaves, Reach
from webhook.engine.rules import Additions
from webhook.engine.siblings import spread_over_hosts
from webhook.model.modes import Mode
from webhook.model.pods import Amount, Container, Pod, Requirement, SpreadConstraint
from webhook.policy.compiled import Limits


def foreseen(case: Case, mode: Mode) -> Reach:
    """The nodes for a right-sizing to choose from, and the pod that has to fit there.

    Args:
        mode: That of the right-sizing. An enforced one reckons with what is enforced beside it; one on trial with
            everything, as if it were all enforced together.
    """
    rules = case.rules
    adds = rules.adds if mode is Mode.ENFORCE else rules.trial
    if adds is rules.adds and not adds.narrowing:
        return case.reach
    return _reach(case, adds)


def left_as_it_is(case: Case, mode: Mode) -> Reach | None:
    """The same for the nodes that the pod will be held to if nothing becomes of its size; None where they are the same.

    A requirement that leaves only slices is then not added. Where another is, which those slices do not meet, the next
    look would not reckon with the first.
    """
    rules = case.rules
    adds = rules.adds if mode is Mode.ENFORCE else rules.trial
    if len(adds.required) < 2 or not case.offered:
        return None
    return _reach(case, adds, leaves=lambda left: case.leaves_one(left & case.offered, case.offered))


def _reach(case: Case, adds: Additions, leaves: Leaves | None = None) -> Reach:
    pod, markers, required = _grown(case, adds), adds.markers, adds.required
    return Reach(case.view, pod, adds.tolerations, markers=markers, required=required, leaves=leaves)


def _grown(case: Case, adds: Additions) -> Pod:
    """The pod with the requests and the spread that it will be given."""
    spec, given = case.pod.spec, requests_given(case, adds.defaults)
    if given:
        containers = [_asking(each, given.get(index, {})) for index, each in enumerate(spec.containers)]
        spec = replace(spec, containers=tuple(containers))
    constraint = spread_over_hosts(case.pod, required=True) if adds.spread else None
    if constraint is not None:
        tie = SpreadConstraint(constraint["topologyKey"], constraint["whenUnsatisfiable"])
        spec = replace(spec, topology_spread_constraints=(*spec.topology_spread_constraints, tie))
    return case.pod if spec is case.pod.spec else replace(case.pod, spec=spec)


def bears_defaults(case: Case, required: Sequence[Requirement]) -> bool:
    """Does a pod that keeps its size still fit on a node once it has the requests that policies have a default for?

    What could run now must be able to run now with them. What cannot must fit on a node once that is empty. Where no
    node is known for it, nothing is.

    Args:
        required: What has been required of its nodes by now: it is judged as the next look will find it.
    """
    grown, allowed = foreseen(case, Mode.ENFORCE), case.offered & case.reach.narrowed(required)
    nodes = allowed & case.reach.nodes
    if grown.pod is case.pod:
        return True
    if case.fits(case.pod, allowed) and not case.fits(grown.pod, allowed):
        return False
    if not nodes or _has_room(grown, case, nodes):
        return True
    return not _has_room(case.reach, case, nodes) and case.holds(grown.pod, nodes)


def _has_room(reach: Reach, case: Case, nodes: int) -> bool:
    return all(reach.has_room(name, count, nodes) for name, count in case.asked.totals.items())


def _asking(container: Container, given: Mapping[str, Amount]) -> Container:
    resources = container.resources
    return replace(container, resources=replace(resources, requests={**given, **resources.requests}))


def requests_given(case: Case, sections: Sequence[Limits]) -> dict[int, Mapping[str, Amount]]:
    """Requests that policies have a default for, by container index, the first policy's first.

    Nothing where a LimitRange or quota of the namespace has a say. Those are checked after us: a request that nobody
    asked for must not be what gets a pod refused.
    """
    namespace = case.request.namespace
    if case.view.limit_ranges(namespace) or case.view.quotas(namespace):
        return {}
    given: dict[int, Mapping[str, Amount]] = {}
    for section in sections:
        for index, additions in defaults(section, case.pod, case.asked).items():
            given[index] = {**additions, **given[index]} if index in given else additions
    return given
