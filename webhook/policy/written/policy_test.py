"""The model of GPUPolicyTest."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, Strict

from webhook.policy.written.base import SpecModel, spec_error
from webhook.policy.written.kinds import MetadataSpec
from webhook.policy.written.match import OperationName
from webhook.policy.written.values import FindingCode, Labels, Name, Text, Time
from webhook.well_known import ApiVersion


def _validate_manifest(found: Any) -> Any:
    if isinstance(found, dict) or (isinstance(found, str) and found):
        return found
    raise spec_error("be the path of a file, or an object written here", "a path such as pods/one-gpu.yaml")


ManifestField = Annotated[str | dict[str, Any], PlainValidator(_validate_manifest)]
FilePath = Annotated[str, Strict(), Field(min_length=1)]
Flag = Annotated[bool, Strict()]


class GivenSpec(SpecModel):
    """Time and cluster of all cases."""

    now: Time | None = None
    cluster: FilePath | None = None


class CaseGivenSpec(SpecModel):
    """Overrides for one case."""

    now: Time | None = None


class CaseNamespaceSpec(SpecModel):
    """The namespace of the request."""

    name: Name
    labels: Labels | None = None


class ExpectSpec(SpecModel):
    """The expected decision. Fields that are not set are not compared.

    Attributes:
        codes: Exactly the codes of denials and warnings, in any order.
        audited: Exactly the codes of findings in audit mode.
        patched: The whole object after the patch.
        limits: Limits after the patch by container: exactly these GPU resources, and at least the others.
        unchanged: Whether the patch is empty.
    """

    allowed: Flag
    codes: tuple[FindingCode, ...] | None = None
    audited: tuple[FindingCode, ...] | None = None
    patched: ManifestField | None = None
    limits: dict[Text, dict[Text, Annotated[str, Strict()]]] | None = None
    unchanged: Flag | None = None


class CaseSpec(SpecModel):
    """One case."""

    name: Annotated[str, Strict(), Field(min_length=1)]
    given: CaseGivenSpec = CaseGivenSpec()
    operation: OperationName = "CREATE"
    pod: ManifestField
    namespace: CaseNamespaceSpec | None = None
    user: Text = ""
    expect: ExpectSpec


class GPUPolicyTest(SpecModel):
    """One test file."""

    api_version: ApiVersion
    kind: Literal["GPUPolicyTest"]
    metadata: MetadataSpec
    policies: tuple[FilePath, ...] = Field(min_length=1)
    given: GivenSpec = GivenSpec()
    cases: tuple[CaseSpec, ...] = Field(min_length=1)
