"""The pods of a cluster by namespace and labels, with their numbers on each node: what affinity and spread count.

The pods of one workload share their labels, so there are about as many groups as workloads. Labels are text of users,
so they are bounded: a pod with too many, or with one too many set of labels in the cluster, counts in a group of its
namespace that anything may select, and what selects it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from sys import intern
from typing import NamedTuple

from webhook.model.bounded_cache import BoundedCache
from webhook.model.fleet import Fleet
from webhook.model.node_masks import NO_COUNTS, NodeCounts
from webhook.model.pods import DEFAULT_NAMESPACE, NodeSelectorRequirement, Pod
from webhook.model.workloads import INDEX_KEYS

MAX_LABEL_BYTES = 1024
"""Bytes of all labels of one pod, without its index. Usual pods have 100 to 400."""

MAX_LABELS = 32
"""Labels of one pod."""

MAX_GROUPS = 16_384
"""Different sets of labels in a cluster, by namespace."""

MAX_GROUPS_CHECKED = 1024
"""Sets of labels that one selector is compared with, of those that have a label that it requires."""

MAX_NAMESPACES_CHECKED = 1024
"""Namespaces whose labels one selector of namespaces is compared with."""

MAX_SELECTORS_KEPT = 256
"""Selectors whose counts are kept until the pods change."""

PodLabels = tuple[tuple[str, str], ...]
"""The labels of a pod by key, ascending, without its index in a workload."""

UNKNOWN_LABELS: PodLabels = (("", ""),)
"""Stands for labels that are not kept."""

LabelRequirements = tuple[NodeSelectorRequirement, ...]
"""What labels must satisfy: all of it."""

NOTHING_SELECTED: LabelRequirements = (NodeSelectorRequirement("", "In", ()),)
"""What no labels satisfy: an absent selector."""


def satisfies(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Return whether labels satisfy an expression of a label selector."""
    key, operator = requirement.key, requirement.operator
    if operator == "In":
        return labels.get(key) in requirement.values
    if operator == "NotIn":
        return labels.get(key) not in requirement.values
    return (key in labels) is (operator == "Exists")


def satisfies_all(requirements: LabelRequirements, labels: Mapping[str, str]) -> bool:
    """Return whether labels satisfy every expression of a label selector."""
    return all(satisfies(one, labels) for one in requirements)


def pod_labels(pod: Pod) -> PodLabels:
    """Return the labels by which a pod is counted; `UNKNOWN_LABELS` if there are too many."""
    found = [pair for pair in pod.metadata.labels.items() if pair[0] not in INDEX_KEYS]
    if len(found) > MAX_LABELS or sum(len(key) + len(value) for key, value in found) > MAX_LABEL_BYTES:
        return UNKNOWN_LABELS
    return tuple(sorted((intern(key), intern(value)) for key, value in found))


class PodGroup(NamedTuple):
    """Pods that no selector tells apart.

    Attributes:
        terminating: True if they are being deleted.
    """

    namespace: str
    labels: PodLabels
    terminating: bool = False


def group_of_pod(pod: Pod) -> PodGroup:
    """Return the group in which a stored pod counts."""
    terminating = pod.metadata.deletion_timestamp is not None
    return PodGroup(pod.metadata.namespace or DEFAULT_NAMESPACE, pod_labels(pod), terminating)


