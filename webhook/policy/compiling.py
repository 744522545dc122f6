"""Written policies to compiled ones: words to numbers, selectors to functions, modes settled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from webhook.model.modes import Evidence, Form, Isolation, Mode
from webhook.model.pods import Requirement, Toleration
from webhook.model.pools import Pool
from webhook.model.products import card_of
from webhook.policy import selectors
from webhook.policy.compiled import (
    AmountRule,
    AmountRules,
    Condition,
    Cuda,
    Exemption,
    Injected,
    Injection,
    Limits,
    Match,
    NVLink,
    Quotas,
    RightSizing,
    Scope,
    Security,
    SharedQuota,
    Spread,
    Topology,
)
from webhook.policy.fairness import FairShare
from webhook.policy.rollout import HaltOn, Rollout
from webhook.policy.workloads import TemplatePath
from webhook.policy.written.additions import WrittenInjection, WrittenToleration
from webhook.policy.written.fairness import WrittenFairShare
from webhook.policy.written.kinds import GPUPolicyException, PolicySpec, WrittenExemption
from webhook.policy.written.matching import Selector, WrittenMatch, WrittenScope
from webhook.policy.written.quotas import WrittenQuotas, WrittenSharedQuota
from webhook.policy.written.rollout import WrittenRollout
from webhook.policy.written.sections import (
    WrittenAmountRule,
    WrittenCuda,
    WrittenLimits,
    WrittenRightSizing,
    WrittenSecurity,
    WrittenTopology,
)


def digest_of(data: Any) -> str:
    """First 12 hex digits of the SHA-256 of data written as canonical JSON."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def mode_of(section: str | None, policy: str) -> Mode:
    """A section's own mode, or its policy's."""
    return Mode[(section or policy).upper()]


def requirements_of(selector: Selector) -> tuple[Requirement, ...]:
    """A label selector as a list of requirements, all of which must hold."""
    labels = (Requirement(key=key, operator="In", values=(value,)) for key, value in selector.match_labels.items())
    expressions = (
        Requirement(key=expression.key, operator=expression.operator, values=expression.values)
        for expression in selector.match_expressions
    )
    return (*labels, *expressions)


def match_of(written: WrittenMatch, conditions: tuple[Condition, ...], *, fail: bool) -> Match:
    """Compile a policy's match."""
    return Match(
        operations=frozenset(written.operations),
        resource=selectors.globs(written.resources) if written.resources is not None else None,
        namespace=selectors.namespaces(
            written.namespaces,
            written.exclude_namespaces,
            selectors.labels(requirements_of(written.namespace_selector)),
        ),
        labels=selectors.labels(requirements_of(written.object_selector)),
        conditions=conditions,
        fail=fail,
    )


def fair_share_of(written: WrittenFairShare | None, policy: str) -> FairShare | None:
    """Compile a policy's fair share."""
    if written is None:
        return None
    shares = tuple((share.name, share.weight) for share in written.shares)
    return FairShare(policy, written.by, written.half_life_hours, shares, written.others)


def rollout_of(written: WrittenRollout | None, policy: str) -> Rollout | None:
    """Compile a policy's rollout. Without a seed each policy has workloads of its own."""
    if written is None:
        return None
    on = written.halt_on
    halt_on = HaltOn(on.oom, on.evictions, on.pending, on.window_minutes) if on is not None else None
    return Rollout(written.percent, written.seed or policy, halt_on)


def templates_of(written: WrittenMatch) -> dict[tuple[str, str], tuple[TemplatePath, ...]]:
    """Where the templates of a policy's own workload kinds stand."""
    found: dict[tuple[str, str], tuple[TemplatePath, ...]] = {}
    for kind in written.templates:
        key = (kind.api_group, kind.kind)
        found[key] = found.get(key, ()) + tuple(tuple(path.split(".")) for path in kind.paths)
    return found


def sections_of(spec: PolicySpec) -> dict[str, Any]:
    """Compile every section that is written, by the names of `Policy`'s fields."""
    makers: dict[str, Callable[[Any, Mode], Any]] = {
        "right_sizing": _right_sizing,
        "limits": _limits,
        "quotas": partial(_quotas, spec.match),
        "injection": _injection,
        "topology": _topology,
        "cuda": _cuda,
        "security": _security,
    }
    written = {name: getattr(spec, name) for name in makers}
    return {
        name: makers[name](section, mode_of(section.mode, spec.mode))
        for name, section in written.items()
        if section is not None
    }


def _right_sizing(written: WrittenRightSizing, mode: Mode) -> RightSizing:
    return RightSizing(
        mode=mode,
        isolation=Isolation[written.isolation.upper()],
        forms=tuple(dict.fromkeys(map(Form, written.forms))),
        evidence=tuple(dict.fromkeys(map(Evidence, written.evidence))),
        default_memory_mib=written.default.memory if written.default else None,
        default_compute_milli=written.default.compute if written.default else None,
        margin_percent=written.margin_percent,
        risk_ppm=written.risk,
        min_saving_percent=written.min_saving_percent,
        wait_when_full=written.when_full == "wait",
    )


