"""A file is named by an argument or by -f, with one result; an argument that may be a file or an object is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import JUNE, Run

READERS = {
    "check reads objects": "check workload.yaml",
    "explain reads objects": "explain workload.yaml",
    "undo reads changed pods": "undo cluster.yaml",
    "place reads pods": "place room/pods.yaml --cluster room/cluster.yaml",
    "simulate reads pods": "simulate room/pods.yaml --nodes room/cluster.yaml",
    "lint reads quotas": "lint traps.yaml",
    "audit reads a snapshot": "audit room/cluster.yaml",
    "rightsize reads a snapshot": "rightsize room/cluster.yaml",
    "fairshare reads a snapshot": "fairshare room/cluster.yaml",
    "capacity reads a snapshot": "capacity room/cluster.yaml",
    "layout reads a snapshot": "layout room/cluster.yaml",
    "kueue config reads a snapshot": "kueue config room/cluster.yaml",
    "policy list reads policies": "policy list policies",
    "policy lint reads policies": "policy lint policies",
    "policy show reads policies": "policy show research policies",
    "test reads policy tests": "test cases",
    "an option may stand before the file": "layout -o json room/cluster.yaml",
    "a folder with a slash is no node": "capacity ../files/room",
}


@pytest.mark.parametrize("call", READERS.values(), ids=READERS)
def test_an_argument_is_the_same_as_a_file_after_the_flag(rightslice: Run, call: str) -> None:
    words = call.split()
    place = next(i for i, word in enumerate(words) if "/" in word or word.endswith(("yaml", "policies", "cases")))
    positional, named = rightslice(*words), rightslice(*words[:place], "-f", *words[place:])

    assert (positional.code, positional.out) == (named.code, named.out)
    assert positional.code in (0, 1), positional.err
    assert positional.out or "None of these objects" in positional.err or "no errors" in positional.err


BOTH = {
    "a pod with the name of a folder": ("place train", "train for the file, or NAMESPACE/pod/train for the object"),
    "the namespace of -n is in the full name": (
        "explain train -n research --cluster demo",
        "or research/pod/train for",
    ),
    "a pod of a namespace that is a folder": ("undo research/train", "or research/pod/train for the object"),
    "a kind that is a folder": ("undo deploy/train", "or NAMESPACE/deployment/train for the object"),
    "a node with the name of a folder": ("capacity train", "train for the file, or node/train for the object"),
}


@pytest.mark.parametrize(("call", "hint"), BOTH.values(), ids=BOTH)
def test_an_argument_that_may_be_a_file_or_an_object_is_an_error(
    rightslice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("train", "research/train", "deploy/train"):
        Path(folder).mkdir(parents=True)
    ran = rightslice(*call.split())

    assert (ran.code, ran.out) == (2, "")
    assert "must be a file or an object, found the name of a file that may be" in ran.err
    assert hint in ran.err


CLEAR = {
    "a dot and a slash name a folder": ("explain ./deploy", "deploy/train.yaml"),
    "a suffix names a file": ("explain workload.yaml", "workload.yaml"),
    "a folder in a folder with the form of no name": ("explain a/b/train", "a/b/train/pod.yaml"),
    "a full name is a pod": ("explain search/pod/playground-0 --cluster demo", "Pod search/playground-0"),
    "a code is never a file": ("explain GPU-L102", "GPU-L102"),
}


@pytest.mark.parametrize(("call", "shown"), CLEAR.values(), ids=CLEAR)
def test_an_argument_of_one_form_is_clear(
    rightslice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, shown: str
) -> None:
    workload = Path("workload.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    for file in ("deploy/train.yaml", "workload.yaml", "a/b/train/pod.yaml", "search/pod/playground-0/x.yaml"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(workload)
    Path("GPU-L102").mkdir()
    ran = rightslice(*call.split())

    assert ran.code == 0, ran.err
    assert shown in ran.out


EVERYWHERE = {
    "explain of pods of all namespaces": "explain -A -l app=jupyter -n default -o jsonpath={..name}",
    "place of pods of all namespaces": "place -A -l app=jupyter -o jsonpath={..object}",
    "check of all namespaces, which is the default": "check -A workload.yaml -o name",
    "simulation of all namespaces, which is the default": "simulate -A -f workload.yaml -o wide",
}


@pytest.mark.parametrize("call", EVERYWHERE.values(), ids=EVERYWHERE)
def test_all_namespaces_are_selected(rightslice: Run, call: str) -> None:
    ran = rightslice(*call.split(), "--cluster", "demo")

    assert ran.code in (0, 1), ran.err
    assert ran.out.strip()


def test_a_pod_is_not_named_in_all_namespaces(rightslice: Run) -> None:
    ran = rightslice("explain", "-A", "playground-0", "--cluster", "demo")

    assert ran.code == 2
    assert "error: -A: must be used with -l, found playground-0 too. Write NAMESPACE/playground-0" in ran.err


def test_only_rows_of_changes_are_printed_and_sorted(rightslice: Run) -> None:
    plan = ("layout", "--cluster", "demo", "--now", JUNE)
    every = rightslice(*plan, "--no-headers", "--sort-by", "node").out.splitlines()
    some = rightslice(*plan, "--no-headers", "-l", "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3").out

    assert len(every) > 1
    assert [line.split()[0] for line in every] == sorted(line.split()[0] for line in every)
    assert [line.split()[0] for line in some.splitlines()] == ["h100-2"]


def test_a_plan_for_some_nodes_is_not_written(rightslice: Run, tmp_path: Path) -> None:
    ran = rightslice("layout", "--cluster", "demo", "-l", "a=b", "--write", str(tmp_path / "plan"))

    assert ran.code == 2
    assert "-l: selects nodes of the report, and --write writes the whole plan. Leave out -l" in ran.err
