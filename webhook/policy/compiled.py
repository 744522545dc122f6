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

from webhook.errors import Place
from webhook.model.modes import Evidence, Form, Isolation, Mode
from webhook.model.pods import Requirement, Toleration
from webhook.model.pools import Pool
from webhook.policy.fairness import FairShare
from webhook.policy.rollout import Rollout
from webhook.policy.workloads import WORKLOADS, TemplatePath, WorkloadKind

if TYPE_CHECKING:
    from webhook.policy.found import Found


class RightSizing(msgspec.Struct, frozen=True):
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

    mode: Mode
    isolation: Isolation
    forms: tuple[Form, ...]
    evidence: tuple[Evidence, ...]
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


class Remembered(set[object]):
    """A bounded set: what it has seen, until it is full and begins anew."""

    def keep(self, key: object) -> None:
        """Remember one more."""
        if len(self) >= MAX_REMEMBERED:
            self.clear()
        self.add(key)


class AmountRules:
    """Rules for amounts, found by resource name. Immutable; what a name finds is remembered, bounded.

    Attributes:
        names: The names the rules are about; None if a glob among them is about names that cannot be listed.
    """

    __slots__ = ("_found", "names", "rules")

    def __init__(self, rules: Iterable[AmountRule] = ()) -> None:
        self.rules = tuple(rules)
        literal = all(not {"*", "?"} & set(rule.resource) for rule in self.rules)
        self.names = tuple(dict.fromkeys(rule.resource for rule in self.rules)) if literal else None
        self._found: dict[str, tuple[AmountRule, ...]] = {}

    def of(self, name: str) -> tuple[AmountRule, ...]:
        """The rules that speak about a resource."""
        found = self._found.get(name)
        if found is None:
            found = tuple(rule for rule in self.rules if rule.matches(name))
            if len(self._found) >= MAX_REMEMBERED:
                self._found.clear()
            self._found[name] = found
        return found


class Injected(StrEnum):
    """What becomes of GPUs that a LimitRange put into containers that never asked."""

    WARN = "warn"
    KEEP = "keep"
    REMOVE = "remove"


class Limits(msgspec.Struct, frozen=True):
    """What a pod may ask for.

    Attributes:
        accounting: GPU containers also ask for the accounting resource, where that leaves no pod Pending.
        ignored: An admin's word that every scheduler ignores that resource.
        passed: What was held against all rules and broke none: pods of many workloads ask for the same.
    """

    mode: Mode
    per_pod: AmountRules
    per_container: AmountRules
    per_gpu: AmountRules
    limit_ranges: bool
    injected: Injected
    resource_quotas: bool
    accounting: bool
    ignored: bool
    passed: Remembered = msgspec.field(default_factory=Remembered)


class SharedQuota(msgspec.Struct, frozen=True):
    """A ceiling that namespaces share.

    Attributes:
        pool: Who shares it, and what counts.
        milli: The ceiling, thousandths of a GPU.
        product: The product that it is about, as written; "" for all.
    """

    name: str
    pool: Pool
    milli: int
    product: str


class Quotas(msgspec.Struct, frozen=True):
    """What the pods of several namespaces may hold together."""

    mode: Mode
    shared: tuple[SharedQuota, ...]


class Spread(StrEnum):
    """How the pods of one workload are kept on different hosts."""

    OFF = "off"
    PREFERRED = "preferred"
    REQUIRED = "required"


class Injection(msgspec.Struct, frozen=True):
    """What is added to a pod that asks for GPUs."""

    mode: Mode
    tolerations_auto: bool
    tolerations: tuple[Toleration, ...]
    node_affinity_auto: bool
    node_affinity: tuple[Requirement, ...]
    runtime_class_name: str
    spread: Spread
    labels: tuple[tuple[str, str], ...]


class NVLink(StrEnum):
    """How much NVLink locality matters."""

    IGNORED = "ignored"
    PREFERRED = "preferred"
    REQUIRED = "required"


class Topology(msgspec.Struct, frozen=True):
    """Where GPUs of one pod, and pods of one workload, should be.

    Attributes:
        multi_node_domain: Node label that names an NVLink domain of several nodes, or "".
    """

    mode: Mode
    nvlink: NVLink
    when_gpus_at_least: int
    multi_node_domain: str


class Cuda(msgspec.Struct, frozen=True):
    """Whether an image's CUDA need is held against the drivers of the nodes."""

    mode: Mode
    driver: bool


