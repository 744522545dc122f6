"""Results that the tests of every report share."""

from __future__ import annotations

from webhook.errors import Place
from webhook.model.decisions import Decision, add
from webhook.model.findings import Exempted, Finding
from webhook.model.modes import Mode
from webhook.model.paths import Path
from webhook.report.results import Checked, Located, Verdict

GPU: Path = ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu")
THREE = Finding(
    "GPU-L102", Mode.ENFORCE, GPU, "must be one of 1, 2, 4, 8 (found 3)", "Write 4, or 2.", "research-baseline"
)
PRIVILEGED = Finding("GPU-S201", Mode.WARN, ("spec",), "must not be privileged", "Remove it.", "guard")
TRIAL = Finding("GPU-R102", Mode.AUDIT, (), "could be nvidia.com/mig-1g.10gb", "", "trial")


def located(finding: Finding, line: int = 31, column: int = 31) -> Located:
    """A finding in deploy/train.yaml."""
    return Located(finding, Place("deploy/train.yaml", line, column), Place("policies/research-baseline.yaml", 48, 9))


def checked(
    verdict: Verdict, *findings: Finding, name: str = "train-0", decision: Decision | None = None, reason: str = ""
) -> Checked:
    """A Pod of deploy/train.yaml."""
    return Checked(
        place=Place("deploy/train.yaml", 1, 1),
        api_version="v1",
        kind="Pod",
        namespace="team-vision",
        name=name,
        verdict=verdict,
        findings=tuple(map(located, findings)),
        decision=decision
        or Decision(findings=findings, touches_gpus=True, gpu_milli_before=3000, gpu_milli_after=3000),
        reason=reason,
    )


DENIED = checked(Verdict.DENIED, THREE)
WARNED = checked(Verdict.WARNED, PRIVILEGED, TRIAL, name="shell")
SHAPED = checked(
    Verdict.ALLOWED,
    name="serve",
    decision=Decision(
        patch=(add(("metadata", "labels"), {"a": "b"}),),
        gpu_milli_before=1000,
        gpu_milli_after=143,
        touches_gpus=True,
        exempted=(Exempted(THREE, "nccl-debug", "2026-12-01T00:00:00+00:00"),),
    ),
)
BROKEN = Checked(Place("deploy/broken.yaml", 2, 5), "", "", "", "", Verdict.SKIPPED, reason="must be YAML", broken=True)
HELM = Checked(Place("chart/pod.yaml", 3, 1), "", "", "", "", Verdict.SKIPPED, reason="a template")
EVERYTHING = (DENIED, WARNED, SHAPED, BROKEN, HELM)
