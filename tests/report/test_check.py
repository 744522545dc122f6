"""Output of `check` for people: findings, wide and names."""

from __future__ import annotations

import msgspec
import pytest

from tests.report.sample import AUDITED, DENIED, EVERYTHING, HELM, RIGHT_SIZED, THREE, WARNED, checked, located
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.report.check import OBJECTS, check_lines, check_summary_line, finding_lines, object_name
from webhook.report.results import CheckResult, CheckVerdict, decision_verdict, summarize_results
from webhook.report.text import TextStyle


def test_a_finding_has_location_message_and_fix() -> None:
    assert list(finding_lines(located(THREE), DENIED.title)) == [
        "deploy/train.yaml:31:31  deny  GPU-L102  Pod team-vision/train-0",
        "  spec.containers[0].resources.limits['nvidia.com/gpu']: must be one of 1, 2, 4, 8 (found 3)",
        "  Write 4, or 2.  (research-baseline, policies/research-baseline.yaml:48:9)",
    ]


def test_a_finding_of_no_policy_and_without_a_fix_takes_two_lines() -> None:
    assert len(list(finding_lines(located(Finding("GPU-R102", PolicyMode.AUDIT, (), "said")), "Pod a/b"))) == 2


def test_every_finding_and_every_invalid_file_is_printed() -> None:
    lines = "\n".join(check_lines(EVERYTHING))
    assert "deploy/broken.yaml:2:5  error  must be YAML" in lines
    assert "chart/pod.yaml:3:1  skip  a template" in lines
    assert [word in lines for word in ("  deny  GPU-L102", "  warn  GPU-S201", "  note  GPU-R102")] == [True] * 3


def test_milder_findings_can_be_omitted() -> None:
    assert "GPU-R102" not in "\n".join(check_lines(EVERYTHING, least=PolicyMode.WARN))


def test_color_is_added_and_never_replaces_a_word() -> None:
    painted = "\n".join(check_lines([DENIED], lambda text, style: f"<{style}>{text}</>"))
    assert f"<{TextStyle.BAD}>deny</>" in painted


SUMMARIES = {
    "nothing": ([], "0 objects."),
    "one allowed": ([checked(CheckVerdict.ALLOWED)], "1 object: 1 allowed."),
    "some of everything": (
        EVERYTHING,
        "5 objects: 1 denied, 1 warned, 1 allowed, 1 skipped, 1 invalid. GPUs requested 7, after 6.14, saved 0.86. "
        "1 exemption in use (nccl-debug, ends 2026-12-01).",
    ),
}


@pytest.mark.parametrize(("results", "want"), SUMMARIES.values(), ids=SUMMARIES)
def test_summary(results: list[CheckResult], want: str) -> None:
    assert check_summary_line(summarize_results(results)) == want


def test_wide_has_one_row_per_object() -> None:
    rows = OBJECTS.to_lines([DENIED, HELM])
    assert rows[0].split() == ["VERDICT", "KIND", "NAMESPACE", "NAME", "GPUS", "AFTER", "CODES", "LOCATION", "MESSAGE"]
    assert rows[1].split()[:8] == [
        "denied", "Pod", "team-vision", "train-0", "3", "3", "GPU-L102", "deploy/train.yaml:1:1"
    ]  # fmt: skip
    assert rows[2].split()[:8] == ["skipped", "-", "-", "-", "-", "-", "-", "chart/pod.yaml:3:1"]


def test_names_are_those_of_kubectl() -> None:
    assert object_name(DENIED) == "pod/train-0"


def test_the_verdict_is_the_strictest_finding() -> None:
    assert [each.verdict for each in (DENIED, WARNED, RIGHT_SIZED)] == [
        decision_verdict(each.decision) for each in (DENIED, WARNED, RIGHT_SIZED)
    ]
    assert decision_verdict(checked(CheckVerdict.ALLOWED, AUDITED).decision) is CheckVerdict.ALLOWED


def test_a_workload_whose_pods_are_denied_is_shown_as_denied() -> None:
    finding = msgspec.structs.replace(THREE, mode=PolicyMode.WARN, denies_pods=True)
    result = checked(CheckVerdict.DENIED, finding)
    assert decision_verdict(result.decision) is CheckVerdict.DENIED
    assert next(check_lines([result], least=PolicyMode.ENFORCE)).split()[1] == "deny"
