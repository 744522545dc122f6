"""The GitHub Action and the pre-commit hooks, over the example repository."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Copy the example repository."""
    return Path(shutil.copytree(ROOT / "examples" / "gitops", tmp_path / "gitops"))


def run(command: str, repository: Path, tmp_path: Path, **env: str) -> int:
    """Run a command by bash as GitHub does, with a `rightslice` that is this checkout's."""
    program = tmp_path / "bin" / "rightslice"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m webhook.cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    variables = {"PATH": path, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(shell, cwd=repository, env=variables, timeout=120, check=False).returncode


def action_results(repository: Path, tmp_path: Path) -> list[int]:
    """Return the exit codes of the action's steps after the installation, with the default inputs."""
    return [run(step["run"], repository, tmp_path, **environment(step)) for step in ACTION["runs"]["steps"][1:]]


def environment(step: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a step; each is one input."""
    names = {key: value.removeprefix("${{ inputs.").removesuffix(" }}") for key, value in step["env"].items()}
    return {key: ACTION["inputs"][name]["default"] for key, name in names.items()}


def hook_result(name: str, repository: Path, tmp_path: Path) -> int:
    """Return the exit code of a hook, which gets the manifests unless it takes no file names."""
    files = ["deploy/train.yaml"] if HOOKS[name].get("pass_filenames", True) else []
    return run(shlex.join([*shlex.split(HOOKS[name]["entry"]), *files]), repository, tmp_path)


def replace(file: Path, old: str, new: str) -> None:
    """Replace a text that the file has."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_example_passes_the_action_and_both_hooks(repository: Path, tmp_path: Path) -> None:
    assert action_results(repository, tmp_path) == [0, 0]
    assert [hook_result(name, repository, tmp_path) for name in HOOKS] == [0, 0]


def test_a_manifest_that_a_policy_denies_fails_the_check(repository: Path, tmp_path: Path) -> None:
    replace(repository / "deploy" / "train.yaml", "nvidia.com/gpu: 2", "nvidia.com/gpu: 3")
    assert action_results(repository, tmp_path) == [1, 0]
    assert hook_result("rightslice-check", repository, tmp_path) == 1


def test_a_policy_that_allows_too_much_fails_its_test(repository: Path, tmp_path: Path) -> None:
    replace(repository / "policies" / "gpus-per-pod.yaml", "[1, 2, 4, 8]", "[1, 2, 3, 4, 8]")
    assert action_results(repository, tmp_path) == [0, 1]
    assert hook_result("rightslice-test", repository, tmp_path) == 1


def test_the_example_uses_hooks_that_exist() -> None:
    config = yaml.safe_load((ROOT / "examples" / "gitops" / ".pre-commit-config.yaml").read_text())
    assert {hook["id"] for hook in config["repos"][0]["hooks"]} == set(HOOKS)
