"""`policy lint` warns of policies that take too long to evaluate."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from tests.example_cluster import policy

MANY = 800


def test_lint_names_the_costliest_policies_and_the_limit(rightslice: Run, tmp_path: Path) -> None:
    texts = (policy("mode: enforce\nsecurity: {deny: [privileged]}", f"p{number}") for number in range(MANY))
    (tmp_path / "many.yaml").write_text("---\n".join(texts), encoding="utf-8")
    ran = rightslice("policy", "lint", str(tmp_path))

    assert ran.code == 0
    assert f"note: {MANY} policies may match one pod" in ran.err
    assert "the server stops a review after 45 ms" in ran.err
    assert "Costliest: p" in ran.err
