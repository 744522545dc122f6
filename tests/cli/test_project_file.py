"""`.rightslice.yaml`: defaults of commands for a repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import FILES
from tests.conftest import ROOT

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {rightslice.dev/gpu-memory: 8Gi}}
spec: {containers: [{name: a, image: a, resources: {limits: {nvidia.com/gpu: 3}}}]}
"""
POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: pairs}
spec: {mode: warn, limits: {perPod: [{resource: nvidia.com/gpu, allowed: [1, 2]}]}}
"""


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """Create a repository with a policy that warns about the pod; return the folder of the pod, two levels below."""
    folder = tmp_path / "apps" / "deploy"
    folder.mkdir(parents=True)
    (folder / "pod.yaml").write_text(POD)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "pairs.yaml").write_text(POLICY)
    return folder


def check(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `check` on the pod, in its folder."""
    return run(folder, "check", "pod.yaml", *flags)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    command = [sys.executable, "-m", "webhook.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env={"PYTHONPATH": str(ROOT)}
    )


def write_defaults(deploy: Path, text: str) -> Path:
    """Write the file into the root of the repository."""
    file = deploy.parents[1] / ".rightslice.yaml"
    file.write_text(text)
    return file


def test_policies_and_the_exit_code_are_those_of_the_file_above(deploy: Path) -> None:
    file = write_defaults(deploy, "policies: [policies]\nfailOn: warn\n")
    ran = check(deploy)
    assert "Policies: pairs " in ran.stdout
    assert f"note: defaults of {file}" in ran.stderr
    assert ran.returncode == 1


def test_a_cluster_is_a_path_relative_to_the_file(deploy: Path) -> None:
    write_defaults(deploy, "cluster: missing.yaml\n")
    assert f"{deploy.parents[1] / 'missing.yaml'}: must be a YAML or JSON file" in check(deploy).stderr


def test_a_cluster_may_be_the_example(deploy: Path) -> None:
    write_defaults(deploy, "policies: [policies]\ncluster: demo\n")
    assert check(deploy).returncode == 0


def test_flags_override_the_file(deploy: Path) -> None:
    write_defaults(deploy, "policies: [missing]\nfailOn: warn\n")
    ran = check(deploy, "--policies", "../../policies", "--fail-on", "deny")
    assert (ran.returncode, ran.stderr.count("missing")) == (0, 0)


def test_a_command_without_these_flags_ignores_the_file(deploy: Path) -> None:
    write_defaults(deploy, "policys: 1\n")
    ran = run(deploy, "policy", "new", "research")
    assert (ran.returncode, "defaults of" in ran.stderr) == (0, False)


def test_policy_lint_reads_the_policies_of_the_file_and_says_so(deploy: Path) -> None:
    write_defaults(deploy, "policies: [policies, missing-fields.yaml]\n")
    broken = deploy.parents[1] / "missing-fields.yaml"
    broken.write_text(POLICY.replace("pairs", "broken").replace("perPod", "perPods"))
    ran = run(deploy, "policy", "lint")
    assert f"{broken}:4:" in ran.stdout
    assert f"2 files of {deploy.parents[1] / 'policies'}, {broken}: 1 error" in ran.stderr
    assert ran.returncode == 1


def test_a_named_policy_is_linted_instead_of_those_of_the_file(deploy: Path) -> None:
    write_defaults(deploy, "policies: [missing]\n")
    ran = run(deploy, "policy", "lint", "../../policies/pairs.yaml")
    assert (ran.returncode, "../../policies/pairs.yaml: no errors" in ran.stderr) == (0, True)


def test_policy_lint_without_policies_says_that_it_reads_the_library(deploy: Path) -> None:
    ran = run(deploy, "policy", "lint")
    assert "note: no policies are named or configured, and there is no folder policies: reads the policy" in ran.stderr
    assert ran.returncode == 0


@pytest.mark.parametrize("arguments", [("list", "-o", "name"), ("show", "pairs", "-o", "jsonpath={.metadata.name}")])
def test_policy_list_and_show_read_the_policies_of_the_file(deploy: Path, arguments: tuple[str, ...]) -> None:
    write_defaults(deploy, "policies: [policies]\n")
    assert run(deploy, "policy", *arguments).stdout.strip().removeprefix("gpupolicy.rightslice.dev/") == "pairs"


SNAPSHOT = "apiVersion: v1\nkind: Node\nmetadata: {name: gpu-1}\nstatus: {allocatable: {nvidia.com/gpu: 1}}\n"
ON_THE_CLUSTER = {
    "capacity": (["capacity", "-o", "name"], "node/gpu-1\n"),
    "capacity of a machine": (["capacity", "--links", str(FILES / "room/dgx-1.txt"), "-o", "name"], ""),
    "lint": (["lint"], ""),
    "lint of a file": (["lint", "pod.yaml"], ""),
}


@pytest.mark.parametrize(("arguments", "out"), ON_THE_CLUSTER.values(), ids=ON_THE_CLUSTER)
def test_the_cluster_of_the_file_is_read_where_no_other_input_is_named(
    deploy: Path, arguments: list[str], out: str
) -> None:
    write_defaults(deploy, "cluster: cluster.yaml\n")
    (deploy.parents[1] / "cluster.yaml").write_text(SNAPSHOT)
    command = [sys.executable, "-m", "webhook.cli", *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=deploy, env={"PYTHONPATH": str(ROOT)}
    )
    assert (ran.returncode, ran.stdout.strip("\n"), "current context" in ran.stderr) == (0, out.strip("\n"), False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "policys: [a]\n",
            ":1:1  error  policys: must be a field of this file, found 'policys'. Did you mean policies?",
        ),
        ("failOn: always\n", ":1:9  error  failOn: must be deny, warn, skipped or never, found 'always'"),
        ("- policies\n", ": must contain one map. Write policies: [policies/]"),
        ("policies: [\n", ":2:1: "),
    ],
)
def test_an_invalid_file_ends_the_command_with_the_place(deploy: Path, text: str, message: str) -> None:
    file = write_defaults(deploy, text)
    ran = check(deploy)
    assert f"{file}{message}" in ran.stderr
    assert ran.returncode == 2
