"""The changes of a pod, collected by the sections of step 5; `patch` turns them into operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from webhook.engine.gpu_requests import GpuRequest
from webhook.model.decisions import OfferChoice
from webhook.model.field_paths import FieldPath
from webhook.model.pods import NodeSelectorRequirement, Pod, QuantityText, Toleration

Json = dict[str, Any]


class PodMutation(msgspec.Struct):
    """Additions to a pod and replacements in it.

    Attributes:
        limits: New limits by container path, whole maps; likewise `requests`.
        original_resources: GPU amounts before right-sizing, by container name.
        applied_choice: The chosen offer, if it is applied.
        required_node_affinity: Expressions to AND into every required node affinity term.
        preferred_node_affinity: Terms to add; likewise for pod affinity.
        annotations: Annotations to add, without the decision record.
        changed: What was changed, one word each, in order.
        policy: The policy that makes the next changes, or several.
        changes_by_policy: The words of `changed`, by policy.
    """

    pod: Pod
    limits: dict[FieldPath, dict[str, QuantityText]] = {}
    requests: dict[FieldPath, dict[str, QuantityText]] = {}
    original_resources: Json = {}
    applied_choice: OfferChoice | None = None
    tolerations: list[Toleration] = []
    required_node_affinity: list[NodeSelectorRequirement] = []
    preferred_node_affinity: list[Json] = []
    preferred_pod_affinity: list[Json] = []
    required_pod_affinity: list[Json] = []
    spread_constraints: list[Json] = []
    runtime_class_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    changed: list[str] = []
    policy: str = ""
    changes_by_policy: dict[str, list[str]] = {}

    def record_change(self, change: str) -> None:
        """Add a change to the record, by its word."""
        if change not in self.changed:
            self.changed.append(change)
        recorded = self.changes_by_policy.setdefault(self.policy, [])
        if change not in recorded:
            recorded.append(change)

    def resources_of(self, request: GpuRequest) -> tuple[Mapping[str, QuantityText], Mapping[str, QuantityText]]:
        """Return limits and requests of a container with the changes so far."""
        path, resources = request.path, request.container.resources
        return self.limits.get(path, resources.limits), self.requests.get(path, resources.requests)
