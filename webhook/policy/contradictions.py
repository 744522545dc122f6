"""Injections of different policies that cannot both be carried out on one pod (GPU-P104).

Tolerations and preferences add up, so they never contradict; a field with one value, and a node affinity
that no node can meet, do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from webhook.documents.places import Document
from webhook.errors import PolicyFileError
from webhook.model.paths import Path, dotted
from webhook.model.pods import Requirement
from webhook.policy.overlap import contradict, may_overlap
from webhook.policy.written.additions import NodeExpression, WrittenInjection
from webhook.policy.written.kinds import GPUPolicy

CONTRADICTION = "GPU-P104"
_INJECTION: Path = ("spec", "injection")


class Conflict(NamedTuple):
    """Where two policies differ (the path is the same in both, unless it is a list's), and what each adds."""

    path: Path
    other_path: Path
    value: str
    other_value: str


def contradictions(written: Sequence[tuple[Document, GPUPolicy]]) -> list[PolicyFileError]:
    """Every pair of policies that may speak about one pod and contradict each other, at the later one's place."""
    injecting = [(document, policy, policy.spec.injection) for document, policy in written if policy.spec.injection]
    return [
        _error(document, policy, other_document, other, conflict)
        for (other_document, other, other_injection), (document, policy, injection) in combinations(injecting, 2)
        if may_overlap(policy.spec.match, other.spec.match)
        for conflict in conflicts(injection, other_injection)
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


def conflicts(ours: WrittenInjection, theirs: WrittenInjection) -> Iterator[Conflict]:
    """What one pod cannot get from both."""
    yield from _single_values(ours, theirs)
    for key in sorted(ours.labels.keys() & theirs.labels.keys()):
        if ours.labels[key] != theirs.labels[key]:
            path = (*_INJECTION, "labels", key)
            yield Conflict(path, path, repr(ours.labels[key]), repr(theirs.labels[key]))
    yield from _affinities(ours, theirs)


def _single_values(ours: WrittenInjection, theirs: WrittenInjection) -> Iterator[Conflict]:
    both_written = ours.model_fields_set & theirs.model_fields_set
    for field, key in (("runtime_class_name", "runtimeClassName"), ("spread", "spread")):
        mine, other = getattr(ours, field), getattr(theirs, field)
        if field in both_written and mine != other:
            path = (*_INJECTION, key)
            yield Conflict(path, path, repr(mine), repr(other))


def _affinities(ours: WrittenInjection, theirs: WrittenInjection) -> Iterator[Conflict]:
    for index, mine in enumerate(_required(ours)):
        for other_index, other in enumerate(_required(theirs)):
            if contradict((_requirement(mine), _requirement(other))):
                path = (*_INJECTION, "nodeAffinity", "required")
                yield Conflict((*path, index), (*path, other_index), _words(mine), _words(other))


def _required(injection: WrittenInjection) -> tuple[NodeExpression, ...]:
    affinity = injection.node_affinity
    return () if affinity is None or isinstance(affinity, str) else affinity.required


def _requirement(expression: NodeExpression) -> Requirement:
    return Requirement(key=expression.key, operator=expression.operator, values=expression.values)


def _words(expression: NodeExpression) -> str:
    values = f" {', '.join(expression.values)}" if expression.values else ""
    return f"{expression.key} {expression.operator}{values}"
