"""The accounting resource: what every container's GPUs weigh, in thousandths of a whole card.

One number for every form, so that one ResourceQuota on `requests.rightslice.dev/gpu-milli` bounds them all. A whole
GPU is 1000. A MIG instance is its share of its card's memory or compute slices, whichever is larger; a share of a card
is 1000 through its replicas. Both round up: a card cut up may weigh some thousandths more than a card, never less.
Where one name weighs differently on the nodes that the pod may come to, the most counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.case import Case
from webhook.engine.remarks import Remark
from webhook.engine.shape import Shape
from webhook.model.paths import Path
from webhook.model.pods import Amount, Container, Pod
from webhook.model.pools import unit_milli
from webhook.model.quantity import NANO, readable
from webhook.model.resources import ACCOUNTING


def account(case: Case, shape: Shape) -> None:
    """Write what every container's GPUs weigh, whatever stands there: a user's own value is never trusted."""
    for path, milli in weights(case, shape).items():
        _write(shape, path, str(milli))
    clear_others(shape, case)


def weights(case: Case, shape: Shape) -> dict[Path, int]:
    """What the GPUs of each container that asks weigh, once the pod has its shape."""
    return _weights(case, case.reach.narrowed(shape.required), shape.fit.resource if shape.fit is not None else "")


def _weights(case: Case, nodes: int, instead: str = "") -> dict[Path, int]:
    """What they weigh on the nodes of a mask, where the resource `instead` is given for what is asked, if any is."""
    found: dict[Path, int] = {}
    for ask in case.asked.asks:
        found[ask.path] = found.get(ask.path, 0) + ask.count * _unit(case, instead or ask.resource.name, nodes)
    return found


def _unit(case: Case, name: str, nodes: int) -> int:
    """The most that one unit of a name weighs on the nodes of a mask; by its name alone where none offers it."""
    fleet = case.view.fleet
    offered = [offer.gpu_milli for offer in fleet.by_resource.get(name, ()) if offer.nodes & nodes]
    return max(offered) if offered else unit_milli(name, fleet)


def clear_others(shape: Shape, case: Case | None = None) -> None:
    """Write "0" where a container without GPUs names the accounting resource."""
    asking = {ask.path for ask in case.asked.asks} if case is not None else set()
    for path in _naming(shape.pod):
        if path not in asking:
            _write(shape, path, "0")


def names_accounting(pod: Pod) -> bool:
    """Does any container name the accounting resource?"""
    return any(True for _ in _naming(pod))


def _naming(pod: Pod) -> Iterator[Path]:
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            if ACCOUNTING in container.resources.limits or ACCOUNTING in container.resources.requests:
                yield "spec", kind, index


def _write(shape: Shape, path: Path, amount: str) -> None:
    resources = _container(shape.pod, path).resources
    limits = shape.limits.get(path, resources.limits)
    requests = shape.requests.get(path, resources.requests)
    if _is(limits.get(ACCOUNTING), amount) and _is(requests.get(ACCOUNTING, amount), amount):
        return
    shape.limits[path] = {**limits, ACCOUNTING: amount}
    shape.requests[path] = {**requests, ACCOUNTING: amount}
    shape.note("accounting")


def _is(found: Amount | None, amount: str) -> bool:
    return readable(found) == int(amount) * NANO


def _container(pod: Pod, path: Path) -> Container:
    _, kind, index = path
    assert isinstance(index, int)
    return pod.spec.containers[index] if kind == "containers" else pod.spec.init_containers[index]


def wrong_values(case: Case) -> list[Remark]:
    """What stands in a pod that can no longer be changed, and is not what its GPUs weigh as they are.

    Such a pod has its uid, which the API server gives after every mutating webhook: one that has none will still get
    the right value.
    """
    if not case.pod.metadata.uid:
        return []
    found: list[Remark] = []
    for path, milli in _weights(case, case.reach.selected).items():
        limits = _container(case.pod, path).resources.limits
        if not _is(limits.get(ACCOUNTING), str(milli)):
            have = limits.get(ACCOUNTING, "none")
            message = f"{ACCOUNTING} must be {milli}, what its GPUs weigh (found {have})"
            field = (*path, "resources", "limits", ACCOUNTING)
            found.append(Remark("GPU-Q302", field, message, "Leave it out: it is written when the pod is created."))
    return found
