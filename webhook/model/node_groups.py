"""Node groups: the nodes that an autoscaler creates alike, and what a new node of each offers.

An autoscaler creates a node for a pod only if it expects everything that the pod requests on it. That differs from what
live nodes advertise:

* cluster-autoscaler copies a live node of the group. Without one it reads tags of the cloud or annotations of Cluster
  API.
* Karpenter knows the resources that its provider names for an instance type: whole GPUs, but no slices and no shares.
  Further ones come from a NodeOverlay. Labels that agents add to nodes later are unknown to it. It creates no node with
  more capacity than the limits of its NodePool leave.

No object shows whether an autoscaler runs, so live nodes count only where a policy says that groups grow.

Sources: cluster-autoscaler `processors/customresources/gpu_processor.go`, `simulator/utilization/info.go`,
`cloudprovider/clusterapi`; Karpenter 1.14 `pkg/apis/v1alpha1/nodeoverlay.go`, `pkg/controllers/nodeoverlay`,
`NewScheduler` of `pkg/controllers/provisioning/provisioner.go`, `filterByRemainingResources` of
`pkg/controllers/provisioning/scheduling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from webhook.model.advertised_resources import gpu_units
from webhook.model.api_struct import ApiStruct
from webhook.model.daemon_pods import DaemonPods, GroupNodes, free_on_new_node
from webhook.model.derived_values import derived_value
from webhook.model.dra.device_pools import DevicePools, slices_by_pool
from webhook.model.dra.resource_slices import ResourceSlice, pack_slices
from webhook.model.filters.pod_ties import HOSTNAME
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.free_resources import FreeResources
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.group_devices import require_slices_of_one_node, slices_of_machine, slices_of_new_node
from webhook.model.node_labels import PRODUCT_LABEL, parse_count
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.objects import Node, NodeCondition, NodeMetadata, NodeSpec, NodeStatus, Taint, taint_sort_key
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta, QuantityText
from webhook.model.quantity import NANO, parse_nano_or_none
from webhook.well_known import GROUP

KARPENTER_POOL, AZURE_POOL = "karpenter.sh/nodepool", "kubernetes.azure.com/agentpool"
GROUP_LABELS = (
    KARPENTER_POOL,
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    AZURE_POOL,
)
"""Labels whose value names the group of a node. Karpenter's come first: its nodes may have one of the cloud too."""

AUTOSCALER_GPU_LABELS = (
    "k8s.amazonaws.com/accelerator",
    "cloud.google.com/gke-accelerator",
    "cluster-api/accelerator",
)
"""Labels by which cluster-autoscaler recognizes a node with GPUs: on AWS, Google Cloud, and Cluster API."""

AZURE_GPU_LABEL = "accelerator"
"""The same on Azure; elsewhere it may mean anything."""

AUTOSCALER_GPUS = (WHOLE_GPU, "microsoft.com/directx", "amd.com/gpu", "gpu.intel.com/xe", "habana.ai/gaudi")
"""The only GPU resources that cluster-autoscaler knows."""

AGENT_LABELS = ("nvidia.com/", "feature.node.kubernetes.io/", f"{GROUP}/")
"""Prefixes of labels that agents add to a node after it was created."""

NEW_NODE_PREFIX = "new node of "
"""Begins the name of a new node, which no live node has."""

OWN_LABELS = (HOSTNAME, "node.kubernetes.io/instance-id")
"""Labels that differ between all nodes of a group."""

STARTING_TAINTS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "karpenter.sh/unregistered",
        "node.cilium.io/agent-not-ready",
    }
)
"""Keys of taints that a node has until it has started."""

USABLE_PERCENT = 90
"""Part of a live node's CPU and memory that counts for a new one at most: pods of DaemonSets take the rest, or more."""

NODE_OVERLAY_API_VERSION, MACHINE_API_VERSION = "karpenter.sh/v1alpha1", "cluster.x-k8s.io/v1beta2"
"""The versions that are read, of Karpenter 1.7 and of Cluster API 1.11 and later."""

NODE_POOL_API_VERSION = "karpenter.sh/v1"
"""The version that is read of NodePools, since Karpenter 1.0."""

