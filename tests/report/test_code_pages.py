"""Pages of finding codes: every code has one, and a misspelled code is recognized."""

from __future__ import annotations

import pytest

from webhook.model.annotations import GPU_MEMORY_ANNOTATION
from webhook.model.codes import CODES
from webhook.model.decisions import AUDIT_MODE, DENIED, KeepReason
from webhook.report.code_pages import (
    GROUPS,
    REASON_TEXTS,
    closest_code,
    code_document,
    code_list,
    codes_markdown,
    find_reason,
    page_lines,
    reason_document,
)


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page_and_a_section(code: str) -> None:
    page = "\n".join(page_lines(code_document(code)))
    assert CODES[code].reason in page
    assert CODES[code].fix in page
    assert codes_markdown().count(f"### {code}\n") == 1
    assert f"{code}  {CODES[code].title}" in code_list()


def test_every_group_has_codes() -> None:
    assert {code[4] for code in CODES} == set(GROUPS)


@pytest.mark.parametrize(
    ("code", "want"),
    [("GPU-L12", "GPU-L102"), ("gpu-i1o2", "GPU-I102"), ("MultipleGPU", "MultipleGPUs"), ("hello", "")],
)
def test_closest_code(code: str, want: str) -> None:
    assert closest_code(code) == want


@pytest.mark.parametrize("reason", [*KeepReason, AUDIT_MODE, DENIED])
def test_every_reason_of_a_report_has_a_page(reason: str) -> None:
    assert find_reason(reason.upper()) == reason
    page = "\n".join(page_lines(reason_document(reason)))
    assert all(text[1:] in page for text in REASON_TEXTS[reason])


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        (KeepReason.NO_EVIDENCE, GPU_MEMORY_ANNOTATION),
        (KeepReason.PREALLOCATES, GPU_MEMORY_ANNOTATION),
        (KeepReason.RISK_TOO_HIGH, GPU_MEMORY_ANNOTATION),
        (KeepReason.NO_RIGHT_SIZING_POLICY, "rightSizing"),
    ],
)
def test_the_page_of_a_reason_names_what_would_change_it(reason: KeepReason, change: str) -> None:
    [fix] = [line for line in page_lines(reason_document(reason)) if line.startswith("Fix")]
    assert change in fix
