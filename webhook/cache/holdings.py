"""What pods hold, kept as sums by node and as lines by namespace: one pod more or less is one addition.

Of a pod that has not ended a line is kept (`webhook.model.lines`). That is what has to be taken off when it is gone,
and any node may become one with GPUs later. A pod that is on no node holds nothing there; quotas count it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import intern
from types import MappingProxyType
from typing import NamedTuple

from webhook.cache.gathering import FINISHED, namespace_of
from webhook.model.lines import Amounts, Line, amounts_of, line_of
from webhook.model.pods import Amount, Pod, PodSpec
from webhook.model.resources import ACCOUNTING, gpu_resource

PODS = "pods"
SHAPES_MOST = 20_000
"""Distinct shapes to remember: pods of one workload ask for the same, in the same words."""

Shape = tuple[tuple[tuple[tuple[str, Amount], ...], tuple[tuple[str, Amount], ...]], ...]
"""Requests and limits of each container, as they are written."""

NOBODY: Mapping[str, int] = MappingProxyType({})


class Sums(NamedTuple):
    """A whole state: each pod's line, and what they come to by node.

    Attributes:
        lines: By namespace and name.
        nodes: Nano-units by resource by node; under "pods" how many they are.
        lent: Namespaces whose lines a reader has: they are copied before they change.
    """

    lines: dict[str, dict[str, Line]]
    nodes: dict[str, dict[str, int]]
    lent: set[str]

    def set(self, namespace: str, name: str, after: Line | None) -> Line | None:
        """Put a line in place of another; gives the other."""
        before = self.lines.get(namespace, {}).get(name)
        if before != after:
            self._put(namespace, name, after)
            if before is not None:
                self._add(before, -1)
            if after is not None:
                self._add(after, 1)
        return before

    def _put(self, namespace: str, name: str, after: Line | None) -> None:
        lines = self.lines.setdefault(namespace, {})
        if namespace in self.lent:
            lines = self.lines[namespace] = dict(lines)
            self.lent.remove(namespace)
        if after is not None:
            lines[name] = after
            return
        del lines[name]
        if not lines:
            del self.lines[namespace]

    def _add(self, line: Line, sign: int) -> None:
        if not line.node:
            return
        sums = self.nodes.setdefault(line.node, {})
        sums[PODS] = sums.get(PODS, 0) + sign
        for resource, amount in line.requests:
            sums[resource] = sums.get(resource, 0) + sign * amount
        if not sums[PODS]:
            del self.nodes[line.node]


def no_sums() -> Sums:
    """The state in which nobody holds anything."""
    return Sums({}, {}, set())


class Holdings:
    """What readers have: the sums as they are now."""

    def __init__(self) -> None:
        self.sums = no_sums()

    def on(self, node: str) -> Mapping[str, int]:
        """What pods hold on a node, nano-units by resource; under "pods" how many they are."""
        return self.sums.nodes.get(node, NOBODY)

    def lines(self, namespaces: Iterable[str] | None = None) -> dict[str, Mapping[str, Line]]:
        """The lines of some namespaces, or of all. What is given never changes."""
        names = list(self.sums.lines) if namespaces is None else list(namespaces)
        self.sums.lent.update(self.sums.lines.keys() & names)
        return {name: self.sums.lines.get(name, {}) for name in names}

    def line(self, namespace: str, name: str) -> Line | None:
        """The line of one pod."""
        return self.sums.lines.get(namespace, {}).get(name)

    @property
    def pods(self) -> int:
        """How many pods have a line."""
        return sum(map(len, self.sums.lines.values()))


class HoldingsWriter:
    """What the one task has that writes: pods in, sums out."""

    def __init__(self, holdings: Holdings, touched: Callable[[str, str], None], relisted: Callable[[], None]) -> None:
        """Take the sums in charge.

        Args:
            holdings: Written by nobody else.
            touched: Told the namespace in which a pod changed, and the node, "" for none.
            relisted: Told that all nodes may have changed.
        """
        self._holdings, self._touched, self._relisted = holdings, touched, relisted
        self._coming: Sums | None = None
        self._shapes: dict[Shape, tuple[Amounts, Amounts]] = {}

    def begin(self) -> None:
        """A list begins."""
        self._coming = no_sums()

    def put(self, pod: Pod) -> None:
        """A pod is there."""
        self.set(pod, self.line(pod))

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self.set(pod, None)

    def swap(self) -> None:
        """The list is whole."""
        self._holdings.sums, self._coming = self._coming or no_sums(), None
        self._relisted()

    def set(self, pod: Pod, after: Line | None) -> Line | None:
        """Put a pod's line in place of the one before; gives that, also while a list begins anew."""
        namespace, name = intern(namespace_of(pod)), pod.metadata.name
        before = self._holdings.line(namespace, name)
        if self._coming is not None:
            return self._coming.set(namespace, name, after) or before
        self._holdings.sums.set(namespace, name, after)
        for line in filter(None, (before, after) if before != after else ()):
            self._touched(namespace, line.node)
        return before

    def line(self, pod: Pod) -> Line | None:
        """What a pod holds, or waits for; None for one that has ended."""
        return None if pod.status.phase in FINISHED else line_of(pod, self._amounts)

    def _amounts(self, pod: Pod) -> tuple[Amounts, Amounts]:
        shape = _shape(pod.spec)
        found = self._shapes.get(shape) if shape else None
        if found is None:
            requests, limits = amounts_of(pod)
            found = tuple((intern(name), amount) for name, amount in requests if _counts(name)), limits
            if len(self._shapes) >= SHAPES_MOST:
                self._shapes.clear()
            if shape:
                self._shapes[shape] = found
        return found


def _shape(spec: PodSpec) -> Shape:
    """What decides what a pod holds; () for one that has more to it than its containers."""
    if spec.init_containers or spec.overhead or spec.resources is not None:
        return ()
    return tuple(
        (tuple(container.resources.requests.items()), tuple(container.resources.limits.items()))
        for container in spec.containers
    )


def _counts(resource: str) -> bool:
    return resource in ("cpu", "memory", "ephemeral-storage", ACCOUNTING) or gpu_resource(resource) is not None
