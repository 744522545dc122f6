"""Results shared by the tests of all reports."""

from __future__ import annotations

from webhook.errors import SourceLocation
from webhook.model.decisions import Decision, patch_add
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.findings import ExemptedFinding, Finding
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding

GPU: FieldPath = ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu")
THREE = Finding(
    "GPU-L102", PolicyMode.ENFORCE, GPU, "must be one of 1, 2, 4, 8 (found 3)", "Write 4, or 2.", "research-baseline"
)
PRIVILEGED = Finding("GPU-S201", PolicyMode.WARN, ("spec",), "must not be privileged", "Remove it.", "guard")
AUDITED = Finding("GPU-R102", PolicyMode.AUDIT, (), "could be nvidia.com/mig-1g.10gb", "", "audit")


def located(finding: Finding, line: int = 31, column: int = 31) -> LocatedFinding:
    """Return a finding in deploy/train.yaml."""
    return LocatedFinding(
        finding,
        SourceLocation("deploy/train.yaml", line, column),
        SourceLocation("policies/research-baseline.yaml", 48, 9),
    )


def checked(
    verdict: CheckVerdict, *findings: Finding, name: str = "train-0", decision: Decision | None = None, reason: str = ""
) -> CheckResult:
    """Return a result for the Pod of deploy/train.yaml."""
    return CheckResult(
        location=SourceLocation("deploy/train.yaml", 1, 1),
        api_version="v1",
        kind="Pod",
        namespace="team-vision",
        name=name,
        verdict=verdict,
        findings=tuple(map(located, findings)),
        decision=decision
        or Decision(findings=findings, involves_gpus=True, gpu_milli_before=3000, gpu_milli_after=3000),
        reason=reason,
    )


DENIED = checked(CheckVerdict.DENIED, THREE)
WARNED = checked(CheckVerdict.WARNED, PRIVILEGED, AUDITED, name="shell")
RIGHT_SIZED = checked(
    CheckVerdict.ALLOWED,
    name="serve",
    decision=Decision(
        patch=(patch_add(("metadata", "labels"), {"a": "b"}),),
        gpu_milli_before=1000,
        gpu_milli_after=143,
        involves_gpus=True,
        exempted=(ExemptedFinding(THREE, "nccl-debug", "2026-12-01T00:00:00+00:00"),),
    ),
)
BROKEN = CheckResult(
    SourceLocation("deploy/broken.yaml", 2, 5),
    "",
    "",
    "",
    "",
    CheckVerdict.SKIPPED,
    reason="must be YAML",
    invalid=True,
)
HELM = CheckResult(SourceLocation("chart/pod.yaml", 3, 1), "", "", "", "", CheckVerdict.SKIPPED, reason="a template")
EVERYTHING = (DENIED, WARNED, RIGHT_SIZED, BROKEN, HELM)
