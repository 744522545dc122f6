"""GPUPolicy and GPUPolicyException as an admin writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Strict, model_validator

from webhook.policy.written.base import SpecModel, spec_error
from webhook.policy.written.match import MatchSpec, ScopeSpec
from webhook.policy.written.sections import (
    CudaSpec,
    InjectionSpec,
    LimitsSpec,
    ModeName,
    QuotasSpec,
    RightSizingSpec,
    SecuritySpec,
    TopologySpec,
)
from webhook.policy.written.values import (
    MAX_ENTRIES,
    FindingCode,
    LabelKey,
    Labels,
    LabelValue,
    Name,
    Percent,
    Reason,
    Sentence,
    Text,
    Time,
)
from webhook.well_known import ApiVersion

Weight = Annotated[int, Strict(), Field(ge=1, le=1_000_000)]
Hours = Annotated[int, Strict(), Field(ge=1, le=8760)]


class ShareSpec(SpecModel):
    """What one namespace, or one value of the label, is entitled to beside the others."""

    name: LabelValue = Field(min_length=1)
    weight: Weight


class FairShareSpec(SpecModel):
    """Nothing is refused by it: it is what `rightslice fairshare` reports against, and the extender's hint."""

    by: LabelKey = "namespace"
    half_life_hours: Hours = 168
    shares: tuple[ShareSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    default_weight: Weight = 1


Minutes = Annotated[int, Strict(), Field(ge=5, le=1440)]


class HaltOnSpec(SpecModel):
    """How many percentage points worse than the rest the share may do before the policy falls back to audit."""

    oom: Percent | None = None
    evictions: Percent | None = None
    pending: Percent | None = None
    window_minutes: Minutes = 60

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if self.oom is None and self.evictions is None and self.pending is None:
            raise spec_error("say what to stop on", "oom: 2, evictions: 2 or pending: 10, in percentage points")
        return self


class RolloutSpec(SpecModel):
    """A stable share of the workloads is held to the policy's modes, the others are only watched."""

    percent: Percent
    seed: LabelValue = ""
    halt_on: HaltOnSpec | None = None


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

    api_version: ApiVersion
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

    api_version: ApiVersion
    kind: Literal["GPUPolicyException"]
    metadata: NamespacedMetadataSpec
    spec: ExceptionSpec
    status: Any = None
