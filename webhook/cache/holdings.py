"""What pods hold on nodes, kept as sums: one pod more or less is one addition, however many there are.

Of a pod that runs, a line is kept: its node and what it holds there. That is what has to be taken off when it is
gone, and any node may become one with GPUs later. Pods that are on no node, or have ended, hold nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import intern
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from webhook.cache.gathering import FINISHED, namespace_of
from webhook.model.effective import effective_requests
from webhook.model.pods import Amount, Pod, PodSpec
from webhook.model.resources import gpu_resource

PODS = "pods"
SHAPES_MOST = 20_000
"""Distinct shapes to remember: pods of one workload ask for the same, in the same words."""

Amounts = tuple[tuple[str, int], ...]
"""Resource names and nano-units."""

Shape = tuple[tuple[tuple[tuple[str, Amount], ...], tuple[tuple[str, Amount], ...]], ...]
"""Requests and limits of each container, as they are written."""

Called = tuple[str, str]
"""Namespace and name, or the beginning of a name that the API server made."""

Landing = tuple[Called, str]
"""What a pod was called that is on a node now, and a GPU resource that it holds there."""

NOBODY: Mapping[str, int] = MappingProxyType({})


class Holding(msgspec.Struct, frozen=True, gc=False):
    """What one pod holds on one node."""

    node: str
    amounts: Amounts


class Sums(NamedTuple):
    """A whole state: each pod's line, and what they come to by node.

    Attributes:
        holdings: By namespace and name.
        nodes: Nano-units by resource by node; under "pods" how many they are.
    """

    holdings: dict[str, Holding]
    nodes: dict[str, dict[str, int]]

    def set(self, key: str, after: Holding | None) -> Holding | None:
        """Put a line in place of another; gives the other."""
        before = self.holdings.get(key)
        if before != after:
            if before is not None:
                del self.holdings[key]
                self._add(before, -1)
            if after is not None:
                self.holdings[key] = after
                self._add(after, 1)
        return before

    def _add(self, holding: Holding, sign: int) -> None:
        sums = self.nodes.setdefault(holding.node, {})
        sums[PODS] = sums.get(PODS, 0) + sign
        for resource, amount in holding.amounts:
            sums[resource] = sums.get(resource, 0) + sign * amount
        if not sums[PODS]:
            del self.nodes[holding.node]


class Holdings:
    """What readers have: the sums as they are now."""

    def __init__(self) -> None:
        self.sums = Sums({}, {})

    def on(self, node: str) -> Mapping[str, int]:
        """What pods hold on a node, nano-units by resource; under "pods" how many they are."""
        return self.sums.nodes.get(node, NOBODY)


class HoldingsWriter:
    """What the one task has that writes: pods in, sums out."""

    def __init__(
        self,
        holdings: Holdings,
        touched: Callable[[str], None],
        landed: Callable[[Iterable[Landing]], None],
        relisted: Callable[[], None],
    ) -> None:
        """Take the sums in charge.

        Args:
            holdings: Written by nobody else.
            touched: Told the name of a node on which something changed.
            landed: Told of each pod that was not on a node before, or not known; of those of a list when it is whole.
            relisted: Told that all nodes may have changed.
        """
        self._holdings = holdings
        self._touched, self._landed, self._relisted = touched, landed, relisted
        self._coming: Sums | None = None
        self._landing: list[Landing] = []
        self._shapes: dict[Shape, Amounts] = {}

    def begin(self) -> None:
        """A list begins."""
        self._coming, self._landing = Sums({}, {}), []

    def put(self, pod: Pod) -> None:
        """A pod is there."""
        self._set(pod, self.line(pod))

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self._set(pod, None)

    def swap(self) -> None:
        """The list is whole."""
        self._holdings.sums = self._coming or Sums({}, {})
        self._landed(self._landing)
        self._coming, self._landing = None, []
        self._relisted()

    def _set(self, pod: Pod, after: Holding | None) -> None:
        key = key_of(pod)
        known = self._holdings.sums.holdings.get(key)
        if self._coming is not None:
            before = self._coming.set(key, after) or known
            if after is not None and before is None:
                self._landing += landings(pod)
            return
        self._holdings.sums.set(key, after)
        if known != after:
            for line in filter(None, (known, after)):
                self._touched(line.node)
        if after is not None and known is None:
            self._landed(landings(pod))

    def line(self, pod: Pod) -> Holding | None:
        """What a pod holds; None for one that is on no node, or has ended."""
        node = pod.spec.node_name
        if not node or pod.status.phase in FINISHED:
            return None
        shape = _shape(pod.spec)
        amounts = self._shapes.get(shape) if shape else None
        if amounts is None:
            amounts = tuple((intern(name), amount) for name, amount in effective_requests(pod).items() if _counts(name))
            if len(self._shapes) >= SHAPES_MOST:
                self._shapes.clear()
            if shape:
                self._shapes[shape] = amounts
        return Holding(intern(node), amounts)


def key_of(pod: Pod) -> str:
    """What sums and reports of nodes call a pod: "namespace/name"."""
    return f"{namespace_of(pod)}/{pod.metadata.name}"


def _shape(spec: PodSpec) -> Shape:
    """What decides what a pod holds; () for one that has more to it than its containers."""
    if spec.init_containers or spec.overhead or spec.resources is not None:
        return ()
    return tuple(
        (tuple(container.resources.requests.items()), tuple(container.resources.limits.items()))
        for container in spec.containers
    )


def _counts(resource: str) -> bool:
    return resource in ("cpu", "memory") or gpu_resource(resource) is not None


def calls(pod: Pod) -> tuple[Called, ...]:
    """What a pod may have been called when it was admitted: by its name, or before it was given one."""
    namespace, metadata = namespace_of(pod), pod.metadata
    made = metadata.generate_name and metadata.name.startswith(metadata.generate_name)
    return ((namespace, metadata.name), *([(namespace, f"{metadata.generate_name}*")] if made else []))


def landings(pod: Pod) -> list[Landing]:
    """What a pod may release that was assumed for it: each name by each GPU resource."""
    gpus = [name for name in effective_requests(pod) if gpu_resource(name)]
    return [(called, resource) for resource in gpus for called in calls(pod)]
