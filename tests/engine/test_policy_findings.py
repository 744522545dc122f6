"""Settle: the mode of a finding, and which of several equal findings remains."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.builders import make_pod
from tests.example_cluster import request_of
from webhook.engine.policy_findings import PolicyFinding, SectionFinding
from webhook.engine.settle import settle
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import parse_pod

PATH = ("spec", "containers", 0)
POD = make_pod().build()
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def settle_violations(*violations: SectionFinding) -> tuple[Finding, ...]:
    """Return the findings of a decision without exemptions."""
    findings, exempted = settle(violations, (), request_of(POD), parse_pod(POD), NOW)
    assert exempted == ()
    return findings


def violation(mode: PolicyMode, policy: str, message: str = "m", code: str = "GPU-S101") -> SectionFinding:
    """Return a finding reported for a policy's section."""
    return (mode, policy), PolicyFinding(code, PATH, message)


def finding(mode: PolicyMode, policy: str, message: str = "m", code: str = "GPU-S101") -> Finding:
    """Return the finding of the decision for the same report."""
    return Finding(code, mode, PATH, message, policy=policy)


@pytest.mark.parametrize("mode", list(PolicyMode))
@pytest.mark.parametrize("at_most", list(PolicyMode))
def test_a_finding_is_never_stricter_than_its_section_or_its_maximum_mode(
    mode: PolicyMode, at_most: PolicyMode
) -> None:
    found = settle_violations(((mode, "p"), PolicyFinding("GPU-T201", PATH, "m", "f", at_most, "Word")))
    assert found == (Finding("GPU-T201", min(mode, at_most), PATH, "m", "f", "p", reason="Word"),)


def test_the_strictest_of_equal_findings_replaces_the_first() -> None:
    found = settle_violations(
        violation(PolicyMode.AUDIT, "a"),
        violation(PolicyMode.WARN, "a", code="GPU-S102"),
        violation(PolicyMode.ENFORCE, "b"),
        violation(PolicyMode.WARN, "c"),
    )
    assert found == (finding(PolicyMode.ENFORCE, "b"), finding(PolicyMode.WARN, "a", code="GPU-S102"))


def test_the_first_of_two_equally_strict_findings_is_reported() -> None:
    found = settle_violations(violation(PolicyMode.WARN, "a"), violation(PolicyMode.WARN, "b"))
    assert found == (finding(PolicyMode.WARN, "a"),)


def test_findings_with_different_messages_are_both_reported() -> None:
    found = settle_violations(
        violation(PolicyMode.WARN, "a", "at most 2"), violation(PolicyMode.WARN, "b", "at most 4")
    )
    assert found == (finding(PolicyMode.WARN, "a", "at most 2"), finding(PolicyMode.WARN, "b", "at most 4"))


def test_of_many_findings_of_one_kind_fifty_are_reported_and_the_others_counted() -> None:
    many = [((PolicyMode.WARN, "a"), PolicyFinding("GPU-S101", (*PATH, index), "m")) for index in range(10_000)]
    *listed, last = settle_violations(*many)
    assert [found.path[-1] for found in listed] == list(range(50))
    assert (last.code, last.mode, last.message) == ("GPU-S101", PolicyMode.WARN, "and 9950 more like this")


def test_a_denial_is_never_among_the_findings_that_are_only_counted() -> None:
    many = [((PolicyMode.WARN, "a"), PolicyFinding("GPU-S101", (*PATH, index), "m")) for index in range(10_000)]
    denial = (PolicyMode.ENFORCE, "b"), PolicyFinding("GPU-S101", (*PATH, 10_000), "m")
    capped = (PolicyMode.ENFORCE, "b"), PolicyFinding("GPU-S101", (*PATH, 9), "m", "", PolicyMode.AUDIT)
    found = settle_violations(*many, *[capped] * 60, denial)
    assert [each.path[-1] for each in found if each.mode is PolicyMode.ENFORCE] == [10_000]
