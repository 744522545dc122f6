"""Written policies to compiled ones: words to numbers, selectors to functions, modes settled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from webhook.model.enums import EvidenceSource, GpuForm, IsolationLevel, PolicyMode
from webhook.model.pods import NodeSelectorRequirement, Toleration
from webhook.model.pools import QuotaPool
from webhook.model.products import card_product
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
    PolicyMatch,
    QuotaRules,
    RightSizingRules,
    SecurityRules,
    SharedQuota,
    SpreadMode,
    TopologyRules,
)
from webhook.policy.rollout import HaltThresholds, Rollout
from webhook.policy.template_paths import TemplatePath
from webhook.policy.written.kinds import ExemptionSpec, FairShareSpec, GPUPolicyException, PolicySpec, RolloutSpec
from webhook.policy.written.match import LabelSelectorSpec, MatchSpec, ScopeSpec
from webhook.policy.written.sections import (
    AmountRuleSpec,
    CudaSpec,
    InjectionSpec,
    LimitsSpec,
    QuotasSpec,
    RightSizingSpec,
    SecuritySpec,
    SharedQuotaSpec,
    TolerationSpec,
    TopologySpec,
)


def spec_digest(data: Any) -> str:
    """First 12 hex digits of the SHA-256 of data written as canonical JSON."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def effective_mode(section: str | None, policy: str) -> PolicyMode:
    """A section's own mode, or its policy's."""
    return PolicyMode[(section or policy).upper()]


def selector_requirements(selector: LabelSelectorSpec) -> tuple[NodeSelectorRequirement, ...]:
    """A label selector as a list of requirements, all of which must hold."""
    labels = (
        NodeSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in selector.match_labels.items()
    )
    expressions = (
        NodeSelectorRequirement(key=expression.key, operator=expression.operator, values=expression.values)
        for expression in selector.match_expressions
    )
    return (*labels, *expressions)


def compile_match(written: MatchSpec, conditions: tuple[MatchCondition, ...], *, fail: bool) -> PolicyMatch:
    """Compile a policy's match."""
    return PolicyMatch(
        operations=frozenset(written.operations),
        resource=selectors.glob_matcher(written.resources) if written.resources is not None else None,
        namespace=selectors.namespace_matcher(
            written.namespaces,
            written.exclude_namespaces,
            selectors.label_matcher(selector_requirements(written.namespace_selector)),
        ),
        labels=selectors.label_matcher(selector_requirements(written.object_selector)),
        conditions=conditions,
        fail_closed=fail,
    )


def compile_fair_share(written: FairShareSpec | None, policy: str) -> FairShare | None:
    """Compile a policy's fair share."""
    if written is None:
        return None
    shares = tuple((share.name, share.weight) for share in written.shares)
    return FairShare(policy, written.by, written.half_life_hours, shares, written.default_weight)


def compile_rollout(written: RolloutSpec | None, policy: str) -> Rollout | None:
    """Compile a policy's rollout. Without a seed each policy has workloads of its own."""
    if written is None:
        return None
    on = written.halt_on
    halt_on = HaltThresholds(on.oom, on.evictions, on.pending, on.window_minutes) if on is not None else None
    return Rollout(written.percent, written.seed or policy, halt_on)


def compile_template_paths(written: MatchSpec) -> dict[tuple[str, str], tuple[TemplatePath, ...]]:
    """Where the templates of a policy's own workload kinds stand."""
    found: dict[tuple[str, str], tuple[TemplatePath, ...]] = {}
    for kind in written.templates:
        key = (kind.api_group, kind.kind)
        found[key] = found.get(key, ()) + tuple(tuple(path.split(".")) for path in kind.paths)
    return found


def compile_sections(spec: PolicySpec) -> dict[str, Any]:
    """Compile every section that is written, by the names of `Policy`'s fields."""
    makers: dict[str, Callable[[Any, PolicyMode], Any]] = {
        "right_sizing": _compile_right_sizing,
        "limits": _compile_limits,
        "quotas": partial(_compile_quotas, spec.match),
        "injection": _compile_injection,
        "topology": _compile_topology,
        "cuda": _compile_cuda,
        "security": _compile_security,
    }
    written = {name: getattr(spec, name) for name in makers}
    return {
        name: makers[name](section, effective_mode(section.mode, spec.mode))
        for name, section in written.items()
        if section is not None
    }


def _compile_right_sizing(written: RightSizingSpec, mode: PolicyMode) -> RightSizingRules:
    return RightSizingRules(
        mode=mode,
        isolation=IsolationLevel[written.isolation.upper()],
        forms=tuple(dict.fromkeys(map(GpuForm, written.forms))),
        evidence=tuple(dict.fromkeys(map(EvidenceSource, written.evidence))),
        default_memory_mib=written.default.memory if written.default else None,
        default_compute_milli=written.default.compute if written.default else None,
        margin_percent=written.margin_percent,
        risk_ppm=written.risk,
        min_saving_percent=written.min_saving_percent,
        wait_when_full=written.when_full == "wait",
    )


