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
from webhook.model.paths import FieldPath, format_path
from webhook.model.pods import NodeSelectorRequirement
from webhook.model.quantity import format_nano as amount_words
from webhook.policy.overlap import requirements_conflict, may_overlap
from webhook.policy.written.additions import NodeExpressionSpec, InjectionSpec, TolerationSpec
from webhook.policy.written.kinds import GPUPolicy, PolicySpec
from webhook.policy.written.sections import LimitsSpec

CONFLICT_CODE = "GPU-P104"
_INJECTION: FieldPath = ("spec", "injection")
_LIMITS: FieldPath = ("spec", "limits")
_EVICTING = (None, "NoExecute")
"""The effects of a toleration that keeps a pod where a taint would end it."""

Indexed = TypeVar("Indexed")


class PolicyConflict(NamedTuple):
    """Where two policies differ (the path is the same in both, unless it is a list's), and what each adds."""

    path: FieldPath
    other_path: FieldPath
    text: str
    other_text: str


def find_conflicts(written: Sequence[tuple[Document, GPUPolicy]]) -> list[PolicyFileError]:
    """Every pair of policies that may speak about one pod and contradict each other, at the later one's place."""
    return [
        _conflict_error(document, policy, other_document, other, conflict)
        for (other_document, other), (document, policy) in combinations(written, 2)
        if may_overlap(policy.spec.match, other.spec.match)
        for conflict in spec_conflicts(policy.spec, other.spec)
    ]


def _conflict_error(
    document: Document, policy: GPUPolicy, other_document: Document, other: GPUPolicy, conflict: PolicyConflict
) -> PolicyFileError:
    sentence = (
        f"{format_path(conflict.path)}: must agree with policy {other.metadata.name!r} where both speak about one pod, "
        f"found {conflict.text} here in {policy.metadata.name!r} and {conflict.other_text} at "
        f"{other_document.locate(conflict.other_path)}. Write one value in both, or make their matches disjoint"
    )
    return PolicyFileError(document.locate(conflict.path), sentence, CONFLICT_CODE)


def spec_conflicts(ours: PolicySpec, theirs: PolicySpec) -> Iterator[PolicyConflict]:
    """What one pod cannot get from both."""
    if ours.injection is not None and theirs.injection is not None:
        yield from _injection_conflicts(ours.injection, theirs.injection)
    if ours.limits is not None and theirs.limits is not None:
        yield from _default_conflicts(ours.limits, theirs.limits)


def _injection_conflicts(ours: InjectionSpec, theirs: InjectionSpec) -> Iterator[PolicyConflict]:
    yield from _scalar_conflicts(ours, theirs)
    for key in sorted(ours.labels.keys() & theirs.labels.keys()):
        if ours.labels[key] != theirs.labels[key]:
            path = (*_INJECTION, "labels", key)
            yield PolicyConflict(path, path, repr(ours.labels[key]), repr(theirs.labels[key]))
    yield from _affinity_conflicts(ours, theirs)
    yield from _toleration_conflicts(ours, theirs)


def _scalar_conflicts(ours: InjectionSpec, theirs: InjectionSpec) -> Iterator[PolicyConflict]:
    both_written = ours.model_fields_set & theirs.model_fields_set
    for field, key in (("runtime_class_name", "runtimeClassName"), ("spread", "spread")):
        mine, other = getattr(ours, field), getattr(theirs, field)
        if field in both_written and mine != other:
            path = (*_INJECTION, key)
            yield PolicyConflict(path, path, repr(mine), repr(other))


def _affinity_conflicts(ours: InjectionSpec, theirs: InjectionSpec) -> Iterator[PolicyConflict]:
    path = (*_INJECTION, "nodeAffinity", "required")
    for (index, mine), (other_index, other) in _indexed_pairs(_required_expressions(ours), _required_expressions(theirs)):
        if requirements_conflict((_node_requirement(mine), _node_requirement(other))):
            yield PolicyConflict((*path, index), (*path, other_index), _expression_text(mine), _expression_text(other))


def _required_expressions(injection: InjectionSpec) -> tuple[NodeExpressionSpec, ...]:
    affinity = injection.node_affinity
    return () if affinity is None or isinstance(affinity, str) else affinity.required


def _node_requirement(expression: NodeExpressionSpec) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key=expression.key, operator=expression.operator, values=expression.values)


def _expression_text(expression: NodeExpressionSpec) -> str:
    values = f" {', '.join(expression.values)}" if expression.values else ""
    return f"{expression.key} {expression.operator}{values}"


def _toleration_conflicts(ours: InjectionSpec, theirs: InjectionSpec) -> Iterator[PolicyConflict]:
    path = (*_INJECTION, "tolerations")
    for (index, mine), (other_index, other) in _indexed_pairs(_listed_tolerations(ours), _listed_tolerations(theirs)):
        if _tolerate_same_taint(mine, other) and mine.toleration_seconds != other.toleration_seconds:
            yield PolicyConflict((*path, index), (*path, other_index), _toleration_text(mine), _toleration_text(other))


def _listed_tolerations(injection: InjectionSpec) -> tuple[TolerationSpec, ...]:
    listed = injection.tolerations
    return () if listed is None or isinstance(listed, str) else listed


def _tolerate_same_taint(one: TolerationSpec, other: TolerationSpec) -> bool:
    """Is there a taint that would end the pod, and that both tolerate?"""
    any_value = "Exists" in (one.operator, other.operator)
    same = one.key == other.key and (any_value or one.value == other.value)
    return same and one.effect in _EVICTING and other.effect in _EVICTING


def _toleration_text(toleration: TolerationSpec) -> str:
    seconds = toleration.toleration_seconds
    return f"{toleration.key} {'for ever' if seconds is None else f'for {seconds} s'}"


def _default_conflicts(ours: LimitsSpec, theirs: LimitsSpec) -> Iterator[PolicyConflict]:
    for (path, resource, words), (other_path, other_resource, other_words) in product(_written_defaults(ours), _written_defaults(theirs)):
        if resource == other_resource and words != other_words:
            yield PolicyConflict(path, other_path, words, other_words)


def _written_defaults(limits: LimitsSpec) -> Iterator[tuple[FieldPath, str, str]]:
    """Where each default stands, the resource it is of, and the default in words."""
    for key, each, rules in (
        ("perContainer", "container", limits.per_container),
        ("perGPU", "GPU", limits.per_gpu),
    ):
        for index, rule in enumerate(rules):
            if rule.default is not None:
                path = (*_LIMITS, key, index, "default")
                yield path, rule.resource, f"{amount_words(rule.default)} for each {each}"


def _indexed_pairs(
    ours: Sequence[Indexed], theirs: Sequence[Indexed]
) -> Iterator[tuple[tuple[int, Indexed], tuple[int, Indexed]]]:
    return product(enumerate(ours), enumerate(theirs))
