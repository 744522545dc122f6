"""Kubernetes objects other than pods: nodes, namespaces, LimitRanges, ResourceQuotas.

Taints and tolerations as the scheduler reads them.

Source: `k8s.io/api/core/v1`, Toleration.ToleratesTaint; the comparing operators Gt and Lt are off everywhere.

Kubernetes Events of core/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import ObjectMeta, QuantityText, Toleration


class Namespace(ApiStruct, frozen=True):
    """A namespace: its name and its labels."""

    metadata: ObjectMeta = ObjectMeta()


class Taint(ApiStruct, frozen=True):
    """A node's taint."""

    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def text(self) -> str:
        """The taint as kubectl prints it."""
        return f"{self.key}{'=' + self.value if self.value else ''}:{self.effect}"


class NodeSpec(ApiStruct, frozen=True):
    """A node's specification."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeCondition(ApiStruct, frozen=True):
    """One condition of a node."""

    type: str = ""
    status: str = ""


class NodeSystemInfo(ApiStruct, frozen=True):
    """The software of a node."""

    kubelet_version: str = ""


class NodeStatus(ApiStruct, frozen=True):
    """A node's resources, conditions and software."""

    allocatable: dict[str, QuantityText] = {}
    capacity: dict[str, QuantityText] = {}
    conditions: tuple[NodeCondition, ...] = ()
    declared_features: tuple[str, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()


class NodeMetadata(ApiStruct, frozen=True):
    """A node's metadata without annotations: agents change those often, and each change would rebuild an index."""

    name: str = ""
    labels: dict[str, str] = {}


class Node(ApiStruct, frozen=True):
    """A node."""

    metadata: NodeMetadata = NodeMetadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LimitRangeItem(ApiStruct, frozen=True):
    """The limits of one type: Container, Pod or PersistentVolumeClaim."""

    type: str = ""
    max: dict[str, QuantityText] = {}
    min: dict[str, QuantityText] = {}
    default: dict[str, QuantityText] = {}
    default_request: dict[str, QuantityText] = {}
    max_limit_request_ratio: dict[str, QuantityText] = {}


class LimitRangeSpec(ApiStruct, frozen=True):
    """A LimitRange's items."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(ApiStruct, frozen=True):
    """A namespace's LimitRange, as stored (defaults of `max` and `min` applied) or as written in a file."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LimitRangeSpec = LimitRangeSpec()


class ScopeRequirement(ApiStruct, frozen=True):
    """One expression of a quota's scope selector."""

    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(ApiStruct, frozen=True):
    """A quota's scope selector: every expression must hold."""

    match_expressions: tuple[ScopeRequirement, ...] = ()


class ResourceQuotaSpec(ApiStruct, frozen=True):
    """A quota's hard limits, and the pods it counts."""

    hard: dict[str, QuantityText] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(ApiStruct, frozen=True):
    """The usage counted by the quota controller. The API server enforces `hard` of the status."""

    hard: dict[str, QuantityText] = {}
    used: dict[str, QuantityText] = {}


class ResourceQuota(ApiStruct, frozen=True):
    """A namespace's ResourceQuota."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that exclude pods; PreferNoSchedule only ranks nodes."""

CORDON_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""A cordoned node counts as having it, whether it carries it yet or not (plugin NodeUnschedulable)."""


def is_gpu_taint(key: str, value: str) -> bool:
    """Return True if a taint only marks a node with GPUs.

    The taints of NVIDIA's stack and sku=gpu of AKS do. Any other taint reserves a node and is never tolerated on
    behalf of a pod.
    """
    return key.startswith("nvidia.com/") or (key == "sku" and value == "gpu")


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


class EventSource(ApiStruct, frozen=True):
    """Reporter of an event."""

    component: str = ""


class InvolvedObject(ApiStruct, frozen=True):
    """Object of an event."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class EventSeries(ApiStruct, frozen=True):
    """Occurrences, as writers of events.k8s.io count them."""

    count: int = 0
    last_observed_time: str = ""


class CoreEvent(ApiStruct, frozen=True):
    """One Event of core/v1. Old writers set `last_timestamp`, new ones `event_time`.

    New writers leave `count` at 0 and count in `series` from the second occurrence on.
    """

    metadata: ObjectMeta = ObjectMeta()
    involved_object: InvolvedObject = InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    reporting_component: str = ""
    count: int = 1
    series: EventSeries | None = None
    last_timestamp: str = ""
    event_time: str = ""

    @property
    def last_seen(self) -> str:
        """Last occurrence, RFC 3339; "" if unknown."""
        last = self.series.last_observed_time if self.series else ""
        return last or self.last_timestamp or self.event_time

    @property
    def occurrences(self) -> int:
        """Number of occurrences."""
        return max(self.count, self.series.count if self.series else 0, 1)

    @property
    def reporter(self) -> str:
        """Reporting component."""
        return self.source.component or self.reporting_component
