"""GPUPolicy and GPUPolicyException as an admin writes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from webhook.policy.written.additions import InjectionSpec
from webhook.policy.written.base import SpecModel
from webhook.policy.written.fairness import FairShareSpec
from webhook.policy.written.matching import MatchSpec, ScopeSpec
from webhook.policy.written.quotas import QuotasSpec
from webhook.policy.written.rollout import RolloutSpec
from webhook.policy.written.sections import (
    ModeName,
    CudaSpec,
    LimitsSpec,
    RightSizingSpec,
    SecuritySpec,
    TopologySpec,
)
from webhook.policy.written.values import MAX_ENTRIES, FindingCode, LabelKey, Labels, Name, Reason, Sentence, Text, Time


class MetadataSpec(SpecModel):
    """Metadata. The fields an API server adds are let in and ignored: `kubectl get -o yaml` is a policy file too."""

    name: Name
    labels: Labels = {}
    annotations: dict[LabelKey, Text] = {}
    creation_timestamp: Any = None
    finalizers: Any = None
    generation: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    resource_version: Any = None
    uid: Any = None


class NamespacedMetadataSpec(MetadataSpec):
    """Metadata of an object that lives in a namespace."""

    namespace: Name | None = None


class ExemptionSpec(SpecModel):
    """Codes taken back inside a policy."""

    name: Name
    codes: tuple[FindingCode, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    match: ScopeSpec
    reason: Reason
    expiration_time: Time


class PolicySpec(SpecModel):
    """A policy's sections. A section that is not written does not act."""

    description: Sentence = ""
    mode: ModeName = "audit"
    failure_policy: Literal["Fail", "Ignore"] = "Ignore"
    match: MatchSpec = MatchSpec()
    rollout: RolloutSpec | None = None
    fair_share: FairShareSpec | None = None
    right_sizing: RightSizingSpec | None = None
    limits: LimitsSpec | None = None
    quotas: QuotasSpec | None = None
    injection: InjectionSpec | None = None
    topology: TopologySpec | None = None
    cuda: CudaSpec | None = None
    security: SecuritySpec | None = None
    exemptions: tuple[ExemptionSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)


class GPUPolicy(SpecModel):
    """One policy."""

    api_version: Literal["rightslice.dev/v1alpha1"]
    kind: Literal["GPUPolicy"]
    metadata: MetadataSpec
    spec: PolicySpec
    status: Any = None


class ExceptionSpec(SpecModel):
    """Codes of one policy taken back, asked for by a team."""

    policy_name: Name
    codes: tuple[FindingCode, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    match: ScopeSpec
    reason: Reason
    approved_by: Sentence = ""
    expiration_time: Time


class GPUPolicyException(SpecModel):
    """An exemption that lives in a file of its own."""

    api_version: Literal["rightslice.dev/v1alpha1"]
    kind: Literal["GPUPolicyException"]
    metadata: NamespacedMetadataSpec
    spec: ExceptionSpec
    status: Any = None
