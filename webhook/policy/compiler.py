"""Compile the models of policies: words to numbers, selectors to functions, modes resolved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from webhook.documents.document import Document
from webhook.errors import SourceLocation
from webhook.model.enums import EvidenceSource, FullCapacityAction, GpuForm, IsolationLevel, PolicyMode
from webhook.model.node_labels import card_product
from webhook.model.pods import NodeSelectorRequirement, Toleration
from webhook.model.pools import QuotaPool
from webhook.policy import selectors
from webhook.policy.fair_share import FairShare
from webhook.policy.policy_set import (
    AmountRule,
    AmountRuleSet,
    CudaRules,
    Exemption,
    ExemptionScope,
    InjectedGpuHandling,
    InjectionRules,
    LimitRules,
    MatchCondition,
    NvlinkMode,
    Policy,
    PolicyMatch,
    QuotaRules,
    RightSizingRules,
    SecurityRules,
    SharedQuota,
    SpreadMode,
    TopologyRules,
)
from webhook.policy.rollout import HaltThresholds, Rollout
from webhook.policy.written.kinds import ExceptionSpec, ExemptionSpec, FairShareSpec, GPUPolicy, PolicySpec, RolloutSpec
from webhook.policy.written.match import LabelSelectorSpec, MatchSpec, SelectorExpressionSpec
from webhook.policy.written.sections import (
    AmountRuleSpec,
    InjectionSpec,
    LimitsSpec,
    NodeExpressionSpec,
    QuotasSpec,
    RightSizingSpec,
    SecuritySpec,
    TolerationSpec,
    TopologySpec,
)


def compile_policy(document: Document, model: GPUPolicy, conditions: tuple[MatchCondition, ...]) -> Policy:
    """Compile a valid policy; `conditions` are its compiled match conditions."""
    spec, name = model.spec, model.metadata.name
    canonical = json.dumps(document.data["spec"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Policy(
        name=name,
        location=document.locate(),
        digest=hashlib.sha256(canonical.encode()).hexdigest()[:12],
        mode=effective_mode(None, spec.mode),
        match=compile_match(spec.match, conditions, fail=spec.failure_policy == "Fail"),
        description=spec.description,
        fair_share=compile_fair_share(spec.fair_share, name),
        rollout=compile_rollout(spec.rollout, name),
        section_locations=_locate_sections(document),
        **compile_sections(spec),
    )


def _locate_sections(document: Document) -> dict[str, SourceLocation]:
    """Return the location of each section and of its keys, by dotted path below `spec`."""
    locations: dict[str, SourceLocation] = {}
    for section, content in document.data["spec"].items():
        locations[section] = document.locate_key(("spec", section))
        if isinstance(content, dict):
            locations |= {f"{section}.{key}": document.locate_key(("spec", section, key)) for key in content}
    return locations


def effective_mode(section: str | None, policy: str) -> PolicyMode:
    """Return a section's own mode, or else its policy's."""
    return PolicyMode[(section or policy).upper()]


def selector_requirements(selector: LabelSelectorSpec) -> tuple[NodeSelectorRequirement, ...]:
    """Return the requirements of a label selector; all must hold."""
    labels = (
        NodeSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in selector.match_labels.items()
    )
    return (*labels, *map(node_requirement, selector.match_expressions))


def node_requirement(expression: SelectorExpressionSpec | NodeExpressionSpec) -> NodeSelectorRequirement:
    """Return the requirement of one expression."""
    return NodeSelectorRequirement(key=expression.key, operator=expression.operator, values=expression.values)


def compile_match(spec: MatchSpec, conditions: tuple[MatchCondition, ...], *, fail: bool) -> PolicyMatch:
    """Compile `spec.match`."""
    return PolicyMatch(
        operations=frozenset(spec.operations),
        resource=selectors.glob_matcher(spec.resources) if spec.resources is not None else None,
        namespace=selectors.namespace_matcher(
            spec.namespaces,
            spec.exclude_namespaces,
            selectors.label_matcher(selector_requirements(spec.namespace_selector)),
        ),
        labels=selectors.label_matcher(selector_requirements(spec.object_selector)),
        conditions=conditions,
        fail_closed=fail,
    )


def compile_fair_share(spec: FairShareSpec | None, policy: str) -> FairShare | None:
    """Compile `spec.fairShare`."""
    if spec is None:
        return None
    shares = tuple((share.name, share.weight) for share in spec.shares)
    return FairShare(policy, spec.by, spec.half_life_hours, shares, spec.default_weight)


def compile_rollout(spec: RolloutSpec | None, policy: str) -> Rollout | None:
    """Compile `spec.rollout`. The default seed is the policy's name, so policies select different workloads."""
    if spec is None:
        return None
    halt = spec.halt_on
    thresholds = HaltThresholds(halt.oom, halt.evictions, halt.pending, halt.window_minutes) if halt else None
    return Rollout(spec.percent, spec.seed or policy, thresholds)


def compile_sections(spec: PolicySpec) -> dict[str, Any]:
    """Compile the written sections, by attribute of `Policy`."""
    compilers: dict[str, Callable[[Any, PolicyMode], Any]] = {
        "right_sizing": _compile_right_sizing,
        "limits": _compile_limits,
        "quotas": partial(_compile_quotas, spec.match),
        "injection": _compile_injection,
        "topology": _compile_topology,
        "cuda": lambda section, mode: CudaRules(mode, section.driver == "evaluate"),
        "security": _compile_security,
    }
    return {
        name: compile_section(section, effective_mode(section.mode, spec.mode))
        for name, compile_section in compilers.items()
        if (section := getattr(spec, name)) is not None
    }


