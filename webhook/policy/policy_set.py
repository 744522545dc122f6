"""Compiled policies for the admission path: frozen values that need no parsing.

`policy.written` has the models of the YAML, and `policy.compiler` compiles them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from webhook.errors import SourceLocation
from webhook.model.bounded_cache import BoundedCache
from webhook.model.derived_values import DerivedValues
from webhook.model.enums import EvidenceSource, FullCapacityAction, GpuForm, IsolationLevel, PolicyMode
from webhook.model.offers import AllowedShares
from webhook.model.pods import NodeSelectorRequirement, Toleration
from webhook.model.pools import QuotaPool
from webhook.policy.fair_share import FairShare
from webhook.policy.rollout import Rollout
from webhook.policy.workload_kinds import WORKLOAD_KINDS, WorkloadKinds

MAX_CACHE_ENTRIES = 4096
"""Bound of each cache of lookups. A cluster rarely has more namespaces."""

if TYPE_CHECKING:
    from webhook.policy.loader import PolicySource


class RightSizingRules(msgspec.Struct, frozen=True):
    """Compiled `spec.rightSizing`.

    Attributes:
        forms, evidence: In order of preference.
        default_memory_mib, default_compute_milli: Need of a pod without other evidence.
        margin_percent: Added to observed compute; observed memory uses `risk_ppm`, declared needs have no margin.
        risk_ppm: Pod-hours in a million that may need more memory than the pod was given.
        when_full: What to do when no slice or share is free.
        patch_fractions: True if the fraction of memory that a framework takes may be changed for the slice.
        templates: Mode of right-sizing the templates of queued workloads; None if their pods keep whole GPUs.
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
    when_full: FullCapacityAction
    patch_fractions: bool = False
    templates: PolicyMode | None = None

    @property
    def allowed_shares(self) -> AllowedShares:
        """Return the shares that it allows pods to get."""
        return self.forms, self.isolation, min(999, 1000 - 10 * self.min_saving_percent)


class AmountRule(msgspec.Struct, frozen=True):
    """Bounds, allowed amounts or a default for a resource name or glob, in nano-units (`model.quantity`)."""

    resource: str
    matches: Callable[[str], bool]
    allowed: tuple[int, ...] = ()
    min: int | None = None
    max: int | None = None
    default: int | None = None


class AmountRuleSet:
    """Amount rules by resource name. Immutable; lookups are cached up to a bound.

    Attributes:
        names: The resource names of the rules; None if one of them is a glob.
        globs: The rules with a glob, which bound the sum of the GPUs that it matches.
    """

    __slots__ = ("_rules_by_name", "globs", "names", "rules")

    def __init__(self, rules: Iterable[AmountRule] = ()) -> None:
        self.rules = tuple(rules)
        self.globs = tuple(rule for rule in self.rules if {"*", "?"} & set(rule.resource))
        self.names = None if self.globs else tuple(dict.fromkeys(rule.resource for rule in self.rules))
        self._rules_by_name: BoundedCache[str, tuple[AmountRule, ...]] = BoundedCache(MAX_CACHE_ENTRIES)

    def rules_for(self, name: str) -> tuple[AmountRule, ...]:
        """Return the rules that apply to a resource."""
        found = self._rules_by_name.get(name)
        if found is None:
            found = self._rules_by_name.store(name, tuple(rule for rule in self.rules if rule.matches(name)))
        return found


class InjectedGpuHandling(StrEnum):
    """Handling of GPUs that a LimitRange added to containers that did not request any."""

    WARN = "warn"
    KEEP = "keep"
    REMOVE = "remove"


