"""Shape: what a pod is to become, collected while the steps run. `patch` turns it into operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webhook.engine.gpu_requests import GpuRequest
from webhook.model.decisions import OfferChoice
from webhook.model.field_paths import FieldPath
from webhook.model.pods import NodeSelectorRequirement, Pod, QuantityText, Toleration

Json = dict[str, Any]


class PodMutation:
    """Additions and replacements, nothing else. Starts as the pod itself.

    Attributes:
        limits: New limits by container path; the whole map.
        requests: New requests by container path; the whole map.
        original: GPU amounts as they were, by container name, where right-sizing replaced them.
        fit: The fit that was carried out.
        required: Expressions to be ANDed into every required node affinity term.
        preferred: Preferred node affinity terms to add.
        near: Preferred pod affinity terms to add.
        together: Required pod affinity terms to add.
        annotations: Annotations to add, the records of a decision aside.
        changed: Words for what was changed, in order; for the record and for people.
        speaker: The policy that speaks now, or several that speak as one.
        by: The words for what was changed, by who changed it.
    """

    __slots__ = (
        "annotations",
        "changed",
        "changes_by_policy",
        "fit",
        "labels",
        "limits",
        "original_resources",
        "pod",
        "policy",
        "preferred_node_affinity",
        "preferred_pod_affinity",
        "requests",
        "required_node_affinity",
        "required_pod_affinity",
        "runtime_class_name",
        "spread_constraints",
        "tolerations",
    )

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.limits: dict[FieldPath, dict[str, QuantityText]] = {}
        self.requests: dict[FieldPath, dict[str, QuantityText]] = {}
        self.original_resources: Json = {}
        self.fit: OfferChoice | None = None
        self.tolerations: list[Toleration] = []
        self.required_node_affinity: list[NodeSelectorRequirement] = []
        self.preferred_node_affinity: list[Json] = []
        self.preferred_pod_affinity: list[Json] = []
        self.required_pod_affinity: list[Json] = []
        self.spread_constraints: list[Json] = []
        self.runtime_class_name = ""
        self.labels: dict[str, str] = {}
        self.annotations: dict[str, str] = {}
        self.changed: list[str] = []
        self.policy = ""
        self.changes_by_policy: dict[str, list[str]] = {}

    def record_change(self, what: str) -> None:
        """Remember a change for the record."""
        if what not in self.changed:
            self.changed.append(what)
        mine = self.changes_by_policy.setdefault(self.policy, [])
        if what not in mine:
            mine.append(what)

    def resources_of(self, ask: GpuRequest) -> tuple[Mapping[str, QuantityText], Mapping[str, QuantityText]]:
        """Limits and requests of a container as they stand by now."""
        resources = ask.container.resources
        return self.limits.get(ask.path, resources.limits), self.requests.get(ask.path, resources.requests)

    def all_tolerations(self) -> tuple[Toleration, ...]:
        """Those of the pod and those added."""
        own = self.pod.spec.tolerations
        return (*own, *self.tolerations) if self.tolerations else own
