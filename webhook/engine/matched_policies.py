"""The sections of all policies that match a pod, combined once for all pods with the same match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from webhook.engine.policy_findings import PolicyRef
from webhook.model.derived_values import derived_value
from webhook.model.enums import PolicyMode
from webhook.model.pods import NodeSelectorRequirement, Toleration
from webhook.policy.policy_set import (
    InjectedGpuHandling,
    InjectionRules,
    LimitRules,
    Policy,
    PolicySet,
    QuotaRules,
    RightSizingRules,
    SecurityRules,
    SpreadMode,
    TopologyRules,
    as_audit,
)


class CombinedRightSizing(msgspec.Struct, frozen=True):
    """The right-sizing rules of all matching policies, combined into one.

    Attributes:
        policy: The names of these policies.
        limits: Enforced limits that also hold for a smaller request.
        accounting: True if the accounting resource is added to the pod where nodes advertise it.
        accounting_ignored: True if the scheduler ignores that resource, so that every node will do.
    """

    rule: RightSizingRules
    policy: str
    limits: tuple[LimitRules, ...] = ()
    accounting: bool = False
    accounting_ignored: bool = False


class PodAdditions(msgspec.Struct, frozen=True):
    """Additions to a pod that affect where it can run.

    Attributes:
        tolerations: Tolerations for every pod.
        tolerate_gpu_taints: True if GPU taints of the candidate nodes are tolerated.
        required: Node affinity expressions, a list per section.
        spread: True if pods of one workload must not share a host.
        defaults: Limits with default requests.
    """

    tolerations: tuple[Toleration, ...]
    tolerate_gpu_taints: bool
    required: tuple[tuple[NodeSelectorRequirement, ...], ...]
    spread: bool
    defaults: tuple[LimitRules, ...]


NO_ADDITIONS = PodAdditions((), False, (), False, ())

MAX_COMBINATIONS = 1024
"""Combinations of matching policies that stay known."""


class MatchedPolicies(msgspec.Struct, frozen=True):
    """The policies that match a pod, by section, in the order of their names.

    Attributes:
        names: Names of the matching policies.
        outside_rollout: Those in audit mode because the workload is outside the share of their rollout.
        limits_by_mode: For each mode, the limits of that mode or a stricter one.
        added_labels: Labels that injections add to pods that lack them.
        additions: Additions of enforced sections.
        all_additions: Additions of all sections, as if enforced; used by right-sizing that is not enforced.
        defaults: Enforced limits with default requests, with their policy.
        accounting_policies: Policies whose enforced limits require the accounting resource; "" for none.
        accounting_ignored: True if one of these says that the scheduler ignores it; without any, if one in audit mode
            does.
        limit_range_gpu_policies: Policies whose enforced limits remove GPUs injected by LimitRanges; "" for none.
        general_policy: Reports findings of no section: the strictest topology section, else the strictest policy.
    """

    names: tuple[str, ...]
    outside_rollout: tuple[str, ...]
    security: tuple[tuple[PolicyRef, SecurityRules], ...]
    right_sizing: CombinedRightSizing | None
    injections: tuple[tuple[PolicyRef, InjectionRules], ...]
    topologies: tuple[tuple[PolicyRef, TopologyRules], ...]
    limits: tuple[tuple[PolicyRef, LimitRules], ...]
    limits_by_mode: Mapping[PolicyMode, tuple[LimitRules, ...]]
    quotas: tuple[tuple[PolicyRef, QuotaRules], ...]
    cuda: tuple[PolicyRef, ...]
    added_labels: Mapping[str, str]
    additions: PodAdditions
    all_additions: PodAdditions
    defaults: tuple[tuple[str, LimitRules], ...]
    accounting_policies: str
    accounting_ignored: bool
    limit_range_gpu_policies: str
    general_policy: PolicyRef


@derived_value(max_entries=MAX_COMBINATIONS)
def combine_policies(policy_set: PolicySet, matching: int, outside: int) -> MatchedPolicies:
    """Combine the policies that match.

    Args:
        matching: Mask over `policy_set.policies`: bit i is the policy at index i.
        outside: Those of them in audit mode because the workload is outside the share of their rollout.
    """
    matched = [(index, policy) for index, policy in enumerate(policy_set.policies) if matching >> index & 1]
    outside_rollout = tuple(policy.name for index, policy in matched if outside >> index & 1)
    policies = [as_audit(policy) if policy.name in outside_rollout else policy for _, policy in matched]
    injections = tuple(_combine_injections(policies))
    limits = tuple(((p.limits.mode, p.name), p.limits) for p in policies if p.limits)
    enforced = tuple((name, section) for (mode, name), section in limits if mode is PolicyMode.ENFORCE)
    accounting = [each for _, each in enforced if each.accounting] or [each for _, each in limits if each.accounting]
    ignored = any(section.scheduler_ignores_accounting for section in accounting)
    additions = _pod_additions(
        [section for (mode, _), section in injections if mode is PolicyMode.ENFORCE],
        [section for _, section in enforced],
    )
    all_additions = _pod_additions([section for _, section in injections], [section for _, section in limits])
    return MatchedPolicies(
        names=tuple(policy.name for policy in policies),
        outside_rollout=outside_rollout,
        security=tuple(((p.security.mode, p.name), p.security) for p in policies if p.security),
        right_sizing=_combine_right_sizing(policies, tuple(section for _, section in enforced), ignored=ignored),
        injections=injections,
        topologies=tuple(((p.topology.mode, p.name), p.topology) for p in policies if p.topology),
        limits=limits,
        limits_by_mode={least: tuple(each for (mode, _), each in limits if mode >= least) for (least, _), _ in limits},
        quotas=tuple(((p.quotas.mode, p.name), p.quotas) for p in policies if p.quotas),
        cuda=tuple((p.cuda.mode, p.name) for p in policies if p.cuda and p.cuda.driver),
        added_labels=_added_labels(injections),
        additions=additions,
        all_additions=additions if all_additions == additions else all_additions,
        defaults=tuple((name, section) for name, section in enforced if _has_default_amounts(section)),
        accounting_policies=", ".join(name for name, section in enforced if section.accounting),
        accounting_ignored=ignored,
        limit_range_gpu_policies=", ".join(
            name for name, section in enforced if section.injected_gpus is InjectedGpuHandling.REMOVE
        ),
        general_policy=_general_policy(policies),
    )


def without_additions(policies: MatchedPolicies) -> MatchedPolicies:
    """Return the same policies without additions that affect where a pod can run or how it runs."""
    return replace(
        policies,
        injections=(),
        topologies=(),
        defaults=(),
        added_labels={},
        additions=NO_ADDITIONS,
        all_additions=NO_ADDITIONS,
    )


def without_tolerations(policies: MatchedPolicies) -> MatchedPolicies:
    """Return the same policies without tolerations."""
    return replace(
        policies,
        injections=tuple(
            (ref, replace(section, tolerations=(), tolerations_auto=False)) for ref, section in policies.injections
        ),
        additions=replace(policies.additions, tolerations=(), tolerate_gpu_taints=False),
        all_additions=replace(policies.all_additions, tolerations=(), tolerate_gpu_taints=False),
    )


def for_templates(policies: MatchedPolicies) -> MatchedPolicies:
    """Return the same policies with right-sizing in its mode for the templates of queued workloads, if it has one."""
    right_sizing = policies.right_sizing
    if right_sizing is None or (mode := right_sizing.rule.templates) is None:
        return policies
    rule = replace(right_sizing.rule, mode=min(right_sizing.rule.mode, mode))
    return replace(policies, right_sizing=replace(right_sizing, rule=rule))


def fact_reporter(matched: MatchedPolicies, policy_set: PolicySet) -> PolicyRef:
    """Return what reports facts, such as a claim that matches nothing: the matching policies, if there are any."""
    return matched.general_policy if matched.names else (policy_set.fact_mode, "")


def without_changes(policies: MatchedPolicies) -> MatchedPolicies:
    """Return the same policies without anything that changes a pod.

    Right-sizing stays: it excludes such pods itself, with a reason.
    """
    return replace(without_additions(policies), accounting_policies="", limit_range_gpu_policies="")


def _combine_injections(policies: Sequence[Policy]) -> Iterator[tuple[PolicyRef, InjectionRules]]:
    """Yield the injection sections; only the first enforced one with automatic tolerations computes them."""
    done = False
    for policy in policies:
        section = policy.injection
        if section is None:
            continue
        enforced = section.mode is PolicyMode.ENFORCE
        again = enforced and done and section.tolerations_auto
        done = done or (enforced and section.tolerations_auto)
        yield (section.mode, policy.name), replace(section, tolerations_auto=False) if again else section


def _added_labels(injections: Sequence[tuple[PolicyRef, InjectionRules]]) -> dict[str, str]:
    return dict(label for _, section in injections for label in section.labels)


def _pod_additions(injections: Sequence[InjectionRules], limits: Sequence[LimitRules]) -> PodAdditions:
    return PodAdditions(
        tolerations=tuple(toleration for section in injections for toleration in section.tolerations),
        tolerate_gpu_taints=any(section.tolerations_auto for section in injections),
        required=tuple(section.node_affinity for section in injections if section.node_affinity),
        spread=any(section.spread is SpreadMode.REQUIRED for section in injections),
        defaults=tuple(section for section in limits if _has_default_amounts(section)),
    )


def _has_default_amounts(section: LimitRules) -> bool:
    return any(rule.default is not None for rule in (*section.per_container.rules, *section.per_gpu.rules))


def _general_policy(policies: Sequence[Policy]) -> PolicyRef:
    topologies = [(policy.topology.mode, policy.name) for policy in policies if policy.topology]
    all_policies = [(policy.mode, policy.name) for policy in policies]
    return max(topologies or all_policies, key=itemgetter(0), default=(PolicyMode.AUDIT, ""))


def _combine_right_sizing(
    policies: Sequence[Policy], limits: tuple[LimitRules, ...], *, ignored: bool
) -> CombinedRightSizing | None:
    """Combine right-sizing rules into the most careful one; enforced rules override all others."""
    rules = [(policy.right_sizing, policy.name) for policy in policies if policy.right_sizing]
    if not rules:
        return None
    strictest = max(rule.mode for rule, _ in rules)
    chosen = [(rule, name) for rule, name in rules if rule.mode is strictest]
    accounting, names = any(section.accounting for section in limits), ", ".join(name for _, name in chosen)
    return CombinedRightSizing(_merge_right_sizing([rule for rule, _ in chosen]), names, limits, accounting, ignored)


def _merge_right_sizing(rules: Sequence[RightSizingRules]) -> RightSizingRules:
    """Combine rules field by field, the most careful value each; orders of preference are the first rule's."""
    first = rules[0]
    memory = [rule.default_memory_mib for rule in rules]
    compute = [rule.default_compute_milli or 0 for rule in rules]
    templates = [rule.templates for rule in rules if rule.templates is not None]
    return RightSizingRules(
        mode=first.mode,
        isolation=max(rule.isolation for rule in rules),
        forms=tuple(form for form in first.forms if all(form in rule.forms for rule in rules)),
        evidence=tuple(kind for kind in first.evidence if all(kind in rule.evidence for rule in rules)),
        default_memory_mib=None if None in memory else max(size or 0 for size in memory),
        default_compute_milli=max(compute) or None,
        margin_percent=max(rule.margin_percent for rule in rules),
        risk_ppm=min(rule.risk_ppm for rule in rules),
        min_saving_percent=max(rule.min_saving_percent for rule in rules),
        when_full=min(rule.when_full for rule in rules),
        patch_fractions=all(rule.patch_fractions for rule in rules),
        templates=min(templates) if len(templates) == len(rules) else None,
    )
