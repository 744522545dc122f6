"""Load GPUPolicyTest files, and define their schema.

Paths in a test file are relative to it; the caller resolves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec
from pydantic import Field, PlainValidator, Strict, model_validator

from webhook.documents.document import Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, SourceLocation
from webhook.policy.validation import UNREADABLE, document_kind, kind_error, validate_document
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException, MetadataSpec
from webhook.policy.written.match import OperationName
from webhook.policy.written.values import (
    FindingCode,
    Labels,
    Name,
    SpecModel,
    Text,
    Time,
    require_unique_names,
    spec_error,
)
from webhook.well_known import ApiVersion


def _validate_manifest(value: Any) -> Any:
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
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
    """One case.

    Attributes:
        pod: The object under review, of any kind.
        namespace: Its labels replace those in the cluster.
        user: Username of the requester.
    """

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

    @model_validator(mode="after")
    def _check_case_names(self) -> Self:
        require_unique_names([case.name for case in self.cases], "cases", "cases")
        return self


POLICY_TEST_KIND = GPUPolicyTest.__name__
_IGNORED_KINDS = (GPUPolicy.__name__, GPUPolicyException.__name__)

PathOrManifest = str | Mapping[str, Any]
"""A path relative to the test file, or the object itself."""


class PolicyTestCase(NamedTuple):
    """One test case, its location, and the time of its request; None if the file sets none."""

    spec: CaseSpec
    location: SourceLocation
    now: datetime | None


class PolicyTestFile(msgspec.Struct, frozen=True):
    """One GPUPolicyTest.

    Attributes:
        policies: Paths of policy files, relative to the test file.
        cluster: "demo", a path relative to the test file, or "" for none.
    """

    __test__ = False

    name: str
    location: SourceLocation
    policies: tuple[str, ...]
    cluster: str
    cases: tuple[PolicyTestCase, ...]


class TestFilesResult(NamedTuple):
    """The tests of a file, and its errors."""

    tests: tuple[PolicyTestFile, ...]
    errors: tuple[PolicyFileError, ...]


def load_test_files(content: str | bytes, file: str) -> TestFilesResult:
    """Load every GPUPolicyTest of a file. Policies and exceptions in it are ignored."""
    try:
        documents = read_documents(content, file)
    except DocumentError as error:
        return TestFilesResult((), (PolicyFileError(error.location, error.message, UNREADABLE),))
    errors: list[PolicyFileError] = []
    tests = [
        _parse_test_file(document, errors) for document in documents if document_kind(document) not in _IGNORED_KINDS
    ]
    return TestFilesResult(tuple(test for test in tests if test is not None), tuple(errors))


def _parse_test_file(document: Document, errors: list[PolicyFileError]) -> PolicyTestFile | None:
    error = kind_error(document, (POLICY_TEST_KIND,))
    if error is not None:
        errors.append(error)
        return None
    test = validate_document(document, GPUPolicyTest, errors)
    if test is None:
        return None
    return PolicyTestFile(
        name=test.metadata.name,
        location=document.locate(),
        policies=test.policies,
        cluster=test.given.cluster or "",
        cases=tuple(
            PolicyTestCase(case, document.locate(("cases", index)), case.given.now or test.given.now)
            for index, case in enumerate(test.cases)
        ),
    )
