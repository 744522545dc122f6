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


def tolerates_all(tolerations: Sequence[Toleration], taints: Iterable[Taint]) -> bool:
    """Return whether every taint is covered by some toleration."""
    for taint in taints:
        for one in tolerations:
            if one.effect not in ("", taint.effect) or one.key not in ("", taint.key):
                continue
            if one.operator == "Exists" or (one.operator in ("", "Equal") and one.value == taint.value):
                break
        else:
            return False
    return True


def taint_sort_key(taint: Taint) -> tuple[str, str, str]:
    return (taint.key, taint.value, taint.effect)
