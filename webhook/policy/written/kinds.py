"""GPUPolicy and GPUPolicyException as an admin writes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from webhook.policy.written.additions import WrittenInjection
from webhook.policy.written.base import Written
from webhook.policy.written.fairness import WrittenFairShare
from webhook.policy.written.matching import WrittenMatch, WrittenScope
from webhook.policy.written.quotas import WrittenQuotas
from webhook.policy.written.rollout import WrittenRollout
from webhook.policy.written.sections import (
    ModeName,
    WrittenCuda,
    WrittenLimits,
    WrittenRightSizing,
    WrittenSecurity,
    WrittenTopology,
)
from webhook.policy.written.values import MANY, FindingCode, LabelKey, Labels, Name, Reason, Sentence, Text, Time


class WrittenMetadata(Written):
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


class NamespacedMetadata(WrittenMetadata):
    """Metadata of an object that lives in a namespace."""

    namespace: Name | None = None


class WrittenExemption(Written):
    """Codes taken back inside a policy."""

    name: Name
    codes: tuple[FindingCode, ...] = Field(min_length=1, max_length=MANY)
    match: WrittenScope
    reason: Reason
    expiration_time: Time


class PolicySpec(Written):
    """A policy's sections. A section that is not written does not act."""

    description: Sentence = ""
    mode: ModeName = "audit"
    failure_policy: Literal["Fail", "Ignore"] = "Ignore"
    match: WrittenMatch = WrittenMatch()
    rollout: WrittenRollout | None = None
    fair_share: WrittenFairShare | None = None
    right_sizing: WrittenRightSizing | None = None
    limits: WrittenLimits | None = None
    quotas: WrittenQuotas | None = None
    injection: WrittenInjection | None = None
    topology: WrittenTopology | None = None
    cuda: WrittenCuda | None = None
    security: WrittenSecurity | None = None
    exemptions: tuple[WrittenExemption, ...] = Field(default=(), max_length=MANY)


class GPUPolicy(Written):
    """One policy."""

    api_version: Literal["rightslice.dev/v1alpha1"]
    kind: Literal["GPUPolicy"]
    metadata: WrittenMetadata
    spec: PolicySpec
    status: Any = None


class ExceptionSpec(Written):
    """Codes of one policy taken back, asked for by a team."""

    policy_name: Name
    codes: tuple[FindingCode, ...] = Field(min_length=1, max_length=MANY)
    match: WrittenScope
    reason: Reason
    approved_by: Sentence = ""
    expiration_time: Time


class GPUPolicyException(Written):
    """An exemption that lives in a file of its own."""

    api_version: Literal["rightslice.dev/v1alpha1"]
    kind: Literal["GPUPolicyException"]
    metadata: NamespacedMetadata
    spec: ExceptionSpec
    status: Any = None