CARD_COUNT_LABELS = ("nvidia.com/gpu.count", "karpenter.k8s.aws/instance-gpu-count")
"""Labels with the number of a node's cards, or of its slices where they have the name of cards."""

MANY_NODES = 1 << 30
"""More nodes than a cluster has, and more cards than a node has."""

RESERVED_RESOURCES = ("cpu", "memory")
"""Resources that a kubelet reserves in part for itself."""

NODES_LIMIT = "nodes"
"""The name of a limit on the number of nodes."""

BEING_DELETED = "it is being deleted"
PAUSED_ANNOTATION = "cluster.x-k8s.io/paused"
"""Whatever its value, the controllers of Cluster API leave the object as it is."""

CAPACITY_ANNOTATION = "capacity.cluster-autoscaler.kubernetes.io/"
MAX_SIZE_ANNOTATION = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
SETTINGS = "settings"
"""The source of a group from a settings file; that of others is a label or a kind."""


class ReadyStatus(ApiStruct, frozen=True):
    """The conditions of an object of Karpenter."""

    conditions: tuple[NodeCondition, ...] = ()

    @property
    def is_unready(self) -> bool:
        """True if a condition says that it is not ready; Karpenter does not use it then."""
        return any(each.type == "Ready" and each.status != "True" for each in self.conditions)


class NodeOverlaySpec(ApiStruct, frozen=True):
    """The nodes of a NodeOverlay, and the resources that it adds to what Karpenter expects of them.

    Attributes:
        weight: Of two that set a resource, the heavier one counts.
    """

    requirements: tuple[NodeSelectorRequirement, ...] = ()
    capacity: dict[str, QuantityText] = {}
    weight: int = 0


class NodeOverlay(ApiStruct, frozen=True):
    """A NodeOverlay of Karpenter."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeOverlaySpec = NodeOverlaySpec()
    status: ReadyStatus = ReadyStatus()


class KarpenterTemplateSpec(ApiStruct, frozen=True):
    """The taints of new nodes."""

    taints: tuple[Taint, ...] = ()


class KarpenterTemplate(ApiStruct, frozen=True):
    """The template of new nodes of a NodePool."""

    spec: KarpenterTemplateSpec = KarpenterTemplateSpec()


class KarpenterPoolSpec(ApiStruct, frozen=True):
    """The limits of a NodePool and its template; with `replicas` its number of nodes is fixed."""

    limits: dict[str, QuantityText] = {}
    replicas: int | None = None
    template: KarpenterTemplate = KarpenterTemplate()


class KarpenterPoolStatus(ReadyStatus, frozen=True):
    """The capacity of all nodes of a NodePool and of those that it is about to have."""

    resources: dict[str, QuantityText] = {}


class KarpenterPool(ApiStruct, frozen=True):
    """A NodePool of Karpenter."""

    metadata: ObjectMeta = ObjectMeta()
    spec: KarpenterPoolSpec = KarpenterPoolSpec()
    status: KarpenterPoolStatus = KarpenterPoolStatus()


MISSING_POOL = KarpenterPool()
"""Stands for a NodePool that does not exist, while others do."""


class MachineSpec(ApiStruct, frozen=True):
    """The size of a MachineDeployment or MachineSet, and whether its controller is paused."""

    replicas: int = 0
    paused: bool = False


class MachineDeployment(ApiStruct, frozen=True):
    """A MachineDeployment of Cluster API; annotations say what a new machine offers, and how many there may be."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MachineSpec = MachineSpec()


class MachineSet(MachineDeployment, frozen=True):
    """A MachineSet of Cluster API."""


