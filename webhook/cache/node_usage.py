"""What pods hold, kept as sums by node and as lines by namespace: one pod more or less is one addition.

Of a pod that has not ended a line is kept (`webhook.model.pod_summary`). That is what has to be taken off when it is
gone,
and any node may become one with GPUs later. A pod that is on no node holds nothing there; quotas count it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import intern
from types import MappingProxyType
from typing import NamedTuple

from webhook.cache.build_view import FINISHED_PHASES, object_namespace
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.model.pod_summary import PodSummary, ResourceAmounts, pod_amounts, summarize_pod
from webhook.model.pods import Pod, PodSpec, QuantityText

POD_COUNT = "pods"
MAX_POD_SHAPES = 20_000
"""Distinct shapes to remember: pods of one workload ask for the same, in the same words."""

PodShape = tuple[tuple[tuple[tuple[str, QuantityText], ...], tuple[tuple[str, QuantityText], ...]], ...]
"""Requests and limits of each container, as they are written."""

NO_USAGE: Mapping[str, int] = MappingProxyType({})


class UsageTotals(NamedTuple):
    """A whole state: each pod's line, and what they come to by node.

    Attributes:
        lines: By namespace and name.
        nodes: Nano-units by resource by node; under "pods" how many they are.
        lent: Namespaces whose lines a reader has: they are copied before they change.
    """

    summaries: dict[str, dict[str, PodSummary]]
    by_node: dict[str, dict[str, int]]
    shared_namespaces: set[str]

    def set_summary(self, namespace: str, name: str, after: PodSummary | None) -> PodSummary | None:
        """Put a line in place of another; gives the other."""
        before = self.summaries.get(namespace, {}).get(name)
        if before != after:
            self._store_summary(namespace, name, after)
            if before is not None:
                self._add_to_node(before, -1)
            if after is not None:
                self._add_to_node(after, 1)
        return before

    def _store_summary(self, namespace: str, name: str, after: PodSummary | None) -> None:
        lines = self.summaries.setdefault(namespace, {})
        if namespace in self.shared_namespaces:
            lines = self.summaries[namespace] = dict(lines)
            self.shared_namespaces.remove(namespace)
        if after is not None:
            lines[name] = after
            return
        del lines[name]
        if not lines:
            del self.summaries[namespace]

    def _add_to_node(self, line: PodSummary, sign: int) -> None:
        if not line.node:
            return
        sums = self.by_node.setdefault(line.node, {})
        sums[POD_COUNT] = sums.get(POD_COUNT, 0) + sign
        for resource, amount in line.requests:
            sums[resource] = sums.get(resource, 0) + sign * amount
        if not sums[POD_COUNT]:
            del self.by_node[line.node]


def empty_usage() -> UsageTotals:
    """The state in which nobody holds anything."""
    return UsageTotals({}, {}, set())


class NodeUsage:
    """What readers have: the sums as they are now."""

    def __init__(self) -> None:
        self.totals = empty_usage()

    def on_node(self, node: str) -> Mapping[str, int]:
        """What pods hold on a node, nano-units by resource; under "pods" how many they are."""
        return self.totals.by_node.get(node, NO_USAGE)

    def summaries(self, namespaces: Iterable[str] | None = None) -> dict[str, Mapping[str, PodSummary]]:
        """The lines of some namespaces, or of all. What is given never changes."""
        names = list(self.totals.summaries) if namespaces is None else list(namespaces)
        self.totals.shared_namespaces.update(self.totals.summaries.keys() & names)
        return {name: self.totals.summaries.get(name, {}) for name in names}

    def summary(self, namespace: str, name: str) -> PodSummary | None:
        """The line of one pod."""
        return self.totals.summaries.get(namespace, {}).get(name)

    @property
    def pod_count(self) -> int:
        """How many pods have a line."""
        return sum(map(len, self.totals.summaries.values()))


class NodeUsageWriter:
    """What the one task has that writes: pods in, sums out."""

    def __init__(self, holdings: NodeUsage, touched: Callable[[str, str], None], relisted: Callable[[], None]) -> None:
        """Take the sums in charge.

        Args:
            holdings: Written by nobody else.
            touched: Told the namespace in which a pod changed, and the node, "" for none.
            relisted: Told that all nodes may have changed.
        """
        self._usage, self._on_change, self._on_relist = holdings, touched, relisted
        self._incoming: UsageTotals | None = None
        self._shapes: dict[PodShape, tuple[ResourceAmounts, ResourceAmounts]] = {}

    def begin(self) -> None:
        """A list begins."""
        self._incoming = empty_usage()

    def upsert(self, pod: Pod) -> None:
        """A pod is there."""
        self.set_summary(pod, self.summarize(pod))

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self.set_summary(pod, None)

    def swap(self) -> None:
        """The list is whole."""
        self._usage.totals, self._incoming = self._incoming or empty_usage(), None
        self._on_relist()

    def set_summary(self, pod: Pod, after: PodSummary | None) -> PodSummary | None:
        """Put a pod's line in place of the one before; gives that, also while a list begins anew."""
        namespace, name = intern(object_namespace(pod)), pod.metadata.name
        before = self._usage.summary(namespace, name)
        if self._incoming is not None:
            return self._incoming.set_summary(namespace, name, after) or before
        self._usage.totals.set_summary(namespace, name, after)
        for line in filter(None, (before, after) if before != after else ()):
            self._on_change(namespace, line.node)
        return before

    def summarize(self, pod: Pod) -> PodSummary | None:
        """What a pod holds, or waits for; None for one that has ended."""
        return None if pod.status.phase in FINISHED_PHASES else summarize_pod(pod, self._amounts_by_shape)

    def _amounts_by_shape(self, pod: Pod) -> tuple[ResourceAmounts, ResourceAmounts]:
        shape = _pod_shape(pod.spec)
        found = self._shapes.get(shape) if shape else None
        if found is None:
            requests, limits = pod_amounts(pod)
            found = tuple((intern(name), amount) for name, amount in requests if _is_counted_resource(name)), limits
            if len(self._shapes) >= MAX_POD_SHAPES:
                self._shapes.clear()
            if shape:
                self._shapes[shape] = found
        return found


def _pod_shape(spec: PodSpec) -> PodShape:
    """What decides what a pod holds; () for one that has more to it than its containers."""
    if spec.init_containers or spec.overhead or spec.resources is not None:
        return ()
    return tuple(
        (tuple(container.resources.requests.items()), tuple(container.resources.limits.items()))
        for container in spec.containers
    )


def _is_counted_resource(resource: str) -> bool:
    return (
        resource in ("cpu", "memory", "ephemeral-storage", ACCOUNTING_RESOURCE)
        or parse_gpu_resource(resource) is not None
    )
