"""PolicySet: policies compiled for the admission path. Plain frozen values; nothing is parsed any more.

The written form is `written`; `compiling` turns one into the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from webhook.errors import SourceLocation
from webhook.model.enums import EvidenceSource, GpuForm, IsolationLevel, PolicyMode
from webhook.model.pods import NodeSelectorRequirement, Toleration
from webhook.model.pools import QuotaPool
from webhook.policy.fair_share import FairShare
from webhook.policy.rollout import Rollout
from webhook.policy.template_paths import WORKLOAD_TEMPLATES, TemplatePath, WorkloadKind

if TYPE_CHECKING:
    from webhook.policy.loader import PolicySource
from collections.abc import Collection


class RightSizingRules(msgspec.Struct, frozen=True):
    """How GPU requests shrink.

    Attributes:
        isolation: The least a pod may be given.
        forms: Forms that may be given, the preferred first.
        evidence: Evidence that is believed, the preferred first.
        default_memory_mib: Need of a pod without other evidence, MiB; None: no such default.
        default_compute_milli: The same for compute, thousandths of a card.
        margin_percent: Added to observed compute (memory has its risk; what a pod declares is taken as it is).
        risk_ppm: Pod-hours in a million that may need more memory than observed use lets a pod be given.
        min_saving_percent: Least share of the request that must be saved.
        wait_when_full: False: a slice is given only where one is free now.
    """

    mode: PolicyMode
    isolation: IsolationLevel
    forms: tuple[GpuForm, ...]
    evidence: tuple[EvidenceSource, ...]
    default_memory_mib: int | None
    default_compute_milli: int | None
    margin_percent: int
    min_saving_percent: int
    risk_ppm: int
    wait_when_full: bool


class AmountRule(msgspec.Struct, frozen=True):
    """A ceiling, floor, choice or default for one resource. Amounts in nano-units (`model.quantity`).

    Attributes:
        resource: Resource name, or a glob over names ("nvidia.com/mig-*").
        matches: True for the names that the rule speaks about.
    """

    resource: str
    matches: Callable[[str], bool]
    allowed: tuple[int, ...] = ()
    min: int | None = None
    max: int | None = None
    default: int | None = None


class BoundedSet(set[object]):
    """A bounded set: what it has seen, until it is full and begins anew."""

    def remember(self, key: object) -> None:
        """Remember one more."""
        if len(self) >= MAX_CACHE_ENTRIES:
            self.clear()
        self.add(key)


class AmountRuleSet:
    """Rules for amounts, found by resource name. Immutable; what a name finds is remembered, bounded.

    Attributes:
        names: The names the rules are about; None if a glob among them is about names that cannot be listed.
    """

    __slots__ = ("_rules_by_name", "names", "rules")

    def __init__(self, rules: Iterable[AmountRule] = ()) -> None:
        self.rules = tuple(rules)
        literal = all(not {"*", "?"} & set(rule.resource) for rule in self.rules)
        self.names = tuple(dict.fromkeys(rule.resource for rule in self.rules)) if literal else None
        self._rules_by_name: dict[str, tuple[AmountRule, ...]] = {}

    def rules_for(self, name: str) -> tuple[AmountRule, ...]:
        """The rules that speak about a resource."""
        found = self._rules_by_name.get(name)
        if found is None:
            found = tuple(rule for rule in self.rules if rule.matches(name))
            if len(self._rules_by_name) >= MAX_CACHE_ENTRIES:
                self._rules_by_name.clear()
            self._rules_by_name[name] = found
        return found


class InjectedGpuHandling(StrEnum):
    """What becomes of GPUs that a LimitRange put into containers that never asked."""

    WARN = "warn"
    KEEP = "keep"
    REMOVE = "remove"


class LimitRules(msgspec.Struct, frozen=True):
    """What a pod may ask for.

    Attributes:
        accounting: GPU containers also ask for the accounting resource, where that leaves no pod Pending.
        ignored: An admin's word that every scheduler ignores that resource.
        passed: What was held against all rules and broke none: pods of many workloads ask for the same.
    """

    mode: PolicyMode
    per_pod: AmountRuleSet
    per_container: AmountRuleSet
    per_gpu: AmountRuleSet
    limit_ranges: bool
    injected_gpus: InjectedGpuHandling
    resource_quotas: bool
    accounting: bool
    scheduler_ignores_accounting: bool
    passed_checks: BoundedSet = msgspec.field(default_factory=BoundedSet)


class SharedQuota(msgspec.Struct, frozen=True):
    """A ceiling that namespaces share.

    Attributes:
        pool: Who shares it, and what counts.
        milli: The ceiling, thousandths of a GPU.
        product: The product that it is about, as written; "" for all.
    """

    name: str
    pool: QuotaPool
    gpu_milli: int
    product: str


class QuotaRules(msgspec.Struct, frozen=True):
    """What the pods of several namespaces may hold together."""

    mode: PolicyMode
    shared: tuple[SharedQuota, ...]


class SpreadMode(StrEnum):
    """How the pods of one workload are kept on different hosts."""

    OFF = "off"
    PREFERRED = "preferred"
    REQUIRED = "required"


class InjectionRules(msgspec.Struct, frozen=True):
    """What is added to a pod that asks for GPUs."""

    mode: PolicyMode
    tolerations_auto: bool
    tolerations: tuple[Toleration, ...]
    node_affinity_auto: bool
    node_affinity: tuple[NodeSelectorRequirement, ...]
    runtime_class_name: str
    spread: SpreadMode
    labels: tuple[tuple[str, str], ...]


class NvlinkMode(StrEnum):
    """How much NVLink locality matters."""

    IGNORED = "ignored"
    PREFERRED = "preferred"
    REQUIRED = "required"


class TopologyRules(msgspec.Struct, frozen=True):
    """Where GPUs of one pod, and pods of one workload, should be.

    Attributes:
        multi_node_domain: Node label that names an NVLink domain of several nodes, or "".
    """

    mode: PolicyMode
    nvlink: NvlinkMode
    when_gpus_at_least: int
    multi_node_domain: str


class CudaRules(msgspec.Struct, frozen=True):
    """Whether an image's CUDA need is held against the drivers of the nodes."""

    mode: PolicyMode
    driver: bool


