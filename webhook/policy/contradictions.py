"""Additions of different policies that cannot both be carried out on one pod (GPU-P104).

Preferences add up, and so do tolerations: one taint more is tolerated. A field with one value contradicts, and so do
a node affinity that no node can meet, two times for which one taint is tolerated, and two defaults for one resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple, TypeVar

from webhook.documents.places import Document
from webhook.errors import PolicyFileError
from webhook.model.paths import Path, dotted
from webhook.model.pods import Requirement
from webhook.model.quantity import written as amount_words
from webhook.policy.overlap import contradict, may_overlap
from webhook.policy.written.additions import NodeExpression, WrittenInjection, WrittenToleration
from webhook.policy.written.kinds import GPUPolicy, PolicySpec
from webhook.policy.written.sections import WrittenLimits

CONTRADICTION = "GPU-P104"
_INJECTION: Path = ("spec", "injection")
_LIMITS: Path = ("spec", "limits")
_EVICTING = (None, "NoExecute")
"""The effects of a toleration that keeps a pod where a taint would end it."""

Indexed = TypeVar("Indexed")


class Conflict(NamedTuple):
    """Where two policies differ (the path is the same in both, unless it is a list's), and what each adds."""

    path: Path
    other_path: Path
    value: str
    other_value: str


def contradictions(written: Sequence[tuple[Document, GPUPolicy]]) -> list[PolicyFileError]:
    """Every pair of policies that may speak about one pod and contradict each other, at the later one's place."""
    return [
        _error(document, policy, other_document, other, conflict)
        for (other_document, other), (document, policy) in combinations(written, 2)
        if may_overlap(policy.spec.match, other.spec.match)
        for conflict in conflicts(policy.spec, other.spec)
    ]


def _error(
    document: Document, policy: GPUPolicy, other_document: Document, other: GPUPolicy, conflict: Conflict
) -> PolicyFileError:
    sentence = (
        f"{dotted(conflict.path)}: must agree with policy {other.metadata.name!r} where both speak about one pod, "
        f"found {conflict.value} here in {policy.metadata.name!r} and {conflict.other_value} at "
        f"{other_document.place(conflict.other_path)}. Write one value in both, or make their matches disjoint"
    )
    return PolicyFileError(document.place(conflict.path), sentence, CONTRADICTION)


def conflicts(ours: PolicySpec, theirs: PolicySpec) -> Iterator[Conflict]:
    """What one pod cannot get from both."""
    if ours.injection is not None and theirs.injection is not None:
        yield from _injections(ours.injection, theirs.injection)
    if ours.limits is not None and theirs.limits is not None:
        yield from _defaults(ours.limits, theirs.limits)


def _injections(ours: WrittenInjection, theirs: WrittenInjection) -> Iterator[Conflict]:
    yield from _single_values(ours, theirs)
    for key in sorted(ours.labels.keys() & theirs.labels.keys()):
        if ours.labels[key] != theirs.labels[key]:
            path = (*_INJECTION, "labels", key)
            yield Conflict(path, path, repr(ours.labels[key]), repr(theirs.labels[key]))
    yield from _affinities(ours, theirs)
    yield from _tolerations(ours, theirs)


def _single_values(ours: WrittenInjection, theirs: WrittenInjection) -> Iterator[Conflict]:
    both_written = ours.model_fields_set & theirs.model_fields_set
    for field, key in (("runtime_class_name", "runtimeClassName"), ("spread", "spread")):
        mine, other = getattr(ours, field), getattr(theirs, field)
        if field in both_written and mine != other:
            path = (*_INJECTION, key)
            yield Conflict(path, path, repr(mine), repr(other))


def _affinities(ours: WrittenInjection, theirs: WrittenInjection) -> Iterator[Conflict]:
    path = (*_INJECTION, "nodeAffinity", "required")
    for (index, mine), (other_index, other) in _pairs(_required(ours), _required(theirs)):
        if contradict((_requirement(mine), _requirement(other))):
            yield Conflict((*path, index), (*path, other_index), _words(mine), _words(other))


def _required(injection: WrittenInjection) -> tuple[NodeExpression, ...]:
    affinity = injection.node_affinity
    return () if affinity is None or isinstance(affinity, str) else affinity.required


def _requirement(expression: NodeExpression) -> Requirement:
    return Requirement(key=expression.key, operator=expression.operator, values=expression.values)


def _words(expression: NodeExpression) -> str:
    values = f" {', '.join(expression.values)}" if expression.values else ""
    return f"{expression.key} {expression.operator}{values}"


def _tolerations(ours: WrittenInjection, theirs: WrittenInjection) -> Iterator[Conflict]:
    path = (*_INJECTION, "tolerations")
    for (index, mine), (other_index, other) in _pairs(_listed(ours), _listed(theirs)):
        if _of_one_taint(mine, other) and mine.toleration_seconds != other.toleration_seconds:
            yield Conflict((*path, index), (*path, other_index), _how_long(mine), _how_long(other))


def _listed(injection: WrittenInjection) -> tuple[WrittenToleration, ...]:
    listed = injection.tolerations
    return () if listed is None or isinstance(listed, str) else listed


def _of_one_taint(one: WrittenToleration, other: WrittenToleration) -> bool:
    """Is there a taint that would end the pod, and that both tolerate?"""
    any_value = "Exists" in (one.operator, other.operator)
    same = one.key == other.key and (any_value or one.value == other.value)
    return same and one.effect in _EVICTING and other.effect in _EVICTING


def _how_long(toleration: WrittenToleration) -> str:
    seconds = toleration.toleration_seconds
    return f"{toleration.key} {'for ever' if seconds is None else f'for {seconds} s'}"


def _defaults(ours: WrittenLimits, theirs: WrittenLimits) -> Iterator[Conflict]:
    for (path, resource, words), (other_path, other_resource, other_words) in product(_given(ours), _given(theirs)):
        if resource == other_resource and words != other_words:
            yield Conflict(path, other_path, words, other_words)


def _given(limits: WrittenLimits) -> Iterator[tuple[Path, str, str]]:
    """Where each default stands, the resource it is of, and the default in words."""
    for key, each, rules in (
        ("perContainer", "container", limits.per_container),
        ("perGPU", "GPU", limits.per_gpu),
    ):
        for index, rule in enumerate(rules):
            if rule.default is not None:
                path = (*_LIMITS, key, index, "default")
                yield path, rule.resource, f"{amount_words(rule.default)} for each {each}"


def _pairs(
    ours: Sequence[Indexed], theirs: Sequence[Indexed]
) -> Iterator[tuple[tuple[int, Indexed], tuple[int, Indexed]]]:
    return product(enumerate(ours), enumerate(theirs))