class LimitRules(msgspec.Struct, frozen=True):
    """Compiled `spec.limits`.

    Attributes:
        accounting: Whether GPU containers also request the accounting resource, if that keeps no pod Pending.
        scheduler_ignores_accounting: The admin confirms that every scheduler ignores that resource.
        passed_checks: Requests that passed all rules; pods of many workloads request the same.
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
    passed_checks: BoundedCache[object, bool] = msgspec.field(default_factory=lambda: BoundedCache(MAX_CACHE_ENTRIES))


class SharedQuota(msgspec.Struct, frozen=True):
    """A GPU quota that namespaces share.

    Attributes:
        pool: The namespaces that share it, and the products that count.
        gpu_milli: The quota in thousandths of a GPU.
        product: The product glob as written; "" for all products.
    """

    name: str
    pool: QuotaPool
    gpu_milli: int
    product: str


class QuotaRules(msgspec.Struct, frozen=True):
    """Compiled `spec.quotas`."""

    mode: PolicyMode
    shared: tuple[SharedQuota, ...]


class SpreadMode(StrEnum):
    """Placement of the pods of one workload on different hosts."""

    OFF = "off"
    PREFERRED = "preferred"
    REQUIRED = "required"


class InjectionRules(msgspec.Struct, frozen=True):
    """Compiled `spec.injection`."""

    mode: PolicyMode
    tolerations_auto: bool
    tolerations: tuple[Toleration, ...]
    node_affinity_auto: bool
    node_affinity: tuple[NodeSelectorRequirement, ...]
    runtime_class_name: str
    spread: SpreadMode
    labels: tuple[tuple[str, str], ...]


class NvlinkMode(StrEnum):
    """NVLink between the GPUs of a container."""

    IGNORED = "ignored"
    PREFERRED = "preferred"
    REQUIRED = "required"


class TopologyRules(msgspec.Struct, frozen=True):
    """Compiled `spec.topology`.

    Attributes:
        multi_node_domain: Node label that names a multi-node NVLink domain, or "".
    """

    mode: PolicyMode
    nvlink: NvlinkMode
    when_gpus_at_least: int
    multi_node_domain: str


class CudaRules(msgspec.Struct, frozen=True):
    """Compiled `spec.cuda`."""

    mode: PolicyMode
    driver: bool


class SecurityRules(msgspec.Struct, frozen=True):
    """Compiled `spec.security`; `deny` has names of `written.sections.Bypass`."""

    mode: PolicyMode
    deny: frozenset[str]
    allowed_runtime_classes: frozenset[str]
    allowed_capabilities: frozenset[str]


class ExemptionScope(msgspec.Struct, frozen=True):
    """The pods that an exemption applies to. All attributes must match; no service accounts mean any."""

    namespace: Callable[[str], bool]
    service_accounts: frozenset[str]
    labels: Callable[[Mapping[str, str]], bool]


class Exemption(msgspec.Struct, frozen=True):
    """Finding codes that a policy does not report for some pods until a given time."""

    name: str
    policy: str
    codes: frozenset[str]
    scope: ExemptionScope
    reason: str
    expires: datetime


class MatchCondition(msgspec.Struct, frozen=True):
    """A CEL match condition. `evaluate` raises `ConditionError` if the expression fails at run time.

    Attributes:
        reads: Paths of the fields that it reads, from a variable on.
    """

    name: str
    evaluate: Callable[[Mapping[str, Any]], bool]
    reads: frozenset[tuple[str, ...]]


class ConditionError(Exception):
    """A CEL expression failed on an object; the message is the engine's, shortened."""


class PolicyMatch(msgspec.Struct, frozen=True):
    """The objects that a policy applies to. All attributes must match.

    Attributes:
        resource: Returns whether a requested resource name matches; None for every object, with or without GPUs.
        namespace: Returns whether a namespace matches, by name and labels.
        labels: Returns whether object labels match; None for any.
        fail_closed: True if a condition that fails at run time is a violation in the mode of the sections that can
            deny (`failurePolicy: Fail`); False if the policy then does not apply, with a warning at most.
    """

    operations: frozenset[str]
    resource: Callable[[str], bool] | None
    namespace: Callable[[str, Mapping[str, str]], bool]
    labels: Callable[[Mapping[str, str]], bool] | None
    conditions: tuple[MatchCondition, ...]
    fail_closed: bool


SECTIONS = ("right_sizing", "limits", "quotas", "injection", "topology", "cuda", "security")
"""Attributes of `Policy` with a mode of their own."""

REJECTING_SECTIONS = ("limits", "quotas", "topology", "cuda", "security")
"""Those that can deny a pod; the others only change it."""


