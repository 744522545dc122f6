"""The flag `--gpu-resource` of `install`, and what `policy lint` says about classes whose pods are not sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import Json
from tests.cli.conftest import Run
from tests.installing.test_sent_classes import OTHERS, SERVED, UNSENT, sending

LINTED = {
    "a snapshot without webhooks": ((), True),
    "a snapshot whose webhooks get no such pods": ((sending(),), True),
    "a snapshot whose webhooks get them": ((sending("example.com/gpu"),), False),
}


@pytest.mark.parametrize(("more", "noted"), LINTED.values(), ids=LINTED)
def test_policy_lint_of_a_snapshot_names_the_class(
    more: tuple[Json, ...], noted: bool, tmp_path: Path, rightslice: Run
) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("\n---\n".join(map(json.dumps, (SERVED, OTHERS, *more))), encoding="utf-8")

    result = rightslice("policy", "lint", "policies", "--cluster", str(cluster))

    note = f"note: {UNSENT}, so no policy applies to them: rightslice install --gpu-resource example.com/gpu, or"
    assert (note in result.err) is noted
    assert result.err.count("not sent") == noted


@pytest.mark.parametrize("name", ["gpu", "kubernetes.io/gpu", "example.com/x'||true||'"])
def test_a_name_that_no_extended_resource_has_is_rejected(name: str, rightslice: Run) -> None:
    result = rightslice("install", "-o", "yaml", "--gpu-resource", name)

    assert (result.code, result.out) == (2, "")
    assert "must be an extended resource outside of kubernetes.io, or a prefix and *, found" in result.err


def test_too_many_names_are_rejected(rightslice: Run) -> None:
    names = [flag for number in range(17) for flag in ("--gpu-resource", f"example.com/gpu-{number}")]

    assert "must be at most 16 names, found 17" in rightslice("install", "-o", "yaml", *names).err


def test_printed_manifests_have_the_names(rightslice: Run) -> None:
    printed = rightslice("install", "-o", "yaml", "--gpu-resource", "example.com/gpu", "--gpu-resource", "amd.com/*")

    assert "|| name == 'example.com/gpu' || name.startsWith('amd.com/')" in printed.out.replace("''", "'")
