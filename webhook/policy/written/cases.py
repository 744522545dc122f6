"""GPUPolicyTest as an admin writes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, Strict

from webhook.policy.written.base import Written, fault
from webhook.policy.written.kinds import WrittenMetadata
from webhook.policy.written.matching import OperationName
from webhook.policy.written.values import FindingCode, Labels, Name, Text, Time


def _path_or_object(found: Any) -> Any:
    if isinstance(found, dict) or (isinstance(found, str) and found):
        return found
    raise fault("be the path of a file, or an object written here", "a path such as pods/one-gpu.yaml")


PathOrObject = Annotated[str | dict[str, Any], PlainValidator(_path_or_object)]
FilePath = Annotated[str, Strict(), Field(min_length=1)]
Flag = Annotated[bool, Strict()]


class Given(Written):
    """The world a case happens in."""

    now: Time | None = None
    cluster: FilePath | None = None


class CaseGiven(Written):
    """What one case changes of it."""

    now: Time | None = None


class CaseNamespace(Written):
    """The namespace of the request."""

    name: Name
    labels: Labels | None = None


class WrittenExpect(Written):
    """What must come out. What is not written is not compared."""

    allowed: Flag
    codes: tuple[FindingCode, ...] | None = None
    audited: tuple[FindingCode, ...] | None = None
    patched: PathOrObject | None = None
    limits: dict[Text, dict[Text, Annotated[str, Strict()]]] | None = None
    unchanged: Flag | None = None


class WrittenCase(Written):
    """One case."""

    name: Annotated[str, Strict(), Field(min_length=1)]
    given: CaseGiven = CaseGiven()
    operation: OperationName = "CREATE"
    pod: PathOrObject
    namespace: CaseNamespace | None = None
    user: Text = ""
    expect: WrittenExpect


class GPUPolicyTest(Written):
    """One test file."""

    api_version: Literal["rightslice.dev/v1alpha1"]
    kind: Literal["GPUPolicyTest"]
    metadata: WrittenMetadata
    policies: tuple[FilePath, ...] = Field(min_length=1)
    given: Given = Given()
    cases: tuple[WrittenCase, ...] = Field(min_length=1)