class Policy(msgspec.Struct, frozen=True):
    """A compiled GPUPolicy. Sections that are not written are None.

    Attributes:
        location: File and line of the policy.
        digest: First 12 hex digits of the SHA-256 of its spec.
        section_locations: File and line by key ("limits", "security.deny" …), for messages.
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
        """The strictest mode of the policy and its sections."""
        return max([self.mode, *self._modes(SECTIONS)])

    @property
    def rejecting_mode(self) -> PolicyMode | None:
        """The strictest mode of the sections that can deny a pod; None without such a section."""
        return max(self._modes(REJECTING_SECTIONS), default=None)

    def _modes(self, sections: Iterable[str]) -> list[PolicyMode]:
        return [section.mode for name in sections if (section := getattr(self, name)) is not None]


class CandidatePolicies(NamedTuple):
    """Policies that match a request, as bit masks.

    Attributes:
        matching: Those that match, what must still be evaluated aside.
        conditional: Those of them whose match conditions must still be evaluated, or whose object selector.
    """

    matching: int
    conditional: int


class PolicySet:
    """All policies and exemptions. Immutable.

    Attributes:
        policies: Sorted by name.
        exemptions: From policies and from GPUPolicyException objects, sorted by policy and name.
        workload_kinds: Where each kind of workload describes its pods.
        rollouts: Rollouts, with the indices of their policies.
        has_shared_quotas: True if any policy has a shared quota, so that every GPU pod must be counted.
        fact_mode: The mode of what concerns objects that no policy matches: a warning, unless all policies only audit.
        sources: The written policies and exceptions, to check another policy against them.
        digest: First 12 hex digits of the SHA-256 of all policies and exemptions.
        derived: Values that other modules derive from the policies.
    """

    __slots__ = (
        "_by_request",
        "derived",
        "digest",
        "exemptions",
        "fact_mode",
        "has_shared_quotas",
        "policies",
        "rollouts",
        "sources",
        "workload_kinds",
    )

    def __init__(
        self,
        policies: Iterable[Policy] = (),
        exemptions: Iterable[Exemption] = (),
        workload_kinds: WorkloadKinds = WORKLOAD_KINDS,
        sources: tuple[PolicySource, ...] = (),
    ) -> None:
        self.policies = tuple(sorted(policies, key=lambda policy: policy.name))
        self.rollouts = tuple((i, one.rollout) for i, one in enumerate(self.policies) if one.rollout is not None)
        self.exemptions = tuple(sorted(exemptions, key=lambda one: (one.policy, one.name)))
        self.has_shared_quotas = any(policy.quotas is not None and policy.quotas.shared for policy in self.policies)
        self.fact_mode = min(
            PolicyMode.WARN, max((one.strictest_mode for one in self.policies), default=PolicyMode.WARN)
        )
        self.workload_kinds = workload_kinds
        self.sources = sources
        lines = [f"{policy.name} {policy.digest}" for policy in self.policies]
        lines += [f"{one.policy} {one.name} {sorted(one.codes)} {one.expires.isoformat()}" for one in self.exemptions]
        self.digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
        self.derived: DerivedValues = {}
        self._by_request: BoundedCache[tuple[object, ...], tuple[int, tuple[tuple[int, Policy], ...]]]
        self._by_request = BoundedCache(MAX_CACHE_ENTRIES)

    @property
    def names(self) -> list[str]:
        """The names of the policies, sorted."""
        return [policy.name for policy in self.policies]

    def candidates_for(
        self,
        namespace: str,
        labels: Mapping[str, str],
        operation: str,
        resources: tuple[str, ...],
        pod_labels: Mapping[str, str] | None = None,
    ) -> CandidatePolicies:
        """Return the policies that match a namespace, an operation, the requested resources and a pod's labels.

        Args:
            labels: The labels of the namespace.
            pod_labels: None if they are not known: every object selector must still be evaluated.
        """
        key = (namespace, operation, resources, *labels.items())
        if (found := self._by_request.get(key)) is None:
            found = self._by_request.store(key, self._match_request(namespace, labels, operation, resources))
        (matching, selecting), conditional = found, 0
        for index, policy in selecting:
            selects = policy.match.labels
            if selects is None or pod_labels is None or selects(pod_labels):
                matching |= 1 << index
                if policy.match.conditions or (selects is not None and pod_labels is None):
                    conditional |= 1 << index
        return CandidatePolicies(matching, conditional)

    def _match_request(
        self, namespace: str, labels: Mapping[str, str], operation: str, resources: tuple[str, ...]
    ) -> tuple[int, tuple[tuple[int, Policy], ...]]:
        """Return the policies that match any object, as a mask, and those with an object selector or conditions."""
        certain, conditional = 0, []
        for index, policy in enumerate(self.policies):
            match = policy.match
            if operation not in match.operations or not match.namespace(namespace, labels):
                continue
            if match.resource is not None and not any(map(match.resource, resources)):
                continue
            if match.labels is None and not match.conditions:
                certain |= 1 << index
            else:
                conditional.append((index, policy))
        return certain, tuple(conditional)


def policies_as_audit(policies: PolicySet, names: Collection[str] | None = None) -> PolicySet:
    """Return the set with the named policies, or all, in audit mode: nothing is changed or denied."""
    changed = (as_audit(one) if names is None or one.name in names else one for one in policies.policies)
    return PolicySet(changed, policies.exemptions, policies.workload_kinds, policies.sources)


def halt_rollouts(policies: PolicySet, names: Collection[str]) -> PolicySet:
    """Return the set with the named policies in audit mode, because their rollout was halted."""
    rollouts = {policies.policies[index].name for index, _ in policies.rollouts}
    return policies_as_audit(policies, rollouts & set(names)) if names else policies


def as_audit(policy: Policy) -> Policy:
    """Return a policy in audit mode for every workload."""
    sections = {
        name: msgspec.structs.replace(section, mode=PolicyMode.AUDIT)
        for name in SECTIONS
        if (section := getattr(policy, name)) is not None
    }
    return msgspec.structs.replace(policy, mode=PolicyMode.AUDIT, rollout=None, **sections)
