"""GPUPolicyTest files to frozen cases: what is given, what comes in, what must come out.

Paths in a test file are relative to it; following them is the caller's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from webhook.documents.places import Document
from webhook.documents.reading import read
from webhook.errors import DocumentError, Place, PolicyFileError
from webhook.policy.explaining import value_fault
from webhook.policy.validating import UNREADABLE, kind_of, validated, wrong_kind
from webhook.policy.written.cases import GPUPolicyTest, WrittenCase, WrittenExpect
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException

KIND = GPUPolicyTest.__name__
_PASSED_OVER = (GPUPolicy.__name__, GPUPolicyException.__name__)

PathOrObject = str | Mapping[str, Any]
"""A file's path relative to the test file, or the object itself."""


class Expect(msgspec.Struct, frozen=True):
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
    patched: PathOrObject | None = None
    limits: Mapping[str, Mapping[str, str]] | None = None
    unchanged: bool | None = None


class Case(msgspec.Struct, frozen=True):
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
    place: Place
    now: datetime | None
    operation: str
    pod: PathOrObject
    namespace: str
    namespace_labels: Mapping[str, str] | None
    user: str
    expect: Expect


class TestFile(msgspec.Struct, frozen=True):
    """One GPUPolicyTest.

    Attributes:
        policies: Paths of policy files, relative to the test file.
        cluster: "demo", a path relative to the test file, or "": none given.
    """

    __test__ = False

    name: str
    place: Place
    policies: tuple[str, ...]
    cluster: str
    cases: tuple[Case, ...]


class ReadTests(NamedTuple):
    """What became of a file: its tests, and every fault in it."""

    tests: tuple[TestFile, ...]
    errors: tuple[PolicyFileError, ...]


def read_tests(content: str | bytes, file: str) -> ReadTests:
    """Read every GPUPolicyTest of a file. Policies and exceptions in it are passed over."""
    try:
        documents = read(content, file)
    except DocumentError as error:
        return ReadTests((), (PolicyFileError(error.place, error.sentence, UNREADABLE),))
    errors: list[PolicyFileError] = []
    tests = [_test(document, errors) for document in documents if kind_of(document) not in _PASSED_OVER]
    return ReadTests(tuple(test for test in tests if test is not None), tuple(errors))


def _test(document: Document, errors: list[PolicyFileError]) -> TestFile | None:
    problem = wrong_kind(document, (KIND,))
    if problem is not None:
        errors.append(problem)
        return None
    written = validated(document, GPUPolicyTest, errors)
    repeated = _repeated_names(document, written) if written is not None else []
    errors += repeated
    if written is None or repeated:
        return None
    return TestFile(
        name=written.metadata.name,
        place=document.place(),
        policies=written.policies,
        cluster=written.given.cluster or "",
        cases=tuple(
            _case(case, document.place(("cases", index)), written.given.now) for index, case in enumerate(written.cases)
        ),
    )


def _repeated_names(document: Document, written: GPUPolicyTest) -> list[PolicyFileError]:
    names = [case.name for case in written.cases]
    return [
        value_fault(document, ("cases", index, "name"), "be a name of its own", "another name")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


def _case(written: WrittenCase, place: Place, now: datetime | None) -> Case:
    return Case(
        name=written.name,
        place=place,
        now=written.given.now or now,
        operation=written.operation,
        pod=written.pod,
        namespace=written.namespace.name if written.namespace else "",
        namespace_labels=written.namespace.labels if written.namespace else None,
        user=written.user,
        expect=_expect(written.expect),
    )


def _expect(written: WrittenExpect) -> Expect:
    return Expect(
        allowed=written.allowed,
        codes=written.codes,
        audited=written.audited,
        patched=written.patched,
        limits=written.limits,
        unchanged=written.unchanged,
    )
