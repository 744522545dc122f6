"""Would the namespace's LimitRanges take these amounts? The plain cases of LimitRanger's validating step.

Source: `plugin/pkg/admission/limitranger`: for each container, and for the pod as a whole, every LimitRange
checks the minimum, the maximum and the ratio of limit to request of the resources it names. A container that
names none of a resource gets the LimitRange's default first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.asking import Ask
from webhook.engine.remarks import Remark
from webhook.model.objects import LimitRange, LimitRangeItem
from webhook.model.paths import Path
from webhook.model.pods import Amount, Pod, Resources
from webhook.model.quantity import NANO, readable

LIMIT_RANGER_NOTE = "kubernetes.io/limit-ranger"
"""The annotation in which LimitRanger says what it put in. Anyone may write it."""


class Amounts(NamedTuple):
    """One container's amounts, as they would be after a change."""

    path: Path
    limits: Mapping[str, Amount]
    requests: Mapping[str, Amount]


def refusals(ranges: Sequence[LimitRange], containers: Sequence[Amounts], resources: frozenset[str]) -> list[Remark]:
    """Every reason why LimitRanger would refuse these containers for one of `resources`.

    Sums over the pod (type Pod) are taken over main containers and sidecars; init containers can only raise
    them, so a pod that passes here may still be refused for its init containers.
    """
    found: list[Remark] = []
    for limit_range in ranges:
        for item in limit_range.spec.limits:
            if item.type == "Container":
                for amounts in containers:
                    found += _container(limit_range, item, amounts, resources)
            elif item.type == "Pod":
                found += _pod(limit_range, item, containers, resources)
    return found


def _container(
    limit_range: LimitRange, item: LimitRangeItem, amounts: Amounts, resources: frozenset[str]
) -> Iterator[Remark]:
    for name in resources:
        limit = readable(amounts.limits.get(name, item.default.get(name)))
        request = readable(amounts.requests.get(name, item.default_request.get(name)))
        path = (*amounts.path, "resources", "limits", name)
        yield from _judge(limit_range, item, name, limit, limit if request is None else request, path)


def _pod(
    limit_range: LimitRange, item: LimitRangeItem, containers: Sequence[Amounts], resources: frozenset[str]
) -> Iterator[Remark]:
    for name in resources:
        limits = [readable(amounts.limits[name]) or 0 for amounts in containers if name in amounts.limits]
        requests = [readable(amounts.requests[name]) or 0 for amounts in containers if name in amounts.requests]
        limit = sum(limits) if limits else None
        yield from _judge(limit_range, item, name, limit, sum(requests) if requests else limit, ("spec",))


def _judge(
    limit_range: LimitRange, item: LimitRangeItem, name: str, limit: int | None, request: int | None, path: Path
) -> Iterator[Remark]:
    source = f"LimitRange {limit_range.metadata.name}"
    floor, ceiling = readable(item.min.get(name)), readable(item.max.get(name))
    ratio = readable(item.max_limit_request_ratio.get(name))
    if floor is not None and (request is None or request < floor):
        least = item.min[name]
        yield _remark(path, f"{name} of each {item.type} must be at least {least} ({source})", f"Write {least}.")
    if ceiling is not None and (limit is None or limit > ceiling):
        most = item.max[name]
        yield _remark(path, f"{name} of each {item.type} must be at most {most} ({source})", f"Write {most}.")
    if ratio is not None and (not limit or not request or limit * NANO > request * ratio):
        times = item.max_limit_request_ratio[name]
        text = f"{name} of each {item.type} must keep a limit of at most {times} times its request ({source})"
        yield _remark(path, text, "Raise the request.")


def _remark(path: Path, message: str, fix: str) -> Remark:
    return Remark("GPU-L201", path, message, fix)


def was_injected(ask: Ask, pod: Pod, ranges: Sequence[LimitRange]) -> bool:
    """Is this ask LimitRanger's, and not the user's?"""
    return injected(pod, ask.container.name, ask.container.resources, ask.resource.name, ranges)


def injected(pod: Pod, container: str, resources: Resources, name: str, ranges: Sequence[LimitRange]) -> bool:
    """Did LimitRanger put this amount in, rather than the user?

    Both must say so: a LimitRange of the namespace whose default is this very amount, and the note that
    LimitRanger leaves (which alone could be forged).
    """
    note = pod.metadata.annotations.get(LIMIT_RANGER_NOTE, "")
    if name not in note or not _note_names(note, container, name):
        return False
    amount = resources.limits.get(name, resources.requests.get(name))
    defaults = [
        side[name]
        for limit_range in ranges
        for item in limit_range.spec.limits
        if item.type == "Container"
        for side in (item.default, item.default_request)
        if name in side
    ]
    return any(readable(default) == readable(amount) for default in defaults)


def _note_names(note: str, container: str, name: str) -> bool:
    """Read "LimitRanger plugin set: a, b request for container X; a limit for container X"."""
    return any(
        name in part and part.rstrip().endswith(f"container {container}")
        for part in note.removeprefix("LimitRanger plugin set:").split(";")
    )
