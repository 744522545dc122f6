"""The queues of Kueue: what the ClusterQueue behind a workload admits, by its resources, flavors and transformations.

Kueue charges the pod templates of a stored workload. It drops excluded resources of a template and transforms the
others. For each, it looks for a flavor with enough quota in the resource group that covers the name. A name that no
group covers makes the workload inadmissible, unless the configuration ignores undeclared resources.

Source: Kueue 0.19, `pkg/workload`, `pkg/scheduler/flavorassigner`, `apis/kueue/v1beta2`, `apis/config/v1beta2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.batch import KUEUE
from webhook.model.decisions import KeepRequest
from webhook.model.objects import HARD_EFFECTS, Taint, tolerates_all
from webhook.model.pods import ObjectMeta, QuantityText, Toleration
from webhook.model.quantity import NANO, parse_nano_or_none

KUEUE_API_VERSION = "kueue.x-k8s.io/v1beta2"
"""The version of its API that is read, since Kueue 0.15."""

OLDER_KUEUE_API_VERSION = "kueue.x-k8s.io/v1beta1"
"""The version before; what is read has the same names there, but for the cohort."""

QUEUE_NAME_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of a workload with the name of its LocalQueue."""

POD_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
"""The label with the same value that Kueue adds to the pods of a workload."""

POD_SET_LABEL, WORKLOAD_ANNOTATION = "kueue.x-k8s.io/podset", "kueue.x-k8s.io/workload"
"""The label and annotation of the pods of a Workload, with the names of their pod set and of the Workload."""

PREBUILT_LABEL = "kueue.x-k8s.io/prebuilt-workload-name"
"""The label of a workload that was charged before it was created."""

MAX_FLAVORS = 64
"""Flavors of a ClusterQueue that are read; Kueue allows 64."""


class LocalQueueSpec(ApiStruct, frozen=True):
    """The ClusterQueue of a LocalQueue."""

    cluster_queue: str = ""


class LocalQueue(ApiStruct, frozen=True):
    """A queue of one namespace."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LocalQueueSpec = LocalQueueSpec()


class FlavorResource(ApiStruct, frozen=True):
    """The quota of one resource in one flavor."""

    name: str = ""
    nominal_quota: QuantityText = "0"
    borrowing_limit: QuantityText | None = None


class FlavorQuotas(ApiStruct, frozen=True):
    """The quotas of one flavor."""

    name: str = ""
    resources: tuple[FlavorResource, ...] = ()


class ResourceGroup(ApiStruct, frozen=True):
    """Resources that get one flavor together, and the flavors in the order in which they are tried."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class ClusterQueueSpec(ApiStruct, frozen=True):
    """The quotas of a ClusterQueue, and the cohort it borrows from, by its name in v1beta2 and in v1beta1."""

    resource_groups: tuple[ResourceGroup, ...] = ()
    cohort_name: str = ""
    cohort: str = ""


class ClusterQueue(ApiStruct, frozen=True):
    """A queue of the cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterQueueSpec = ClusterQueueSpec()


class ResourceFlavorSpec(ApiStruct, frozen=True):
    """The nodes of a flavor, and the tolerations that pods admitted to it get.

    With a topology, Kueue admits only what fits on live nodes.
    """

    node_labels: dict[str, str] = {}
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology_name: str = ""


class ResourceFlavor(ApiStruct, frozen=True):
    """A kind of nodes that quotas are given for."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class ResourceTransformation(ApiStruct, frozen=True):
    """A charge for each unit of a resource, instead of it or besides."""

    input: str = ""
    strategy: str = "Retain"
    multiply_by: str = ""
    outputs: dict[str, QuantityText] = {}


class QueueCharging(ApiStruct, frozen=True):
    """The section `resources` of Kueue's Configuration."""

    quota_check_strategy: str = "BlockUndeclared"
    exclude_resource_prefixes: tuple[str, ...] = ()
    transformations: tuple[ResourceTransformation, ...] = ()


class KueueConfiguration(ApiStruct, frozen=True):
    """Kueue's Configuration, as far as it decides what is charged. A file has one, without a name."""

    metadata: ObjectMeta = ObjectMeta(name="kueue")
    resources: QueueCharging = QueueCharging()


USUAL_CHARGING = QueueCharging()
"""Of a Kueue whose configuration says nothing about resources."""


class FlavorChoice(NamedTuple):
    """The flavors that Kueue may give a request.

    Attributes:
        flavors: Each flavor that may be given, in the order in which they are tried.
        sufficient: True if the nominal quota of one of them covers the request.
        others: The flavors that the other resources of the pods may get, for each resource group.
    """

    flavors: tuple[ResourceFlavor, ...]
    sufficient: bool
    others: tuple[tuple[ResourceFlavor, ...], ...] = ()


