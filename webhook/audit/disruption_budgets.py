"""Drains of nodes that PodDisruptionBudgets forbid or delay.

The API server evicts no pod that has several budgets. The evictions that the status of a budget allows count; without
one, those of its spec, as if all pods were healthy.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.audit.gpu_time import bound_node
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.pod_audit import is_active_pod
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.field_paths import map_at
from webhook.model.filters.volume_binding import selects_labels
from webhook.model.pods import DEFAULT_NAMESPACE, PodLabelSelector
from webhook.placement.node_layouts import DrainLimit
from webhook.well_known import Json


class DisruptionBudget(NamedTuple):
    """A PodDisruptionBudget, and how many of its pods may be evicted now."""

    namespace: str
    name: str
    selector: PodLabelSelector
    allowed: int

    @property
    def path(self) -> str:
        """Its namespace and name."""
        return f"{self.namespace}/{self.name}"

    def selects(self, pod: Json) -> bool:
        """Return whether it is a budget of a pod."""
        metadata = map_at(pod, "metadata")
        return metadata.get("namespace", DEFAULT_NAMESPACE) == self.namespace and selects_labels(
            self.selector, map_at(metadata, "labels")
        )


def drain_limits(documents: Iterable[SourceObject | SkippedDocument]) -> dict[str, DrainLimit]:
    """Return for each node what PodDisruptionBudgets say about its drain, which leaves pods of DaemonSets.

    Args:
        documents: All budgets and pods as stored; other objects are passed over.
    """
    objects = [each.data for each in documents if isinstance(each, SourceObject)]
    budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    active = [each for each in objects if each["kind"] == "Pod" and is_active_pod(each)] if budgets else []
    known = [found for budget in budgets if (found := _read_budget(budget, active))]
    evicted: defaultdict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for pod in active if known else ():
        if (node := bound_node(pod)) and not _stays_in_a_drain(pod):
            evicted[node][tuple(number for number, each in enumerate(known) if each.selects(pod))] += 1
    return {node: _drain_limit(known, counts) for node, counts in evicted.items()}


def _drain_limit(known: Sequence[DisruptionBudget], pods: Mapping[tuple[int, ...], int]) -> DrainLimit:
    """Return the limit of a node whose pods have some of the known budgets each."""
    evictions = Counter[int]()
    for numbers, count in pods.items():
        evictions.update(dict.fromkeys(numbers, count))
    forbidden = sorted(known[number].path for number in evictions if known[number].allowed <= 0)
    if forbidden:
        return DrainLimit(f"PodDisruptionBudget {forbidden[0]} allows no eviction")
    if several := sorted(sorted(known[number].path for number in numbers) for numbers in pods if len(numbers) > 1):
        return DrainLimit(f"a pod with several PodDisruptionBudgets ({', '.join(several[0])}) cannot be evicted")
    return DrainLimit(waits=any(count > known[number].allowed for number, count in evictions.items()))


def _stays_in_a_drain(pod: Json) -> bool:
    metadata = map_at(pod, "metadata")
    owners = metadata.get("ownerReferences") or ()
    return MIRROR_ANNOTATION in map_at(metadata, "annotations") or any(
        each.get("kind") == "DaemonSet" and each.get("controller") for each in owners
    )


def _read_budget(budget: Json, pods: Iterable[Json]) -> DisruptionBudget | None:
    """Return a budget with the evictions that its status allows, else its spec; None without selector.

    One whose selector cannot be read allows no eviction in its namespace.
    """
    metadata, spec = map_at(budget, "metadata"), map_at(budget, "spec")
    if not isinstance(spec.get("selector"), dict):
        return None
    of_all = PodLabelSelector()
    found = DisruptionBudget(metadata.get("namespace", DEFAULT_NAMESPACE), metadata.get("name", ""), of_all, 0)
    try:
        found = found._replace(selector=msgspec.convert(spec["selector"], PodLabelSelector))
    except msgspec.ValidationError:
        return found
    allowed = map_at(budget, "status").get("disruptionsAllowed")
    if not isinstance(allowed, int):
        allowed = _allowed_by_spec(spec, sum(map(found.selects, pods)))
    return found._replace(allowed=allowed)


def _allowed_by_spec(spec: Json, pods: int) -> int:
    """Return the evictions that a budget allows if all of its pods are healthy; 0 if its amount cannot be read."""
    if (most := spec.get("maxUnavailable")) is not None:
        return _amount_of(most, pods, otherwise=0)
    return pods - _amount_of(spec.get("minAvailable", 0), pods, otherwise=pods)


def _amount_of(amount: object, pods: int, *, otherwise: int) -> int:
    """Return a number of pods, or a part of them in percent, rounded up as Kubernetes does."""
    percent = re.fullmatch(r"([0-9]{1,4})%", str(amount), re.ASCII)
    return -(-int(percent[1]) * pods // 100) if percent else amount if isinstance(amount, int) else otherwise
