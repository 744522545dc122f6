"""`.rightslice.yaml`: defaults of commands for a repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import FILES, all_commands
from tests.conftest import ROOT
from webhook.cli.project_file import FLAGS, default_flags

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
        command, capture_output=True, text=True, timeout=600, check=False, cwd=folder, env={"PYTHONPATH": str(ROOT)}
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


def test_policies_are_listed_of_the_file_and_not_of_its_cluster(deploy: Path) -> None:
    write_defaults(deploy, "policies: [policies]\ncluster: live\n")
    ran = run(deploy, "policy", "list", "-o", "name")
    assert (ran.returncode, ran.stdout) == (0, "gpupolicy.rightslice.dev/pairs\n"), ran.stderr


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
NODES_TRACE = "sn,cpu_milli,memory_mib,gpu,model\nnode-1,96000,393216,8,A100\n"
PODS_TRACE = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-1,12000,16384,1,500,,LS,Running,0,100,0
"""
KUEUE_CONFIG = """\
# Add to the Configuration of Kueue (config.kueue.x-k8s.io/v1beta2), and restart it:
resources:
  transformations:
    - input: nvidia.com/gpu
      strategy: Replace
      outputs:
        example.com/gpu-milli: 1000
# Then cover example.com/gpu-milli in ClusterQueues: 1000 is a whole GPU.
"""
ON_THE_CLUSTER = {
    "capacity": (["capacity", "-o", "name"], "node/gpu-1\n"),
    "capacity of a machine": (["capacity", "--links", str(FILES / "room/dgx-1.txt"), "-o", "name"], ""),
    "lint": (["lint"], ""),
    "lint of a file": (["lint", "pod.yaml"], ""),
    "simulate": (["simulate", "-f", "pod.yaml", "-o", "name"], "pod/a\n"),
    "simulate of a trace": (
        ["simulate", "--nodes", "nodes.csv", "--pods", "pods.csv", "-o", "jsonpath={..placed}"],
        "1",
    ),
    "policy diff": (["policy", "diff", "../../policies", "../../policies", "-o", "name"], ""),
    "policy lint": (["policy", "lint", "../../policies"], ""),
    "kueue config": (["kueue", "config"], KUEUE_CONFIG),
}


@pytest.mark.parametrize(("arguments", "out"), ON_THE_CLUSTER.values(), ids=ON_THE_CLUSTER)
def test_the_cluster_of_the_file_is_read_where_no_other_input_is_named(
    deploy: Path, arguments: list[str], out: str
) -> None:
    write_defaults(deploy, "policies: [policies]\ncluster: cluster.yaml\n")
    (deploy.parents[1] / "cluster.yaml").write_text(SNAPSHOT)
    (deploy / "nodes.csv").write_text(NODES_TRACE)
    (deploy / "pods.csv").write_text(PODS_TRACE)
    ran = run(deploy, *arguments)
    assert (ran.returncode, ran.stdout.strip("\n"), "current context" in ran.stderr) == (0, out.strip("\n"), False)


POLICY_TEST = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicyTest
metadata: {name: pairs}
policies: [pairs.yaml]
cases: [{name: three GPUs are a warning, pod: ../apps/deploy/pod.yaml, expect: {allowed: true}}]
"""


def test_policy_tests_are_those_beside_the_policies_of_the_file(deploy: Path) -> None:
    file = write_defaults(deploy, "policies: [policies]\n")
    (file.parent / "policies" / "pairs-test.yaml").write_text(POLICY_TEST)
    ran = run(deploy, "test", "-o", "jsonpath={..name}")
    assert (ran.returncode, ran.stdout) == (0, "three GPUs are a warning"), ran.stderr


def test_every_command_with_such_flags_has_the_defaults_of_the_file(deploy: Path) -> None:
    file = write_defaults(deploy, "policies: [policies]\ncluster: demo\n")
    ignored = []
    for words, command, _ in all_commands():
        if {flag for each in command.params for flag in each.opts} & FLAGS:
            defaults = default_flags(command, words, file, ["train-0"])
            for word in words:
                defaults = defaults.get(word, {})
            ignored += [" ".join(words)] if not defaults else []
    assert ignored == ["serve webhook", "serve extender"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "policys: [a]\n",
            ":1:1: policys: must be a field of this file, found 'policys'. Did you mean policies?",
        ),
        ("failOn: always\n", ":1:9: failOn: must be deny, warn, skipped or never, found 'always'"),
        ("- policies\n", ": must contain one map. Write policies: [policies/]"),
        ("policies: [\n", ":2:1: "),
    ],
)
def test_an_invalid_file_ends_the_command_with_the_place(deploy: Path, text: str, message: str) -> None:
    file = write_defaults(deploy, text)
    ran = check(deploy)
    assert f"{file}{message}" in ran.stderr
    assert ran.returncode == 2


BROKEN = "policies: [\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("version", "-o", "json"),
        ("explain",),
        ("explain", "gpu-l102"),
        ("explain", "MultipleGPUs", "-o", "json"),
        ("explain", "--all"),
        ("completion", "bash"),
        ("help", "check"),
        ("policy", "show", "pairs", "--policies", "../../policies"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_nothing_of_the_file_works_if_it_is_broken(
    deploy: Path, arguments: tuple[str, ...]
) -> None:
    write_defaults(deploy, BROKEN)
    ran = run(deploy, *arguments)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [("explain", "train-0"), ("explain", "-f", "pod.yaml"), ("test",), ("check", "pod.yaml", "--cluster", "demo")],
    ids=" ".join,
)
def test_a_command_that_uses_the_file_names_the_place_where_it_is_broken(
    deploy: Path, arguments: tuple[str, ...]
) -> None:
    file = write_defaults(deploy, BROKEN)
    ran = run(deploy, *arguments)
    assert ran.returncode == 2
    assert f"error: {file}:2:1: " in ran.stderr
