"""Shape: what a pod is to become, collected while the steps run. `patch` turns it into operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webhook.engine.asking import Ask
from webhook.model.decisions import Fit
from webhook.model.paths import Path
from webhook.model.pods import Amount, Pod, Requirement, Toleration

Json = dict[str, Any]


class Shape:
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
        "by",
        "changed",
        "fit",
        "labels",
        "limits",
        "near",
        "original",
        "pod",
        "preferred",
        "requests",
        "required",
        "runtime_class_name",
        "speaker",
        "spread",
        "together",
        "tolerations",
    )

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.limits: dict[Path, dict[str, Amount]] = {}
        self.requests: dict[Path, dict[str, Amount]] = {}
        self.original: Json = {}
        self.fit: Fit | None = None
        self.tolerations: list[Toleration] = []
        self.required: list[Requirement] = []
        self.preferred: list[Json] = []
        self.near: list[Json] = []
        self.together: list[Json] = []
        self.spread: list[Json] = []
        self.runtime_class_name = ""
        self.labels: dict[str, str] = {}
        self.annotations: dict[str, str] = {}
        self.changed: list[str] = []
        self.speaker = ""
        self.by: dict[str, list[str]] = {}

    def note(self, what: str) -> None:
        """Remember a change for the record."""
        if what not in self.changed:
            self.changed.append(what)
        mine = self.by.setdefault(self.speaker, [])
        if what not in mine:
            mine.append(what)

    def resources_of(self, ask: Ask) -> tuple[Mapping[str, Amount], Mapping[str, Amount]]:
        """Limits and requests of a container as they stand by now."""
        resources = ask.container.resources
        return self.limits.get(ask.path, resources.limits), self.requests.get(ask.path, resources.requests)

    def tolerations_by_now(self) -> tuple[Toleration, ...]:
        """Those of the pod and those added."""
        own = self.pod.spec.tolerations
        return (*own, *self.tolerations) if self.tolerations else own
