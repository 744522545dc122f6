"""Answers that a new user misread: invalid values of flags, files without what a command reads, and denied pods."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run

GPU_POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: bypass, namespace: team-a}
spec:
  containers:
    - name: main
      image: cuda
      env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
"""
INVALID_VALUES = {
    "a choice": (
        ("check", "-", "--fail-on", "bad"),
        "error: --fail-on: must be one of deny, warn, skipped, never, found 'bad'",
    ),
    "a strategy": (
        ("place", "-f", "-", "--strategy", "best"),
        "error: --strategy: must be one of tab, fgd, most-allocated, default, found 'best'",
    ),
    "a number": (
        ("simulate", "--nodes", "demo", "--pods", "-", "--seed", "many"),
        "error: --seed: must be a valid integer, found 'many'",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), INVALID_VALUES.values(), ids=INVALID_VALUES)
def test_an_invalid_value_is_named_with_what_must_hold(
    rightslice: Run, arguments: tuple[str, ...], message: str
) -> None:
    run = rightslice(*arguments, stdin=GPU_POD)
    assert run.code == 2
    assert message in run.err
    assert "Value error" not in run.err


def test_the_message_of_a_denied_pod_is_the_denial(rightslice: Run) -> None:
    head, pod = rightslice("check", "-", "--cluster", "demo", "-o", "wide", stdin=GPU_POD).out.splitlines()[:2]
    assert pod.startswith("denied")
    assert pod[head.index("MESSAGE") :].startswith("NVIDIA_VISIBLE_DEVICES must be void, none or absent")


def test_lint_names_the_kinds_that_it_does_not_check(rightslice: Run) -> None:
    run = rightslice("lint", "-f", "-", stdin=GPU_POD)
    assert run.err.splitlines() == [
        "0 objects: no findings",
        "not checked: Pod. lint checks LimitRange, ResourceQuota",
    ]


def test_simulate_counts_denied_pods_apart_from_unschedulable_ones(rightslice: Run) -> None:
    table = rightslice("simulate", "--nodes", "demo", "--pods", "-", stdin=GPU_POD).out
    assert "0 pods placed, 1 denied, 0 unschedulable;" in table
    document = json.loads(rightslice("simulate", "--nodes", "demo", "--pods", "-", "-o", "json", stdin=GPU_POD).out)
    assert (document["denied"], document["steps"][-1]["unplaced"]) == (1, 1)
