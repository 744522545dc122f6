"""Output of `demo` for one object."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders import make_pod
from tests.report.sample import THREE, located
from webhook.cli.commands.demo import WIDTH, DemoResult, demo_lines, demo_summary, denial_reasons, finding_for_message
from webhook.errors import SourceLocation
from webhook.model.decisions import Decision
from webhook.report.results import CheckResult, CheckVerdict

STORED = make_pod("train").gpus(3).build()
RIGHT_SIZED = (
    make_pod("train").gpus(3).spec(runtimeClassName="nvidia").annotate("rightslice.dev/decision", "{}").build()
)
DENIAL = (
    "2 problems in Pod team/train (policy research)\n[GPU-L102] spec: must be one of 1, 2 (found 3). Write 4, or 2."
)


def one(**changes: Any) -> DemoResult:
    checked = CheckResult(
        location=SourceLocation("examples/pods/train.yaml", 2, 1),
        api_version="v1",
        kind=changes.pop("kind", "Pod"),
        namespace="team",
        name="train",
        verdict=CheckVerdict.ALLOWED,
        findings=(located(THREE),),
        decision=Decision(gpu_milli_before=3000),
        stored=STORED,
    )
    given: dict[str, Any] = {
        "patched": STORED,
        "denied": "",
        "warnings": (),
        "gpu_milli_before": 3000,
        "gpu_milli_after": 3000,
    }
    return DemoResult(result=checked, milliseconds=(1.26, 0.5), **(given | changes))


def test_a_changed_pod() -> None:
    assert list(demo_lines(one(patched=RIGHT_SIZED, gpu_milli_after=143))) == [
        "Pod team/train  changed  examples/pods/train.yaml:2:1",
        "  requests 3 GPUs, gets 0.14 (main: nvidia.com/gpu 3)",
        "  + spec.runtimeClassName: nvidia",
        "  /mutate 1.3 ms, /validate 0.5 ms",
    ]


def test_a_denied_pod_has_reasons_and_no_changes() -> None:
    assert list(demo_lines(one(patched=RIGHT_SIZED, denied=DENIAL))) == [
        "Pod team/train  denied  examples/pods/train.yaml:2:1",
        "  requests 3 GPUs, denied (main: nvidia.com/gpu 3)",
        "  deny  GPU-L102  deploy/train.yaml:31:31",
        "    spec: must be one of 1, 2 (found 3). Write 4, or 2.",
        "  /mutate 1.3 ms, /validate 0.5 ms",
    ]


def test_a_warning_of_both_endpoints_is_printed_once() -> None:
    lines = list(demo_lines(one(warnings=("[GPU-T201] no node", "[GPU-T201] no node", "careful"))))
    assert lines[0].split("  ")[1] == "warned"
    assert lines[2:5] == ["  warn  GPU-T201  examples/pods/train.yaml:2:1", "    no node", "  warn  careful"]


def test_an_unchanged_pod() -> None:
    assert next(iter(demo_lines(one()))).split("  ")[1] == "unchanged"


def test_long_messages_fit_a_terminal() -> None:
    assert max(map(len, demo_lines(one(warnings=("[GPU-T201] " + "word " * 60,))))) <= WIDTH


@pytest.mark.parametrize(
    ("message", "want"),
    [("", []), ("no", ["no"]), (DENIAL, ["[GPU-L102] spec: must be one of 1, 2 (found 3). Write 4, or 2."])],
)
def test_denial_reasons(message: str, want: list[str]) -> None:
    assert denial_reasons(message) == want


def test_a_message_matches_the_finding_with_the_same_text() -> None:
    result = one().result
    for words in ("must be one of 1, 2, 4, 8 (found 3). Write 4.", "shortened…"):
        found = finding_for_message("GPU-L102", words, result)
        assert found is not None
        assert found.location.line == 31
    assert finding_for_message("GPU-T201", "no node", result) is None


def test_a_fix_that_the_server_omitted_is_printed() -> None:
    lines = list(demo_lines(one(warnings=("[GPU-L102] spec: must be one of 1, 2, 4, 8 (found 3).",))))
    assert lines[3] == "    spec: must be one of 1, 2, 4, 8 (found 3). Write 4, or 2."


def test_a_fix_that_the_server_sent_as_the_next_warning_is_printed_once() -> None:
    message, fix = "[GPU-L102] spec: must be one of 1, 2, 4, 8 (found 3).", "[GPU-L102] Write 4, or 2."
    lines = list(demo_lines(one(warnings=(message, fix))))
    assert lines == list(demo_lines(one(warnings=(message,))))


def test_totals_count_allowed_pods() -> None:
    every = [one(patched=RIGHT_SIZED, gpu_milli_after=1000), one(denied=DENIAL), one()]
    every += [one(kind="Deployment"), one(kind="ResourceClaim")]
    assert demo_summary(every) == [
        "3 pods: 2 allowed (1 changed, 1 unchanged), 1 denied.",
        "The allowed pods requested 6 GPUs and now get 4: 2 saved.",
        "The denied pods requested 3 GPUs.",
        "1 workload with warnings, not counted above.",
        "1 resource claim with warnings, not counted above.",
        "Median response time 1.3 ms.",
    ]
    assert demo_summary([])[0] == "0 pods: 0 allowed (0 changed, 0 unchanged), 0 denied."


def test_a_claim_has_no_amount_of_gpus() -> None:
    assert not any("request" in line for line in demo_lines(one(kind="ResourceClaim")) if "GPU-" not in line)


def test_the_description_comes_first() -> None:
    lines = list(demo_lines(one(description="A pod " * 20)))
    assert lines[1].startswith("  # A pod A pod")
    assert lines[2].startswith("  # ")
    assert max(map(len, lines)) <= WIDTH


def test_amounts() -> None:
    assert "  requests no GPU" in demo_lines(one(gpu_milli_before=0, gpu_milli_after=0))
    assert "  requests 1 GPU, gets 1 (main: nvidia.com/gpu 3)" in demo_lines(
        one(gpu_milli_before=1000, gpu_milli_after=1000)
    )
    workload = demo_lines(one(kind="Deployment", gpu_milli_after=429))
    assert "  its pods request 3 GPUs and will get 0.43" in workload
    denied = one(kind="Deployment")
    finding = located(msgspec.structs.replace(THREE, denies_pods=True))
    denied = msgspec.structs.replace(denied, result=msgspec.structs.replace(denied.result, findings=(finding,)))
    assert "  its pods request 3 GPUs and will be denied" in demo_lines(denied)
