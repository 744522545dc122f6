"""`serve extender`: fair shares that cannot be used are rejected at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: {name}}}
spec:
  topology: {{nvlink: preferred}}
"""
SHARED = POLICY.replace("topology: {{nvlink: preferred}}", "fairShare: {{by: queue}}")

CASES = {
    "no policy has one": (POLICY.format(name="a"), "must have one policy with a fairShare, found none."),
    "two have one": (
        f"{SHARED.format(name='a')}---\n{SHARED.format(name='b')}",
        "must have one policy with a fairShare, found a, b.",
    ),
    "not a policy": ("kind: [", "the policies cannot be used"),
}


@pytest.mark.parametrize(("text", "want"), CASES.values(), ids=CASES)
def test_policies_without_a_single_fair_share_are_rejected(
    text: str, want: str, rightslice: Run, tmp_path: Path
) -> None:
    file = tmp_path / "shares.yaml"
    file.write_text(text, encoding="utf-8")

    result = rightslice("serve", "extender", "--cluster", "live", "--self-signed", "--fair-share", str(file))

    assert result.code == 2
    assert want in result.err


def test_fair_shares_need_a_live_cluster(rightslice: Run) -> None:
    result = rightslice("serve", "extender", "--cluster", "demo", "--self-signed", "--fair-share", "x.yaml")

    assert result.code == 2
    assert "--fair-share: must be used with --cluster live" in result.err
