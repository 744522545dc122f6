"""Check policies against each other and a cluster: conflicts (GPU-P104), and policies that match no pod or assign
slices that no node has.

Policies that may match one pod conflict if they set one field to different values, if no node can satisfy both node
affinities, if they tolerate one taint for different times, or if they set two defaults for one resource. Tolerations of
different taints add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

from webhook.documents.document import Document
from webhook.errors import PolicyFileError
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_view import NO_DEVICES
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.gpu_resources import CARD_MILLI, DEVICE_CLASS_PREFIX, OTHER_VENDOR_PREFIXES
from webhook.model.pods import NodeSelectorRequirement
from webhook.model.quantity import format_nano
from webhook.policy import selectors
from webhook.policy.compiler import compile_match, node_requirement, selector_requirements
from webhook.policy.policy_set import Policy
from webhook.policy.written.kinds import GPUPolicy, PolicySpec
from webhook.policy.written.match import MatchSpec
from webhook.policy.written.sections import InjectionSpec, LimitsSpec, NodeExpressionSpec, TolerationSpec

EVALUATED_RESOURCES = "nvidia.com/*"
CLAIMED_RESOURCES = "amd.com/*"
IGNORED_RESOURCES_NOTE = "GPUs of other vendors are evaluated only in resource claims"


CONFLICT_CODE = "GPU-P104"
_INJECTION: FieldPath = ("spec", "injection")
_LIMITS: FieldPath = ("spec", "limits")
_EVICTING = (None, "NoExecute")
"""Effects of tolerations that keep a pod on a node whose taint would evict it."""


class PolicyConflict(NamedTuple):
    """Two policies that set a field to different values; in lists their paths may differ."""

    path: FieldPath
    other_path: FieldPath
    text: str
    other_text: str


def find_conflicts(policies: Sequence[tuple[Document, GPUPolicy]]) -> list[PolicyFileError]:
    """Return an error for each conflict between policies that may match one pod, located in the later policy."""
    return [
        _conflict_error(document, policy, other_document, other, conflict)
        for (other_document, other), (document, policy) in combinations(policies, 2)
        if (conflicts := tuple(spec_conflicts(policy.spec, other.spec)))  # few pairs have any; matches take long
        and may_overlap(policy.spec.match, other.spec.match)
        for conflict in conflicts
    ]


def find_unmatched(policy: GPUPolicy, view: ClusterView | None = None) -> Iterator[str]:
    """Yield a sentence, without full stop, if a policy or its limits apply to no pod, or with a view to none there."""
    name, globs = policy.metadata.name, policy.spec.match.resources
    if globs is not None and not any(globs_overlap(glob, EVALUATED_RESOURCES) for glob in globs):
        must = f"match.resources must include a name of {EVALUATED_RESOURCES}, found {', '.join(globs[:3])}"
        others = " without resource claims" if any(globs_overlap(glob, CLAIMED_RESOURCES) for glob in globs) else ""
        yield f"policy {name} matches no pod{others}: {must}. {IGNORED_RESOURCES_NOTE}"
        return
    match = policy.spec.match
    if reasons := list(_contradictions(match)) or list(_unmatched_in(match, view) if view is not None else ()):
        yield f"policy {name} matches no pod: {'; '.join(reasons)}"
        return
    limits = policy.spec.limits
    rules = (*limits.per_pod, *limits.per_container, *limits.per_gpu) if limits is not None else ()
    foreign_prefixes = (*OTHER_VENDOR_PREFIXES, DEVICE_CLASS_PREFIX)
    foreign = [rule.resource for rule in rules if rule.resource.startswith(foreign_prefixes)]
    if foreign:
        only = f"apply only to pods that also request {EVALUATED_RESOURCES}, or claim GPUs"
        yield f"limits of policy {name} on {', '.join(foreign[:3])} {only}. {IGNORED_RESOURCES_NOTE}"


def find_missing_slices(policy: Policy, view: ClusterView) -> Iterator[str]:
    """Yield a sentence, without full stop, if a policy assigns slices or shares, and no node of a cluster has any."""
    fleets, rules = (view.fleet, view.view_new_nodes().fleet), policy.right_sizing
    if rules is None or not any(fleet.resources() for fleet in fleets) or view.devices is not NO_DEVICES:
        return  # claims may get slices of a device class
    if not any(fleet.offers_by_form(rules.forms, rules.isolation, CARD_MILLI - 1) for fleet in fleets):
        missing = f"no node offers {', '.join(rules.forms)} with isolation {rules.isolation} or more"
        yield f"policy {policy.name} right-sizes no pod: {missing}. rightslice layout shows whether other layouts would"


def _contradictions(match: MatchSpec) -> Iterator[str]:
    """Yield why no object can match, whatever the cluster."""
    if match.namespaces is not None and not _remaining_namespaces(match, match):
        excluded = ", ".join(match.exclude_namespaces[:3])
        yield f"match.excludeNamespaces ({excluded}) excludes all of match.namespaces"
    for key, selector in (("namespaceSelector", match.namespace_selector), ("objectSelector", match.object_selector)):
        if requirements_conflict(selector_requirements(selector)):
            yield f"no labels satisfy every expression of match.{key}"


def _unmatched_in(match: MatchSpec, view: ClusterView) -> Iterator[str]:
    """Yield why no pod of a cluster can match at present."""
    compiled = compile_match(match, (), fail=False)
    namespaces = view.all_namespaces()
    if namespaces and not any(compiled.namespace(each, found.metadata.labels) for each, found in namespaces.items()):
        written = "namespaces, excludeNamespaces and namespaceSelector"
        yield f"none of the cluster's {len(namespaces)} namespaces satisfies match ({written})"
    offered = view.fleet.resources() if view.devices is NO_DEVICES else ()  # claims may get other names
    if offered and compiled.resource is not None and not any(map(compiled.resource, offered)):
        written, present = ", ".join((match.resources or ())[:3]), ", ".join(offered[:5])
        yield f"match.resources has {written}, and the cluster's nodes offer {present}"


def _conflict_error(
    document: Document, policy: GPUPolicy, other_document: Document, other: GPUPolicy, conflict: PolicyConflict
) -> PolicyFileError:
    message = (
        f"{format_path(conflict.path)}: must agree with policy {other.metadata.name!r}, which may match the same pod, "
        f"found {conflict.text} here in {policy.metadata.name!r} and {conflict.other_text} at "
        f"{other_document.locate(conflict.other_path)}. Write the same value in both, or make their matches disjoint"
    )
    return PolicyFileError(document.locate(conflict.path), message, CONFLICT_CODE)


def spec_conflicts(first: PolicySpec, second: PolicySpec) -> Iterator[PolicyConflict]:
    """Yield the conflicts between two specs."""
    if first.injection is not None and second.injection is not None:
        yield from _injection_conflicts(first.injection, second.injection)
    if first.limits is not None and second.limits is not None:
        yield from _default_conflicts(first.limits, second.limits)


def _injection_conflicts(first: InjectionSpec, second: InjectionSpec) -> Iterator[PolicyConflict]:
    set_in_both = first.model_fields_set & second.model_fields_set
    for field, key in (("runtime_class_name", "runtimeClassName"), ("spread", "spread")):
        one, other = getattr(first, field), getattr(second, field)
        if field in set_in_both and one != other:
            path: FieldPath = (*_INJECTION, key)
            yield PolicyConflict(path, path, repr(one), repr(other))
    for key in sorted(first.labels.keys() & second.labels.keys()):
        if first.labels[key] != second.labels[key]:
            path = (*_INJECTION, "labels", key)
            yield PolicyConflict(path, path, repr(first.labels[key]), repr(second.labels[key]))
    yield from _affinity_conflicts(first, second)
    yield from _toleration_conflicts(first, second)


def _affinity_conflicts(first: InjectionSpec, second: InjectionSpec) -> Iterator[PolicyConflict]:
    path = (*_INJECTION, "nodeAffinity", "required")
    pairs = product(enumerate(first.required_expressions), enumerate(second.required_expressions))
    for (index, one), (other_index, other) in pairs:
        if requirements_conflict((node_requirement(one), node_requirement(other))):
            yield PolicyConflict((*path, index), (*path, other_index), _expression_text(one), _expression_text(other))


def _expression_text(expression: NodeExpressionSpec) -> str:
    values = f" {', '.join(expression.values)}" if expression.values else ""
    return f"{expression.key} {expression.operator}{values}"


def _toleration_conflicts(first: InjectionSpec, second: InjectionSpec) -> Iterator[PolicyConflict]:
    path = (*_INJECTION, "tolerations")
    pairs = product(enumerate(first.toleration_list), enumerate(second.toleration_list))
    for (index, one), (other_index, other) in pairs:
        if _tolerate_same_taint(one, other) and one.toleration_seconds != other.toleration_seconds:
            yield PolicyConflict((*path, index), (*path, other_index), _toleration_text(one), _toleration_text(other))


def _tolerate_same_taint(one: TolerationSpec, other: TolerationSpec) -> bool:
    """Return whether both tolerate one taint that would evict the pod."""
    any_value = "Exists" in (one.operator, other.operator)
    same = one.key == other.key and (any_value or one.value == other.value)
    return same and one.effect in _EVICTING and other.effect in _EVICTING


def _toleration_text(toleration: TolerationSpec) -> str:
    seconds = toleration.toleration_seconds
    return f"{toleration.key} {'forever' if seconds is None else f'for {seconds} s'}"


def _default_conflicts(first: LimitsSpec, second: LimitsSpec) -> Iterator[PolicyConflict]:
    for (path, resource, text), (other_path, other_resource, other_text) in product(
        _written_defaults(first), _written_defaults(second)
    ):
        if resource == other_resource and text != other_text:
            yield PolicyConflict(path, other_path, text, other_text)


def _written_defaults(limits: LimitsSpec) -> Iterator[tuple[FieldPath, str, str]]:
    """Yield the path, resource and text of each default."""
    for key, each, rules in (
        ("perContainer", "container", limits.per_container),
        ("perGPU", "GPU", limits.per_gpu),
    ):
        for index, rule in enumerate(rules):
            if rule.default is not None:
                path = (*_LIMITS, key, index, "default")
                yield path, rule.resource, f"{format_nano(rule.default)} for each {each}"


def may_overlap(one: MatchSpec, other: MatchSpec) -> bool:
    """Return False only if certainly no object matches both; match conditions count as true."""
    return (
        bool(set(one.operations) & set(other.operations))
        and (one.resources is None or other.resources is None or _any_globs_overlap(one.resources, other.resources))
        and _namespaces_overlap(one, other)
        and not requirements_conflict(
            (*selector_requirements(one.object_selector), *selector_requirements(other.object_selector))
        )
        and not requirements_conflict(
            (*selector_requirements(one.namespace_selector), *selector_requirements(other.namespace_selector))
        )
    )


def _namespaces_overlap(one: MatchSpec, other: MatchSpec) -> bool:
    first, second = _remaining_namespaces(one, other), _remaining_namespaces(other, one)
    if first is not None and second is not None:
        return _any_globs_overlap(first, second)
    return first != () and second != ()


def _remaining_namespaces(one: MatchSpec, other: MatchSpec) -> tuple[str, ...] | None:
    """Return a policy's namespace globs without those that either policy excludes; None for every namespace."""
    if one.namespaces is None:
        return None
    excluded = (*one.exclude_namespaces, *other.exclude_namespaces)
    is_excluded = _cached_matcher(excluded)
    if "*" in excluded:
        return ()
    # A glob with wildcards is removed only if an equal one is excluded.
    remaining = (glob for glob in one.namespaces if glob not in excluded)
    return tuple(glob for glob in remaining if not (selectors.is_literal(glob) and is_excluded(glob)))


