"""Pods that were admitted a moment ago and are not observed in the cluster yet.

Each value is immutable to its readers, and creating the next one costs the same at any length: both share one log, of
which each uses its own range.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from webhook.model.decisions import PendingUse
from webhook.model.filters.inter_pod_affinity import EXCLUDES_ALL
from webhook.model.filters.node_ports import EVERY_PORT, HostPort
from webhook.model.filters.pod_ties import PendingPod
from webhook.model.pod_groups import UNKNOWN_LABELS
from webhook.model.pod_resources import ResourceAmounts
from webhook.model.pod_volumes import MANY_CLAIMS, NO_CLAIMS, PodClaims
from webhook.model.waiting_pods import MANY_AMOUNTS, UnitKind, UnitsByResource, with_units_changed

K = TypeVar("K")

COMPACT_AT = 1024
"""Expired entries at the head of the log, of one time or of several, before it is copied without them."""

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

MAX_NAMESPACES = 512
"""Namespaces, by resource, whose units are counted apart."""

ANY_NAMESPACE = "*"
"""Stands for namespaces that are not counted apart: their units count for every namespace."""

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
        counted_for: The namespace whose quotas count its units, or `ANY_NAMESPACE`; None for its own, "" for none.
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
    counted_for: str | None = None

    @property
    def quota_key(self) -> tuple[str, str]:
        """The namespace whose quotas count its units, "" for none, and their resource."""
        return self.pod_name[0] if self.counted_for is None else self.counted_for, self.resource

    @property
    def kind(self) -> UnitKind:
        """Its units, without names."""
        return UnitKind(self.nodes, self.count, self.cpu_milli, self.memory, self.others)


def pods_with_units(use: PendingUse, pod: AssumedPod) -> Iterator[AssumedPod]:
    """Yield a pod for each resource of which it will hold units, with the CPU and memory that come with each unit."""
    for resource, nodes, count in use.units:
        cpu_milli, memory = -(-use.cpu_milli // count), -(-use.memory // count)
        yield replace(
            pod,
            key=pod.key and f"{pod.key} {resource}",
            resource=resource,
            nodes=nodes,
            count=count,
            cpu_milli=cpu_milli,
            memory=memory,
            others=use.others,
        )


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


class _AssumedCounts(NamedTuple):
    """Units, claims and constraints that assumed pods hold together.

    Attributes:
        units: Their units, by resource and kind.
        pending: Their number by what other pods see of them.
        claims: Their number by volume claims.
        by_namespace: Their units by namespace and resource.
    """

    units: UnitsByResource = {}
    pending: Mapping[PendingPod, int] = {}
    claims: Mapping[PodClaims, int] = {}
    by_namespace: Mapping[tuple[str, str], int] = {}

    def with_pod(self, pod: AssumedPod, sign: int = 1) -> _AssumedCounts:
        """Return the counts with one pod more; with one less if the sign is -1."""
        times = sign * pod.times
        return _AssumedCounts(
            with_units_changed(self.units, pod.resource, pod.kind, times),
            self.pending if pod.pending is NO_PENDING_POD else _with_count_changed(self.pending, pod.pending, times),
            self.claims if pod.claims == NO_CLAIMS else _with_count_changed(self.claims, pod.claims, times),
            _with_count_changed(self.by_namespace, pod.quota_key, pod.count * times)
            if pod.quota_key[0]
            else self.by_namespace,
        )

    def bound_kinds(self, pod: AssumedPod) -> AssumedPod:
        """Return a pod that counts for no less; where enough kinds are counted apart, it is of one of a few others."""
        if len(self.units.get(pod.resource, ())) >= MAX_KINDS:
            pod = _with_rounded_amounts(pod)
        if len(self.claims) >= MAX_CLAIM_SETS and pod.claims not in self.claims and pod.claims != NO_CLAIMS:
            pod = replace(pod, claims=("", MANY_CLAIMS))
        if len(self.by_namespace) >= MAX_NAMESPACES and pod.quota_key not in self.by_namespace and pod.quota_key[0]:
            pod = replace(pod, counted_for=ANY_NAMESPACE)
        if len(self.pending) >= MAX_PENDING_KINDS and pod.pending not in self.pending:
            pod = _with_unknown_ties(pod)
        return pod


class AssumedPods:
    """Assumed pods, in the order of expiry.

    Attributes:
        claims: Numbers of pods by their volume claims.
        excluding: Number of pods with required anti-affinity.
    """

    __slots__ = ("_counts", "_end", "_log", "_positions", "_start", "claims", "excluding")

    def __init__(self, pods: Iterable[AssumedPod] = ()) -> None:
        self._log: list[AssumedPod] = []
        self._positions: dict[str, int] = {}
        self._counts = _AssumedCounts()
        self.excluding = 0
        self.claims: Mapping[PodClaims, int] = {}
        self._start = self._end = 0
        for pod in sorted(pods, key=lambda pod: pod.expires_at):
            if not self._has(pod.key):
                self._log_pod(pod)
        self._set_counts(_count_pods(self._log), None)

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
        return self._counts.units

    def count_units(self, namespace: str, resource: str) -> int:
        """Return the units of a resource of the pods of a namespace, or of pods that may be of it."""
        units = self._counts.by_namespace
        return units.get((namespace, resource), 0) + units.get((ANY_NAMESPACE, resource), 0)

    def count_port_holders(self, ports: Collection[HostPort]) -> int:
        """Return how many pods may hold a host port that conflicts with one of these, whatever their addresses."""
        numbers = {port[:2] for port in (*ports, EVERY_PORT)}
        return sum(
            count
            for pod, count in self._counts.pending.items()
            if pod.ports and (EVERY_PORT in ports or any(port[:2] in numbers for port in pod.ports))
        )

    @property
    def pending_pods(self) -> Mapping[PendingPod, int]:
        """The numbers of all pods by what other pods see of them."""
        return self._counts.pending

    def without_expired(self, now: float) -> AssumedPods:
        """Return the pods that have not expired; itself if none has."""
        start = self._start
        while start < self._end and self._log[start].expires_at <= now:
            start += 1
        if start == self._start:
            return self
        is_sparse = start > COMPACT_AT and start * 2 > self._end
        if start == self._end or start - self._start > COMPACT_AT or is_sparse:
            return AssumedPods(self._log[start : self._end])
        counts = self._counts
        for pod in self._log[self._start : start]:
            counts = counts.with_pod(pod, -1)
        return self._share_log(start, counts)

    def with_pod(self, pod: AssumedPod) -> AssumedPods:
        """Return one more pod; itself if its key is known, or if it is full."""
        if self._has(pod.key) or self.is_full:
            return self
        pod = self._counts.bound_kinds(pod)
        shared = len(self._log) == self._end and (
            self._start == self._end or self._log[-1].expires_at <= pod.expires_at
        )
        if not shared:
            return AssumedPods((*self.all_pods(), pod))
        assumed_pods = self._share_log(self._start, self._counts)
        assumed_pods._log_pod(pod)
        excluding = self.excluding + (pod.times if pod.pending.anti_affinity else 0)
        assumed_pods._set_counts(self._counts.with_pod(pod), excluding)
        return assumed_pods

    def with_units_of(self, pod: AssumedPod) -> AssumedPods:
        """Return the pods for one evaluation in which what one more holds counts; it is not among the pods."""
        return self._share_log(self._start, self._counts.with_pod(pod))

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
        moved = (replace(pod, nodes=known[pod.nodes]) for pod in self.all_pods())
        return AssumedPods(moved) if known else self

    def _has(self, key: str) -> bool:
        position = self._positions.get(key, -1) if key else -1
        return self._start <= position < self._end

    def _share_log(self, start: int, counts: _AssumedCounts) -> AssumedPods:
        assumed_pods = AssumedPods.__new__(AssumedPods)
        assumed_pods._log, assumed_pods._positions = self._log, self._positions
        assumed_pods._start, assumed_pods._end = start, self._end
        assumed_pods._set_counts(counts, self.excluding if counts.pending is self._counts.pending else None)
        return assumed_pods

    def _log_pod(self, pod: AssumedPod) -> None:
        self._positions[pod.key] = self._end
        self._log.append(pod)
        self._end += 1

    def _set_counts(self, counts: _AssumedCounts, excluding: int | None) -> None:
        self._counts, self.claims = counts, counts.claims
        self.excluding = _count_excluding(counts.pending) if excluding is None else excluding


def _count_pods(pods: Iterable[AssumedPod]) -> _AssumedCounts:
    """Return the counts of many pods, as `_AssumedCounts.with_pod` of each, without a copy for each."""
    units: defaultdict[str, Counter[UnitKind]] = defaultdict(Counter)
    pending, claims, by_namespace = Counter[PendingPod](), Counter[PodClaims](), Counter[tuple[str, str]]()
    for pod in pods:
        units[pod.resource][pod.kind] += pod.times
        if pod.pending is not NO_PENDING_POD:
            pending[pod.pending] += pod.times
        if pod.claims != NO_CLAIMS:
            claims[pod.claims] += pod.times
        if pod.quota_key[0]:
            by_namespace[pod.quota_key] += pod.count * pod.times
    return _AssumedCounts(dict(units), pending, claims, by_namespace)


def _with_count_changed(counts: Mapping[K, int], key: K, change: int) -> Mapping[K, int]:
    """Return numbers with one changed, and without it if it becomes 0."""
    after = {**counts, key: counts.get(key, 0) + change}
    if not after[key]:
        del after[key]
    return after


def _count_excluding(pending: Mapping[PendingPod, int]) -> int:
    return sum(count for pod, count in pending.items() if pod.anti_affinity)


def _with_unknown_ties(pod: AssumedPod) -> AssumedPod:
    """Return a pod that counts for no less and is one of a few kinds."""
    terms = (EXCLUDES_ALL,) if pod.pending.anti_affinity else ()
    ports = (EVERY_PORT,) if pod.pending.ports else ()
    return replace(pod, pending=PendingPod("", UNKNOWN_LABELS, terms, ports))


def _with_rounded_amounts(pod: AssumedPod) -> AssumedPod:
    """Return a pod that counts for no less, on any node, and is one of a few kinds."""
    cpu_milli, memory = (1 << amount.bit_length() for amount in (pod.cpu_milli, pod.memory))
    return replace(
        pod,
        nodes=ANY_NODE,
        count=1,
        times=pod.count * pod.times,
        cpu_milli=cpu_milli,
        memory=memory,
        others=pod.others and MANY_AMOUNTS,
    )
