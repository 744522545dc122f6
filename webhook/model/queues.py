"""The queues of Kueue: what the ClusterQueue behind a workload admits, by its resources, flavors and transformations.

Kueue charges the pod templates of a stored workload. It drops excluded resources of a template and transforms the
others. For each, it looks for a flavor with enough quota in the resource group that covers the name. A name that no
group covers makes the workload inadmissible, unless the configuration ignores undeclared resources.

Source: Kueue 0.19, `pkg/workload`, `pkg/scheduler/flavorassigner`, `apis/kueue/v1beta2`, `apis/config/v1beta2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.batch import KUEUE
from webhook.model.decisions import KeepRequest
from webhook.model.node_masks import LabelIndex, nodes_matching_term
from webhook.model.objects import HARD_EFFECTS, Taint, tolerates_all
from webhook.model.pods import NodeSelectorTerm, ObjectMeta, Pod, PodSpec, QuantityText, Toleration, required_terms
from webhook.model.quantity import NANO, format_nano, parse_nano_or_none
from webhook.model.queue_quotas import (
    ClusterQueue,
    Cohort,
    CohortTree,
    FlavorResource,
    ResourceGroup,
    find_quota,
    nominal_quota,
)
from webhook.model.queue_topologies import NodeTopology, TopologyRequest, read_topology_request

KUEUE_API_VERSION = "kueue.x-k8s.io/v1beta2"
"""The version of its API that is read, since Kueue 0.15."""

OLDER_KUEUE_API_VERSION = "kueue.x-k8s.io/v1beta1"
"""The version before; what is read has the same names there, but for the cohort."""

QUEUE_NAME_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of a workload with the name of its LocalQueue."""

DEFAULT_LOCAL_QUEUE = "default"
"""The LocalQueue of workloads that name none, if their namespace has it."""

POD_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
"""The label with the same value that Kueue adds to the pods of a workload."""

POD_SET_LABEL, WORKLOAD_ANNOTATION = "kueue.x-k8s.io/podset", "kueue.x-k8s.io/workload"
"""The label and annotation of the pods of a Workload, with the names of their pod set and of the Workload."""

MIN_PARALLELISM_ANNOTATION = "kueue.x-k8s.io/job-min-parallelism"
"""The annotation of a Job with the number of pods with which it may start (partial admission)."""

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


class AdmissionCheckSpec(ApiStruct, frozen=True):
    """The controller of a check."""

    controller_name: str = ""


class AdmissionCheck(ApiStruct, frozen=True):
    """A check that a controller performs before a workload is admitted."""

    metadata: ObjectMeta = ObjectMeta()
    spec: AdmissionCheckSpec = AdmissionCheckSpec()


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


class QueueIntegrations(ApiStruct, frozen=True):
    """The kinds that Kueue queues, as `batch/job` and as `Kind.version.group`; without any, Jobs."""

    frameworks: tuple[str, ...] = ()
    external_frameworks: tuple[str, ...] = ()


class KueueConfiguration(ApiStruct, frozen=True):
    """Kueue's Configuration, as far as it decides what is charged. A file has one, without a name.

    Attributes:
        integrations: The kinds that are queued; None if the configuration is not known: then all may be.
    """

    metadata: ObjectMeta = ObjectMeta(name="kueue")
    resources: QueueCharging = QueueCharging()
    integrations: QueueIntegrations | None = QueueIntegrations()

    def may_queue(self, group: str, kind: str) -> bool:
        """Return whether Kueue may queue workloads of a kind."""
        if self.integrations is None:
            return True
        name = kind.lower() if group == "apps" else f"{group}/{kind.lower()}"
        external = (each.split(".", 2) for each in self.integrations.external_frameworks)
        return name in (self.integrations.frameworks or ("batch/job",)) or any(
            each[:1] == [kind] and each[2:] == [group] for each in external
        )


QueueObject = LocalQueue | ClusterQueue | Cohort | ResourceFlavor | NodeTopology | AdmissionCheck
QUEUE_OBJECTS: Mapping[str, type[QueueObject]] = {
    "localqueues": LocalQueue,
    "clusterqueues": ClusterQueue,
    "cohorts": Cohort,
    "resourceflavors": ResourceFlavor,
    "topologies": NodeTopology,
    "admissionchecks": AdmissionCheck,
}
"""The objects of Kueue that are read, by the plural of their kind."""

UNKNOWN_CONFIGURATION = KueueConfiguration(integrations=None)
"""Of a Kueue whose configuration is not known: it charges what is requested."""

