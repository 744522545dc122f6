"""A pod as LimitRanger's first pass leaves it, for pods that no API server has seen: of a file, or of a template."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.containers import Amounts as ContainerAmounts
from webhook.engine.containers import Items, amounts_of, is_short
from webhook.engine.limitrange.defaulting import LIMIT_RANGER_NOTE, note_of, ranged, stored
from webhook.engine.limitrange.holding import Holder, Holders, read
from webhook.errors import QuantityError, ReviewError
from webhook.model.apimachinery import canonical
from webhook.model.pods import Amount, Container, Pod, Resources, pod_of, without_nulls
from webhook.model.ranges import Amounts, Ranges

Json = dict[str, Any]
REMEMBERED = 512
"""Pods that are kept: those of one template come again and again."""


class Filled(NamedTuple):
    """What a pod holds after the pass: its containers, in order, and the pod itself; and the note."""

    containers: tuple[Resources, ...]
    init_containers: tuple[Resources, ...]
    whole: Resources | None
    note: str


def limited_pod(pod: Pod, ranges: Ranges) -> Pod:
    """A pod with what it does not name and its namespace's LimitRanges give; itself where they give nothing.

    What is written keeps its notation.
    """
    filled = _filled(pod, ranges)
    if filled is None:
        return pod
    spec, annotations = pod.spec, {**pod.metadata.annotations, LIMIT_RANGER_NOTE: filled.note}
    spec = replace(
        spec,
        containers=_each(spec.containers, filled.containers),
        init_containers=_each(spec.init_containers, filled.init_containers),
        resources=_beside(spec.resources, filled.whole) if spec.resources and filled.whole else spec.resources,
    )
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=spec)


def limited(pod: Json, ranges: Ranges) -> Json:
    """The same of plain data. What cannot be read comes back as it is: whoever judges it says why."""
    try:
        filled = _filled(pod_of(pod), ranges)
    except ReviewError:
        return pod
    if filled is None:
        return pod
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod["spec"])
    for kind, each in (("containers", filled.containers), ("initContainers", filled.init_containers)):
        if each:
            spec[kind] = [_holding(*pair) for pair in zip(without_nulls(spec[kind]), each, strict=True)]
    if filled.whole is not None:
        spec = _holding(spec, filled.whole)
    metadata["annotations"] = (metadata.get("annotations") or {}) | {LIMIT_RANGER_NOTE: filled.note}
    return {**pod, "metadata": metadata, "spec": spec}


def _each(containers: Iterable[Container], amounts: Iterable[Resources]) -> tuple[Container, ...]:
    pairs = zip(containers, amounts, strict=True)
    return tuple([replace(one, resources=_beside(one.resources, given)) for one, given in pairs])


def _beside(written: Resources, given: Resources) -> Resources:
    return Resources({**given.limits, **written.limits}, {**given.requests, **written.requests})


def _holding(holder: Json, given: Resources) -> Json:
    """A container, or the pod's spec, with every amount that it holds."""
    written = without_nulls(holder.get("resources")) or {}
    sides = {"limits": given.limits, "requests": given.requests}
    amounts = {side: {**some, **written.get(side, {})} for side, some in sides.items() if some}
    return {**holder, "resources": {**written, **amounts}}


def _filled(pod: Pod, ranges: Ranges) -> Filled | None:
    """What becomes of a pod; None where nothing does."""
    spec, amounts = pod.spec, amounts_of(pod.spec)
    names = tuple([container.name for container in (*spec.containers, *spec.init_containers)])
    whole = (tuple(spec.resources.limits.items()), tuple(spec.resources.requests.items())) if spec.resources else None
    work_out = _worked_out if is_short(amounts) else _worked_out.__wrapped__
    return work_out(ranges, names, amounts, whole)


@lru_cache(maxsize=REMEMBERED)
def _worked_out(
    ranges: Ranges, names: tuple[str, ...], amounts: ContainerAmounts, whole: tuple[Items, Items] | None
) -> Filled | None:
    main, init = amounts
    try:
        each = tuple([_holder(name, *one) for name, one in zip(names, (*main, *init), strict=True)])
        of_pod = None if whole is None else _holder("", *whole)
    except QuantityError:
        return None
    holders = stored(Holders(each[: len(main)], each[len(main) :], of_pod))
    note = note_of(holders, ranges)
    if note is None:
        return None
    after = ranged(holders, ranges)
    of_pod = after.whole
    return Filled(
        tuple(map(_written, after.containers)),
        tuple(map(_written, after.init_containers)),
        None if of_pod is None else _written(of_pod),
        note,
    )


def _holder(name: str, limits: Items, requests: Items, sidecar: bool = False) -> Holder:
    return Holder((), name, read(limits), read(requests), sidecar)


def _written(after: Holder) -> Resources:
    return Resources(_texts(after.limits), _texts(after.requests))


def _texts(amounts: Amounts) -> dict[str, Amount]:
    return {name: canonical(amount) for name, amount in amounts.items()}
