"""GPUPolicyTest files to frozen cases: what is given, what comes in, what must come out.

Paths in a test file are relative to it; following them is the caller's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from webhook.documents.document import Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, SourceLocation
from webhook.policy.validation import UNREADABLE, document_kind, kind_error, validate_document, value_error
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException
from webhook.policy.written.policy_test import CaseSpec, ExpectSpec, GPUPolicyTest

POLICY_TEST_KIND = GPUPolicyTest.__name__
_IGNORED_KINDS = (GPUPolicy.__name__, GPUPolicyException.__name__)

PathOrManifest = str | Mapping[str, Any]
"""A file's path relative to the test file, or the object itself."""


class ExpectedDecision(msgspec.Struct, frozen=True):
    """What must come out; None: not compared.

    Attributes:
        codes: Exactly the codes of all enforce and warn findings, order ignored.
        audited: Exactly the codes of audit findings.
        patched: The object after the patch, compared whole.
        limits: By container name, its limits after the patch: exactly these GPU resources, and at least the others.
        unchanged: True: the patch is empty; False: it is not.
    """

    allowed: bool
    codes: tuple[str, ...] | None = None
    audited: tuple[str, ...] | None = None
    patched: PathOrManifest | None = None
    limits: Mapping[str, Mapping[str, str]] | None = None
    unchanged: bool | None = None


class PolicyTestCase(msgspec.Struct, frozen=True):
    """One case.

    Attributes:
        place: Where it stands in the file.
        now: The moment of the request; None: the file gives none.
        operation: "CREATE", "UPDATE", "DELETE" or "CONNECT".
        pod: The object under review, of any kind.
        namespace: Name of its namespace; "": the object's own, or "default".
        namespace_labels: All labels of the namespace, in place of the cluster's; None: those of the cluster.
        user: Username of the requester.
    """

    name: str
    location: SourceLocation
    now: datetime | None
    operation: str
    pod: PathOrManifest
    namespace: str
    namespace_labels: Mapping[str, str] | None
    user: str
    expect: ExpectedDecision


class PolicyTestFile(msgspec.Struct, frozen=True):
    """One GPUPolicyTest.

    Attributes:
        policies: Paths of policy files, relative to the test file.
        cluster: "demo", a path relative to the test file, or "": none given.
    """

    __test__ = False

    name: str
    location: SourceLocation
    policies: tuple[str, ...]
    cluster: str
    cases: tuple[PolicyTestCase, ...]


class TestFilesResult(NamedTuple):
    """What became of a file: its tests, and every fault in it."""

    tests: tuple[PolicyTestFile, ...]
    errors: tuple[PolicyFileError, ...]


def load_test_files(content: str | bytes, file: str) -> TestFilesResult:
    """Read every GPUPolicyTest of a file. Policies and exceptions in it are passed over."""
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
    problem = kind_error(document, (POLICY_TEST_KIND,))
    if problem is not None:
        errors.append(problem)
        return None
    written = validate_document(document, GPUPolicyTest, errors)
    repeated = _repeated_case_errors(document, written) if written is not None else []
    errors += repeated
    if written is None or repeated:
        return None
    return PolicyTestFile(
        name=written.metadata.name,
        location=document.locate(),
        policies=written.policies,
        cluster=written.given.cluster or "",
        cases=tuple(
            _build_test_case(case, document.locate(("cases", index)), written.given.now)
            for index, case in enumerate(written.cases)
        ),
    )


def _repeated_case_errors(document: Document, written: GPUPolicyTest) -> list[PolicyFileError]:
    names = [case.name for case in written.cases]
    return [
        value_error(document, ("cases", index, "name"), "be a name of its own", "another name")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


def _build_test_case(written: CaseSpec, place: SourceLocation, now: datetime | None) -> PolicyTestCase:
    return PolicyTestCase(
        name=written.name,
        location=place,
        now=written.given.now or now,
        operation=written.operation,
        pod=written.pod,
        namespace=written.namespace.name if written.namespace else "",
        namespace_labels=written.namespace.labels if written.namespace else None,
        user=written.user,
        expect=_build_expectation(written.expect),
    )


def _build_expectation(written: ExpectSpec) -> ExpectedDecision:
    return ExpectedDecision(
        allowed=written.allowed,
        codes=written.codes,
        audited=written.audited,
        patched=written.patched,
        limits=written.limits,
        unchanged=written.unchanged,
    )
