"""Rules: the sections of the policies that speak together, sorted out once for all pods they speak about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from webhook.engine.violations import PolicyRef
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
    """One right-sizing rule made of those of every policy that speaks, and whose it is.

    Attributes:
        limits: Enforced limits that a smaller request has to keep.
        accounting: True if the pod will carry the accounting resource, where a node can take it.
        ignored: True if schedulers ignore it, so that every node can.
    """

    rule: RightSizingRules
    policy: str
    limits: tuple[LimitRules, ...] = ()
    accounting: bool = False
    accounting_ignored: bool = False


class PodAdditions(msgspec.Struct, frozen=True):
    """What sections add to a pod that has a say in where it fits.

    Attributes:
        tolerations: Those that every pod is given.
        markers: True if the GPU taints of the nodes chosen are tolerated.
        required: The lists of expressions that are required of nodes.
        spread: True if pods of one workload must not share a host.
        defaults: Limits that have defaults.
    """

    tolerations: tuple[Toleration, ...]
    gpu_taints: bool
    required: tuple[tuple[NodeSelectorRequirement, ...], ...]
    spread: bool
    defaults: tuple[LimitRules, ...]

    @property
    def restricts_nodes(self) -> bool:
        """Is there anything that leaves a pod fewer nodes?"""
        return bool(self.required or self.spread or self.defaults)


NO_ADDITIONS = PodAdditions((), False, (), False, ())


class MatchedPolicies(msgspec.Struct, frozen=True):
    """What several policies say together. Sections stand in the order of their policies' names.

    Attributes:
        among: All policies there are, those that do not speak too.
        names: Names of the policies.
        outside: Those of them that are on trial because the workload is not in the share of their rollout.
        binding: By mode, the limits that speak with no less force.
        adds: What enforced sections add to a pod.
        trial: The same, as if every section were enforced: what a right-sizing on trial reckons with.
        defaults: Enforced limits that have defaults, and whose they are.
        accounting: The policies whose enforced limits ask for the accounting resource; "" where none does.
        ignored: True if any policy that asks for it says that schedulers ignore it; of those that enforce it, if any.
        takes_out: The policies whose enforced limits take out GPUs that LimitRanges put in; "" where none does.
        general: Who says what holds for every GPU pod: the strictest topology section, else the strictest policy.
    """

    policy_set: PolicySet
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
    additions: PodAdditions
    unenforced_additions: PodAdditions
    defaults: tuple[tuple[str, LimitRules], ...]
    accounting_policies: str
    accounting_ignored: bool
    injection_removers: str
    general_policy: PolicyRef


@lru_cache(maxsize=1024)
def combine_policies(policies: PolicySet, chosen: int, on_trial: int = 0) -> MatchedPolicies:
    """The rules of some policies of a set.

    Args:
        chosen: Mask over `policies.policies`: bit i is the policy at index i.
        on_trial: Those of them that are on trial, because the pod's workload is not in the share of their rollout.
    """
    speaking = [(index, policy) for index, policy in enumerate(policies.policies) if chosen >> index & 1]
    outside = tuple(policy.name for index, policy in speaking if on_trial >> index & 1)
    heard = [as_audit(policy) if policy.name in outside else policy for _, policy in speaking]
    return _build_combination(policies, heard, outside)


def without_additions(rules: MatchedPolicies) -> MatchedPolicies:
    """The same judges, who add nothing to a pod that has a say in where it fits or how it runs."""
    return replace(rules, injections=(), topologies=(), defaults=(), additions=NO_ADDITIONS)


def _build_combination(among: PolicySet, policies: Sequence[Policy], outside: tuple[str, ...]) -> MatchedPolicies:
    injections = tuple(_combine_injections(policies))
    limits = tuple(((p.limits.mode, p.name), p.limits) for p in policies if p.limits)
    enforced = tuple((name, section) for (mode, name), section in limits if mode is PolicyMode.ENFORCE)
    counting = [each for _, each in enforced if each.accounting] or [each for _, each in limits if each.accounting]
    ignored = any(section.scheduler_ignores_accounting for section in counting)
    adds = _pod_additions(
        [section for (mode, _), section in injections if mode is PolicyMode.ENFORCE],
        [section for _, section in enforced],
    )
    trial = _pod_additions([section for _, section in injections], [section for _, section in limits])
    return MatchedPolicies(
        policy_set=among,
        names=tuple(policy.name for policy in policies),
        outside_rollout=outside,
        security=tuple(((p.security.mode, p.name), p.security) for p in policies if p.security),
        right_sizing=_combine_right_sizing(policies, tuple(section for _, section in enforced), ignored=ignored),
        injections=injections,
        topologies=tuple(((p.topology.mode, p.name), p.topology) for p in policies if p.topology),
        limits=limits,
        limits_by_mode={voice[0]: tuple(each for (mode, _), each in limits if mode >= voice[0]) for voice, _ in limits},
        quotas=tuple(((p.quotas.mode, p.name), p.quotas) for p in policies if p.quotas),
        cuda=tuple((p.cuda.mode, p.name) for p in policies if p.cuda and p.cuda.driver),
        additions=adds,
        unenforced_additions=adds if trial == adds else trial,
        defaults=tuple((name, section) for name, section in enforced if _has_default_amounts(section)),
        accounting_policies=", ".join(name for name, section in enforced if section.accounting),
        accounting_ignored=ignored,
        injection_removers=", ".join(
            name for name, section in enforced if section.injected_gpus is InjectedGpuHandling.REMOVE
        ),
        general_policy=_general_policy(policies),
    )


def _combine_injections(policies: Sequence[Policy]) -> Iterator[tuple[PolicyRef, InjectionRules]]:
    """Those that speak. Taints that one enforced section sees to, the enforced ones after it need not look at."""
    seen_to = False
    for policy in policies:
        section = policy.injection
        if section is None:
            continue
        enforced = section.mode is PolicyMode.ENFORCE
        again = enforced and seen_to and section.tolerations_auto
        seen_to = seen_to or (enforced and section.tolerations_auto)
        yield (section.mode, policy.name), replace(section, tolerations_auto=False) if again else section


def _pod_additions(injections: Sequence[InjectionRules], limits: Sequence[LimitRules]) -> PodAdditions:
    return PodAdditions(
        tolerations=tuple(toleration for section in injections for toleration in section.tolerations),
        gpu_taints=any(section.tolerations_auto for section in injections),
        required=tuple(section.node_affinity for section in injections if section.node_affinity),
        spread=any(section.spread is SpreadMode.REQUIRED for section in injections),
        defaults=tuple(section for section in limits if _has_default_amounts(section)),
    )


def _has_default_amounts(section: LimitRules) -> bool:
    return any(rule.default is not None for rule in (*section.per_container.rules, *section.per_gpu.rules))


def _general_policy(policies: Sequence[Policy]) -> PolicyRef:
    voices = [(policy.topology.mode, policy.name) for policy in policies if policy.topology]
    voices = voices or [(policy.mode, policy.name) for policy in policies]
    return max(voices, key=lambda voice: voice[0], default=(PolicyMode.AUDIT, ""))


def _combine_right_sizing(
    policies: Sequence[Policy], limits: tuple[LimitRules, ...], *, ignored: bool
) -> CombinedRightSizing | None:
    """The rule that holds when several policies right-size: the most careful of each part.

    Enforced policies decide; those on trial are heard only where none is enforced.
    """
    speaking = [(policy.right_sizing, policy.name) for policy in policies if policy.right_sizing]
    if not speaking:
        return None
    strictest = max(rule.mode for rule, _ in speaking)
    chosen = [(rule, name) for rule, name in speaking if rule.mode is strictest]
    accounting, names = any(section.accounting for section in limits), ", ".join(name for _, name in chosen)
    return CombinedRightSizing(_merge_right_sizing([rule for rule, _ in chosen]), names, limits, accounting, ignored)


def _merge_right_sizing(rules: Sequence[RightSizingRules]) -> RightSizingRules:
    """The most careful of several rules, part by part; orders of preference are the first rule's."""
    first = rules[0]
    memory = [rule.default_memory_mib for rule in rules]
    compute = [rule.default_compute_milli or 0 for rule in rules]
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
        wait_when_full=all(rule.wait_when_full for rule in rules),
    )
