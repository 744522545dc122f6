"""Pools of devices as the scheduler sees them for one node.

Only slices of the newest generation of a pool count, and only if all of them are known: the others are being replaced.
Which slices decide that depends on the node, because the scheduler first looks at those that a node can use.
Source: `k8s.io/dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go` of Kubernetes 1.36.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.bounded_cache import BoundedCache
from webhook.model.derived_values import DerivedValues
from webhook.model.dra.resource_slices import Device, PackedSlice
from webhook.model.fleet import Fleet
from webhook.model.node_masks import ALL_NODES
from webhook.model.pods import NodeSelector
from webhook.model.quantity import parse_nano

MAX_CACHED_NODES = 64
"""Nodes whose pools are cached: unpacked, those of eight cards that can be partitioned take a quarter of a megabyte."""


class PoolId(NamedTuple):
    """A pool: its driver, and its name there."""

    driver: str
    pool: str


class DeviceId(NamedTuple):
    """A device: its driver, its pool there, and its name in that."""

    driver: str
    pool: str
    device: str


CounterValues = Mapping[str, Mapping[str, int]]
"""Nano-units by counter set and counter."""

NO_COUNTERS: CounterValues = MappingProxyType({})


class NodeDevice(NamedTuple):
    """A device of a pool.

    Attributes:
        usable: False if the node cannot use it; then it shares a slice with devices that it can use.
    """

    device: Device
    usable: bool = True


class NodePool(NamedTuple):
    """A pool as one node sees it.

    Attributes:
        incomplete: True if slices are missing: then nothing else is known.
        invalid: Why no device of it can be allocated; "" if they can.
        devices: The devices of the slices that the node can use, in the order in which they are tried.
        counters: The amounts that its devices share.
        unreachable: Devices of its other slices, which use up the same amounts.
    """

    id: PoolId
    incomplete: bool = False
    invalid: str = ""
    devices: tuple[NodeDevice, ...] = ()
    counters: CounterValues = NO_COUNTERS
    unreachable: tuple[Device, ...] = ()


SlicesByPool = Mapping[PoolId, Sequence[PackedSlice]]


def slices_by_pool(slices: Iterable[PackedSlice]) -> SlicesByPool:
    """Group slices by pool, sorted by name."""
    grouped: defaultdict[PoolId, list[PackedSlice]] = defaultdict(list)
    for one in sorted(slices, key=lambda one: one.name):
        grouped[pool_of_slice(one)].append(one)
    return grouped


def pool_of_slice(one: PackedSlice) -> PoolId:
    return PoolId(one.spec.driver, one.spec.pool.name)


class DevicePools:
    """The pools of a cluster. Immutable.

    Attributes:
        slices: All slices, by pool and sorted by name.
        shared_counter_names: Names of pools of several drivers that all have counters. The scheduler confuses those.
        derived: Values that other modules derive from the pools.
    """

    def __init__(self, slices: SlicesByPool, fleet: Fleet) -> None:
        self.slices = slices
        self.derived: DerivedValues = {}
        self._fleet = fleet
        self._by_node: defaultdict[str, set[PoolId]] = defaultdict(set)
        self._of_any_node: set[PoolId] = set()
        counting: defaultdict[str, set[PoolId]] = defaultdict(set)
        for pool, some in slices.items():
            for one in some:
                if one.counters:
                    counting[pool.pool].add(pool)
                elif one.spec.node_name:
                    self._by_node[one.spec.node_name].add(pool)
                else:
                    self._of_any_node.add(pool)
        self.shared_counter_names = frozenset(name for name, pools in counting.items() if len(pools) > 1)
        self._unusable = [each for each in map(self._pool_of_counters, self._pools_to_check(counting)) if each]
        self._cached: BoundedCache[int, tuple[NodePool, ...]] = BoundedCache(MAX_CACHED_NODES)

    @property
    def slice_count(self) -> int:
        """The number of slices."""
        return sum(map(len, self.slices.values()))

    def __bool__(self) -> bool:
        return bool(self.slices)

    def _pools_to_check(self, counting: Mapping[str, set[PoolId]]) -> list[PoolId]:
        """Return the pools with counters, but of those with equal content only one unless that is unusable."""
        usable: dict[tuple[object, ...], bool] = {}
        found: list[PoolId] = []
        for pool in sorted(pool for pools in counting.values() for pool in pools):
            content = tuple([(id(each.content), each.spec.pool.generation) for each in self.slices[pool]])
            key = (content, self.slices[pool][0].spec.pool.resource_slice_count)
            if key not in usable:
                usable[key] = self._pool_of_counters(pool) is None
            if not usable[key]:
                found.append(pool)
        return found

    def nodes(self) -> list[int]:
        """Return the indexes of the nodes that slices name."""
        return [self._fleet.by_name[name] for name in self._by_node if name in self._fleet.by_name]

    @property
    def names_of_any_node(self) -> Collection[PoolId]:
        """The pools whose slices name no node."""
        return self._of_any_node

    @property
    def are_local(self) -> bool:
        """True if what a node sees depends only on the pools that name it."""
        return not (self._of_any_node or self._unusable or self.shared_counter_names)

    def has_node(self, name: str) -> bool:
        """Return whether slices name a node."""
        return name in self._by_node

    def names_of_node(self, node: int) -> Collection[PoolId]:
        """Return the pools whose slices name a node."""
        return self._by_node.get(self._fleet.nodes[node].name, ())

    def pools_of_node(self, node: int) -> tuple[NodePool, ...]:
        """Return the pools that a node sees, in the order in which the scheduler tries them. Cached."""
        if not self.slices:
            return ()
        if (found := self._cached.get(node)) is None:
            found = self._cached.store(node, self._pools_of_node(node))
        return found

    def whole_pool(self, pool: PoolId) -> NodePool | None:
        """Return a pool with the devices of all nodes; None if there is none."""
        slices = self.slices.get(pool)
        return self._gather_pool(pool, slices, None) if slices else None

    def incomplete_pools(self, nodes: int = ALL_NODES) -> list[PoolId]:
        """Return the pools that nodes of a mask may see and of whose newest generation slices are missing."""
        return [
            pool
            for pool, slices in self.slices.items()
            if _lacks_slices(slices) and any(self._may_be_seen_by(nodes, one) for one in slices)
        ]

    def _may_be_seen_by(self, nodes: int, one: PackedSlice) -> bool:
        node = self._fleet.by_name.get(one.spec.node_name or "")
        return not one.spec.node_name or (node is not None and bool(nodes >> node & 1))

    def _pools_of_node(self, node: int) -> tuple[NodePool, ...]:
        targeting = self._by_node.get(self._fleet.nodes[node].name, set()) | self._of_any_node
        found = [pool for each in targeting if (pool := self._pool_on_node(each, node))]
        seen = {pool.id for pool in found}
        found += [pool for pool in self._unusable if pool.id not in seen]
        return tuple(sorted(found, key=lambda pool: (_has_binding_conditions(pool), pool.id)))

    def _pool_on_node(self, pool: PoolId, node: int) -> NodePool | None:
        """Return a pool as a node sees it; None if the node can use no slice, or if it is being replaced."""
        relevant = [one for one in self.slices[pool] if one.counters or self._is_usable_slice(one, node)]
        if not relevant:
            return None
        return self._gather_pool(pool, relevant, node)

    def _pool_of_counters(self, pool: PoolId) -> NodePool | None:
        """Return a pool with counters that no node can use, as nodes without its devices see it too."""
        found = self._gather_pool(pool, [one for one in self.slices[pool] if one.counters], None)
        return found if found and (found.incomplete or found.invalid) else None

    def _gather_pool(self, pool: PoolId, relevant: Sequence[PackedSlice], node: int | None) -> NodePool | None:
        newest = max(one.spec.pool.generation for one in relevant)
        relevant = [one for one in relevant if one.spec.pool.generation == newest]
        wanted = relevant[0].spec.pool.resource_slice_count
        if len(relevant) == wanted:
            return self._build_pool(pool, relevant, (), node)
        if any(one.spec.pool.generation > newest for one in self.slices[pool]):
            return None
        every = [one for one in self.slices[pool] if one.spec.pool.generation == newest]
        if len(every) != wanted:
            return NodePool(pool, incomplete=True)
        known = {one.name for one in relevant}
        return self._build_pool(pool, relevant, [one for one in every if one.name not in known], node)

    def _build_pool(
        self, pool: PoolId, relevant: Sequence[PackedSlice], others: Sequence[PackedSlice], node: int | None
    ) -> NodePool:
        devices = tuple(
            NodeDevice(device, node is None or self._is_usable_device(one, device, node))
            for one in relevant
            if not one.counters
            for device in one.devices()
        )
        unreachable = tuple([device for one in others for device in one.devices()])
        counters: dict[str, Mapping[str, int]] = {}
        for counter_set in (each for one in relevant for each in one.counters):
            if counter_set.name in counters:
                return NodePool(pool, invalid=f"duplicate counter set name {counter_set.name}")
            counters[counter_set.name] = {name: parse_nano(each.value) for name, each in counter_set.counters.items()}
        invalid = _invalid_reason([each.device for each in devices], unreachable, counters)
        return NodePool(pool, invalid=invalid) if invalid else NodePool(pool, False, "", devices, counters, unreachable)

    def _is_usable_slice(self, one: PackedSlice, node: int) -> bool:
        spec = one.spec
        if spec.node_name or spec.all_nodes or spec.node_selector:
            return self._matches_node(node, spec.node_name, spec.all_nodes, spec.node_selector)
        return spec.per_device_node_selection is True and any(
            self._is_usable_device(one, device, node) for device in one.devices()
        )

    def _is_usable_device(self, one: PackedSlice, device: Device, node: int) -> bool:
        """Return whether a node can use a device of a slice that it can use."""
        if not one.spec.per_device_node_selection:
            return True
        return self._matches_node(node, device.node_name, device.all_nodes, device.node_selector)

    def _matches_node(
        self, node: int, node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None
    ) -> bool:
        if node_name:
            return node_name == self._fleet.nodes[node].name
        if all_nodes:
            return True
        return selector is not None and bool(self._fleet.select_nodes({}, selector.node_selector_terms) >> node & 1)


def _lacks_slices(slices: Sequence[PackedSlice]) -> bool:
    generation = max(one.spec.pool.generation for one in slices)
    newest = [one for one in slices if one.spec.pool.generation == generation]
    return len(newest) != newest[0].spec.pool.resource_slice_count


def _has_binding_conditions(pool: NodePool) -> bool:
    return any(each.device.binding_conditions for each in pool.devices)


def _invalid_reason(devices: Sequence[Device], unreachable: Sequence[Device], counters: CounterValues) -> str:
    names: set[str] = set()
    for device in devices:
        if device.name in names:
            return f"duplicate device name {device.name}"
        names.add(device.name)
    for device in (*devices, *unreachable):
        for consumption in device.consumes_counters:
            if consumption.counter_set not in counters:
                return f"counter set {consumption.counter_set} not found"
            for name in consumption.counters:
                if name not in counters[consumption.counter_set]:
                    return f"counter {name} not found in counter set {consumption.counter_set}"
    return ""
