"""A pod as LimitRanger's first pass leaves it, for pods that no API server has seen: of a file, or of a template."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.containers import amounts_of, is_short
from webhook.engine.limitrange.defaulting import LIMIT_RANGER_NOTE, note_of, ranged, stored
from webhook.engine.limitrange.holding import Holder, holders_of
from webhook.errors import QuantityError, ReviewError
from webhook.model.apimachinery import Quantity, canonical
from webhook.model.bounded import Bounded
from webhook.model.pods import Amount, Container, Pod, Resources, pod_of, without_nulls
from webhook.model.ranges import Ranges

Json = dict[str, Any]
REMEMBERED = 512
"""Pods that are kept: those of one template come again and again."""


class Filled(NamedTuple):
    """What a pod is after the pass: limits and requests of its containers, in order, and of itself; and the note."""

    containers: tuple[Resources, ...]
    init_containers: tuple[Resources, ...]
    whole: Resources | None
    note: str


_KNOWN: Bounded[Hashable, Filled | None] = Bounded(REMEMBERED)


def limited_pod(pod: Pod, ranges: Ranges) -> Pod:
    """A pod with what it does not name and its namespace's LimitRanges give; itself where they give nothing."""
    filled = _filled(pod, ranges)
    if filled is None:
        return pod
    spec, annotations = pod.spec, {**pod.metadata.annotations, LIMIT_RANGER_NOTE: filled.note}
    spec = replace(
        spec,
        containers=_each(spec.containers, filled.containers),
        init_containers=_each(spec.init_containers, filled.init_containers),
        resources=filled.whole,
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


def _filled(pod: Pod, ranges: Ranges) -> Filled | None:
    """What becomes of a pod; None where nothing does. Remembered."""
    spec, amounts = pod.spec, amounts_of(pod.spec)
    if not is_short(amounts):
        return _worked_out(pod, ranges)
    names = tuple([container.name for container in (*spec.containers, *spec.init_containers)])
    whole = (*spec.resources.limits.items(), None, *spec.resources.requests.items()) if spec.resources else None
    key = (ranges, amounts, names, whole)
    try:
        return _KNOWN[key]
    except KeyError:
        return _KNOWN.keep(key, _worked_out(pod, ranges))


def _worked_out(pod: Pod, ranges: Ranges) -> Filled | None:
    try:
        holders = stored(holders_of(pod, {}, {}))
    except QuantityError:
        return None
    note = note_of(holders, ranges)
    if note is None:
        return None
    after, spec = ranged(holders, ranges), pod.spec
    return Filled(
        tuple(map(_amounts, spec.containers, after.containers)),
        tuple(map(_amounts, spec.init_containers, after.init_containers)),
        None if spec.resources is None or after.whole is None else _kept(spec.resources, after.whole),
        note,
    )


def _amounts(container: Container, after: Holder) -> Resources:
    return _kept(container.resources, after)


def _kept(written: Resources, after: Holder) -> Resources:
    """All amounts; those that are written keep their notation."""
    return replace(
        written,
        limits=_texts(after.limits) | written.limits,
        requests=_texts(after.requests) | written.requests,
    )


def _texts(amounts: Mapping[str, Quantity]) -> dict[str, Amount]:
    return {name: canonical(amount) for name, amount in amounts.items()}


def _each(containers: Iterable[Container], amounts: Iterable[Resources]) -> tuple[Container, ...]:
    return tuple([replace(one, resources=given) for one, given in zip(containers, amounts, strict=True)])


def _holding(holder: Json, amounts: Resources) -> Json:
    """A container, or the pod's spec, with every amount that it holds."""
    written = without_nulls(holder.get("resources")) or {}
    sides = {"limits": amounts.limits, "requests": amounts.requests}
    return {**holder, "resources": {**written, **{side: held for side, held in sides.items() if held}}}