class PodSelector(NamedTuple):
    """Selects pods by their labels, in some namespaces.

    Attributes:
        labels: What the labels of a selected pod must satisfy.
        namespaces: Names of the namespaces of selected pods.
        namespace_labels: Namespaces with such labels are meant too; None for none, () for all.
    """

    labels: LabelRequirements
    namespaces: tuple[str, ...] = ()
    namespace_labels: LabelRequirements | None = None

    def selects(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Return whether it selects a pod with these labels in a namespace."""
        return satisfies_all(self.labels, labels) and self.selects_namespace(namespace, namespace_labels)

    def selects_namespace(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether it selects pods of a namespace."""
        if name in self.namespaces:
            return True
        return self.namespace_labels is not None and satisfies_all(self.namespace_labels, labels)


UNKNOWN_KEY = "rightslice.dev/unknown"
"""Label in a selector whose matches are unknown."""

_UNKNOWN_KEYS = INDEX_KEYS | {UNKNOWN_KEY}

EVERY_POD = PodSelector((), (), ())
"""Stands for a selector that is not kept."""


def is_unknown_selection(selector: PodSelector) -> bool:
    """Return whether it is not known which pods a selector selects, because it is not kept, or by an index."""
    return selector is EVERY_POD or not _UNKNOWN_KEYS.isdisjoint([one.key for one in selector.labels])


class PodCounts(NamedTuple):
    """Numbers of pods.

    Attributes:
        running: On each node, of pods that are not being deleted.
        terminating: On each node, of those that are.
        waiting: Of pods without a node.
    """

    running: NodeCounts = NO_COUNTS
    terminating: NodeCounts = NO_COUNTS
    waiting: int = 0

    def __add__(self, other: object) -> PodCounts:
        if not isinstance(other, PodCounts):
            return NotImplemented
        return PodCounts(
            self.running + other.running, self.terminating + other.terminating, self.waiting + other.waiting
        )

    def occupied_nodes(self) -> int:
        """Return the mask of the nodes with any."""
        return self.running.counted_nodes() | self.terminating.counted_nodes()

    def with_group(self, by_node: Mapping[int, int], waiting: int | None, *, terminating: bool) -> PodCounts:
        """Return the numbers with those of some nodes replaced, and of the waiting pods if given."""
        if terminating:
            return self._replace(terminating=self.terminating.with_counts(by_node))
        running = self.running.with_counts(by_node)
        return PodCounts(running, self.terminating, self.waiting if waiting is None else waiting)


NO_PODS = PodCounts()


class NamespacePods:
    """The pods of one namespace by labels. Immutable."""

    __slots__ = ("_by_label", "groups")

    def __init__(self, groups: Mapping[PodLabels, PodCounts]) -> None:
        self.groups = groups
        self._by_label: dict[tuple[str, str], list[PodLabels]] | None = None

    def with_groups(self, changes: Mapping[PodLabels, PodCounts]) -> NamespacePods:
        """Return the pods with the numbers of some sets of labels replaced."""
        groups = {**self.groups, **changes}
        for labels, counts in changes.items():
            if counts == NO_PODS:
                del groups[labels]
        changed = NamespacePods(groups)
        if changed.groups.keys() == self.groups.keys():
            changed._by_label = self._by_label
        return changed

    def groups_to_check(self, requirements: LabelRequirements) -> Collection[PodLabels]:
        """Return the sets of labels that may satisfy a selector: those with a label that it requires, if it does."""
        smallest: Collection[PodLabels] = self.groups
        if len(self.groups) <= 4:
            return smallest
        if self._by_label is None:
            self._by_label = {}
            for labels in self.groups:
                for pair in labels:
                    self._by_label.setdefault(pair, []).append(labels)
        for one in requirements:
            if one.operator == "In":
                found = [each for value in set(one.values) for each in self._by_label.get((one.key, value), ())]
                if len(found) < len(smallest):
                    smallest = found
        return smallest


NO_GROUPS = NamespacePods({})


class PodGroups:
    """The pods of a cluster by namespace and labels. Immutable; a change copies what its namespaces have."""

    __slots__ = ("_counted", "_namespaces")

    def __init__(self, namespaces: Mapping[str, NamespacePods]) -> None:
        self._namespaces = namespaces
        self._counted = BoundedCache[tuple[PodSelector, ...], PodCounts | None](MAX_SELECTORS_KEPT)

    def __bool__(self) -> bool:
        return bool(self._namespaces)

    def with_changes(self, changes: Mapping[PodGroup, Mapping[str, int]], fleet: Fleet) -> PodGroups:
        """Return the pods with the numbers of some groups on some nodes replaced.

        Args:
            changes: By group: the number by the name of the node; "" for pods without a node.
        """
        if not changes:
            return self
        by_namespace: dict[str, dict[PodLabels, PodCounts]] = {}
        for group, by_node in changes.items():
            before = self._namespaces.get(group.namespace, NO_GROUPS).groups
            counts = by_namespace.setdefault(group.namespace, {})
            positions = {fleet.by_name[node]: count for node, count in by_node.items() if node in fleet.by_name}
            known = counts.get(group.labels) or before.get(group.labels, NO_PODS)
            counts[group.labels] = known.with_group(positions, by_node.get(""), terminating=group.terminating)
        changed = {
            name: self._namespaces.get(name, NO_GROUPS).with_groups(counts) for name, counts in by_namespace.items()
        }
        return PodGroups({name: pods for name, pods in {**self._namespaces, **changed}.items() if pods.groups})

    def count_in_group(self, group: PodGroup) -> NodeCounts:
        """Return the numbers of the pods of one group on each node."""
        counts = self._namespaces.get(group.namespace, NO_GROUPS).groups.get(group.labels, NO_PODS)
        return counts.terminating if group.terminating else counts.running

    def count(
        self, selectors: Iterable[PodSelector], labels_of: Callable[[str], Mapping[str, str]]
    ) -> PodCounts | None:
        """Return the numbers of the pods that all selectors select; None if they are not known.

        Cached for selectors that do not look at the labels of namespaces: each term of a pod is counted several times.

        Args:
            selectors: At least one.
            labels_of: Returns the labels of a namespace.
        """
        key = tuple(selectors)
        try:
            return self._counted[key]
        except KeyError:
            found = self._count(key, labels_of)
        is_lasting = all(one.namespace_labels is None for one in key)
        return self._counted.store(key, found) if is_lasting else found

    def _count(
        self, selectors: tuple[PodSelector, ...], labels_of: Callable[[str], Mapping[str, str]]
    ) -> PodCounts | None:
        first, *others = selectors
        total = NO_PODS
        names = self._namespaces_of(first, labels_of)
        if names is None:
            return None
        for name in names:
            found = self._matching_groups(name, first, others, labels_of)
            if found is None:
                return None
            for counts in found:
                total += counts
        return total

    def _namespaces_of(self, selector: PodSelector, labels_of: Callable[[str], Mapping[str, str]]) -> list[str] | None:
        if selector.namespace_labels is None:
            return [name for name in dict.fromkeys(selector.namespaces) if name in self._namespaces]
        if selector.namespace_labels and len(self._namespaces) > MAX_NAMESPACES_CHECKED:
            return None
        return [name for name in self._namespaces if selector.selects_namespace(name, labels_of(name))]

    def _matching_groups(
        self,
        namespace: str,
        first: PodSelector,
        others: Collection[PodSelector],
        labels_of: Callable[[str], Mapping[str, str]],
    ) -> list[PodCounts] | None:
        pods = self._namespaces[namespace]
        if others and not all(one.selects_namespace(namespace, labels_of(namespace)) for one in others):
            return []
        if UNKNOWN_LABELS in pods.groups:
            return None
        requirements = (*first.labels, *(each for one in others for each in one.labels))
        if any(one.key in INDEX_KEYS for one in requirements):
            return None
        candidates = pods.groups_to_check(requirements)
        if len(candidates) > MAX_GROUPS_CHECKED:
            return None
        return [pods.groups[labels] for labels in candidates if satisfies_all(requirements, dict(labels))]


NO_POD_GROUPS = PodGroups({})