ELSEWHERE_CONTROLLERS = ("kueue.x-k8s.io/provisioning-request", "kueue.x-k8s.io/multikueue")
"""Controllers of checks after which pods run on nodes that do not exist yet, or in another cluster."""

MULTIKUEUE = ELSEWHERE_CONTROLLERS[1]
"""Also the `managedBy` of a workload that runs in another cluster."""


class FlavorChoice(NamedTuple):
    """The flavors that Kueue may give a request.

    Attributes:
        flavors: Each flavor that may be given, in the order in which they are tried.
        sufficient: True if the nominal quota of one of them covers the request.
        others: The flavors that the other resources of the pods may get, for each resource group.
        free: Those of `flavors` whose nominal quota is free now.
        borrowing: Those whose quota is not free now, but may be borrowed in part.
    """

    flavors: tuple[ResourceFlavor, ...]
    sufficient: bool
    others: tuple[tuple[ResourceFlavor, ...], ...] = ()
    free: tuple[ResourceFlavor, ...] = ()
    borrowing: tuple[ResourceFlavor, ...] = ()


class WorkloadQueue(msgspec.Struct, frozen=True):
    """The queue in which a workload waits.

    Attributes:
        name: Name of the LocalQueue.
        cluster_queue: The ClusterQueue behind it.
        flavors: All flavors by name.
        charging: What is charged for a resource.
        cohorts: The cohorts of the cluster.
        topologies: The labels of the levels of each topology, by its name.
        check_controllers: The controller of each AdmissionCheck, by its name.
        kept: Why every template of the workload keeps its request, although the queue would admit a smaller one; None
            if it may be changed.
        fewest_pods: The number of pods with which the queue may start the workload (partial admission); 0 for all.
    """

    name: str
    cluster_queue: ClusterQueue
    flavors: Mapping[str, ResourceFlavor]
    charging: QueueCharging
    cohorts: CohortTree = CohortTree()
    topologies: Mapping[str, tuple[str, ...]] = {}
    check_controllers: Mapping[str, str] = {}
    kept: KeepRequest | None = None
    fewest_pods: int = 0

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

    def choose_flavors(self, resource: str, units: int, pod: Pod) -> FlavorChoice | None:
        """Return the flavors that pods with units of a resource may get; None if the queue never admits them.

        Args:
            resource: The resource that the pods request.
            units: Units of all pods that are charged together.
            pod: One of the pods.
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
        choice = self._possible_flavors(of_target[0], amounts, pod)
        others = tuple(self._known_flavors(group, pod) for group in groups if group is not of_target[0])
        return choice._replace(others=others)

    def _possible_flavors(self, group: ResourceGroup, amounts: Mapping[str, int], pod: Pod) -> FlavorChoice:
        """Return the flavors of one group that may admit amounts."""
        possible, sufficient, free, borrowing = [], False, [], []
        topology = read_topology_request(pod.metadata.annotations)
        for quotas in group.flavors[:MAX_FLAVORS]:
            flavor = self.flavors.get(quotas.name)
            if flavor is None or not _accepts(flavor, pod) or not self._has_topology(flavor, topology):
                continue
            found = {name: find_quota((group,), quotas.name, name) for name in amounts}
            nominal = {name: nominal_quota(each) for name, each in found.items()}
            borrowed = {name for name, each in found.items() if self._may_borrow(quotas.name, each)}
            if all(nominal[name] or name in borrowed for name in amounts):
                possible.append(flavor)
                sufficient = sufficient or all(nominal[name] >= amount for name, amount in amounts.items())
                left = {name: self._free_quota(quotas.name, name, nominal[name]) for name in amounts}
                if all(left[name] >= amount for name, amount in amounts.items()):
                    free.append(flavor)
                elif all(left[name] >= amount or name in borrowed for name, amount in amounts.items()):
                    borrowing.append(flavor)
        return FlavorChoice(tuple(possible), sufficient, free=tuple(free), borrowing=tuple(borrowing))

    def explain_rejection(self, resource: str, units: int, pod: Pod) -> str:
        """Return why the queue admits no pods with units of a resource by its nominal quota, with what was found."""
        charged, groups = self.charge(resource, units), self.cluster_queue.spec.resource_groups
        if charged is None:
            return "its transformation with multiplyBy is not evaluated"
        if not charged:
            return f"it charges nothing for {resource}, which Kueue's configuration excludes or transforms to nothing"
        names = (each.name for group in groups for each in group.flavors)
        if missing := next((name for name in names if name not in self.flavors), ""):
            return f"its ResourceFlavor {missing} was not found, so it admits nothing"
        covered = {name for group in groups for name in group.covered_resources}
        ignored = charged.keys() & covered and self.charging.quota_check_strategy == "IgnoreUndeclared"
        if (uncovered := ", ".join(sorted(charged.keys() - covered))) and not ignored:
            return f"its coveredResources do not contain {uncovered}"
        return self._explain_quotas({name: amount for name, amount in charged.items() if name in covered}, pod)

    def _explain_quotas(self, charged: Mapping[str, int], pod: Pod) -> str:
        """Return why no flavor has enough nominal quota for what is charged, or why pods cannot get those that have."""
        groups = self.cluster_queue.spec.resource_groups
        for name, amount in charged.items():
            quotas = (each for group in groups for flavor in group.flavors for each in flavor.resources)
            most = max((nominal_quota(each) for each in quotas if each.name == name), default=0)
            if most < amount:
                return (
                    f"it charges {format_nano(amount)} of {name}, and its largest nominal quota is {format_nano(most)}"
                )
        reasons = (
            self._explain_flavor(self.flavors[flavor.name], pod)
            for group in groups
            for flavor in group.flavors
            if all(nominal_quota(find_quota((group,), flavor.name, name)) >= charged[name] for name in charged)
        )
        return next(filter(None, reasons), "no flavor has enough quota for all that it charges")

    def _explain_flavor(self, flavor: ResourceFlavor, pod: Pod) -> str:
        """Return why pods cannot get a flavor; "" if they can."""
        title = f"its flavor {flavor.metadata.name}"
        taint = next((each for each in flavor.spec.node_taints if not _tolerates(flavor, pod, [each])), None)
        if taint is not None:
            return f"{title} has the taint {taint.text}, which the pods do not tolerate"
        if not _is_selected(flavor, pod.spec):
            return f"{title} has other node labels than the pods select"
        request = read_topology_request(pod.metadata.annotations)
        if self._has_topology(flavor, request):
            return ""
        if not request.is_explicit:
            return f"{title} has a topology, and the pods request none"
        name = flavor.spec.topology_name
        levels = ", ".join(request.levels) or "any level"
        return f"{title} has {f'Topology {name}' if name else 'no topology'}, and the pods request one with {levels}"

    def dearer_than(self, resource: str, other: str) -> str:
        """Return a name of which a unit of a resource is charged more than one of another resource; "" for none."""
        charged, instead = self.charge(resource, 1) or {}, self.charge(other, 1) or {}
        return next((name for name in charged.keys() & instead.keys() if charged[name] > instead[name]), "")

    def check_elsewhere(self, flavors: Iterable[ResourceFlavor]) -> str:
        """Return the check by which pods with one of some flavors run on nodes that are not known; "" for none."""
        spec, names = self.cluster_queue.spec, {each.metadata.name for each in flavors}
        applied = [each.name for each in spec.admission_checks_strategy.admission_checks
                   if not each.on_flavors or not names.isdisjoint(each.on_flavors)]  # fmt: skip
        for name in (*applied, *spec.admission_checks):
            controller = self.check_controllers.get(name, "which was not found")
            if name not in self.check_controllers or controller in ELSEWHERE_CONTROLLERS:
                return f"AdmissionCheck {name}, {controller}"
        return ""

    def _known_flavors(self, group: ResourceGroup, pod: Pod) -> tuple[ResourceFlavor, ...]:
        found = [self.flavors[each.name] for each in group.flavors[:MAX_FLAVORS] if each.name in self.flavors]
        return tuple(each for each in found if _accepts(each, pod))

    def _has_topology(self, flavor: ResourceFlavor, request: TopologyRequest) -> bool:
        """Return whether a flavor has the topology that pods request, or none if they do not.

        Where all flavors have a topology, pods that request none get one too. One that is not found has any level.
        """
        name = flavor.spec.topology_name
        if not request.is_explicit:
            return not name or self._requires_topologies()
        return bool(name) and set(request.levels) <= set(self.topologies.get(name, request.levels))

    def _requires_topologies(self) -> bool:
        names = (each.name for group in self.cluster_queue.spec.resource_groups for each in group.flavors)
        return all(name in self.flavors and self.flavors[name].spec.topology_name for name in names)

    def _free_quota(self, flavor: str, resource: str, nominal: int) -> int:
        """Return the nano-units of the nominal quota that are neither reserved nor lent to others of the cohort."""
        own = nominal - self.cluster_queue.reserved(flavor, resource)
        return min(own, self.cohorts.free_quota(self.cluster_queue, flavor, resource))

    def _may_borrow(self, flavor: str, quota: FlavorResource) -> bool:
        """Return whether a queue without quota of its own may borrow some from its cohort."""
        if not self.cluster_queue.cohort or (flavor, quota.name) not in self.cohorts.quotas:
            return False
        return quota.borrowing_limit is None or parse_nano_or_none(quota.borrowing_limit) != 0


class KueueQueues:
    """The queues of a cluster. Immutable.

    Attributes:
        configuration: What is queued, and what is charged for a resource.
    """

    __slots__ = ("_checks", "_cluster_queues", "_cohorts", "_flavors", "_local_queues", "_topologies",
                 "configuration")  # fmt: skip

    def __init__(
        self, objects: Iterable[object] = (), configuration: KueueConfiguration = UNKNOWN_CONFIGURATION
    ) -> None:
        """Index the objects of Kueue by name; others are ignored."""
        self.configuration, found = configuration, tuple(objects)
        local_queues = [each for each in found if isinstance(each, LocalQueue)]
        self._local_queues = {(each.metadata.namespace, each.metadata.name): each for each in local_queues}
        self._cluster_queues = {each.metadata.name: each for each in found if isinstance(each, ClusterQueue)}
        self._flavors = {each.metadata.name: each for each in found if isinstance(each, ResourceFlavor)}
        self._topologies = {each.metadata.name: each.labels for each in found if isinstance(each, NodeTopology)}
        checks = [each for each in found if isinstance(each, AdmissionCheck)]
        self._checks = {each.metadata.name: each.spec.controller_name for each in checks}
        cohorts = (each for each in found if isinstance(each, Cohort))
        self._cohorts = CohortTree(self._cluster_queues.values(), cohorts)

    def serves(self, namespace: str) -> bool:
        """Return whether a namespace has a LocalQueue."""
        return any(owner == namespace for owner, _ in self._local_queues)

    def may_default(self, namespace: str, group: str, kind: str) -> bool:
        """Return whether workloads of a kind without a queue get the namespace's LocalQueue `default`."""
        has_default = (namespace, DEFAULT_LOCAL_QUEUE) in self._local_queues
        return has_default and self.configuration.may_queue(group, kind)

    def find(self, namespace: str, name: str) -> WorkloadQueue | None:
        """Return the queue of a workload by the name of its LocalQueue; None if there is none."""
        local = self._local_queues.get((namespace, name))
        found = self._cluster_queues.get(local.spec.cluster_queue) if local is not None else None
        if found is None:
            return None
        charging, of_queue = self.configuration.resources, (self._cohorts, self._topologies, self._checks)
        return WorkloadQueue(name, found, self._flavors, charging, *of_queue)

    def explain_missing(self, namespace: str, name: str) -> str:
        """Return which object of a queue, by the name of its LocalQueue, does not exist."""
        local = self._local_queues.get((namespace, name))
        if local is not None:
            return f"ClusterQueue {local.spec.cluster_queue} of LocalQueue {namespace}/{name}"
        others = sorted(f"{owner}/{other}" for owner, other in self._local_queues if other == name)
        return f"LocalQueue {namespace}/{name}{f'; found {others[0]}' if others else ''}"


def _accepts(flavor: ResourceFlavor, pod: Pod) -> bool:
    return _tolerates(flavor, pod, flavor.spec.node_taints) and _is_selected(flavor, pod.spec)


def _tolerates(flavor: ResourceFlavor, pod: Pod, taints: Iterable[Taint]) -> bool:
    hard = [taint for taint in taints if taint.effect in HARD_EFFECTS]
    return tolerates_all((*pod.spec.tolerations, *flavor.spec.tolerations), hard)


def _is_selected(flavor: ResourceFlavor, spec: PodSpec) -> bool:
    """Return whether pods select nodes of a flavor, by the labels that it names; they may select by others too."""
    labels = flavor.spec.node_labels
    if any(labels[key] != value for key, value in spec.node_selector.items() if key in labels):
        return False
    terms = required_terms(spec) or ()
    known = [tuple(each for each in term.match_expressions if each.key in labels) for term in terms]
    index = LabelIndex([labels])
    return (
        not all(known)
        or not known
        or any(nodes_matching_term(NodeSelectorTerm(match_expressions=each), index, {}, 1) for each in known)
    )


NO_QUEUES = KueueQueues()
