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

from webhook.engine.asking import Ask
from webhook.engine.case import Case
from webhook.engine.limitrange import too_small
from webhook.engine.remarks import Remark
from webhook.engine.shape import Shape
from webhook.model.apimachinery import MAX_MILLI
from webhook.model.lines import nodes_of, where_of
from webhook.model.masks import union
from webhook.model.modes import Mode
from webhook.model.paths import Path
from webhook.model.pods import Amount, Container, Pod
from webhook.model.pools import most_milli
from webhook.model.quantity import NANO, readable
from webhook.model.ranges import Ranges
from webhook.model.resources import ACCOUNTING
from webhook.policy.compiled import Limits


def account(case: Case, shape: Shape) -> None:
    """Write what every container's GPUs weigh, whatever stands there: a user's own value is never trusted."""
    weighed = weights(case, shape) if takes_accounting(case, shape) else {}
    for path, milli in weighed.items():
        _write(shape, path, str(milli))
    clear_others(shape, case.view.ranges(case.request.namespace), weighed)


def takes_accounting(case: Case, shape: Shape) -> bool:
    """Will a pod that asks for the accounting resource find a node?"""
    if case.rules.ignored:
        return True
    fleet = case.view.fleet
    having = union(fleet.advertising(_name(case, shape, ask)) for ask in case.asked.asks)
    return fleet.all_take(having & _nodes(case, shape))


def weights(case: Case, shape: Shape) -> dict[Path, int]:
    """What the GPUs of each container that asks weigh, once the pod has its shape."""
    nodes, fleet = _nodes(case, shape), case.view.fleet
    return _added((ask.path, ask.count * most_milli(_name(case, shape, ask), fleet, nodes)) for ask in case.asked.asks)


def _nodes(case: Case, shape: Shape) -> int:
    return case.reach.selected if case.pod.final else case.reach.narrowed(shape.required)


def _name(case: Case, shape: Shape, ask: Ask) -> str:
    sized = shape.fit is not None and not case.pod.final
    return shape.fit.resource if sized and shape.fit is not None else ask.resource.name


def _added(each: Iterable[tuple[Path, int]]) -> dict[Path, int]:
    found: dict[Path, int] = {}
    for path, milli in each:
        found[path] = min(found.get(path, 0) + milli, MAX_MILLI)
    return found


def clear_others(shape: Shape, ranges: Ranges, weighed: Collection[Path] = ()) -> None:
    """Write "0" where a container that is not weighed names the accounting resource.

    Where a LimitRange would refuse that for being too little, what is there stays: more than it weighs escapes no
    quota.
    """
    others = [path for path in _naming(shape.pod) if path not in weighed]
    kept = _too_small(shape, others, ranges) if ranges and others else set()
    for path in others:
        if not kept & {path, ("spec",)}:
            _write(shape, path, "0")


def _too_small(shape: Shape, others: Sequence[Path], ranges: Ranges) -> set[Path]:
    """Where a LimitRange would refuse zeros in these containers."""
    limits, requests = dict(shape.limits), dict(shape.requests)
    for path in others:
        limited, requested = _sides(shape, path)
        limits[path], requests[path] = {**limited, ACCOUNTING: "0"}, {**requested, ACCOUNTING: "0"}
    return too_small(shape, ranges, limits, requests)


def names_accounting(pod: Pod) -> bool:
    """Does any container name the accounting resource?"""
    return any(True for _ in _naming(pod))


def _naming(pod: Pod) -> Iterator[Path]:
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            if ACCOUNTING in container.resources.limits or ACCOUNTING in container.resources.requests:
                yield "spec", kind, index


def _write(shape: Shape, path: Path, amount: str) -> None:
    limits, requests = _sides(shape, path)
    if _is(limits.get(ACCOUNTING), amount) and _is(requests.get(ACCOUNTING, amount), amount):
        return
    shape.limits[path] = {**limits, ACCOUNTING: amount}
    shape.requests[path] = {**requests, ACCOUNTING: amount}
    shape.note("accounting")


def _sides(shape: Shape, path: Path) -> tuple[Mapping[str, Amount], Mapping[str, Amount]]:
    """Limits and requests of a container as they stand by now."""
    resources = _container(shape.pod, path).resources
    return shape.limits.get(path, resources.limits), shape.requests.get(path, resources.requests)


def _is(found: Amount | None, amount: str) -> bool:
    return readable(found) == int(amount) * NANO


def _container(pod: Pod, path: Path) -> Container:
    _, kind, index = path
    assert isinstance(index, int)
    return pod.spec.containers[index] if kind == "containers" else pod.spec.init_containers[index]


def wrong_values(case: Case, shape: Shape) -> list[Remark]:
    """What stands in a pod that can no longer be changed, and is less than its GPUs weigh.

    Nodes may have changed since the pod was priced, here or on a replica that saw it earlier. So what its GPUs weighed
    on the nodes of a moment ago is right too, and nothing where it was left out then; more than they weigh escapes no
    quota.
    """
    if not case.pod.final or not takes_accounting(case, shape) or not _took_accounting(case):
        return []
    now, before = weights(case, shape), _weights_before(case)
    found: list[Remark] = []
    for path, milli in now.items():
        limits = _container(case.pod, path).resources.limits
        if not _is_least(limits.get(ACCOUNTING), min(milli, before.get(path, milli))):
            have = limits.get(ACCOUNTING, "none")
            message = f"{ACCOUNTING} must be {milli}, what its GPUs weigh (found {have})"
            field = (*path, "resources", "limits", ACCOUNTING)
            found.append(Remark("GPU-Q302", field, message, "Leave it out: it is written when the pod is created."))
    return found


def _took_accounting(case: Case) -> bool:
    """The same question as `takes_accounting`, before the nodes changed last."""
    fleet = case.view.before
    if fleet is None or case.rules.ignored:
        return True
    having = union(fleet.advertising(ask.resource.name) for ask in case.asked.asks)
    return fleet.all_take(having & nodes_of(where_of(case.pod), fleet))


def _weights_before(case: Case) -> dict[Path, int]:
    """What the GPUs of a pod weighed before the nodes changed last."""
    fleet = case.view.before
    if fleet is None:
        return {}
    nodes = nodes_of(where_of(case.pod), fleet)
    return _added((ask.path, ask.count * most_milli(ask.resource.name, fleet, nodes)) for ask in case.asked.asks)


def _is_least(found: Amount | None, milli: int) -> bool:
    amount = readable(found)
    return amount is not None and amount >= milli * NANO


def left_out(case: Case, shape: Shape, sections: Sequence[Limits]) -> list[Remark]:
    """That the accounting resource is wanted and is not written.

    Args:
        sections: Those that bind together with the one that wants it: of one on trial, others on trial too.
    """
    if takes_accounting(case, shape) or not case.view.fleet.nodes:
        return []
    if any(section.accounting and section.ignored for section in sections):
        return []
    message = (
        f"{ACCOUNTING} is left out: not every node with these GPUs that the pod may come to advertises enough of it, "
        "and no scheduler is known to ignore it"
    )
    fix = "For admins: rightslice accounting check says what is missing."
    return [Remark("GPU-Q305", ("spec",), message, fix, at_most=Mode.WARN)]
