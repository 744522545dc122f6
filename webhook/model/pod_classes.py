"""RuntimeClasses and PriorityClasses: what two admission plug-ins add to a new pod before any webhook sees it.

The RuntimeClass plug-in sets the overhead, which quotas count and LimitRanges do not. The Priority plug-in sets the
name of the default PriorityClass, which quotas with a scope select.
Sources: `plugin/pkg/admission/runtimeclass`, `plugin/pkg/admission/priority`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import ObjectMeta, Pod, QuantityText
from webhook.well_known import Json

NEVER = "Never"
"""The preemption policy of pods for which the scheduler ends no others."""


class Overhead(ApiStruct, frozen=True):
    """Amounts that each pod of a RuntimeClass needs in addition to its containers."""

    pod_fixed: dict[str, QuantityText] = {}


class RuntimeClass(ApiStruct, frozen=True):
    """A container runtime."""

    metadata: ObjectMeta = ObjectMeta()
    overhead: Overhead = Overhead()


class PriorityClass(ApiStruct, frozen=True):
    """A priority of pods; with `global_default` that of pods that name none."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class PodClasses(NamedTuple):
    """The part of the classes that new pods get.

    Attributes:
        overheads: The overhead of each RuntimeClass that has one.
        default_priority_class: The PriorityClass of pods that name none; "" if there is no default.
        priorities: The value of each PriorityClass. Every cluster has some.
        never_preempting: The PriorityClasses whose pods wait instead of preempting others.
    """

    overheads: Mapping[str, Mapping[str, QuantityText]] = {}
    default_priority_class: str = ""
    priorities: Mapping[str, int] = {}
    never_preempting: Collection[str] = ()

    def may_preempt(self, pod: Pod) -> bool:
        """Return whether the scheduler may preempt pods of a lower priority for a pod.

        Pods may have the value of any PriorityClass, or of none. A pod of an unknown priority may preempt others.
        """
        name = pod.spec.priority_class_name or self.default_priority_class
        if pod.spec.preemption_policy == NEVER or name in self.never_preempting:
            return False
        priority = self.priority_of(pod)
        if priority is None:
            return bool(name)
        return priority > min([*self.priorities.values(), *([] if self.default_priority_class else [0])], default=0)

    def priority_of(self, pod: Pod) -> int | None:
        """Return the priority that a pod has or will have; None if it is not known."""
        if pod.spec.priority is not None or not self.priorities:
            return pod.spec.priority
        name = pod.spec.priority_class_name or self.default_priority_class
        return self.priorities.get(name) if name else 0

    def add_to_pod(self, pod: Pod, runtime_class: str = "") -> Pod:
        """Return a new pod with its overhead and PriorityClass; `runtime_class` replaces its RuntimeClass."""
        spec = pod.spec
        runtime_class = runtime_class or spec.runtime_class_name
        overhead = spec.overhead or dict(self.overheads.get(runtime_class, {}))
        priority_class = spec.priority_class_name or self.default_priority_class
        if overhead == spec.overhead and priority_class == spec.priority_class_name:
            return pod
        spec = replace(spec, runtime_class_name=runtime_class, overhead=overhead, priority_class_name=priority_class)
        return replace(pod, spec=spec)

    def add_to_data(self, pod: Json) -> Json:
        """Return a new pod, as plain data, with its overhead and PriorityClass."""
        spec = pod.get("spec")
        if not isinstance(spec, dict):
            return pod
        added: Json = {}
        runtime_class = spec.get("runtimeClassName")
        if not spec.get("overhead") and isinstance(runtime_class, str) and runtime_class in self.overheads:
            added["overhead"] = dict(self.overheads[runtime_class])
        if not spec.get("priorityClassName") and self.default_priority_class:
            added["priorityClassName"] = self.default_priority_class
        return {**pod, "spec": {**spec, **added}} if added else pod


NO_POD_CLASSES = PodClasses()


def summarize_pod_classes(
    runtime_classes: Iterable[RuntimeClass], priority_classes: Iterable[PriorityClass]
) -> PodClasses:
    """Return what new pods get; of several default PriorityClasses the lowest applies."""
    classes = tuple(priority_classes)
    defaults = [(each.value, each.metadata.name) for each in classes if each.global_default]
    overheads = {each.metadata.name: each.overhead.pod_fixed for each in runtime_classes if each.overhead.pod_fixed}
    priorities = {each.metadata.name: each.value for each in classes}
    patient = frozenset(each.metadata.name for each in classes if each.preemption_policy == NEVER)
    return PodClasses(overheads, min(defaults)[1] if defaults else "", priorities, patient)
