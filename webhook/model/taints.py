"""Taints and tolerations as the scheduler reads them.

Source: `k8s.io/api/core/v1`, Toleration.ToleratesTaint; the comparing operators Gt and Lt are off everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webhook.model.objects import Taint
from webhook.model.pods import Toleration

HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep pods out; PreferNoSchedule only ranks nodes."""


CORDON_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What a cordoned node counts as having, whether it carries it yet or not (plugin NodeUnschedulable)."""


def tolerates_taint(toleration: Toleration, taint: Taint) -> bool:
    """Does one toleration cover one taint?"""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def tolerates_all(tolerations: Sequence[Toleration], taints: Iterable[Taint]) -> bool:
    """Is every taint covered by some toleration?"""
    for taint in taints:
        for toleration in tolerations:
            if tolerates_taint(toleration, taint):
                break
        else:
            return False
    return True


def hard_taints(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """The taints that keep pods out, in one order whatever the node's."""
    kept = {taint for taint in taints if taint.effect in HARD_EFFECTS}
    return tuple(sorted(kept, key=lambda taint: (taint.key, taint.value, taint.effect)))
