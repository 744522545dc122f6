"""Pods that were admitted a moment ago and are not observed in the cluster yet.

Each value is immutable to its readers, and creating the next one costs the same at any length: both share one log, of
which each uses its own range.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from webhook.model.filters.inter_pod_affinity import EXCLUDES_ALL
from webhook.model.filters.node_ports import EVERY_PORT, HostPort
from webhook.model.filters.pod_ties import PendingPod
from webhook.model.pod_groups import UNKNOWN_LABELS
from webhook.model.pod_resources import ResourceAmounts
from webhook.model.pod_volumes import MANY_CLAIMS, NO_CLAIMS, PodClaims
from webhook.model.waiting_pods import MANY_AMOUNTS, UnitKind, UnitsByResource, with_units_changed

COMPACT_AT = 1024
"""Expired entries at the head of the log before it is copied without them."""

MAX_ASSUMED_PODS = 8192
"""Most assumed pods at one time; beyond it nothing counts as free."""

MAX_KINDS = 256
"""Kinds of units per resource; the pods of one workload are one kind."""

MAX_PENDING_KINDS = 256
"""Kinds of pods by namespace, labels, anti-affinity and host ports; one more counts with whatever it may have."""

NO_PENDING_POD = PendingPod("", ())
"""A pod that no other pod sees."""

MAX_CLAIM_SETS = 512
"""Different sets of volume claims that are counted apart."""

ANY_NODE = -1
"""The mask of all nodes, whatever their number."""


class AssumedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that was admitted a moment ago and is not observed yet: it holds units of one offer, CPU and memory.

    Attributes:
        key: Identifies the pod and the resource, so that one admission counts once; "" always counts.
        resource: Resource name that it will request.
        nodes: Mask of the nodes where it may run.
        count: Units, all on one node.
        expires_at: Seconds of a clock that is never set.
        pod_name: Namespace and name, or a generateName.
        cpu_milli: Millicores for each unit.
        memory: Bytes of memory for each unit.
        others: Nano-units of its other resources that nodes advertise, by name.
        admitted_at: Earliest time of its admission, Unix seconds: a pod created before is another one.
        times: How often it counts: once for itself, and for pods that are admitted at the same time unseen.
        claims: Its namespace and volume claims.
        pending: What other pods see of it.
    """

    key: str
    resource: str
    nodes: int
    count: int
    expires_at: float
    pod_name: tuple[str, str] = ("", "")
    cpu_milli: int = 0
    memory: int = 0
    admitted_at: float = -math.inf
    times: int = 1
    others: ResourceAmounts = ()
    claims: PodClaims = NO_CLAIMS
    pending: PendingPod = NO_PENDING_POD

    @property
    def kind(self) -> UnitKind:
        """Its units, without names."""
        return UnitKind(self.nodes, self.count, self.cpu_milli, self.memory, self.others)


class ObservedPod(NamedTuple):
    """A pod that is in the cluster now, with or without a node.

    Attributes:
        pod_name: Its name at admission; see `AssumedPod`.
        resource: A GPU resource that it requests.
        created_at: Creation time, Unix seconds, if others may have had the same name.
    """

    pod_name: tuple[str, str]
    resource: str
    created_at: float = math.inf


