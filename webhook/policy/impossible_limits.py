"""Find limits that no pod can satisfy together, such as one GPU for each pod in one policy, and two in another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

from webhook.model.enums import PolicyMode
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.quantity import format_nano
from webhook.policy.compiler import effective_mode
from webhook.policy.lint import CLAIMED_RESOURCES, EVALUATED_RESOURCES, globs_overlap, may_overlap
from webhook.policy.selectors import is_literal
from webhook.policy.written.kinds import GPUPolicy
from webhook.policy.written.sections import AmountRuleSpec


class EnforcedLimit(NamedTuple):
    """A rule that denies pods, and the list that has it."""

    list_name: str
    rule: AmountRuleSpec


def find_impossible_limits(policy: GPUPolicy, others: Iterable[GPUPolicy] = ()) -> Iterator[str]:
    """Yield a sentence, without full stop, for each two limits of a policy, or of it and another, that no pod meets."""
    name, limits = policy.metadata.name, _enforced_limits(policy)
    for one, other in combinations(limits, 2):
        if _exclude_each_other(one, other):
            yield f"policy {name} denies every pod with {_facts(one, name, other, name)}. Allow a common amount"
    for another in others if limits else ():
        for one, other in product(limits, _enforced_limits(another)):
            if _exclude_each_other(one, other) and may_overlap(policy.spec.match, another.spec.match):
                facts = _facts(one, name, other, another.metadata.name)
                yield (
                    f"policies {name} and {another.metadata.name} deny every pod that both match with {facts}. "
                    "Allow a common amount, or make their matches disjoint"
                )


def _enforced_limits(policy: GPUPolicy) -> Sequence[EnforcedLimit]:
    """Return the rules that deny pods, without those that forbid a resource."""
    limits = policy.spec.limits
    if limits is None or effective_mode(limits.mode, policy.spec.mode) is not PolicyMode.ENFORCE:
        return ()
    lists = {"perPod": limits.per_pod, "perContainer": limits.per_container, "perGPU": limits.per_gpu}
    return [EnforcedLimit(key, rule) for key, rules in lists.items() for rule in rules if not _forbids(rule)]


def _forbids(rule: AmountRuleSpec) -> bool:
    return rule.max == 0 or (rule.allowed is not None and not any(rule.allowed))


def _exclude_each_other(one: EnforcedLimit, other: EnforcedLimit) -> bool:
    if one.list_name != other.list_name or not globs_overlap(one.rule.resource, other.rule.resource):
        return False
    if one.list_name != "perGPU" and _bound_different_sums(one.rule.resource, other.rule.resource):
        return _is_too_small_for(one.rule, other.rule) or _is_too_small_for(other.rule, one.rule)
    bounds = [rule for rule in (one.rule, other.rule) if rule.allowed is None]
    lists = [rule.allowed for rule in (one.rule, other.rule) if rule.allowed is not None]
    if lists:
        common = set(lists[0]).intersection(*lists[1:])
        return not any(_is_within(amount, bounds) for amount in common)
    least = max((rule.min for rule in bounds if rule.min is not None), default=0)
    return not _is_within(least, bounds)


def _bound_different_sums(resource: str, other: str) -> bool:
    """Return whether one of two rules bounds a sum of GPUs, and the other an amount that may be a part of it."""
    has_glob = not (is_literal(resource) and is_literal(other))
    return has_glob and resource != other and _may_be_gpus(resource) and _may_be_gpus(other)


def _may_be_gpus(resource: str) -> bool:
    known = parse_gpu_resource(resource) is not None if is_literal(resource) else False
    globs = (CLAIMED_RESOURCES,) if is_literal(resource) else (CLAIMED_RESOURCES, EVALUATED_RESOURCES)
    return known or any(globs_overlap(resource, glob) for glob in globs)


def _is_too_small_for(sum_rule: AmountRuleSpec, part: AmountRuleSpec) -> bool:
    """Return whether a sum must be less than the least amount of a part of it."""
    most = sum_rule.max if sum_rule.allowed is None else max(sum_rule.allowed)
    least = part.min if part.allowed is None else min(filter(None, part.allowed))
    return most is not None and most < (least or 0) and _includes_names(sum_rule.resource, part.resource)


def _includes_names(glob: str, part: str) -> bool:
    """Return whether a glob surely matches every name that a part matches, which overlaps it."""
    prefix = glob.removesuffix("*")
    return glob == part or is_literal(part) or (is_literal(prefix) and glob != prefix and part.startswith(prefix))


def _is_within(amount: int, bounds: Iterable[AmountRuleSpec]) -> bool:
    return all((rule.min or 0) <= amount and (rule.max is None or amount <= rule.max) for rule in bounds)


def _facts(one: EnforcedLimit, name: str, other: EnforcedLimit, other_name: str) -> str:
    found = f"limits.{one.list_name} allows {_amounts(one.rule)} in {name} and {_amounts(other.rule)} in {other_name}"
    return f"{min(one.rule.resource, other.rule.resource, key=_wildcards)}: {found}"


def _wildcards(glob: str) -> int:
    return glob.count("*") + glob.count("?")


def _amounts(rule: AmountRuleSpec) -> str:
    if rule.allowed is not None:
        return ", ".join(map(format_nano, rule.allowed))
    if rule.min is None or rule.max is None:
        least = rule.min is not None
        return f"at {'least' if least else 'most'} {format_nano((rule.min if least else rule.max) or 0)}"
    return f"{format_nano(rule.min)} to {format_nano(rule.max)}"
