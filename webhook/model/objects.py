"""The other Kubernetes objects that we read: nodes, namespaces, LimitRanges, ResourceQuotas."""

from __future__ import annotations

from webhook.model.pods import Amount, Metadata
from webhook.model.read import Read


class Namespace(Read, frozen=True):
    """A namespace: its name and its labels."""

    metadata: Metadata = Metadata()


class Taint(Read, frozen=True):
    """A node's taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Read, frozen=True):
    """A node's specification."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeCondition(Read, frozen=True):
    """One condition of a node."""

    type: str = ""
    status: str = ""


class NodeStatus(Read, frozen=True):
    """What a node offers."""

    allocatable: dict[str, Amount] = {}
    capacity: dict[str, Amount] = {}
    conditions: tuple[NodeCondition, ...] = ()


class NodeMetadata(Read, frozen=True):
    """A node's metadata without annotations: agents write those by the minute, and each change costs an index."""

    name: str = ""
    labels: dict[str, str] = {}


class Node(Read, frozen=True):
    """A node."""

    metadata: NodeMetadata = NodeMetadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LimitRangeItem(Read, frozen=True):
    """Limits of one kind: Container, Pod or PersistentVolumeClaim."""

    type: str = ""
    max: dict[str, Amount] = {}
    min: dict[str, Amount] = {}
    default: dict[str, Amount] = {}
    default_request: dict[str, Amount] = {}
    max_limit_request_ratio: dict[str, Amount] = {}


class LimitRangeSpec(Read, frozen=True):
    """A LimitRange's items."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Read, frozen=True):
    """A namespace's LimitRange, as stored (defaults of `max` and `min` applied) or as written in a file."""

    metadata: Metadata = Metadata()
    spec: LimitRangeSpec = LimitRangeSpec()


class ScopeRequirement(Read, frozen=True):
    """One expression of a quota's scope selector."""

    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(Read, frozen=True):
    """A quota's scope selector: every expression must hold."""

    match_expressions: tuple[ScopeRequirement, ...] = ()


class ResourceQuotaSpec(Read, frozen=True):
    """A quota's ceilings and the pods it counts."""

    hard: dict[str, Amount] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Read, frozen=True):
    """What the quota controller has counted. `hard` here is what the API server enforces."""

    hard: dict[str, Amount] = {}
    used: dict[str, Amount] = {}


class ResourceQuota(Read, frozen=True):
    """A namespace's ResourceQuota."""

    metadata: Metadata = Metadata()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()
