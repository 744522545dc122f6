"""Settle: what a section's mode makes of a remark, and which of several findings is heard."""

from __future__ import annotations

import pytest

from webhook.engine.remarks import Remark
from webhook.engine.settle import hear, strictest
from webhook.model.findings import Finding
from webhook.model.modes import Mode

PATH = ("spec", "containers", 0)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("at_most", list(Mode))
def test_a_remark_is_never_stricter_than_its_section_nor_than_it_can_be(mode: Mode, at_most: Mode) -> None:
    findings: list[Finding] = []
    hear(findings, (mode, "p"), [Remark("GPU-T201", PATH, "m", "f", at_most)])
    assert findings == [Finding("GPU-T201", min(mode, at_most), PATH, "m", "f", "p")]


def finding(mode: Mode, policy: str, message: str = "m", code: str = "GPU-S101") -> Finding:
    """A finding at one place."""
    return Finding(code, mode, PATH, message, policy=policy)


def test_the_strictest_takes_the_place_of_the_first() -> None:
    other = finding(Mode.WARN, "a", code="GPU-S102")
    heard = strictest([finding(Mode.AUDIT, "a"), other, finding(Mode.ENFORCE, "b"), finding(Mode.WARN, "c")])
    assert heard == (finding(Mode.ENFORCE, "b"), other)


def test_of_two_as_strict_the_first_speaks() -> None:
    assert strictest([finding(Mode.WARN, "a"), finding(Mode.WARN, "b")]) == (finding(Mode.WARN, "a"),)


def test_findings_of_other_words_stand_beside_each_other() -> None:
    both = (finding(Mode.WARN, "a", "at most 2"), finding(Mode.WARN, "b", "at most 4"))
    assert strictest(both) == both
