"""A pod as LimitRanger's first pass leaves it, for pods that no API server has seen: of a file, or of a template."""

from __future__ import annotations

from typing import Any

from webhook.engine.limitrange.defaulting import LIMIT_RANGER_NOTE, note_of, ranged, stored
from webhook.engine.limitrange.holding import LIMITS, REQUESTS, Holder, holders_of
from webhook.errors import QuantityError, ReviewError
from webhook.model.apimachinery import canonical
from webhook.model.pods import pod_of, without_nulls
from webhook.model.ranges import Ranges

Json = dict[str, Any]


def limited(pod: Json, ranges: Ranges) -> Json:
    """A pod with what it does not name and its namespace's LimitRanges give; the one given stays as it is.

    One that cannot be read comes back as it is: whoever judges it says why.
    """
    try:
        holders = stored(holders_of(pod_of(pod), {}, {}))
    except (ReviewError, QuantityError):
        return pod
    note = note_of(holders, ranges)
    if note is None:
        return pod
    after = ranged(holders, ranges)
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod["spec"])
    for kind, each in (("containers", after.containers), ("initContainers", after.init_containers)):
        if each:
            spec[kind] = [_holding(*pair) for pair in zip(without_nulls(spec[kind]), each, strict=True)]
    if after.whole is not None:
        spec = _holding(spec, after.whole)
    metadata["annotations"] = (metadata.get("annotations") or {}) | {LIMIT_RANGER_NOTE: note}
    return {**pod, "metadata": metadata, "spec": spec}


def _holding(holder: Json, amounts: Holder) -> Json:
    """A container, or the pod's spec, with every amount that it holds; those that are written keep their notation."""
    written = without_nulls(holder.get("resources")) or {}
    sides = {
        side: {name: canonical(amount) for name, amount in held.items()} | written.get(side, {})
        for side, held in ((LIMITS, amounts.limits), (REQUESTS, amounts.requests))
        if held
    }
    return {**holder, "resources": {**written, **sides}}
