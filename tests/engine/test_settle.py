"""Settle: what a section's mode makes of a remark, and which of several findings is heard."""

from __future__ import annotations

import pytest

from webhook.engine.violations import Violation, merge_duplicates, record_findings
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding

PATH = ("spec", "containers", 0)


@pytest.mark.parametrize("mode", list(PolicyMode))
@pytest.mark.parametrize("at_most", list(PolicyMode))
def test_a_remark_is_never_stricter_than_its_section_nor_than_it_can_be(mode: PolicyMode, at_most: PolicyMode) -> None:
    findings: list[Finding] = []
    record_findings(findings, (mode, "p"), [Violation("GPU-T201", PATH, "m", "f", at_most)])
    assert findings == [Finding("GPU-T201", min(mode, at_most), PATH, "m", "f", "p")]


def finding(mode: PolicyMode, policy: str, message: str = "m", code: str = "GPU-S101") -> Finding:
    """A finding at one place."""
    return Finding(code, mode, PATH, message, policy=policy)


def test_the_strictest_takes_the_place_of_the_first() -> None:
    other = finding(PolicyMode.WARN, "a", code="GPU-S102")
    heard = merge_duplicates(
        [finding(PolicyMode.AUDIT, "a"), other, finding(PolicyMode.ENFORCE, "b"), finding(PolicyMode.WARN, "c")]
    )
    assert heard == (finding(PolicyMode.ENFORCE, "b"), other)


def test_of_two_as_strict_the_first_speaks() -> None:
    assert merge_duplicates([finding(PolicyMode.WARN, "a"), finding(PolicyMode.WARN, "b")]) == (
        finding(PolicyMode.WARN, "a"),
    )


def test_findings_of_other_words_stand_beside_each_other() -> None:
    both = (finding(PolicyMode.WARN, "a", "at most 2"), finding(PolicyMode.WARN, "b", "at most 4"))
    assert merge_duplicates(both) == both