class NodeGroupSpec(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """One group of a settings file.

    Attributes:
        name: Value of the group label of its nodes.
        grows: False if no autoscaler creates nodes of it.
        labels, taints: Those of the template of a new node.
        agent_labels: Labels that agents add to a new node later, as GPU feature discovery does.
        resources: What a new node offers to pods.
        resource_slices: The slices of one node of it: a new node will publish the same devices.
    """

    name: str
    grows: bool = True
    labels: dict[str, str] = {}
    agent_labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    resources: dict[str, QuantityText] = {}
    resource_slices: tuple[ResourceSlice, ...] = ()

    def __post_init__(self) -> None:
        """Require that the slices are those of one node.

        Raises:
            ValueError: They are not.
        """
        require_slices_of_one_node(self.resource_slices)


class NodeGroups(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """The groups of a settings file."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    node_groups: tuple[NodeGroupSpec, ...] = ()


class GroupSources(msgspec.Struct, frozen=True, eq=False):
    """The objects and settings about groups. Compared by identity, so that it can be the key of a cache."""

    groups: tuple[NodeGroupSpec, ...] = ()
    overlays: tuple[NodeOverlay, ...] = ()
    pools: tuple[KarpenterPool, ...] = ()
    machines: tuple[MachineDeployment, ...] = ()


NO_SOURCES = GroupSources()

KNOWN_SOURCES = 2
"""Sources whose groups are cached for each fleet: those of the current view and of the next one."""


class NodeGroup(msgspec.Struct, frozen=True, gc=False):
    """One group.

    Attributes:
        source: The label that its nodes have, the kind of the object that describes it, or `SETTINGS`.
        new_node: An empty new node.
        unknown_labels: Labels of new nodes that their template lacks.
        unknown_gpus: GPU resources of its live nodes that the autoscaler does not expect on a new one.
        blocker: Why no node will be created; "" if one may.
        nodes_left: The number of nodes that may be created at least; None if no limit is known.
        is_declared: True if settings or an object say that an autoscaler creates its nodes; live nodes alone do not.
        slices: The devices that a new node is expected to publish.
    """

    name: str
    source: str
    new_node: Node
    unknown_labels: frozenset[str] = frozenset()
    unknown_gpus: tuple[str, ...] = ()
    blocker: str = ""
    nodes_left: int | None = None
    is_declared: bool = False
    slices: tuple[ResourceSlice, ...] = ()

    @property
    def gpus(self) -> dict[str, int]:
        """The units of GPU resources that a new node offers."""
        return gpu_units(self.new_node.status.allocatable)

    @property
    def has_gpus(self) -> bool:
        """True if a new node offers GPU resources, or publishes devices."""
        return bool(self.gpus or self.slices)


@derived_value(max_entries=KNOWN_SOURCES)
def find_node_groups(fleet: Fleet, sources: GroupSources) -> tuple[NodeGroup, ...]:
    """Return the groups of a cluster: those of a settings file, of Cluster API, and of live nodes with GPUs.

    If several have one name, the first counts.
    """
    found = [*map(_group_by_settings, sources.groups), *_groups_by_machines(sources.machines)]
    found += _groups_of_nodes(fleet, sources.overlays, {pool.metadata.name: pool for pool in sources.pools})
    by_name: dict[str, NodeGroup] = {}
    for group in found:
        by_name.setdefault(group.name, group)
    return tuple(by_name.values())


def groups_without_nodes(fleet: Fleet, sources: GroupSources) -> list[NodeGroup]:
    """Return the groups with GPUs that have no node: those that only settings or Cluster API describe."""
    named = {key[1] for node in fleet.nodes if (key := group_of_node(node.labels)) is not None}
    named |= {one.metadata.name for one in sources.machines if one.spec.replicas}
    return [group for group in find_node_groups(fleet, sources) if group.name not in named and group.has_gpus]


@derived_value(max_entries=KNOWN_SOURCES)
def growing_groups(fleet: Fleet, sources: GroupSources) -> tuple[NodeGroup, ...]:
    """Return the groups that may grow; their new nodes have the same order in `new_nodes`."""
    return tuple(group for group in find_node_groups(fleet, sources) if not group.blocker)


@derived_value(max_entries=KNOWN_SOURCES)
def stopped_groups(fleet: Fleet, sources: GroupSources) -> tuple[NodeGroup, ...]:
    """Return the groups that may not grow."""
    return tuple(group for group in find_node_groups(fleet, sources) if group.blocker)


@derived_value(max_entries=KNOWN_SOURCES)
def new_nodes(fleet: Fleet, sources: GroupSources) -> Fleet:
    """Return one empty new node of each group that may grow."""
    return Fleet([group.new_node for group in growing_groups(fleet, sources)])


def free_on_new_nodes(
    groups: Iterable[NodeGroup], new: Fleet, fleet: Fleet, daemons: DaemonPods
) -> dict[str, FreeResources]:
    """Return what the pods of DaemonSets and static pods leave of new nodes, by name.

    Args:
        groups: The group of each new node.
        fleet: The live nodes.
    """
    siblings: dict[str, list[str]] = {}
    for node in fleet.nodes:
        if (key := group_of_node(node.labels)) is not None:
            siblings.setdefault(key[1], []).append(node.name)
    live = fleet.names_of(fleet.usable_nodes)
    running = DaemonPods({kind: frozenset(names) for kind, names in daemons.nodes.items()})
    free: dict[str, FreeResources] = {}
    for group, node in zip(groups, new.nodes, strict=True):
        is_copied = group.source in GROUP_LABELS
        spare = 100 - USABLE_PERCENT if is_copied else 0
        nodes = GroupNodes(node, siblings.get(group.name, ()), live, is_copied, spare)
        free[node.name] = free_on_new_node(nodes, running)
    return free


@derived_value(max_entries=2 * KNOWN_SOURCES)
def new_device_pools(fleet: Fleet, sources: GroupSources, source: str = "") -> DevicePools:
    """Return the devices that the nodes of `new_nodes` will publish; with a source those of its groups alone."""
    groups = (group for group in growing_groups(fleet, sources) if not source or group.source == source)
    slices = (one for group in groups for one in group.slices)
    return DevicePools(slices_by_pool(pack_slices(slices)), new_nodes(fleet, sources))


def nodes_with_siblings(fleet: Fleet, sources: GroupSources, *, groups_grow: bool) -> int:
    """Return the live nodes that cluster-autoscaler may copy, with their devices; Karpenter expects none of these.

    Args:
        groups_grow: True if a policy says that groups grow, those that the settings do not name included.
    """
    labels = [label for label in GROUP_LABELS if label != KARPENTER_POOL]
    copied = union_masks(map(fleet.nodes_with_label, labels)) if groups_grow else 0
    for one in sources.groups:
        nodes = union_masks(fleet.select_nodes({label: one.name}, None) for label in labels)
        copied = copied | nodes if one.grows else copied & ~nodes
    return copied & ~fleet.nodes_with_label(KARPENTER_POOL)


def hides_gpus_from_autoscaler(node: FleetNode) -> bool:
    """Return whether cluster-autoscaler sees a node that should have GPUs and has none.

    It counts such a node as not ready while it decides about new nodes, and as idle while it looks for nodes to remove,
    whatever slices its pods hold.
    """
    labels = node.labels
    labeled = any(label in labels for label in AUTOSCALER_GPU_LABELS)
    if KARPENTER_POOL in labels or not (labeled or (AZURE_POOL in labels and AZURE_GPU_LABEL in labels)):
        return False
    return not any(node.gpus.get(name) or node.others.get(name) for name in AUTOSCALER_GPUS)


def group_of_node(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the label that names a node's group, and its value; None without one."""
    return next(((key, labels[key]) for key in GROUP_LABELS if labels.get(key)), None)


def _group_by_settings(spec: NodeGroupSpec) -> NodeGroup:
    node = _new_node(spec.name, spec.agent_labels | spec.labels, spec.taints, spec.resources)
    blocker = "" if spec.grows else "the settings file says grows: false"
    unknown = frozenset(spec.agent_labels.keys() - spec.labels.keys())
    slices = slices_of_new_node(node.metadata.name, spec.resource_slices)
    return NodeGroup(spec.name, SETTINGS, node, unknown, blocker=blocker, is_declared=True, slices=slices)


def _groups_by_machines(machines: Iterable[MachineDeployment]) -> Iterator[NodeGroup]:
    """Yield the groups whose annotations say what a machine offers: cluster-autoscaler needs CPU and memory."""
    for one in machines:
        written = {
            key.removeprefix(CAPACITY_ANNOTATION): value
            for key, value in one.metadata.annotations.items()
            if key.startswith(CAPACITY_ANNOTATION)
        }
        owned = any(owner.kind == "MachineDeployment" for owner in one.metadata.owner_references)
        if owned or not {"cpu", "memory"} <= written.keys():
            continue
        resources: dict[str, QuantityText] = {"cpu": written["cpu"], "memory": written["memory"]}
        if written.get("gpu-type"):
            resources[written["gpu-type"]] = written.get("gpu-count", "0")
        labels = dict(pair.split("=", 1) for pair in written.get("labels", "").split(",") if "=" in pair)
        taints = filter(None, map(_parse_taint, written.get("taints", "").split(",")))
        node = _new_node(one.metadata.name, labels, taints, resources)
        blocker, left = _size_blocker(one), _machines_left(one)
        kind, slices = type(one).__name__, slices_of_machine(node.metadata.name, written)
        yield NodeGroup(
            one.metadata.name, kind, node, blocker=blocker, nodes_left=left, is_declared=True, slices=slices
        )


def _size_blocker(machines: MachineDeployment) -> str:
    annotations = machines.metadata.annotations
    most = parse_count(annotations.get(MAX_SIZE_ANNOTATION))
    if machines.spec.paused or PAUSED_ANNOTATION in annotations:
        return "it is paused"
    if machines.metadata.deletion_timestamp is not None:
        return BEING_DELETED
    if most is None:
        return f"it has no annotation {MAX_SIZE_ANNOTATION} with a number"
    return "" if machines.spec.replicas < most else f"it has its maximum of {most} nodes"


def _machines_left(machines: MachineDeployment) -> int:
    most = parse_count(machines.metadata.annotations.get(MAX_SIZE_ANNOTATION)) or 0
    return max(0, most - machines.spec.replicas)


def _parse_taint(text: str) -> Taint | None:
    """Parse a taint as an annotation has it, `key=value:effect`."""
    pair, colon, effect = text.strip().rpartition(":")
    key, _, value = pair.partition("=")
    return Taint(key, value, effect) if colon and key else None


def _groups_of_nodes(
    fleet: Fleet, overlays: Sequence[NodeOverlay], pools: Mapping[str, KarpenterPool]
) -> Iterator[NodeGroup]:
    """Yield the groups of live nodes with GPUs that are ready.

    A node that is starting does not show yet what it will offer: it has a taint, or GPUs without a product where the
    others of its group have one. cluster-autoscaler may copy a ready node without GPUs too.
    """
    members: dict[tuple[str, str], int] = {}
    starting = union_masks(nodes for taint, nodes in fleet.nodes_by_taint if taint.key in STARTING_TAINTS)
    labeled = fleet.nodes_with_label(PRODUCT_LABEL)
    for index in bit_positions(fleet.usable_nodes & ~starting):
        key = group_of_node(fleet.nodes[index].labels)
        if key is not None:
            members[key] = members.get(key, 0) | 1 << index
    covered = [(overlay.spec.capacity, _nodes_of_overlay(overlay, fleet)) for overlay in _by_precedence(overlays)]
    for (label, name), ready in members.items():
        with_gpus = ready & fleet.gpu_nodes
        mask = with_gpus & labeled or with_gpus
        if not mask:
            continue
        if label == KARPENTER_POOL:
            pool = pools.get(name, MISSING_POOL) if pools else None
            yield _group_by_node_pool(name, fleet, mask, _added_by_overlays(covered, mask), pool)
        else:
            yield _group_by_sibling(label, name, fleet, mask | ready & ~fleet.gpu_nodes)


def _by_precedence(overlays: Iterable[NodeOverlay]) -> list[NodeOverlay]:
    """Return the ready NodeOverlays, those first that count where several set a resource."""
    ready = (overlay for overlay in overlays if not overlay.status.is_unready)
    return sorted(ready, key=lambda overlay: (overlay.spec.weight, overlay.metadata.name), reverse=True)


def _added_by_overlays(covered: Iterable[tuple[Mapping[str, QuantityText], int]], mask: int) -> dict[str, int]:
    """Return the nano-units that NodeOverlays add to every node of a mask, the least of each resource.

    Args:
        covered: What each adds, and its nodes, by precedence.
        mask: The nodes of a NodePool.
    """
    left, least = dict[str, int](), dict[str, int]()
    for capacity, nodes in covered:
        for name, amount in capacity.items():
            if left.get(name, mask) & nodes:
                nano = parse_nano_or_none(amount) or 0
                least[name] = min(nano, least.get(name, nano))
                left[name] = left.get(name, mask) & ~nodes
    return {name: nano for name, nano in least.items() if nano > 0 and not left[name]}


def _nodes_of_overlay(overlay: NodeOverlay, fleet: Fleet) -> int:
    requirements = overlay.spec.requirements
    return fleet.select_nodes({}, (NodeSelectorTerm(requirements),) if requirements else None)


def _group_by_sibling(label: str, name: str, fleet: Fleet, mask: int) -> NodeGroup:
    """Return a group of which cluster-autoscaler copies one of the live nodes, which may be any of a mask."""
    nodes = [fleet.nodes[index] for index in bit_positions(mask)]
    resources = _common_resources(nodes)
    missing = {gpu for node in nodes for gpu, units in node.gpus.items() if units} - resources.keys()
    if fleet.all_advertise_accounting(mask):
        resources[ACCOUNTING_RESOURCE] = str(1000 * sum(nodes[0].gpus.values()))
    blocker = ""
    if any(map(hides_gpus_from_autoscaler, nodes)):
        blocker = "cluster-autoscaler counts nodes with its GPU label and without nvidia.com/gpu as not ready"
    new = _new_node(name, _common_labels(fleet, mask), _all_taints(nodes), resources)
    return NodeGroup(name, label, new, unknown_gpus=tuple(sorted(missing)), blocker=blocker)


def _group_by_node_pool(
    name: str, fleet: Fleet, mask: int, added: Mapping[str, int], pool: KarpenterPool | None
) -> NodeGroup:
    """Return a NodePool, whose instance types have whole GPUs, with what NodeOverlays add to all its nodes.

    Args:
        name: Its name.
        fleet, mask: Its ready nodes.
        added: Nano-units by resource.
        pool: The NodePool; None if no NodePool is known.
    """
    nodes = [fleet.nodes[index] for index in bit_positions(mask)]
    labels, resources = _common_labels(fleet, mask), _common_resources(nodes)
    known = {key: amount for key, amount in resources.items() if key == WHOLE_GPU or "/" not in key}
    for key in added.keys() & (resources.keys() - known.keys()):
        known[key] = str(min(added[key], parse_nano_or_none(resources[key]) or 0) // NANO)
    if ACCOUNTING_RESOURCE in added:
        known[ACCOUNTING_RESOURCE] = str(added[ACCOUNTING_RESOURCE] // NANO)
    live = [fleet.nodes[i] for i in bit_positions(fleet.select_nodes({KARPENTER_POOL: name}, None))]
    return NodeGroup(
        name,
        KARPENTER_POOL,
        _new_node(name, labels, _all_taints(nodes, pool.spec.template.spec.taints if pool else ()), known),
        frozenset(key for key in labels if key.startswith(AGENT_LABELS)),
        tuple(sorted({gpu for node in nodes for gpu in node.gpus} - known.keys())),
        *_limits_of_pool(pool or KarpenterPool(), nodes, live),
        is_declared=pool is not None and pool is not MISSING_POOL,
    )


def _limits_of_pool(
    pool: KarpenterPool, ready: Sequence[FleetNode], live: Sequence[FleetNode]
) -> tuple[str, int | None]:
    """Return why a NodePool creates no node, or "", and the number of nodes that its limits leave.

    Args:
        pool: The NodePool.
        ready: Nodes of it that are ready.
        live: All nodes of it.
    """
    if pool is MISSING_POOL:
        return "its NodePool does not exist any more", 0
    if pool.metadata.deletion_timestamp is not None:
        return f"its NodePool: {BEING_DELETED}", 0
    if pool.status.is_unready:
        return "its NodePool is not ready", 0
    if pool.spec.replicas is not None:
        return f"its NodePool has a fixed number of {pool.spec.replicas} nodes", 0
    left = {name: _nodes_within(name, limit, pool, ready, live) for name, limit in pool.spec.limits.items()}
    if not left:
        return "", None
    name = min(left, key=left.__getitem__)
    blocker = "" if left[name] else f"the limit of {name} of its NodePool leaves no node ({pool.spec.limits[name]})"
    return blocker, left[name]


def _nodes_within(
    name: str, limit: QuantityText, pool: KarpenterPool, ready: Sequence[FleetNode], live: Sequence[FleetNode]
) -> int:
    """Return how many more nodes as large as any of the pool a limit leaves.

    Karpenter updates the status a while after it has created a node, so what live nodes have counts at least.
    """
    used = max(
        parse_nano_or_none(pool.status.resources.get(name, 0)) or 0, sum(_nano_held(each, name) for each in live)
    )
    each, left = max(_nano_capacity(node, name) for node in ready), (parse_nano_or_none(limit) or 0) - used
    if not each:
        return MANY_NODES if left >= 0 else 0
    return max(0, left // each)


def _nano_held(node: FleetNode, name: str) -> int:
    """Return the least nano-units of a limited resource that a live node counts for."""
    if name == NODES_LIMIT:
        return NANO
    allocatable = {"cpu": node.cpu_milli * NANO // 1000, "memory": node.memory * NANO}
    return allocatable.get(name, NANO * node.gpus.get(name, 0))


def _nano_capacity(node: FleetNode, name: str) -> int:
    """Return the nano-units of a limited resource that a node like this one counts for; kubelets reserve some CPU."""
    if name == WHOLE_GPU:
        return NANO * _count_cards(node)
    held = _nano_held(node, name)
    return held * 100 // USABLE_PERCENT if name in RESERVED_RESOURCES else held or node.others.get(name, 0)


def _count_cards(node: FleetNode) -> int:
    """Return the GPUs of a node's instance type, which its provider knows whatever the node advertises of them."""
    labels = (parse_count(node.labels.get(label)) or 0 for label in CARD_COUNT_LABELS)
    return max(node.gpus.get(WHOLE_GPU, 0), *labels) or (MANY_NODES if node.gpus else 0)


def _new_node(
    name: str, labels: Mapping[str, str], taints: Iterable[Taint], resources: Mapping[str, QuantityText]
) -> Node:
    status, own = NodeStatus(allocatable=dict(resources), capacity=dict(resources)), f"{NEW_NODE_PREFIX}{name}"
    return Node(NodeMetadata(own, {HOSTNAME: own, **labels}), NodeSpec(tuple(taints)), status)


def _common_labels(fleet: Fleet, nodes: int) -> dict[str, str]:
    """Return the labels that all nodes of a mask share, and a new one of their group will have."""
    first = fleet.nodes[next(bit_positions(nodes))].labels
    return {
        key: value for key, value in first.items() if key not in OWN_LABELS and fleet.common_label(key, nodes) == value
    }


def _all_taints(nodes: Sequence[FleetNode], more: Iterable[Taint] = ()) -> list[Taint]:
    return sorted(set(more).union(*{node.taints for node in nodes}), key=taint_sort_key)


def _common_resources(nodes: Sequence[FleetNode]) -> dict[str, QuantityText]:
    """Return the resources that all nodes advertise, the least of each."""
    resources: dict[str, QuantityText] = {
        "cpu": f"{min(node.cpu_milli for node in nodes) * USABLE_PERCENT // 100}m",
        "memory": str(min(node.memory for node in nodes) * USABLE_PERCENT // 100),
    }
    if pods := min(node.pods for node in nodes):
        resources["pods"] = str(pods)
    for name in nodes[0].gpus:
        if units := min(node.gpus.get(name, 0) for node in nodes):
            resources[name] = str(units)
    for name in nodes[0].others:
        if amount := min(node.others.get(name, 0) for node in nodes):
            resources[name] = str(amount // NANO)
    return resources