class Security(msgspec.Struct, frozen=True):
    """Which ways round GPU accounting are refused.

    Attributes:
        deny: Names of the bypasses (`written.Bypass`).
        allowed_runtime_classes: GPU runtime classes that a pod without a GPU request may name.
        allowed_capabilities: Values of NVIDIA_DRIVER_CAPABILITIES beyond compute and utility that are fine.
    """

    mode: Mode
    deny: frozenset[str]
    allowed_runtime_classes: frozenset[str]
    allowed_capabilities: frozenset[str]


class Scope(msgspec.Struct, frozen=True):
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
    scope: Scope
    reason: str
    expires: datetime


class Condition(msgspec.Struct, frozen=True):
    """A CEL match condition. `holds` raises `ConditionError` where the expression fails at run time."""

    name: str
    holds: Callable[[Mapping[str, Any]], bool]


class ConditionError(Exception):
    """A CEL expression failed on this object; the message is the engine's, shortened."""


class Match(msgspec.Struct, frozen=True):
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
    conditions: tuple[Condition, ...]
    fail: bool


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
    place: Place
    digest: str
    mode: Mode
    match: Match
    description: str = ""
    right_sizing: RightSizing | None = None
    limits: Limits | None = None
    quotas: Quotas | None = None
    injection: Injection | None = None
    topology: Topology | None = None
    cuda: Cuda | None = None
    security: Security | None = None
    rollout: Rollout | None = None
    fair_share: FairShare | None = None
    places: Mapping[str, Place] = {}

    @property
    def strictest(self) -> Mode:
        """The strictest mode in which the policy, or any section of it, speaks."""
        sections = [section for name in SECTIONS if (section := getattr(self, name)) is not None]
        modes: list[Mode] = [self.mode, *(section.mode for section in sections)]
        return max(modes)


MAX_REMEMBERED = 4096
"""Namespaces (with their labels) whose policies are remembered. A cluster rarely has more."""


class LetIn(NamedTuple):
    """Policies that let a request in, as far as it goes without its object.

    Attributes:
        certain: Mask of those that speak, whatever the object is.
        asking: Those, with their indices, that have still to be asked about its labels, or their conditions.
    """

    certain: int
    asking: tuple[tuple[int, Policy], ...]


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

    __slots__ = ("_remembered", "digest", "exemptions", "policies", "pooled", "rollouts", "templates", "written")

    def __init__(
        self,
        policies: Iterable[Policy] = (),
        exemptions: Iterable[Exemption] = (),
        templates: Mapping[WorkloadKind, tuple[TemplatePath, ...]] = WORKLOADS,
        written: tuple[Found, ...] = (),
    ) -> None:
        self.policies = tuple(sorted(policies, key=lambda policy: policy.name))
        self.rollouts = tuple((i, one.rollout) for i, one in enumerate(self.policies) if one.rollout is not None)
        self.exemptions = tuple(exemptions)
        self.pooled = any(policy.quotas is not None and policy.quotas.shared for policy in self.policies)
        self.templates = templates
        self.written = written
        self.digest = _digest(self.policies, self.exemptions)
        self._remembered: dict[tuple[object, ...], LetIn] = {}

    def for_request(
        self, namespace: str, labels: Mapping[str, str], operation: str, resources: tuple[str, ...]
    ) -> LetIn:
        """The policies that let in a namespace, an operation and what is asked for. Remembered, bounded."""
        key = (namespace, operation, resources, *labels.items())
        found = self._remembered.get(key)
        if found is None:
            found = self._let_in(namespace, labels, operation, resources)
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = found
        return found

    def _let_in(self, namespace: str, labels: Mapping[str, str], operation: str, resources: tuple[str, ...]) -> LetIn:
        certain, asking = 0, []
        for index, policy in enumerate(self.policies):
            if not _lets_in(policy.match, namespace, labels, operation, resources):
                continue
            if policy.match.labels is None and not policy.match.conditions:
                certain |= 1 << index
            else:
                asking.append((index, policy))
        return LetIn(certain, tuple(asking))


def _lets_in(
    match: Match, namespace: str, labels: Mapping[str, str], operation: str, resources: tuple[str, ...]
) -> bool:
    if operation not in match.operations or not match.namespace(namespace, labels):
        return False
    return match.resource is None or any(map(match.resource, resources))


def _digest(policies: tuple[Policy, ...], exemptions: tuple[Exemption, ...]) -> str:
    lines = [f"{policy.name} {policy.digest}" for policy in policies]
    lines += [f"{one.policy} {one.name} {sorted(one.codes)} {one.expires.isoformat()}" for one in exemptions]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
