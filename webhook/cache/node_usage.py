"""Index of all active pods: one compact summary per pod, and the sums of their requests by node.

Both are updated by addition and subtraction when one pod changes. A pod that is on no node counts for quotas only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from sys import intern
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from webhook.cache.stored_objects import FINISHED_PHASES, object_namespace
from webhook.model.csi_migration import AttachedVolume
from webhook.model.daemon_kinds import MAX_KINDS, UNCOUNTED, DaemonKind
from webhook.model.daemon_pods import DaemonPods
from webhook.model.filters.inter_pod_affinity import EXCLUDES_ALL, MAX_TERMS, RequiredTerm
from webhook.model.filters.node_ports import EVERY_PORT
from webhook.model.filters.pod_ties import TieKey
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, may_take_gpus
from webhook.model.pod_groups import MAX_GROUPS, UNKNOWN_LABELS, PodGroup
from webhook.model.pod_resources import MANY_RESOURCES, MAX_OTHER_RESOURCES, ResourceAmounts
from webhook.model.pod_summary import PodSummary, pod_amounts, summarize_pod
from webhook.model.pod_volumes import PodClaims
from webhook.model.pods import Pod, PodSpec, QuantityText
from webhook.model.quantity import NANO
from webhook.model.storage_view import ClaimKey, VolumeUsers
from webhook.model.waiting_pods import WaitingKind, waiting_kinds

POD_COUNT = "pods"
MAX_POD_SHAPES = 4096
"""Pod shapes to cache: pods of one workload have the same requests, written the same way."""

MAX_SPARE_TIES = 256
"""Ties that are kept for later pods, besides as many as twice those of the pods that exist."""

MAX_SHAPE_NAMES, MAX_SHAPE_TEXT = 64, 1024
"""Resource names of a cached shape, and their characters. A usual pod has 2 to 20 names of 10 characters."""

PodShape = tuple[tuple[tuple[tuple[str, QuantityText], ...], tuple[tuple[str, QuantityText], ...]], ...]
"""Requests and limits of each container, as they are written."""

ALWAYS_COUNTED = frozenset({"cpu", "memory", "ephemeral-storage", ACCOUNTING_RESOURCE})
"""Resources that are summed besides GPUs, however many others a pod requests."""

MAX_GPU_RESOURCES = 32
"""GPU resources of one pod that are counted. A pod that requests more gets none: no node offers so many."""

OuterT = TypeVar("OuterT")
InnerT = TypeVar("InnerT")

NO_USAGE: Mapping[str, int] = MappingProxyType({})


class UsageTotals(NamedTuple):
    """One complete state of the index.

    Attributes:
        summaries: By namespace and name.
        by_node: Nano-units by resource by node; the number of pods under "pods".
        nominated: The same of the pods that are nominated for a node.
        lasting: The same of the pods that the node always has.
        shared_namespaces: Namespaces whose summaries a reader uses; they are copied before they change.
        ties: Pods by node by what other pods count them by: labels, required anti-affinity, or a host port.
        waiting: Pods without a node, by what they wait for.
        claims: By namespace and name of a volume claim: the number of its pods on each node; "" without a node.
        claims_on_node: By node: the claims of its pods, with their numbers.
        disks_on_node: By node: the disks that its pods name without a claim, with their numbers.
        waiting_claims: Pods without a node that nothing keeps from one, by namespace and volume claims.
        daemons: By kind of the pods that new nodes run too: the number of them on each node.
    """

    summaries: dict[str, dict[str, PodSummary]]
    by_node: dict[str, dict[str, int]]
    nominated: dict[str, dict[str, int]]
    lasting: dict[str, dict[str, int]]
    shared_namespaces: set[str]
    ties: dict[TieKey, dict[str, int]]
    waiting: Counter[WaitingKind]
    claims: dict[ClaimKey, dict[str, int]]
    claims_on_node: dict[str, dict[ClaimKey, int]]
    disks_on_node: dict[str, dict[AttachedVolume, int]]
    waiting_claims: Counter[PodClaims]
    daemons: dict[DaemonKind, dict[str, int]]

    def set_summary(self, namespace: str, name: str, after: PodSummary | None) -> PodSummary | None:
        """Replace the summary of one pod, and return the previous one."""
        before = self.summaries.get(namespace, {}).get(name)
        if before != after:
            self._store_summary(namespace, name, after)
            for summary, sign in ((before, -1), (after, 1)):
                if summary is not None:
                    _add_amounts(self.by_node, summary.node, summary.requests, sign)
                    _add_amounts(self.nominated, summary.nominated, summary.requests, sign)
                    if summary.is_lasting:
                        _add_amounts(self.lasting, summary.node, summary.requests, sign)
                    self._add_to_ties(summary, sign)
                    self._add_to_waiting(summary, sign)
                    if summary.volumes:
                        self._add_to_claims(namespace, summary, sign)
                    for disk in summary.disks:
                        _add_count(self.disks_on_node, summary.node, disk, sign)
                    if summary.daemon is not None:
                        _add_count(self.daemons, summary.daemon, summary.node, sign)
        return before

    def _store_summary(self, namespace: str, name: str, after: PodSummary | None) -> None:
        summaries = self.summaries.setdefault(namespace, {})
        if namespace in self.shared_namespaces:
            summaries = self.summaries[namespace] = dict(summaries)
            self.shared_namespaces.remove(namespace)
        if after is not None:
            summaries[name] = after
            return
        del summaries[name]
        if not summaries:
            del self.summaries[namespace]

    def _add_to_ties(self, summary: PodSummary, sign: int) -> None:
        for key in summary.ties:
            _add_count(self.ties, key, summary.node, sign)

    def _add_to_claims(self, namespace: str, summary: PodSummary, sign: int) -> None:
        for use in summary.volumes:
            if use.claim:
                key = f"{namespace}/{use.claim}"
                _add_count(self.claims, key, summary.node, sign)
                _add_count(self.claims_on_node, summary.node, key, sign)
        if not summary.node and not summary.is_gated:
            self.waiting_claims[namespace, summary.volumes] += sign
            if not self.waiting_claims[namespace, summary.volumes]:
                del self.waiting_claims[namespace, summary.volumes]

    def _add_to_waiting(self, summary: PodSummary, sign: int) -> None:
        for kind in waiting_kinds(summary):
            self.waiting[kind] += sign
            if not self.waiting[kind]:
                del self.waiting[kind]


def empty_usage() -> UsageTotals:
    """Return the state without pods."""
    return UsageTotals({}, {}, {}, {}, set(), {}, Counter(), {}, {}, {}, Counter(), {})


def _add_amounts(by_node: dict[str, dict[str, int]], node: str, requests: ResourceAmounts, sign: int) -> None:
    if not node:
        return
    sums = by_node.setdefault(node, {})
    sums[POD_COUNT] = sums.get(POD_COUNT, 0) + sign
    for resource, amount in requests:
        sums[resource] = sums.get(resource, 0) + sign * amount
        if not sums[resource]:  # pods choose names freely: one that no pod there uses any more is not kept
            del sums[resource]
    if not sums[POD_COUNT]:
        del by_node[node]


def _add_count(counts: dict[OuterT, dict[InnerT, int]], outer: OuterT, inner: InnerT, change: int) -> None:
    found = counts.setdefault(outer, {})
    found[inner] = found.get(inner, 0) + change
    if not found[inner]:
        del found[inner]
    if not found:
        del counts[outer]


class PodEventHandler(Protocol):
    """Receives every pod that a `NodeUsage` stores."""

    def on_list_start(self) -> None:
        """A list of all pods begins; its pods become visible when it is complete."""

    def on_pod(self, pod: Pod, before: PodSummary | None, after: PodSummary | None) -> None:
        """A pod was stored: its summary before and now, each None if it was or is not active."""

    def on_list_end(self) -> None:
        """The list is complete and replaced everything."""


class NodeUsage:
    """The index, which is the store of one reflector."""

    def __init__(self, handler: PodEventHandler | None = None) -> None:
        self._handler = handler
        self.totals = empty_usage()
        self._incoming: UsageTotals | None = None
        self._amounts: dict[PodShape, tuple[ResourceAmounts, ResourceAmounts]] = {}
        self._ties: dict[tuple[TieKey, ...], tuple[TieKey, ...]] = {}

    def on_node(self, node: str) -> Mapping[str, int]:
        """Return the requests on a node, nano-units by resource, and the number of pods under "pods"."""
        return self.totals.by_node.get(node, NO_USAGE)

    def reserved_on_node(self, node: str) -> Mapping[str, int]:
        """Return the same with the pods that are nominated for the node."""
        nominated = self.totals.nominated.get(node)
        return Counter(self.on_node(node)) + Counter(nominated) if nominated else self.on_node(node)

    def lasting_on_node(self, node: str) -> Mapping[str, int]:
        """Return the same of the pods that the node always has; nothing without any."""
        return self.totals.lasting.get(node, NO_USAGE)

    def summaries(self, namespaces: Iterable[str] | None = None) -> dict[str, Mapping[str, PodSummary]]:
        """Return the summaries of some or all namespaces. The returned mappings never change."""
        names = list(self.totals.summaries) if namespaces is None else list(namespaces)
        self.totals.shared_namespaces.update(self.totals.summaries.keys() & names)
        return {name: self.totals.summaries.get(name, {}) for name in names}

    def all_tie_counts(self) -> dict[TieKey, dict[str, int]]:
        """Return the numbers of pods by what ties them to others and by the name of the node; "" without one."""
        return {key: dict(by_node) for key, by_node in self.totals.ties.items()}

    def tie_counts(self, changes: Mapping[TieKey, Iterable[str]]) -> dict[TieKey, Mapping[str, int]]:
        """Return the numbers of some terms and ports on all nodes, and of some groups on the nodes that changed."""
        found = self.totals.ties
        return {
            key: {node: found.get(key, NO_USAGE).get(node, 0) for node in nodes}
            if isinstance(key, PodGroup)
            else dict(found.get(key, NO_USAGE))
            for key, nodes in changes.items()
        }

    def waiting_counts(self, kinds: Iterable[WaitingKind] | None = None) -> dict[WaitingKind, int]:
        """Return the numbers of pods without a node, of some or all kinds."""
        found = self.totals.waiting
        return {kind: found[kind] for kind in (list(found) if kinds is None else kinds)}

    def volume_users(self, before: VolumeUsers, claims: Iterable[ClaimKey] | None = None) -> VolumeUsers:
        """Return the pods that use volume claims, after the pods of some claims changed; of all claims without any."""
        found, changed = self.totals.claims, self.totals.claims if claims is None else claims
        nodes = {} if claims is None else dict(before.nodes)
        for key in changed:
            if key in found:
                nodes[key] = tuple(found[key])
            else:
                nodes.pop(key, None)
        return VolumeUsers(nodes, dict(self.totals.waiting_claims))

    def daemon_pods(self) -> DaemonPods:
        """Return the pods that new nodes run too."""
        return DaemonPods({kind: tuple(by_node) for kind, by_node in self.totals.daemons.items()})

    def claims_on_node(self, node: str) -> Iterable[ClaimKey]:
        """Return the volume claims that the pods of a node use."""
        return self.totals.claims_on_node.get(node, ())

    def disks_on_node(self, node: str) -> Iterable[AttachedVolume]:
        """Return the disks that the pods of a node name without a claim."""
        return self.totals.disks_on_node.get(node, ())

    @property
    def pod_count(self) -> int:
        """The number of active pods."""
        return sum(map(len, self.totals.summaries.values()))

    # Written by the reflector.

    def begin(self) -> None:
        """Start a list."""
        self._incoming = empty_usage()
        if self._handler is not None:
            self._handler.on_list_start()

    def upsert(self, pod: Pod) -> None:
        """Store a pod."""
        active = pod.status.phase not in FINISHED_PHASES
        self._set(pod, self._summarize(pod) if active else None)

    def remove(self, pod: Pod) -> None:
        """Remove a pod."""
        self._set(pod, None)

    def swap(self) -> None:
        """Replace everything by the list."""
        self.totals, self._incoming = self._incoming or empty_usage(), None
        if self._handler is not None:
            self._handler.on_list_end()

    def _set(self, pod: Pod, after: PodSummary | None) -> None:
        namespace, name = intern(object_namespace(pod)), pod.metadata.name
        before = self.totals.summaries.get(namespace, {}).get(name)
        if self._incoming is not None:
            before = self._incoming.set_summary(namespace, name, after) or before
        else:
            self.totals.set_summary(namespace, name, after)
        if self._handler is not None:
            self._handler.on_pod(pod, before, after)

    def _summarize(self, pod: Pod) -> PodSummary:
        summary, daemons = summarize_pod(pod, self._amounts_of), (self._incoming or self.totals).daemons
        if summary.daemon is not None and len(daemons) >= MAX_KINDS and summary.daemon not in daemons:
            summary = replace(summary, daemon=UNCOUNTED)
        return replace(summary, ties=self._share(summary.ties)) if summary.ties else summary

    def _share(self, ties: tuple[TieKey, ...]) -> tuple[TieKey, ...]:
        """Return equal ties of another pod, which need no memory of their own; in a cluster full of them, a bound."""
        if (shared := self._ties.get(ties)) is not None:
            return shared
        known = (self._incoming or self.totals).ties
        if len(known) + len(ties) > MAX_TERMS + MAX_GROUPS and not known.keys() >= set(ties):
            return _bounded_ties(ties)
        if len(self._ties) >= 2 * len(known) + MAX_SPARE_TIES:  # most are of pods that no longer exist
            self._ties.clear()
        self._ties[ties] = ties
        return ties

    def _amounts_of(self, pod: Pod) -> tuple[ResourceAmounts, ResourceAmounts]:
        shape = _pod_shape(pod.spec)
        amounts = self._amounts.get(shape) if shape else None
        if amounts is None:
            requests, limits = pod_amounts(pod)
            amounts = tuple((intern(name), amount) for name, amount in _counted_requests(requests)), limits
            if len(self._amounts) >= MAX_POD_SHAPES:
                self._amounts.clear()
            if shape:
                self._amounts[shape] = amounts
        return amounts


def _bounded_ties(ties: Iterable[TieKey]) -> tuple[TieKey, ...]:
    """Return one tie of each kind, which counts for all ties that are not kept."""
    bounds: dict[TieKey, None] = {}
    for key in ties:
        if isinstance(key, PodGroup):
            bounds[key._replace(labels=UNKNOWN_LABELS)] = None
        else:
            bounds[EXCLUDES_ALL if isinstance(key, RequiredTerm) else EVERY_PORT] = None
    return tuple(bounds)


def _counted_requests(requests: ResourceAmounts) -> ResourceAmounts:
    """Return the requests that are summed; for a pod with many resources, one amount replaces most of them."""
    if len(requests) <= MAX_OTHER_RESOURCES:
        return requests
    always = (each for each in requests if each[0] in ALWAYS_COUNTED)
    gpus = (each for each in requests if may_take_gpus(each[0]))
    return (*always, *islice(gpus, MAX_GPU_RESOURCES), (MANY_RESOURCES, NANO))


def _pod_shape(spec: PodSpec) -> PodShape:
    """Return what determines a pod's amounts; () if more than its containers does, or if it is too large to cache."""
    if spec.init_containers or spec.overhead or spec.resources is not None:
        return ()
    each = [amounts for one in spec.containers for amounts in (one.resources.requests, one.resources.limits)]
    if sum(map(len, each)) > MAX_SHAPE_NAMES or sum([len(name) for one in each for name in one]) > MAX_SHAPE_TEXT:
        return ()
    amounts = [tuple(one.items()) for one in each]
    return tuple(zip(amounts[::2], amounts[1::2], strict=True))