class AssumedPods:
    """Assumed pods, in the order of expiry.

    Attributes:
        claims: Numbers of pods by their volume claims.
        excluding: Number of pods with required anti-affinity.
    """

    __slots__ = ("_end", "_log", "_pending", "_positions", "_start", "_units", "claims", "excluding")

    def __init__(self, pods: Iterable[AssumedPod] = ()) -> None:
        self._log: list[AssumedPod] = []
        self._positions: dict[str, int] = {}
        self._units: UnitsByResource = {}
        self._pending: Mapping[PendingPod, int] = {}
        self.excluding = 0
        self.claims: Mapping[PodClaims, int] = {}
        self._start = self._end = 0
        for pod in sorted(pods, key=lambda pod: pod.expires_at):
            if not self._has(pod.key):
                self._append(pod)

    def all_pods(self) -> tuple[AssumedPod, ...]:
        """Return the assumed pods, the first to expire first."""
        return tuple(self._log[self._start : self._end])

    @property
    def is_full(self) -> bool:
        """True if it holds the maximum of pods and leaves out further ones: then nothing counts as free."""
        return self._end - self._start >= MAX_ASSUMED_PODS

    @property
    def units(self) -> UnitsByResource:
        """The units of all pods."""
        return self._units

    def count_units(self, namespace: str, resource: str) -> int:
        """Return the units of a resource of the pods of a namespace."""
        if resource not in self._units:
            return 0
        pods = (pod for pod in self.all_pods() if pod.resource == resource and pod.pod_name[0] == namespace)
        return sum(pod.count * pod.times for pod in pods)

    def count_port_holders(self, ports: Collection[HostPort]) -> int:
        """Return how many pods may hold a host port that conflicts with one of these, whatever their addresses."""
        numbers = {port[:2] for port in (*ports, EVERY_PORT)}
        return sum(
            count
            for pod, count in self._pending.items()
            if pod.ports and (EVERY_PORT in ports or any(port[:2] in numbers for port in pod.ports))
        )

    @property
    def pending_pods(self) -> Mapping[PendingPod, int]:
        """The numbers of all pods by what other pods see of them."""
        return self._pending

    def without_expired(self, now: float) -> AssumedPods:
        """Return the pods that have not expired; itself if none has."""
        start, remaining, pending, claims = self._start, self._units, self._pending, self.claims
        while start < self._end and self._log[start].expires_at <= now:
            remaining = _with_pod_counted(remaining, self._log[start], -1)
            pending = _with_pending_counted(pending, self._log[start], -1)
            claims = _with_claims_counted(claims, self._log[start], -1)
            start += 1
        if start == self._start:
            return self
        if start == self._end or (start > COMPACT_AT and start * 2 > self._end):
            return AssumedPods(self._log[start : self._end])
        return self._share_log(start, self._end, remaining, pending, claims)

    def with_pod(self, pod: AssumedPod) -> AssumedPods:
        """Return one more pod; itself if its key is known, or if it is full."""
        if self._has(pod.key) or self.is_full:
            return self
        if len(self._units.get(pod.resource, ())) >= MAX_KINDS:
            pod = _with_rounded_amounts(pod)
        if len(self.claims) >= MAX_CLAIM_SETS and pod.claims not in self.claims and pod.claims != NO_CLAIMS:
            pod = msgspec.structs.replace(pod, claims=("", MANY_CLAIMS))
        if len(self._pending) >= MAX_PENDING_KINDS and pod.pending not in self._pending:
            pod = _with_unknown_ties(pod)
        shared = len(self._log) == self._end and (
            self._start == self._end or self._log[-1].expires_at <= pod.expires_at
        )
        if not shared:
            return AssumedPods((*self.all_pods(), pod))
        assumed_pods = self._share_log(self._start, self._end, self._units, self._pending, self.claims)
        assumed_pods._append(pod)
        return assumed_pods

    def with_units_of(self, pod: AssumedPod) -> AssumedPods:
        """Return the pods for one evaluation in which the units of one more count; it is not among the pods."""
        units = _with_pod_counted(self._units, pod, 1)
        return self._share_log(self._start, self._end, units, self._pending, self.claims)

    def without_observed(self, observed: Collection[ObservedPod]) -> AssumedPods:
        """Return the pods without one entry for each pod that is in the cluster now; itself if it has none of them."""
        unmatched: defaultdict[tuple[tuple[str, str], str], list[float]] = defaultdict(list)
        for one in sorted(observed, key=lambda one: one.created_at):
            unmatched[one.pod_name, one.resource].append(one.created_at)
        remaining = []
        for pod in self.all_pods() if observed else ():
            created = unmatched[pod.pod_name, pod.resource]
            match = next((created_at for created_at in created if created_at >= pod.admitted_at), None)
            if match is None:
                remaining.append(pod)
            else:
                created.remove(match)
        return AssumedPods(remaining) if observed and len(remaining) < self._end - self._start else self

    def with_masks(self, masks: Callable[[int], int]) -> AssumedPods:
        """Return the pods with translated node masks, after the order of the nodes changed."""
        known: dict[int, int] = {}
        for pod in self.all_pods():
            if pod.nodes not in known:
                known[pod.nodes] = masks(pod.nodes) if pod.nodes >= 0 else pod.nodes
        moved = (msgspec.structs.replace(pod, nodes=known[pod.nodes]) for pod in self.all_pods())
        return AssumedPods(moved) if known else self

    def _has(self, key: str) -> bool:
        position = self._positions.get(key, -1) if key else -1
        return self._start <= position < self._end

    def _share_log(
        self,
        start: int,
        end: int,
        units: UnitsByResource,
        pending: Mapping[PendingPod, int],
        claims: Mapping[PodClaims, int],
    ) -> AssumedPods:
        assumed_pods = AssumedPods.__new__(AssumedPods)
        assumed_pods._log, assumed_pods._positions, assumed_pods._units = self._log, self._positions, units
        assumed_pods._start, assumed_pods._end, assumed_pods._pending = start, end, pending
        assumed_pods.excluding = self.excluding if pending is self._pending else _count_excluding(pending)
        assumed_pods.claims = claims
        return assumed_pods

    def _append(self, pod: AssumedPod) -> None:
        self._positions[pod.key] = self._end
        self._log.append(pod)
        self._end += 1
        self._units = _with_pod_counted(self._units, pod, 1)
        self._pending = _with_pending_counted(self._pending, pod, 1)
        self.excluding += pod.times if pod.pending.anti_affinity else 0
        self.claims = _with_claims_counted(self.claims, pod, 1)


