"""Devices and claims of a live cluster: the stores that reflectors write, and the view of them.

Slices are packed, and claims share equal specifications: tens of thousands of both take tens of megabytes. A claim that
comes or goes changes what is allocated of its pools only; a slice or a node that changes rebuilds the index of pools.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from sys import intern

import msgspec
from msgspec.structs import replace

from webhook.cache.store import ObjectStore
from webhook.kube.reflector import WatchStatus
from webhook.model.bounded_cache import BoundedCache
from webhook.model.claims import (
    EXTENDED_RESOURCE_CLAIM,
    ClaimConsumer,
    ClaimSpec,
    DeviceAllocation,
    DeviceClass,
    ResourceClaim,
    device_classes_by_name,
    pending_devices,
)
from webhook.model.dra.claim_weights import carry_claim_weights
from webhook.model.dra.device_pools import DevicePools, PoolId, SlicesByPool, slices_by_pool
from webhook.model.dra.device_taint_rules import DeviceTaintRule, with_rule_taints
from webhook.model.dra.device_view import (
    NO_DEVICES,
    AllocatedDevices,
    ClaimsByNamespace,
    DeviceKind,
    DeviceView,
    allocation_results,
    pool_allocations,
)
from webhook.model.dra.extended_resources import classes_by_resource
from webhook.model.dra.published_devices import cards_by_kind
from webhook.model.dra.resource_slices import DIGEST_BYTES, PackedSlice, ResourceSlice, SlicePacker
from webhook.model.dra.twice_published import devices_published_twice
from webhook.model.fleet import Fleet
from webhook.model.pods import DEFAULT_NAMESPACE, ObjectMeta

MAX_SHARED_SPECS = 4096
"""Specifications of claims that are shared; templates make claims with equal ones."""

_OF_SCHEDULER = {EXTENDED_RESOURCE_CLAIM: "true"}
_SOME_POD = (ClaimConsumer(),)


class SliceStore:
    """The store of ResourceSlices, packed as they arrive."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._packer = SlicePacker()
        self._store: ObjectStore[PackedSlice] = ObjectStore(lambda item: item.name, lambda *_: on_change())
        self.begin, self.swap = self._store.begin, self._store.swap

    def upsert(self, item: ResourceSlice) -> None:
        """Store a slice."""
        self._store.upsert(self._packer.pack(item))

    def remove(self, item: ResourceSlice) -> None:
        """Remove a slice."""
        self._store.remove(self._packer.pack(item))

    def all(self) -> list[PackedSlice]:
        """Return the slices."""
        return list(self._store.items.values())


class ClaimStore:
    """The store of ResourceClaims: without metadata that nothing reads, and with shared specifications."""

    def __init__(self, on_change: Callable[[ResourceClaim | None, ResourceClaim | None], None]) -> None:
        self._specs: BoundedCache[bytes, ClaimSpec] = BoundedCache(MAX_SHARED_SPECS)
        self._store: ObjectStore[ResourceClaim] = ObjectStore(
            lambda item: f"{item.metadata.namespace}/{item.metadata.name}",
            lambda _key, before, after: on_change(before, after),
        )
        self.begin, self.swap = self._store.begin, self._store.swap

    def upsert(self, item: ResourceClaim) -> None:
        """Store a claim."""
        self._store.upsert(self._compact(item))

    def remove(self, item: ResourceClaim) -> None:
        """Remove a claim."""
        self._store.remove(item)

    def _compact(self, item: ResourceClaim) -> ResourceClaim:
        digest = blake2b(msgspec.msgpack.encode(item.spec), digest_size=DIGEST_BYTES).digest()
        spec = self._specs.get(digest) or self._specs.store(digest, item.spec)
        status, about = item.status, item.metadata
        if status.allocation is not None:
            results = tuple(map(_intern_result, status.allocation.devices.results))
            devices = replace(status.allocation.devices, results=results)
            allocation, some_pod = replace(status.allocation, devices=devices), _SOME_POD if status.reserved_for else ()
            status = replace(status, allocation=allocation, reserved_for=some_pod)
        metadata = ObjectMeta(
            name=about.name,
            namespace=intern(about.namespace),
            uid=about.uid,
            deletion_timestamp=about.deletion_timestamp,
            annotations=_OF_SCHEDULER if EXTENDED_RESOURCE_CLAIM in about.annotations else {},
        )
        return ResourceClaim(metadata, spec, status)


def _intern_result(result: DeviceAllocation) -> DeviceAllocation:
    names = {name: intern(getattr(result, name)) for name in ("request", "driver", "pool", "device")}
    return replace(result, **names)


