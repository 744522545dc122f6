"""Taints and tolerations, as the scheduler reads them (`k8s.io/component-helpers/scheduling/corev1`)."""

from __future__ import annotations

from collections.abc import Iterable

from webhook.model.objects import Taint
from webhook.model.pods import Toleration


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Does one toleration cover one taint? An empty key with Exists covers every taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == taint.value


def covered(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Does any of the tolerations cover a taint?"""
    return any(tolerates(toleration, taint) for toleration in tolerations)
