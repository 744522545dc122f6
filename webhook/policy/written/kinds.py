"""The models of GPUPolicy and GPUPolicyException. Docstrings are the descriptions in the CRDs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Strict, model_validator

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
    SpecModel,
    Text,
    Time,
    spec_error,
)
from webhook.well_known import ApiVersion

Weight = Annotated[int, Strict(), Field(ge=1, le=1_000_000)]
Hours = Annotated[int, Strict(), Field(ge=1, le=8760)]


class ShareSpec(SpecModel):
    """Weight of a namespace or queue."""

    name: LabelValue = Field(min_length=1)
    weight: Weight


class FairShareSpec(SpecModel):
    """Weights for `rightslice fairshare` and the scheduler extender. It denies nothing."""

    by: LabelKey = "namespace"
    half_life_hours: Hours = 168
    shares: tuple[ShareSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    default_weight: Weight = 1


Minutes = Annotated[int, Strict(), Field(ge=5, le=1440)]


class HaltOnSpec(SpecModel):
    """Percentage points by which pods in the share may do worse than others before the rollout halts."""

    oom: Percent | None = None
    evictions: Percent | None = None
    pending: Percent | None = None
    window_minutes: Minutes = 60

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if self.oom is None and self.evictions is None and self.pending is None:
            raise spec_error("set oom, evictions or pending", "oom: 2, for example, in percentage points")
        return self


class RolloutSpec(SpecModel):
    """Applies the policy's modes to a stable share of the workloads; for others it is in audit mode."""

    percent: Percent
    seed: LabelValue = ""
    halt_on: HaltOnSpec | None = None


class MetadataSpec(SpecModel):
    """Metadata. Fields that an API server adds are ignored, so `kubectl get -o yaml` prints a valid policy file."""

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
    """Metadata of a namespaced object."""

    namespace: Name | None = None


class ExemptionSpec(SpecModel):
    """Suppresses finding codes for some pods until a given time."""

    name: Name
    codes: tuple[FindingCode, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    match: ScopeSpec
    reason: Reason
    expiration_time: Time


class PolicySpec(SpecModel):
    """The sections of a policy. A section that is not set has no effect."""

    description: Sentence = ""
    mode: ModeName = "audit"
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
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
    """A policy for GPU pods."""

    api_version: ApiVersion
    kind: Literal["GPUPolicy"]
    metadata: MetadataSpec
    spec: PolicySpec
    status: Any = None


class ExceptionSpec(SpecModel):
    """Suppresses finding codes of one policy for some pods until a given time."""

    policy_name: Name
    codes: tuple[FindingCode, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    match: ScopeSpec
    reason: Reason
    approved_by: Sentence = ""
    expiration_time: Time


class GPUPolicyException(SpecModel):
    """An exemption as an object of its own."""

    api_version: ApiVersion
    kind: Literal["GPUPolicyException"]
    metadata: NamespacedMetadataSpec
    spec: ExceptionSpec
    status: Any = None