class WorkloadQueue(msgspec.Struct, frozen=True):
    """The queue in which a workload waits.

    Attributes:
        name: Name of the LocalQueue.
        cluster_queue: The ClusterQueue behind it.
        flavors: All flavors by name.
        charging: What is charged for a resource.
        borrowable: Flavor and resource for which some queue of a cohort has quota.
        kept: Why every template of the workload keeps its request, although the queue would admit a smaller one; None
            if it may be changed.
    """

    name: str
    cluster_queue: ClusterQueue
    flavors: Mapping[str, ResourceFlavor]
    charging: QueueCharging
    borrowable: frozenset[tuple[str, str]] = frozenset()
    kept: KeepRequest | None = None

    system = KUEUE

    @property
    def title(self) -> str:
        """The ClusterQueue, for messages."""
        return f"ClusterQueue {self.cluster_queue.metadata.name}"

    def charge(self, resource: str, units: int) -> dict[str, int] | None:
        """Return the nano-units that are charged for units of a resource, by name; None if that cannot be known."""
        charging = self.charging
        if any(resource.startswith(prefix) for prefix in charging.exclude_resource_prefixes):
            return {}
        found = next((each for each in charging.transformations if each.input == resource), None)
        if found is None:
            return {resource: units * NANO}
        outputs = {name: parse_nano_or_none(amount) for name, amount in found.outputs.items()}
        if found.multiply_by or None in outputs.values():
            return None
        charged = {name: units * (amount or 0) for name, amount in outputs.items()}
        return charged if found.strategy == "Replace" else {resource: units * NANO} | charged

    def choose_flavors(self, resource: str, units: int, tolerations: Sequence[Toleration] = ()) -> FlavorChoice | None:
        """Return the flavors that pods with units of a resource may get; None if the queue never admits them.

        Args:
            resource: The resource that the pods request.
            units: Units of all pods that are charged together.
            tolerations: Tolerations of the pods.
        """
        charged = self.charge(resource, units)
        if charged is None:
            return None
        groups = self.cluster_queue.spec.resource_groups
        covered = {name for group in groups for name in group.covered_resources}
        counted = charged.keys() & covered
        if not counted or (counted != charged.keys() and self.charging.quota_check_strategy != "IgnoreUndeclared"):
            return None
        of_target = [group for group in groups if counted & set(group.covered_resources)]
        if len(of_target) > 1:
            return None
        amounts = {name: charged[name] for name in counted}
        possible, sufficient = self._possible_flavors(of_target[0], amounts, tolerations)
        others = tuple(self._known_flavors(group, tolerations) for group in groups if group is not of_target[0])
        return FlavorChoice(possible, sufficient, others)

    def _possible_flavors(
        self, group: ResourceGroup, amounts: Mapping[str, int], tolerations: Sequence[Toleration]
    ) -> tuple[tuple[ResourceFlavor, ...], bool]:
        """Return the flavors of a group that may admit amounts, and whether one does by its nominal quota."""
        possible, sufficient = [], False
        for quotas in group.flavors[:MAX_FLAVORS]:
            flavor = self.flavors.get(quotas.name)
            if flavor is None or not _accepts(flavor, tolerations):
                continue
            by_name = {each.name: each for each in quotas.resources}
            nominal = {name: _nominal_quota(by_name.get(name)) for name in amounts}
            if all(nominal[name] or self._may_borrow(quotas.name, by_name.get(name)) for name in amounts):
                possible.append(flavor)
                sufficient = sufficient or all(nominal[name] >= amount for name, amount in amounts.items())
        return tuple(possible), sufficient

    def _known_flavors(self, group: ResourceGroup, tolerations: Sequence[Toleration]) -> tuple[ResourceFlavor, ...]:
        found = [self.flavors[each.name] for each in group.flavors[:MAX_FLAVORS] if each.name in self.flavors]
        return tuple(each for each in found if _accepts(each, tolerations))

    def _may_borrow(self, flavor: str, quota: FlavorResource | None) -> bool:
        """Return whether a queue without quota of its own may borrow some from its cohort."""
        if quota is None or not _has_cohort(self.cluster_queue) or (flavor, quota.name) not in self.borrowable:
            return False
        return quota.borrowing_limit is None or parse_nano_or_none(quota.borrowing_limit) != 0


class KueueQueues:
    """The queues of a cluster. Immutable.

    Attributes:
        charging: What is charged for a resource.
    """

    __slots__ = ("_borrowable", "_cluster_queues", "_flavors", "_local_queues", "charging")

    def __init__(
        self,
        local_queues: Iterable[LocalQueue] = (),
        cluster_queues: Iterable[ClusterQueue] = (),
        flavors: Iterable[ResourceFlavor] = (),
        charging: QueueCharging = USUAL_CHARGING,
    ) -> None:
        """Index the objects by name."""
        self.charging = charging
        self._local_queues = {(each.metadata.namespace, each.metadata.name): each for each in local_queues}
        self._cluster_queues = {each.metadata.name: each for each in cluster_queues}
        self._flavors = {each.metadata.name: each for each in flavors}
        self._borrowable = frozenset(_lent_quotas(self._cluster_queues.values()))

    def serves(self, namespace: str) -> bool:
        """Return whether a namespace has a LocalQueue."""
        return any(owner == namespace for owner, _ in self._local_queues)

    def find(self, namespace: str, name: str) -> WorkloadQueue | None:
        """Return the queue of a workload by the name of its LocalQueue; None if there is none."""
        local = self._local_queues.get((namespace, name))
        found = self._cluster_queues.get(local.spec.cluster_queue) if local is not None else None
        if found is None:
            return None
        return WorkloadQueue(name, found, self._flavors, self.charging, self._borrowable)


def _accepts(flavor: ResourceFlavor, tolerations: Sequence[Toleration]) -> bool:
    hard = [taint for taint in flavor.spec.node_taints if taint.effect in HARD_EFFECTS]
    return tolerates_all((*tolerations, *flavor.spec.tolerations), hard)


def _nominal_quota(quota: FlavorResource | None) -> int:
    return parse_nano_or_none(quota.nominal_quota) or 0 if quota is not None else 0


def _has_cohort(queue: ClusterQueue) -> bool:
    return bool(queue.spec.cohort_name or queue.spec.cohort)


def _lent_quotas(queues: Iterable[ClusterQueue]) -> Iterable[tuple[str, str]]:
    """Yield flavor and resource of each quota that queues of a cohort have."""
    for queue in queues:
        if _has_cohort(queue):
            for group in queue.spec.resource_groups:
                for flavor in group.flavors:
                    yield from ((flavor.name, each.name) for each in flavor.resources if _nominal_quota(each))


NO_QUEUES = KueueQueues()