def _with_pod_counted(units: UnitsByResource, pod: AssumedPod, sign: int) -> UnitsByResource:
    return with_units_changed(units, pod.resource, pod.kind, sign * pod.times)


def _with_pending_counted(pending: Mapping[PendingPod, int], pod: AssumedPod, sign: int) -> Mapping[PendingPod, int]:
    if pod.pending is NO_PENDING_POD:
        return pending
    count = pending.get(pod.pending, 0) + sign * pod.times
    after = {**pending, pod.pending: count}
    if not count:
        del after[pod.pending]
    return after


def _with_claims_counted(claims: Mapping[PodClaims, int], pod: AssumedPod, sign: int) -> Mapping[PodClaims, int]:
    if pod.claims == NO_CLAIMS:
        return claims
    after = {**claims, pod.claims: claims.get(pod.claims, 0) + sign * pod.times}
    if not after[pod.claims]:
        del after[pod.claims]
    return after


def _count_excluding(pending: Mapping[PendingPod, int]) -> int:
    return sum(count for pod, count in pending.items() if pod.anti_affinity)


def _with_unknown_ties(pod: AssumedPod) -> AssumedPod:
    """Return a pod that counts for no less and is one of a few kinds."""
    terms = (EXCLUDES_ALL,) if pod.pending.anti_affinity else ()
    ports = (EVERY_PORT,) if pod.pending.ports else ()
    return msgspec.structs.replace(pod, pending=PendingPod("", UNKNOWN_LABELS, terms, ports))


def _with_rounded_amounts(pod: AssumedPod) -> AssumedPod:
    """Return a pod that counts for no less, on any node, and is one of a few kinds."""
    cpu_milli, memory = (1 << amount.bit_length() for amount in (pod.cpu_milli, pod.memory))
    return msgspec.structs.replace(
        pod,
        nodes=ANY_NODE,
        count=1,
        times=pod.count * pod.times,
        cpu_milli=cpu_milli,
        memory=memory,
        others=pod.others and MANY_AMOUNTS,
    )
