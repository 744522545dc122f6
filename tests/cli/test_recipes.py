"""Every command of a recipe prints what its page shows, with the files of the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.conftest import ROOT
from tests.house import shown_blocks

RECIPES = ROOT / shown_blocks.RECIPES
PAGES = sorted(RECIPES.glob("*.md"))
FILE = re.compile(r"^```yaml\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^```console\n\$ rightslice ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_call(call: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a call of `rightslice` in a folder."""
    command = [sys.executable, "-m", "webhook.cli", *shlex.split(call)]
    env = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder, env=env)


def output(call: str, folder: Path) -> str:
    """Return what a call of `rightslice` prints to standard output."""
    return run_call(call, folder).stdout


def write_files(page: Path, folder: Path) -> None:
    """Write the files of a page to a folder that also has the shipped policies."""
    (folder / "policies").symlink_to(ROOT / "policies")
    for name, content in FILE.findall(page.read_text(encoding="utf-8")):
        (folder / name).write_text(f"# {name}\n{content}")


def keep_reasons(call: str, folder: Path) -> list[str]:
    """Return why each object with GPUs of a `check` keeps its request, "" for one that is right-sized."""
    checked = json.loads(output(f"{call} -o json", folder))["objects"]
    return [one["keepReason"] for one in checked if one.get("gpuMilliBefore")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_recipe_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    write_files(page, tmp_path)
    calls = dict(COMMAND.findall(text))
    assert calls
    assert len(calls) == text.count("```console")
    ran = {call: run_call(call, tmp_path) for call in calls}
    assert {call: each.stdout for call, each in ran.items()} == calls
    assert {each.returncode for each in ran.values()} <= {0, 1}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_is_short_and_linked(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 80
    assert f"(docs/recipes/{page.name})" in (ROOT / "README.md").read_text(encoding="utf-8")


CLAIMS = {"ReadWriteOnce": "VolumeClaimShared", "ReadWriteOncePod": ""}
WHOLE_GPUS = """
---
apiVersion: v1
kind: Node
metadata: {name: l4-2, labels: {nvidia.com/gpu.product: NVIDIA-L4, nvidia.com/gpu.memory: "23034"}}
status: {allocatable: {cpu: "32", memory: 120Gi, pods: "110", nvidia.com/gpu: "2"}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: ebs.csi.aws.com
volumeBindingMode: WaitForFirstConsumer
"""


@pytest.mark.parametrize(("mode", "reason"), CLAIMS.items())
def test_the_first_notebook_of_a_user(mode: str, reason: str, tmp_path: Path) -> None:
    write_files(RECIPES / "jupyterhub.md", tmp_path)
    bound, _, _ = (tmp_path / "cluster.yaml").read_text().rpartition("---")  # without the volume
    unbound = bound.replace("[ReadWriteOnce], volumeName: ana", f"[{mode}], storageClassName: standard")
    (tmp_path / "first.yaml").write_text(unbound.replace("bind-completed", "other") + WHOLE_GPUS)
    call = "check notebook.yaml --policies policies/notebooks-time-sliced.yaml --cluster first.yaml"
    assert keep_reasons(call, tmp_path) == [reason]


def replace_all(file: Path, edits: Mapping[str, str]) -> str:
    """Return the text of a file with replacements."""
    text = file.read_text(encoding="utf-8")
    for old, new in edits.items():
        text = text.replace(old, new)
    return text


VARIANTS = {
    "karpenter-eks: without a NodeOverlay": ("karpenter-eks", {"kind: NodeOverlay": "kind: Other"}, ["NoGroupGrows"]),
    "karpenter-eks: at the limit of the NodePool": ("karpenter-eks", {'"480"': '"100"'}, ["NoGroupGrows"]),
    "aks: without the labels of GPU feature discovery": (
        "aks",
        {"nvidia.com/gpu.": "other/gpu.", "nvidia.com/mig-1g.10gb.memory": "other/memory"},
        ["OfferSizeUnknown"],
    ),
    "aks: a pool of spot nodes": (
        "aks",
        {"key: sku, value: gpu": "key: kubernetes.azure.com/scalesetpriority, value: spot"},
        ["NoReachableNode"],
    ),
    "openshift: a kind that no policy names": ("openshift", {"kind: DeploymentConfig,": "kind: Other,"}, []),
    "kserve-vllm: with the fraction that the message asks for": (
        "kserve-vllm",
        {"utilization=0.1": "utilization=0.85"},
        [""],
    ),
    "kueue: without templates": ("kueue", {", templates: enforce": ""}, ["QueuedWorkload"]),
    "kueue: without quota for slices": (
        "kueue",
        {'mig-1g.10gb, nominalQuota: "14"': 'mig-1g.10gb, nominalQuota: "1"'},
        ["NotAdmittedByQueue"],
    ),
    "ray: without gang-size": ("ray", {'rightslice.dev/gang-size: "1", ': ""}, ["GangMember"]),
    "ray: without a need": ("ray", {", rightslice.dev/gpu-memory: 8Gi": ""}, ["NoEvidence"]),
}


@pytest.mark.parametrize(("page", "edits", "reasons"), VARIANTS.values(), ids=VARIANTS)
def test_what_a_recipe_says_of_other_settings(
    page: str, edits: Mapping[str, str], reasons: list[str], tmp_path: Path
) -> None:
    write_files(RECIPES / f"{page}.md", tmp_path)
    for file in tmp_path.glob("*.yaml"):
        assert file.write_text(replace_all(file, edits))
    call, _ = COMMAND.findall((RECIPES / f"{page}.md").read_text(encoding="utf-8"))[0]
    assert keep_reasons(call, tmp_path) == reasons


class CorpusCase(NamedTuple):
    """Real manifests of a stack, checked with the files of a page, and why each keeps its request.

    Attributes:
        edits: What is replaced in the manifests and in the files of the page.
    """

    page: str
    manifests: str
    flags: str
    reasons: dict[str, int]
    edits: Mapping[str, str] = MappingProxyType({})


QUEUE_OF_SAMPLE = {"name: gpus, namespace: research-nlp": "name: user-queue, namespace: default", "research-*": "*"}
DECLARED = {
    "  template:\n    spec:": "  template:\n    metadata: {annotations: {rightslice.dev/gpu-memory: 8Gi}}\n    spec:"
}

ALONE = '{annotations: {rightslice.dev/gpu-memory: 8Gi, rightslice.dev/gang-size: "1"}}'
OPTED_IN = (
    "--policies policies/right-sizing.yaml --cluster demo --namespace-labels rightslice.dev/right-sizing=enforced"
)

CORPUS = {
    "kubeflow: training jobs with several GPUs, claims, and under KAI": CorpusCase(
        "kubeflow",
        "[pm][yp][ti]*job-*",
        OPTED_IN,
        {"MultipleGPUs": 1, "ResourceClaims": 2, "ChargedAsWholeGPUs": 1},
    ),
    "runai-hami: HAMi's parts, and MIG slices that it names": CorpusCase(
        "runai-hami", "*-hami-*", OPTED_IN, {"MixedResources": 5, "NoEvidence": 2, "NoWholeGPU": 1}
    ),
    "runai-hami: pods in queues of KAI": CorpusCase(
        "runai-hami", "*-kai-scheduler-*", OPTED_IN, {"ChargedAsWholeGPUs": 8}
    ),
    "karpenter-eks: a training job of AWS's samples with several GPUs": CorpusCase(
        "karpenter-eks",
        "*-awsome-distributed-training-*",
        "--policies policy.yaml --cluster cluster.yaml -n research",
        {"MultipleGPUs": 1},
    ),
    "gke: samples of GKE": CorpusCase(
        "gke",
        "*-kubernetes-engine-samples-*",
        "--policies policies/right-sizing.yaml --cluster cluster.yaml"
        " --namespace-labels rightslice.dev/right-sizing=enforced",
        {"MultipleGPUs": 26, "NoEvidence": 15, "PodUnknown": 3, "GangMember": 3, "QueuedWorkload": 1, "QueuedPod": 1},
    ),
    "openshift: an InferenceService of MicroShift": CorpusCase(
        "openshift",
        "*-microshift-*",
        OPTED_IN,
        {"PodUnknown": 1},
    ),
    "ray: workers of one GPU and of several": CorpusCase("ray", "ray*", OPTED_IN, {"GangMember": 6, "MultipleGPUs": 7}),
    "ray: workers that say that they do not wait for each other": CorpusCase(
        "ray",
        "rayservice-kuberay-ray-service-text-summarizer-*",
        OPTED_IN,
        {"": 1},
        {"      rayStartParams: {}\n      template:\n": f"      template:\n        metadata: {ALONE}\n"},
    ),
    "kserve-vllm: an InferenceService without its runtime": CorpusCase(
        "kserve-vllm", "inferenceservice-*", OPTED_IN, {"PodUnknown": 5}
    ),
    "kserve-vllm: vLLM without a declared need, and with several GPUs": CorpusCase(
        "kserve-vllm",
        "deployment-kubernetes-engine-samples-vllm-*",
        OPTED_IN,
        {"NoEvidence": 10, "MultipleGPUs": 7, "QueuedPod": 1},
    ),
    "jupyterhub: TensorFlow takes all memory of a share, so the notebook keeps its GPU": CorpusCase(
        "jupyterhub",
        "pod-cloud-native-docs-tf-notebook-*",
        "--policies policies/notebooks-time-sliced.yaml --cluster demo"
        " --namespace-labels rightslice.dev/workload=notebooks",
        {"Preallocates": 1},
    ),
    "kueue: a job in an unknown queue keeps its GPUs": CorpusCase(
        "kueue",
        "job-kueue-sample-job-*",
        "--policies policy.yaml --cluster cluster.yaml",
        {"QueueNotFound": 1},
        {**DECLARED, "research-*": "*"},
    ),
    "kueue: a job that declares no need keeps its GPUs": CorpusCase(
        "kueue",
        "job-kueue-sample-job-*",
        "--policies policy.yaml --cluster cluster.yaml",
        {"NoEvidence": 1},
        QUEUE_OF_SAMPLE,
    ),
    "kueue: a job that declares its need gets slices": CorpusCase(
        "kueue",
        "job-kueue-sample-job-*",
        "--policies policy.yaml --cluster cluster.yaml",
        {"": 1},
        {**DECLARED, **QUEUE_OF_SAMPLE},
    ),
}


@pytest.mark.parametrize("case", CORPUS.values(), ids=CORPUS)
def test_what_a_recipe_says_of_real_manifests(case: CorpusCase, shared: Path, tmp_path: Path) -> None:
    write_files(RECIPES / f"{case.page}.md", tmp_path)
    for file in tmp_path.glob("*.yaml"):
        file.write_text(replace_all(file, case.edits))
    (tmp_path / "corpus").mkdir()
    for file in (shared / "corpus/manifests").glob(case.manifests):
        (tmp_path / "corpus" / file.name).write_text(replace_all(file, case.edits))
    assert Counter(keep_reasons(f"check corpus {case.flags}", tmp_path)) == case.reasons


@pytest.mark.parametrize(("namespace", "denied"), [("gpu-operator", 0), ("gpus", 21)])
def test_guard_and_the_daemon_sets_of_the_gpu_operator(
    namespace: str, denied: int, shared: Path, tmp_path: Path
) -> None:
    for file in (shared / "corpus/manifests").glob("daemonset-gpu-operator-*"):
        text = replace_all(file, dict.fromkeys(("test-operator", "FILLED BY THE OPERATOR"), namespace))
        (tmp_path / file.name).write_text(text)
    guard = ROOT / "policies" / "guard.yaml"
    checked = json.loads(output(f"check . --policies {guard} -o json", tmp_path))["objects"]
    assert Counter(one["verdict"] for one in checked)["denied"] == denied