class SecurityRules(msgspec.Struct, frozen=True):
    """Which ways round GPU accounting are refused.

    Attributes:
        deny: Names of the bypasses (`written.Bypass`).
        allowed_runtime_classes: GPU runtime classes that a pod without a GPU request may name.
        allowed_capabilities: Values of NVIDIA_DRIVER_CAPABILITIES beyond compute and utility that are fine.
    """

    mode: PolicyMode
    deny: frozenset[str]
    allowed_runtime_classes: frozenset[str]
    allowed_capabilities: frozenset[str]


class ExemptionScope(msgspec.Struct, frozen=True):
    """What an exemption holds for. All that is given must match.

    Attributes:
        namespace: True for the namespaces it holds in.
        service_accounts: Names; empty: any.
        labels: True for the pod labels it holds for.
    """

    namespace: Callable[[str], bool]
    service_accounts: frozenset[str]
    labels: Callable[[Mapping[str, str]], bool]


class Exemption(msgspec.Struct, frozen=True):
    """Codes taken back, for whom, why, and until when."""

    name: str
    policy: str
    codes: frozenset[str]
    scope: ExemptionScope
    reason: str
    expires: datetime


class MatchCondition(msgspec.Struct, frozen=True):
    """A CEL match condition. `holds` raises `ConditionError` where the expression fails at run time."""

    name: str
    evaluate: Callable[[Mapping[str, Any]], bool]


class ConditionError(Exception):
    """A CEL expression failed on this object; the message is the engine's, shortened."""


class PolicyMatch(msgspec.Struct, frozen=True):
    """Which objects a policy speaks about. Everything given must hold.

    Attributes:
        operations: For example {"CREATE", "UPDATE"}.
        resource: True for a resource name the policy is about; None: every object, GPUs asked for or not.
        namespace: True for (namespace name, namespace labels) that the policy is about.
        labels: True for object labels that the policy is about; None: any.
        conditions: CEL conditions, all of which must hold.
        fail: What a condition that fails at run time is. True: a fault, in the strictest mode of the policy
            (`failurePolicy: Fail`); False: the policy does not speak, with a warning at most.
    """

    operations: frozenset[str]
    resource: Callable[[str], bool] | None
    namespace: Callable[[str, Mapping[str, str]], bool]
    labels: Callable[[Mapping[str, str]], bool] | None
    conditions: tuple[MatchCondition, ...]
    fail_closed: bool


SECTIONS = ("right_sizing", "limits", "quotas", "injection", "topology", "cuda", "security")
"""The parts of a policy that have a mode of their own."""


class Policy(msgspec.Struct, frozen=True):
    """One compiled GPUPolicy. A section that is None was not written.

    Attributes:
        place: Where the policy stands.
        places: Where each section stands, by its key ("limits", "security.deny" …), for messages.
        digest: First 12 hex digits of the SHA-256 of what was written.
    """

    name: str
    location: SourceLocation
    digest: str
    mode: PolicyMode
    match: PolicyMatch
    description: str = ""
    right_sizing: RightSizingRules | None = None
    limits: LimitRules | None = None
    quotas: QuotaRules | None = None
    injection: InjectionRules | None = None
    topology: TopologyRules | None = None
    cuda: CudaRules | None = None
    security: SecurityRules | None = None
    rollout: Rollout | None = None
    fair_share: FairShare | None = None
    section_locations: Mapping[str, SourceLocation] = {}

    @property
    def strictest_mode(self) -> PolicyMode:
        """The strictest mode in which the policy, or any section of it, speaks."""
        sections = [section for name in SECTIONS if (section := getattr(self, name)) is not None]
        modes: list[PolicyMode] = [self.mode, *(section.mode for section in sections)]
        return max(modes)