def _compile_amount_rule(written: AmountRuleSpec) -> AmountRule:
    return AmountRule(
        resource=written.resource,
        matches=selectors.glob_matcher([written.resource]),
        allowed=tuple(sorted(set(written.allowed or ()))),
        min=written.min,
        max=written.max,
        default=written.default,
    )


def _compile_limits(written: LimitsSpec, mode: PolicyMode) -> LimitRules:
    return LimitRules(
        mode=mode,
        per_pod=AmountRuleSet(map(_compile_amount_rule, written.per_pod)),
        per_container=AmountRuleSet(map(_compile_amount_rule, written.per_container)),
        per_gpu=AmountRuleSet(map(_compile_amount_rule, written.per_gpu)),
        limit_ranges=written.limit_ranges == "evaluate",
        injected_gpus=InjectedGpuHandling(written.limit_range_injected),
        resource_quotas=written.resource_quotas == "evaluate",
        accounting=written.accounting == "native",
        scheduler_ignores_accounting=written.accounting_scheduler == "configured",
    )


def _compile_quotas(match: MatchSpec, written: QuotasSpec, mode: PolicyMode) -> QuotaRules:
    return QuotaRules(mode, tuple(_compile_shared_quota(match, quota) for quota in written.shared))


def _compile_shared_quota(match: MatchSpec, written: SharedQuotaSpec) -> SharedQuota:
    """Namespaces share it that the policy speaks about and that its selector lets in."""
    own, further = selector_requirements(match.namespace_selector), selector_requirements(written.namespace_selector)
    holds = selectors.namespace_matcher(
        match.namespaces, match.exclude_namespaces, selectors.label_matcher((*own, *further))
    )
    product = _product_matcher(written.product) if written.product else None
    return SharedQuota(written.name, QuotaPool(holds, product), written.gpu_milli, written.product or "")


def _product_matcher(pattern: str) -> Callable[[str], bool]:
    """A test for labels of products; what MIG and sharing add to a label does not count."""
    matches = selectors.glob_matcher([pattern.lower()])
    return lambda label: matches(label.lower()) or matches(card_product(label))


def _compile_injection(written: InjectionSpec, mode: PolicyMode) -> InjectionRules:
    tolerations = () if isinstance(written.tolerations, str) else written.tolerations or ()
    affinity = written.node_affinity
    required = affinity.required if affinity is not None and not isinstance(affinity, str) else ()
    return InjectionRules(
        mode=mode,
        tolerations_auto=written.tolerations == "auto",
        tolerations=tuple(map(_compile_toleration, tolerations)),
        node_affinity_auto=affinity == "auto" or getattr(affinity, "offer", "") == "auto",
        node_affinity=tuple(
            NodeSelectorRequirement(key=one.key, operator=one.operator, values=one.values) for one in required
        ),
        runtime_class_name=written.runtime_class_name or "",
        spread=SpreadMode(written.spread),
        labels=tuple(sorted(written.labels.items())),
    )


def _compile_toleration(written: TolerationSpec) -> Toleration:
    return Toleration(
        key=written.key,
        operator=written.operator,
        value=written.value,
        effect=written.effect or "",
        toleration_seconds=written.toleration_seconds,
    )


def _compile_topology(written: TopologySpec, mode: PolicyMode) -> TopologyRules:
    return TopologyRules(
        mode=mode,
        nvlink=NvlinkMode(written.nvlink),
        when_gpus_at_least=written.when_gpus_at_least,
        multi_node_domain=written.multi_node_domain or "",
    )


def _compile_cuda(written: CudaSpec, mode: PolicyMode) -> CudaRules:
    return CudaRules(mode=mode, driver=written.driver == "evaluate")


def _compile_security(written: SecuritySpec, mode: PolicyMode) -> SecurityRules:
    return SecurityRules(
        mode=mode,
        deny=frozenset(written.deny),
        allowed_runtime_classes=frozenset(written.allowed_runtime_classes),
        allowed_capabilities=frozenset(written.allowed_driver_capabilities),
    )


def compile_exemptions(policy: str, written: tuple[ExemptionSpec, ...]) -> tuple[Exemption, ...]:
    """Compile the exemptions inside a policy."""
    return tuple(
        Exemption(
            name=one.name,
            policy=policy,
            codes=frozenset(one.codes),
            scope=_compile_scope(one.match),
            reason=one.reason,
            expires=one.expiration_time,
        )
        for one in written
    )


def compile_exception(written: GPUPolicyException) -> Exemption:
    """Compile an exemption that lives in a file of its own."""
    return Exemption(
        name=written.metadata.name,
        policy=written.spec.policy_name,
        codes=frozenset(written.spec.codes),
        scope=_compile_scope(written.spec.match),
        reason=written.spec.reason,
        expires=written.spec.expiration_time,
    )


def _compile_scope(written: ScopeSpec) -> ExemptionScope:
    return ExemptionScope(
        namespace=selectors.glob_matcher(written.namespaces),
        service_accounts=frozenset(written.service_accounts),
        labels=selectors.label_matcher(selector_requirements(written.object_selector)) or _match_any_labels,
    )


def _match_any_labels(_labels: object) -> bool:
    return True