def _amount_rule(written: WrittenAmountRule) -> AmountRule:
    return AmountRule(
        resource=written.resource,
        matches=selectors.globs([written.resource]),
        allowed=tuple(sorted(set(written.allowed or ()))),
        min=written.min,
        max=written.max,
        default=written.default,
    )


def _limits(written: WrittenLimits, mode: Mode) -> Limits:
    return Limits(
        mode=mode,
        per_pod=AmountRules(map(_amount_rule, written.per_pod)),
        per_container=AmountRules(map(_amount_rule, written.per_container)),
        per_gpu=AmountRules(map(_amount_rule, written.per_gpu)),
        limit_ranges=written.limit_ranges == "evaluate",
        injected=Injected(written.limit_range_injected),
        resource_quotas=written.resource_quotas == "evaluate",
        accounting=written.accounting == "native",
        ignored=written.accounting_scheduler == "configured",
    )


def _quotas(match: WrittenMatch, written: WrittenQuotas, mode: Mode) -> Quotas:
    return Quotas(mode, tuple(_shared_quota(match, quota) for quota in written.shared))


def _shared_quota(match: WrittenMatch, written: WrittenSharedQuota) -> SharedQuota:
    """Namespaces share it that the policy speaks about and that its selector lets in."""
    own, further = requirements_of(match.namespace_selector), requirements_of(written.namespace_selector)
    holds = selectors.namespaces(match.namespaces, match.exclude_namespaces, selectors.labels((*own, *further)))
    product = _product(written.product) if written.product else None
    return SharedQuota(written.name, Pool(holds, product), written.gpu_milli, written.product or "")


def _product(pattern: str) -> Callable[[str], bool]:
    """A test for labels of products; what MIG and sharing add to a label does not count."""
    matches = selectors.globs([pattern.lower()])
    return lambda label: matches(label.lower()) or matches(card_of(label))


def _injection(written: WrittenInjection, mode: Mode) -> Injection:
    tolerations = () if isinstance(written.tolerations, str) else written.tolerations or ()
    affinity = written.node_affinity
    required = affinity.required if affinity is not None and not isinstance(affinity, str) else ()
    return Injection(
        mode=mode,
        tolerations_auto=written.tolerations == "auto",
        tolerations=tuple(map(_toleration, tolerations)),
        node_affinity_auto=affinity == "auto" or getattr(affinity, "offer", "") == "auto",
        node_affinity=tuple(Requirement(key=one.key, operator=one.operator, values=one.values) for one in required),
        runtime_class_name=written.runtime_class_name or "",
        spread=Spread(written.spread),
        labels=tuple(sorted(written.labels.items())),
    )


def _toleration(written: WrittenToleration) -> Toleration:
    return Toleration(
        key=written.key,
        operator=written.operator,
        value=written.value,
        effect=written.effect or "",
        toleration_seconds=written.toleration_seconds,
    )


def _topology(written: WrittenTopology, mode: Mode) -> Topology:
    return Topology(
        mode=mode,
        nvlink=NVLink(written.nvlink),
        when_gpus_at_least=written.when_gpus_at_least,
        multi_node_domain=written.multi_node_domain or "",
    )


def _cuda(written: WrittenCuda, mode: Mode) -> Cuda:
    return Cuda(mode=mode, driver=written.driver == "evaluate")


def _security(written: WrittenSecurity, mode: Mode) -> Security:
    return Security(
        mode=mode,
        deny=frozenset(written.deny),
        allowed_runtime_classes=frozenset(written.allowed_runtime_classes),
        allowed_capabilities=frozenset(written.allowed_driver_capabilities),
    )


def exemptions_of(policy: str, written: tuple[WrittenExemption, ...]) -> tuple[Exemption, ...]:
    """Compile the exemptions inside a policy."""
    return tuple(
        Exemption(
            name=one.name,
            policy=policy,
            codes=frozenset(one.codes),
            scope=_scope(one.match),
            reason=one.reason,
            expires=one.expiration_time,
        )
        for one in written
    )


def exception_of(written: GPUPolicyException) -> Exemption:
    """Compile an exemption that lives in a file of its own."""
    return Exemption(
        name=written.metadata.name,
        policy=written.spec.policy_name,
        codes=frozenset(written.spec.codes),
        scope=_scope(written.spec.match),
        reason=written.spec.reason,
        expires=written.spec.expiration_time,
    )


def _scope(written: WrittenScope) -> Scope:
    return Scope(
        namespace=selectors.globs(written.namespaces),
        service_accounts=frozenset(written.service_accounts),
        labels=selectors.labels(requirements_of(written.object_selector)) or _any_labels,
    )


def _any_labels(_labels: object) -> bool:
    return True
