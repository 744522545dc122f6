"""Allocate devices to the claims of a pod on one node, as kube-scheduler does.

Devices are tried in published order: pools by driver and name, slices by name, devices by position. The first complete
solution counts; nothing is compared. The search goes back when a device that was taken leaves no solution.
Source: `allocator_incubating.go` in `k8s.io/dynamic-resource-allocation/structured/internal/incubating` of Kubernetes
1.36.3, with the feature gates that are on by default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import MAX_DEVICES, ClaimRequest, ClaimSpec, DeviceClasses, DeviceRequest
from webhook.model.dra.capacity import NO_AMOUNTS, Amounts, consumed_amounts, has_capacity_left
from webhook.model.dra.constraints import ConstraintState
from webhook.model.dra.device_pools import DeviceId, NodePool, PoolId
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.device_view import NOTHING_ALLOCATED, AllocatedDevices, PoolAllocations
from webhook.model.dra.resource_slices import Device, DeviceAttribute
from webhook.model.objects import HARD_EFFECTS, tolerates_all
from webhook.model.pods import Toleration
from webhook.model.quantity import parse_nano

MAX_STEPS = 20_000
"""Devices and requests that are looked at for one node: about 50 ms. The scheduler stops after 10 seconds."""

MAX_DEPTH = 200
"""Devices and requests of a pod; each is a level of the search."""

CANNOT_ALLOCATE = "cannot allocate all claims"
INVALID_POOLS = "invalid resource pools were encountered"
TOO_MANY_STEPS = "the search for devices takes too long"
SHARED_POOL_NAME = "pools of several drivers have one name"
DERIVED_ATTRIBUTES = "constraints may be on derived attributes"

SelectDevice = Callable[[str, str, Device], bool]
"""Function that evaluates a CEL expression on a device of a driver; `SelectorRuntimeError` if that fails."""


class AllocationOutcome(StrEnum):
    """The result of an attempt to allocate claims on a node."""

    ALLOCATED = "allocated"
    REJECTED = "rejected"
    """The node cannot serve the claims."""

    FAILED = "failed"
    """An error that ends scheduling of the pod on all nodes."""

    UNKNOWN = "unknown"
    """It depends on what is not known here."""


class ChosenDevice(NamedTuple):
    """A device that a request would get.

    Attributes:
        request: Name of the request, or of the request and the choice: `request/choice`.
        device: The device.
        admin_access: True if it is used for administration.
        consumed: What is used up of a device that several requests may share; None of others.
    """

    request: str
    device: DeviceId
    admin_access: bool = False
    consumed: Amounts | None = None


class NodeAllocation(NamedTuple):
    """The devices that the claims of a pod would get on a node.

    Attributes:
        outcome: Whether they would get devices.
        claims: The devices of each claim; () if none.
        reason: Why not, in the scheduler's words; "" if they would.
        steps: Devices and requests that were looked at.
        exceeds_device_limit: True if a claim requests more devices than a claim can get.
    """

    outcome: AllocationOutcome
    claims: tuple[tuple[ChosenDevice, ...], ...] = ()
    reason: str = ""
    steps: int = 0
    exceeds_device_limit: bool = False


class NamedClaim(NamedTuple):
    """A claim that is to be allocated.

    Attributes:
        name: Its name in messages.
        spec: Its specification.
        existing: The name of a claim that exists; "" if it is made for the pod.
    """

    name: str
    spec: ClaimSpec
    existing: str = ""


def allocate_on_node(
    claims: Sequence[NamedClaim],
    pools: Sequence[NodePool],
    allocated: AllocatedDevices,
    classes: DeviceClasses,
    selects: SelectDevice,
    *,
    shared_names: frozenset[str] = frozenset(),
    max_steps: int = MAX_STEPS,
) -> NodeAllocation:
    """Allocate devices to claims.

    Args:
        claims: Claims of one pod without an allocation, in the pod's order.
        pools: The pools that the node sees, in order.
        allocated: What other claims have been given.
        classes: The device classes.
        selects: Evaluates a selector on a device.
        shared_names: Names of pools whose counters the scheduler confuses.
        max_steps: Bound of the search.
    """
    search = _Search(claims, pools, allocated, classes, selects, shared_names, max_steps)
    try:
        done = search.run()
    except (_AllocationError, SelectorRuntimeError) as error:
        exceeds = isinstance(error, _TooManyDevicesError)
        return NodeAllocation(
            AllocationOutcome.FAILED, reason=str(error), steps=search.steps, exceeds_device_limit=exceeds
        )
    except (_UnknownError, UnmodeledExpressionError) as error:
        return NodeAllocation(AllocationOutcome.UNKNOWN, reason=str(error), steps=search.steps)
    if done:
        results = tuple(map(tuple, search.results))
        return NodeAllocation(AllocationOutcome.ALLOCATED, results, steps=search.steps)
    reason = INVALID_POOLS if any(pool.invalid for pool in pools) else CANNOT_ALLOCATE
    return NodeAllocation(AllocationOutcome.REJECTED, reason=reason, steps=search.steps)


class _AllocationError(Exception):
    """The scheduler gives up on the pod."""


class _TooManyDevicesError(_AllocationError):
    """A claim requests more devices than a claim can get."""


class _UnknownError(Exception):
    """The search cannot tell."""


class _TooManyResultsError(Exception):
    """A claim would get more devices than it can."""


class _Candidate(NamedTuple):
    """A device in its pool."""

    id: DeviceId
    device: Device
    usable: bool
    pool: NodePool


class _Want(NamedTuple):
    """A request, or a choice of one.

    Attributes:
        key: The claim, the request in it, and the choice in that.
        request: The devices.
        name: Name of the request.
        choice: Name of the choice; "" of a request without any.
        needed: Number of devices.
        all_devices: The devices of a request for all; None of others.
    """

    key: tuple[int, int, int]
    request: DeviceRequest
    name: str
    choice: str
    needed: int
    all_devices: tuple[_Candidate, ...] | None

    @property
    def full_name(self) -> str:
        return f"{self.name}/{self.choice}" if self.choice else self.name


class _Search:
    """One search; `run` may be called once."""

    def __init__(
        self,
        claims: Sequence[NamedClaim],
        pools: Sequence[NodePool],
        allocated: AllocatedDevices,
        classes: DeviceClasses,
        selects: SelectDevice,
        shared_names: frozenset[str],
        max_steps: int,
    ) -> None:
        self.steps = 0
        self.results: list[list[ChosenDevice]] = [[] for _ in claims]
        self._claims, self._pools, self._classes, self._selects = claims, pools, classes, selects
        self._allocated, self._shared_names, self._max_steps = allocated, shared_names, max_steps
        self._candidates = [
            _Candidate(DeviceId(*pool.id, each.device.name), each.device, each.usable, pool)
            for pool in pools
            if not (pool.incomplete or pool.invalid)
            for each in pool.devices
        ]
        self._wants: list[list[list[_Want]]] = []
        self._constraints: list[list[ConstraintState]] = []
        self._matches: dict[tuple[DeviceId, tuple[int, int, int]], bool] = {}
        self._taken: dict[DeviceId, set[int]] = {}
        self._taken_capacity: dict[DeviceId, Amounts] = {}
        self._counters: dict[PoolId, PoolCounters] = {}

    def run(self) -> bool:
        """Find devices for all claims; False if there are none."""
        for index, claim in enumerate(self._claims):
            self._wants.append([self._wants_of_request(index, number) for number in range(len(_requests(claim)))])
            least = sum(min(want.needed for want in wants) for wants in self._wants[-1])
            if least > MAX_DEVICES:
                detail = f"number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}"
                raise _TooManyDevicesError(f"claim {claim.name}: {detail}")
            self._constraints.append(self._constraints_of_claim(claim))
        if sum(max(want.needed for want in wants) + 1 for each in self._wants for wants in each) > MAX_DEPTH:
            raise _UnknownError(TOO_MANY_STEPS)
        try:
            return self._allocate_request(0, 0)
        except _TooManyResultsError:
            raise _AllocationError("allocation max size exceeded") from None

    def _constraints_of_claim(self, claim: NamedClaim) -> list[ConstraintState]:
        constraints = claim.spec.devices.constraints
        choices = (choice for request in claim.spec.devices.requests for choice in request.choices)
        if constraints and any(choice.derived_attributes for choice in choices):
            raise _UnknownError(DERIVED_ATTRIBUTES)
        for number, each in enumerate(constraints):
            if each.match_attribute is None and each.distinct_attribute is None:
                raise _AllocationError(
                    f"claim {claim.name}, constraint #{number}: empty constraint (unsupported constraint type?)"
                )
        return [ConstraintState(each) for each in constraints]

    def _wants_of_request(self, index: int, number: int) -> list[_Want]:
        claim, request = self._claims[index], _requests(self._claims[index])[number]
        if request.first_available:
            choices = [(each, each.name) for each in request.first_available]
        else:
            choices = [(request.exactly or DeviceRequest(), "")]
        return [
            self._resolve_want(claim, _Want((index, number, place), each, request.name, choice, each.count, None))
            for place, (each, choice) in enumerate(choices)
        ]

    def _resolve_want(self, claim: NamedClaim, want: _Want) -> _Want:
        where = f"claim {claim.name}, request {want.choice or want.name}"
        request = want.request
        if not request.device_class_name:
            raise _AllocationError(f"{where}: missing device class name (unsupported request type?)")
        if request.device_class_name not in self._classes:
            raise _AllocationError(f"{where}: could not retrieve device class {request.device_class_name}")
        if request.allocation_mode == "ExactCount":
            return want
        if request.allocation_mode != "All":
            raise _AllocationError(f"{where}: unsupported count mode {request.allocation_mode}")
        devices = self._all_devices(where, want)
        return want._replace(needed=len(devices), all_devices=devices)

    def _all_devices(self, where: str, want: _Want) -> tuple[_Candidate, ...]:
        """Return the devices that a request for all of them needs."""
        found: list[_Candidate] = []
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                name = "/".join(pool.id)
                raise _AllocationError(f"{where}: asks for all devices, but resource pool {name} is currently {state}")
            of_pool = [each for each in self._candidates if each.pool is pool]
            found += [each for each in of_pool if self._is_selected(want, each) and self._has_capacity(want, each)]
        return tuple(found)

    def _allocate_request(self, claim: int, request: int) -> bool:
        """Allocate a request of a claim, then all that follow."""
        self._count_step()
        if claim >= len(self._claims):
            return True
        if request >= len(self._wants[claim]):
            try:
                return self._allocate_request(claim + 1, 0)
            except _TooManyResultsError:
                return False
        wants = self._wants[claim][request]
        if not wants[0].choice:
            return self._allocate_devices(wants[0], 0, 0)
        return self._allocate_choice(wants)

    def _allocate_choice(self, wants: Sequence[_Want]) -> bool:
        all_exceed = True
        for want in wants:
            try:
                if self._allocate_devices(want, 0, 0):
                    return True
                all_exceed = False
            except _TooManyResultsError:
                continue
        if all_exceed:
            raise _TooManyResultsError
        return False

    def _allocate_devices(self, want: _Want, index: int, start: int) -> bool:
        """Allocate the device with an index and all that follow, beginning with the candidate at `start`."""
        self._count_step()
        if want.all_devices is not None and not want.all_devices:
            return False
        claim, request, _ = want.key
        if index >= want.needed:
            return self._allocate_request(claim, request + 1)
        if len(self.results[claim]) + want.needed - index > MAX_DEVICES:
            raise _TooManyResultsError
        if want.all_devices is not None:
            candidate = want.all_devices[index]
            return not self._is_in_use(want, candidate) and self._try_device(want, candidate, index, 0, required=True)
        if index == 0 and want.needed > 1 and not self._has_enough(want):
            return False
        for place in range(start, len(self._candidates)):
            self._count_step()
            candidate = self._candidates[place]
            if (
                not self._is_in_use(want, candidate)
                and self._is_selected(want, candidate)
                and self._has_capacity(want, candidate)
                and self._try_device(want, candidate, index, place + 1)
            ):
                return True
        return False

    def _has_enough(self, want: _Want) -> bool:
        """Return whether as many devices match a request as it needs, with equal values where constraints want them.

        No more are looked at than the search would. The scheduler tries all their combinations instead, before it
        gives up.
        """
        found = Counter[tuple[DeviceAttribute | None, ...]]()
        for candidate in self._candidates:
            self._count_step()
            if not self._is_in_use(want, candidate) and self._is_selected(want, candidate):
                values = self._matched_values(want, candidate)
                found[values] += self._has_capacity(want, candidate)
                if found[values] >= want.needed:
                    return True
        return False

    def _matched_values(self, want: _Want, candidate: _Candidate) -> tuple[DeviceAttribute | None, ...]:
        """Return the values of a device that must be those of all devices of a request."""
        constraints, driver = self._constraints[want.key[0]], candidate.id.driver
        return tuple(each.matched_value(want.name, want.choice, driver, candidate.device) for each in constraints)

    def _try_device(
        self, want: _Want, candidate: _Candidate, index: int, start: int, *, required: bool = False
    ) -> bool:
        """Take a device and allocate all that follow; give it back if that fails."""
        undo = self._take(want, candidate, required=required)
        if undo is None:
            return False
        try:
            if self._allocate_devices(want, index + 1, start):
                return True
        except _TooManyResultsError:
            undo()
            raise
        undo()
        return False

    def _take(self, want: _Want, candidate: _Candidate, *, required: bool) -> Callable[[], None] | None:
        """Mark a device as allocated, and return a function that takes that back; None if it cannot be allocated."""
        counters = self._counters_to_take(candidate)
        if counters is not None and not counters.take(candidate.device):
            return None
        added = 0
        fits = not _has_untolerated_taint(candidate.device, want.request.tolerations)
        if fits:
            added = self._add_to_constraints(want, candidate)
            if added < len(self._constraints[want.key[0]]):
                fits = False
                if required:
                    raise _AllocationError(self._constraint_message(want, candidate))
        if not fits or not self._has_capacity(want, candidate):
            self._undo_constraints(want, added)
            if counters is not None:
                counters.give_back(candidate.device)
            return None
        undo_mark = self._mark(want, candidate)

        def undo() -> None:
            undo_mark()
            self._undo_constraints(want, added)
            if counters is not None:
                counters.give_back(candidate.device)

        return undo

    def _mark(self, want: _Want, candidate: _Candidate) -> Callable[[], None]:
        """Record a device as a result, and return a function that removes it."""
        claim, device = want.key[0], candidate.id
        admin = want.request.admin_access is True
        if candidate.device.allow_multiple_allocations:
            before = self._taken_capacity.get(device)
            consumed = consumed_amounts(candidate.device, want.request.capacity.requests)
            self._taken_capacity[device] = sum_amounts(before or NO_AMOUNTS, consumed)
            self.results[claim].append(ChosenDevice(want.full_name, device, admin, consumed))

            def unshare() -> None:
                self.results[claim].pop()
                if before is None:
                    del self._taken_capacity[device]
                else:
                    self._taken_capacity[device] = before

            return unshare
        self._taken.setdefault(device, set()).add(claim)
        self.results[claim].append(ChosenDevice(want.full_name, device, admin))

        def release() -> None:
            self.results[claim].pop()
            self._taken[device].discard(claim)

        return release

    def _add_to_constraints(self, want: _Want, candidate: _Candidate) -> int:
        """Add a device to the constraints of its claim until one does not allow it; return how many did."""
        constraints = self._constraints[want.key[0]]
        for number, constraint in enumerate(constraints):
            if not constraint.add(want.name, want.choice, candidate.id.driver, candidate.device):
                return number
        return len(constraints)

    def _undo_constraints(self, want: _Want, added: int) -> None:
        for constraint in reversed(self._constraints[want.key[0]][:added]):
            constraint.remove(want.name, want.choice)

    def _constraint_message(self, want: _Want, candidate: _Candidate) -> str:
        where = f"claim {self._claims[want.key[0]].name}, request {want.choice or want.name}"
        device = "/".join(candidate.id)
        return f"{where}: cannot add device {device} because a claim constraint would not be satisfied"

    def _is_in_use(self, want: _Want, candidate: _Candidate) -> bool:
        taken = self._taken.get(candidate.id)
        if want.request.admin_access:
            return taken is not None and want.key[0] in taken
        return bool(taken) or candidate.id.device in self._allocations(candidate).whole

    def _is_selected(self, want: _Want, candidate: _Candidate) -> bool:
        key = candidate.id, want.key
        if (known := self._matches.get(key)) is None:
            known = self._matches[key] = self._select(want, candidate)
        return known

    def _select(self, want: _Want, candidate: _Candidate) -> bool:
        """Return whether the selectors of class and request select a device that the node can use."""
        for selectors in (self._classes[want.request.device_class_name].selectors, want.request.selectors):
            for selector in selectors:
                self._count_step()
                if not self._selects(selector.cel.expression, candidate.id.driver, candidate.device):
                    return False
        return candidate.usable

    def _has_capacity(self, want: _Want, candidate: _Candidate) -> bool:
        allocated = self._allocations(candidate).consumed.get(candidate.id.device, NO_AMOUNTS)
        allocating = self._taken_capacity.get(candidate.id, NO_AMOUNTS)
        return has_capacity_left(candidate.device, want.request.capacity.requests, allocated, allocating)

    def _counters_to_take(self, candidate: _Candidate) -> PoolCounters | None:
        """Return the counters that a device uses up; None without any, or if another share of it uses them up."""
        if not candidate.device.consumes_counters:
            return None
        if candidate.device.allow_multiple_allocations and (
            candidate.id in self._taken_capacity or candidate.id.device in self._allocations(candidate).consumed
        ):
            return None
        if candidate.id.pool in self._shared_names:
            raise _UnknownError(SHARED_POOL_NAME)
        if (counters := self._counters.get(candidate.pool.id)) is None:
            counters = self._counters[candidate.pool.id] = PoolCounters(candidate.pool, self._allocations(candidate))
        return counters

    def _allocations(self, candidate: _Candidate) -> PoolAllocations:
        return self._allocated.get(candidate.pool.id, NOTHING_ALLOCATED)

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > self._max_steps:
            raise _UnknownError(TOO_MANY_STEPS)


class PoolCounters:
    """The counters of a pool, less those in use."""

    def __init__(self, pool: NodePool, allocated: PoolAllocations) -> None:
        self._left = counters_left(pool, allocated)
        # A counter below zero, whichever it is, rejects every device of the pool that uses counters.
        self._overdrawn = any(value < 0 for counters in self._left.values() for value in counters.values())

    def take(self, device: Device) -> bool:
        """Use up the counters of a device; False, and nothing used up, if they are not left."""
        if self._overdrawn:
            return False
        self._change(device, -1)
        if all(self._left[each.counter_set][name] >= 0 for each in device.consumes_counters for name in each.counters):
            return True
        self._change(device, 1)
        return False

    def give_back(self, device: Device) -> None:
        self._change(device, 1)

    def _change(self, device: Device, sign: int) -> None:
        for each in device.consumes_counters:
            for name, counter in each.counters.items():
                self._left[each.counter_set][name] += sign * parse_nano(counter.value)


def counters_left(pool: NodePool, allocated: PoolAllocations) -> dict[str, dict[str, int]]:
    """Return what allocated devices leave of the counters of a pool, in nano-units; below zero if they use too much."""
    left = {name: dict(counters) for name, counters in pool.counters.items()}
    for device in (*[each.device for each in pool.devices], *pool.unreachable):
        if device.consumes_counters and allocated.uses_counters(device.name):
            for each in device.consumes_counters:
                for name, counter in each.counters.items():
                    left[each.counter_set][name] -= parse_nano(counter.value)
    return left


def _requests(claim: NamedClaim) -> Sequence[ClaimRequest]:
    return claim.spec.devices.requests


def sum_amounts(one: Amounts, other: Amounts) -> Amounts:
    """Return the sums of two amounts of each capacity."""
    return {
        name: one.get(name, 0) + other.get(name, 0) for name in (*one, *(each for each in other if each not in one))
    }


def _has_untolerated_taint(device: Device, tolerations: Sequence[Toleration]) -> bool:
    return not tolerates_all(tolerations, [taint for taint in device.taints if taint.effect in HARD_EFFECTS])
