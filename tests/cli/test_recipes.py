"""Every command of a recipe prints what its page shows, with the files of the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

RECIPES = ROOT / "docs" / "recipes"
PAGES = sorted(RECIPES.glob("*.md"))
FILE = re.compile(r"^```yaml\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^```console\n\$ rightslice ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def output(call: str, folder: Path) -> str:
    """Return what a call of `rightslice` prints to standard output."""
    command = [sys.executable, "-m", "webhook.cli", *shlex.split(call)]
    env = {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=env)
    return ran.stdout


def write_files(page: Path, folder: Path) -> None:
    """Write the files of a page to a folder, beside the shipped policies."""
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
    assert {call: output(call, tmp_path) for call in calls} == calls


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


class CorpusCase(NamedTuple):
    """Real manifests of a stack, the flags of `check`, and why each keeps its request."""

    files: str
    flags: str
    reasons: dict[str, int]


CORPUS = {
    "jupyterhub: TensorFlow takes all memory of a share, so the notebook keeps its GPU": CorpusCase(
        "pod-cloud-native-docs-tf-notebook-*",
        "--policies policies/notebooks-time-sliced.yaml --namespace-labels rightslice.dev/workload=notebooks",
        {"Preallocates": 1},
    ),
}


@pytest.mark.parametrize("case", CORPUS.values(), ids=CORPUS)
def test_what_a_recipe_says_of_real_manifests(case: CorpusCase, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "policies").symlink_to(ROOT / "policies")
    (tmp_path / "corpus").mkdir()
    for file in (shared / "corpus/manifests").glob(case.files):
        (tmp_path / "corpus" / file.name).symlink_to(file)
    assert Counter(keep_reasons(f"check corpus --cluster demo {case.flags}", tmp_path)) == case.reasons
