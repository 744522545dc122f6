"""Taints and tolerations as the scheduler reads them.

Source: `k8s.io/api/core/v1`, Toleration.ToleratesTaint; the comparing operators Gt and Lt are off everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webhook.model.objects import Taint
from webhook.model.pods import Toleration

HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that exclude pods; PreferNoSchedule only ranks nodes."""

CORDON_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""A cordoned node counts as having it, whether it carries it yet or not (plugin NodeUnschedulable)."""


def tolerates_taint(toleration: Toleration, taint: Taint) -> bool:
    """Return whether one toleration covers one taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def tolerates_all(tolerations: Sequence[Toleration], taints: Iterable[Taint]) -> bool:
    """Return whether every taint is covered by some toleration."""
    for taint in taints:
        for toleration in tolerations:
            if tolerates_taint(toleration, taint):
                break
        else:
            return False
    return True


def taint_sort_key(taint: Taint) -> tuple[str, str, str]:
    return (taint.key, taint.value, taint.effect)