class DeviceIndex:
    """Devices and claims.

    Attributes:
        slices, claims, taint_rules: The stores, one per reflector.
        watches: The statuses of the watches of these and of templates and classes, if there are any.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Start empty; `on_change` is called after each change."""
        self.watches: list[WatchStatus] = []
        self._on_change = on_change
        self.slices = SliceStore(self._on_slice_change)
        self.claims = ClaimStore(self._on_claim_change)
        self.taint_rules: ObjectStore[DeviceTaintRule] = ObjectStore(
            lambda item: item.metadata.name, lambda *_: self._on_slice_change()
        )
        self._results: defaultdict[PoolId, dict[tuple[str, str], list[DeviceAllocation]]] = defaultdict(dict)
        self._claims: defaultdict[str, dict[str, ResourceClaim]] = defaultdict(dict)
        self._pending: Counter[str] = Counter()
        self._changed_pools: set[PoolId] = set()
        self._changed_namespaces: set[str] = set()
        self._slices_changed = False
        self._grouped: SlicesByPool = {}
        self._view = NO_DEVICES
        self._fleet: Fleet | None = None

    async def update_pools(self, fleet: Fleet) -> None:
        """Index the pools again, in a thread, if a slice or the nodes have changed."""
        if not self.is_outdated(fleet):
            return
        slices = self.slices.all() if self._slices_changed else None
        rules = list(self.taint_rules.items.values())
        self._slices_changed = False
        try:
            grouped, pools = await asyncio.to_thread(_index_pools, slices, rules, self._grouped, fleet, self._view)
        except BaseException:
            self._slices_changed = True
            raise
        self._grouped, self._fleet = grouped, fleet
        self._view = self._view._replace(pools=pools)

    def has_slices(self) -> bool:
        """Return whether there are slices."""
        return bool(self.slices.all())

    def is_outdated(self, fleet: Fleet) -> bool:
        """Return whether a slice has changed, or the nodes are others than those of the index."""
        return self._slices_changed or (fleet is not self._fleet and bool(self._grouped))

    def publishes(self, node: str) -> bool:
        """Return whether slices name a node."""
        return self._view.pools.has_node(node)

    def take_view(self, classes: Iterable[DeviceClass]) -> DeviceView:
        """Return the view with all changes; `update_pools` must have run before.

        Args:
            classes: The device classes.
        """
        classes = tuple(classes)
        by_name = device_classes_by_name(classes)
        if by_name != self._view.classes:
            self._view = self._view._replace(classes=by_name, class_by_resource=classes_by_resource(classes))
        if self._changed_pools:
            self._view = self._view._replace(allocated=self._changed_allocations())
        if self._changed_namespaces:
            self._view = self._view._replace(claims=self._changed_claims(), pending=+self._pending)
        unlisted = frozenset(DeviceKind(each.name) for each in self.watches if each.forbidden or not each.synced)
        if unlisted != self._view.unlisted:
            self._view = self._view._replace(knows_claims=DeviceKind.CLAIM not in unlisted, unlisted=unlisted)
        return self._view if self._view.pools or self._view.claims or self._view.classes else NO_DEVICES

    def _changed_allocations(self) -> AllocatedDevices:
        allocated = dict(self._view.allocated)
        for pool in self._changed_pools:
            if results := [each for some in self._results[pool].values() for each in some]:
                allocated[pool] = pool_allocations(results)
            else:
                allocated.pop(pool, None)
                del self._results[pool]
        self._changed_pools = set()
        return allocated

    def _changed_claims(self) -> ClaimsByNamespace:
        claims = {**self._view.claims, **{name: dict(self._claims[name]) for name in self._changed_namespaces}}
        self._changed_namespaces = set()
        return {name: some for name, some in claims.items() if some}

    def _on_slice_change(self) -> None:
        self._slices_changed = True
        self._on_change()

    def _on_claim_change(self, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        for claim, is_present in ((before, False), (after, True)):
            if claim is not None:
                self._note_claim(claim, is_present=is_present)
        self._on_change()

    def _note_claim(self, claim: ResourceClaim, *, is_present: bool) -> None:
        """Add a claim or remove it."""
        namespace, name = claim.metadata.namespace or DEFAULT_NAMESPACE, claim.metadata.name
        self._changed_namespaces.add(namespace)
        (self._pending.update if is_present else self._pending.subtract)(pending_devices(claim))
        for result in allocation_results(claim):
            pool = PoolId(result.driver, result.pool)
            self._changed_pools.add(pool)
            if is_present:
                self._results[pool].setdefault((namespace, name), []).append(result)
            else:
                self._results[pool].pop((namespace, name), None)
        if is_present:
            self._claims[namespace][name] = claim
        else:
            self._claims[namespace].pop(name, None)


def _index_pools(
    slices: Iterable[PackedSlice] | None,
    rules: Sequence[DeviceTaintRule],
    grouped: SlicesByPool,
    fleet: Fleet,
    before: DeviceView,
) -> tuple[SlicesByPool, DevicePools]:
    """Return the slices by pool, which are the given ones without changed slices, and the index of pools."""
    grouped = grouped if slices is None else slices_by_pool(with_rule_taints(slices, rules))
    pools = DevicePools(grouped, fleet)
    carry_claim_weights(before.pools, pools, before.claims)
    cards_by_kind(pools, fleet)
    devices_published_twice(pools, fleet)
    return grouped, pools