MAX_CACHE_ENTRIES = 4096
"""Namespaces (with their labels) whose policies are remembered. A cluster rarely has more."""


class CandidatePolicies(NamedTuple):
    """Policies that let a request in, as far as it goes without its object.

    Attributes:
        certain: Mask of those that speak, whatever the object is.
        asking: Those, with their indices, that have still to be asked about its labels, or their conditions.
    """

    certain: int
    conditional: tuple[tuple[int, Policy], ...]


class PolicySet:
    """Every policy and exemption, immutable once made.

    Attributes:
        policies: In the order of their names.
        exemptions: Those of policies and those of GPUPolicyException objects.
        templates: Where the pod templates of a workload kind stand, by (API group, kind).
        rollouts: Those that are enforced for a share of the workloads only, with their indices.
        pooled: True if any policy has a quota that namespaces share: then every GPU pod is weighed.
        written: What it was compiled from, for those who judge another policy beside it.
        digest: First 12 hex digits of the SHA-256 over all policies and exemptions.
    """

    __slots__ = (
        "_candidates_by_request",
        "digest",
        "exemptions",
        "has_shared_quotas",
        "policies",
        "rollouts",
        "sources",
        "template_paths",
    )

    def __init__(
        self,
        policies: Iterable[Policy] = (),
        exemptions: Iterable[Exemption] = (),
        templates: Mapping[WorkloadKind, tuple[TemplatePath, ...]] = WORKLOAD_TEMPLATES,
        written: tuple[PolicySource, ...] = (),
    ) -> None:
        self.policies = tuple(sorted(policies, key=lambda policy: policy.name))
        self.rollouts = tuple((i, one.rollout) for i, one in enumerate(self.policies) if one.rollout is not None)
        self.exemptions = tuple(exemptions)
        self.has_shared_quotas = any(policy.quotas is not None and policy.quotas.shared for policy in self.policies)
        self.template_paths = templates
        self.sources = written
        self.digest = _policy_set_digest(self.policies, self.exemptions)
        self._candidates_by_request: dict[tuple[object, ...], CandidatePolicies] = {}

    def candidates_for(
        self, namespace: str, labels: Mapping[str, str], operation: str, resources: tuple[str, ...]
    ) -> CandidatePolicies:
        """The policies that let in a namespace, an operation and what is asked for. Remembered, bounded."""
        key = (namespace, operation, resources, *labels.items())
        found = self._candidates_by_request.get(key)
        if found is None:
            found = self._find_candidates(namespace, labels, operation, resources)
            if len(self._candidates_by_request) >= MAX_CACHE_ENTRIES:
                self._candidates_by_request.clear()
            self._candidates_by_request[key] = found
        return found

    def _find_candidates(
        self, namespace: str, labels: Mapping[str, str], operation: str, resources: tuple[str, ...]
    ) -> CandidatePolicies:
        certain, asking = 0, []
        for index, policy in enumerate(self.policies):
            if not _is_candidate(policy.match, namespace, labels, operation, resources):
                continue
            if policy.match.labels is None and not policy.match.conditions:
                certain |= 1 << index
            else:
                asking.append((index, policy))
        return CandidatePolicies(certain, tuple(asking))


def _is_candidate(
    match: PolicyMatch, namespace: str, labels: Mapping[str, str], operation: str, resources: tuple[str, ...]
) -> bool:
    if operation not in match.operations or not match.namespace(namespace, labels):
        return False
    return match.resource is None or any(map(match.resource, resources))


def _policy_set_digest(policies: tuple[Policy, ...], exemptions: tuple[Exemption, ...]) -> str:
    lines = [f"{policy.name} {policy.digest}" for policy in policies]
    lines += [f"{one.policy} {one.name} {sorted(one.codes)} {one.expires.isoformat()}" for one in exemptions]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def policies_as_audit(policies: PolicySet) -> PolicySet:
    """The same set with every mode `audit`; a match condition that fails denies nothing either."""
    return _replace_policies(policies, map(as_audit, policies.policies))


def halt_rollouts(policies: PolicySet, names: Collection[str]) -> PolicySet:
    """The same set with the named policies on trial, because their rollout was halted."""
    if not names:
        return policies
    return _replace_policies(
        policies, (as_audit(one) if one.name in names and one.rollout else one for one in policies.policies)
    )


def _replace_policies(policies: PolicySet, changed: Iterable[Policy]) -> PolicySet:
    return PolicySet(changed, policies.exemptions, policies.template_paths, policies.sources)


def as_audit(policy: Policy) -> Policy:
    """One policy on trial, for everybody."""
    written = {name: getattr(policy, name) for name in SECTIONS}
    sections = {
        name: msgspec.structs.replace(section, mode=PolicyMode.AUDIT)
        for name, section in written.items()
        if section is not None
    }
    return msgspec.structs.replace(policy, mode=PolicyMode.AUDIT, rollout=None, **sections)