@lru_cache(maxsize=1024)
def _cached_matcher(globs: tuple[str, ...]) -> selectors.NameMatcher:
    return selectors.glob_matcher(globs)


def _any_globs_overlap(first: Iterable[str], second: Iterable[str]) -> bool:
    others = tuple(second)
    return any(globs_overlap(one, other) for one in first for other in others)


@lru_cache(maxsize=1024)
def globs_overlap(one: str, other: str) -> bool:
    """Return whether some name matches both globs.

    >>> globs_overlap("team-*", "*-dev"), globs_overlap("team-*", "ml-?")
    (True, False)
    """
    if selectors.is_literal(one) and selectors.is_literal(other):
        return one == other
    # overlaps[i]: whether some text matches the part of `one` before this character and other[:i].
    overlaps = [not other[:i].strip("*") for i in range(len(other) + 1)]
    for character in one:
        extended = [overlaps[0] and character == "*"]
        for i, other_character in enumerate(other):
            if "*" in (character, other_character):
                extended.append(overlaps[i + 1] or extended[i])
            else:
                extended.append(overlaps[i] and (character == other_character or "?" in (character, other_character)))
        overlaps = extended
    return overlaps[-1]


def requirements_conflict(requirements: Iterable[NodeSelectorRequirement]) -> bool:
    """Return whether no labels can satisfy every requirement."""
    by_key: dict[str, list[NodeSelectorRequirement]] = {}
    for requirement in requirements:
        by_key.setdefault(requirement.key, []).append(requirement)
    return any(_no_value_possible(group) for group in by_key.values())


def _no_value_possible(group: list[NodeSelectorRequirement]) -> bool:
    operators = {requirement.operator for requirement in group}
    if "DoesNotExist" in operators:
        return bool(operators & {"In", "Exists", "Gt", "Lt"})
    allowed = [set(requirement.values) for requirement in group if requirement.operator == "In"]
    if not allowed:
        return False
    excluded = {value for one in group if one.operator == "NotIn" for value in one.values}
    return not set.intersection(*allowed) - excluded