def _compile_right_sizing(spec: RightSizingSpec, mode: PolicyMode) -> RightSizingRules:
    return RightSizingRules(
        mode=mode,
        isolation=IsolationLevel[spec.isolation.upper()],
        forms=tuple(dict.fromkeys(map(GpuForm, spec.forms))),
        evidence=tuple(dict.fromkeys(map(EvidenceSource, spec.evidence))),
        default_memory_mib=spec.default.memory if spec.default else None,
        default_compute_milli=spec.default.compute if spec.default else None,
        margin_percent=spec.margin_percent,
        risk_ppm=spec.risk,
        min_saving_percent=spec.min_saving_percent,
        when_full=FullCapacityAction[spec.when_full.upper()],
        patch_fractions=spec.memory_fraction == "patch",
        templates=PolicyMode[spec.templates.upper()] if spec.templates else None,
    )


def _compile_amount_rule(spec: AmountRuleSpec) -> AmountRule:
    return AmountRule(
        resource=spec.resource,
        matches=selectors.glob_matcher([spec.resource]),
        allowed=tuple(sorted(set(spec.allowed or ()))),
        min=spec.min,
        max=spec.max,
        default=spec.default,
    )


def _compile_limits(spec: LimitsSpec, mode: PolicyMode) -> LimitRules:
    return LimitRules(
        mode=mode,
        per_pod=AmountRuleSet(map(_compile_amount_rule, spec.per_pod)),
        per_container=AmountRuleSet(map(_compile_amount_rule, spec.per_container)),
        per_gpu=AmountRuleSet(map(_compile_amount_rule, spec.per_gpu)),
        limit_ranges=spec.limit_ranges == "evaluate",
        injected_gpus=InjectedGpuHandling(spec.limit_range_injected),
        resource_quotas=spec.resource_quotas == "evaluate",
        accounting=spec.accounting == "native",
        scheduler_ignores_accounting=spec.accounting_scheduler == "configured",
    )


def _compile_quotas(match: MatchSpec, spec: QuotasSpec, mode: PolicyMode) -> QuotaRules:
    """Compile quotas; the namespaces that match both the policy and a quota's selector share it."""
    shared = []
    for quota in spec.shared:
        labels = (*selector_requirements(match.namespace_selector), *selector_requirements(quota.namespace_selector))
        namespaces = selectors.namespace_matcher(
            match.namespaces, match.exclude_namespaces, selectors.label_matcher(labels)
        )
        product = _product_matcher(quota.product) if quota.product else None
        shared.append(SharedQuota(quota.name, QuotaPool(namespaces, product), quota.gpu_milli, quota.product or ""))
    return QuotaRules(mode, tuple(shared))


def _product_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a matcher for product labels, which ignores the suffixes that MIG and sharing add."""
    matches = selectors.glob_matcher([pattern.lower()])
    return lambda label: matches(label.lower()) or matches(card_product(label))


def _compile_injection(spec: InjectionSpec, mode: PolicyMode) -> InjectionRules:
    affinity = spec.node_affinity
    return InjectionRules(
        mode=mode,
        tolerations_auto=spec.tolerations == "auto",
        tolerations=tuple(map(_compile_toleration, spec.toleration_list)),
        node_affinity_auto=affinity == "auto" or getattr(affinity, "offer", "") == "auto",
        node_affinity=tuple(map(node_requirement, spec.required_expressions)),
        runtime_class_name=spec.runtime_class_name or "",
        spread=SpreadMode(spec.spread),
        labels=tuple(sorted(spec.labels.items())),
    )


def _compile_toleration(spec: TolerationSpec) -> Toleration:
    return Toleration(
        key=spec.key,
        operator=spec.operator,
        value=spec.value,
        effect=spec.effect or "",
        toleration_seconds=spec.toleration_seconds,
    )


def _compile_topology(spec: TopologySpec, mode: PolicyMode) -> TopologyRules:
    return TopologyRules(
        mode=mode,
        nvlink=NvlinkMode(spec.nvlink),
        when_gpus_at_least=spec.when_gpus_at_least,
        multi_node_domain=spec.multi_node_domain or "",
    )


def _compile_security(spec: SecuritySpec, mode: PolicyMode) -> SecurityRules:
    return SecurityRules(
        mode=mode,
        deny=frozenset(spec.deny),
        allowed_runtime_classes=frozenset(spec.allowed_runtime_classes),
        allowed_capabilities=frozenset(spec.allowed_driver_capabilities),
    )


def compile_exemption(name: str, policy: str, spec: ExemptionSpec | ExceptionSpec) -> Exemption:
    """Compile an exemption of a policy, or the spec of a GPUPolicyException."""
    match = spec.match
    labels = selectors.label_matcher(selector_requirements(match.object_selector)) or selectors.any_labels
    scope = ExemptionScope(selectors.glob_matcher(match.namespaces), frozenset(match.service_accounts), labels)
    return Exemption(name, policy, frozenset(spec.codes), scope, spec.reason, spec.expiration_time)
