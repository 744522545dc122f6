"""Pods of a cluster are named as for kubectl: by name, by namespace and name, or as one of a workload's pods."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run
from webhook.cli.references import PodReference, parse_reference

FORMS = {
    "a pod": ("train-0", None, PodReference("", "pod", "train-0")),
    "a pod in the namespace of -n": ("train-0", "team", PodReference("team", "pod", "train-0")),
    "a namespace and a pod": ("team/train-0", None, PodReference("team", "pod", "train-0")),
    "the same namespace twice": ("team/train-0", "team", PodReference("team", "pod", "train-0")),
    "the kind of a pod": ("pod/train-0", None, PodReference("", "pod", "train-0")),
    "its plural and its short form": ("pods/train-0", "a", PodReference("a", "pod", "train-0")),
    "a workload": ("deployment/serve", "a", PodReference("a", "deployment", "serve")),
    "a workload by a short form": ("deploy/serve", "a", PodReference("a", "deployment", "serve")),
    "a workload with its group": ("deployments.apps/serve", "a", PodReference("a", "deployment", "serve")),
    "a workload of any group": ("rayclusters.ray.io/r", "a", PodReference("a", "raycluster", "r")),
    "a workload as reports name it": ("team/Deployment/serve", None, PodReference("team", "deployment", "serve")),
}


@pytest.mark.parametrize(("text", "namespace", "reference"), FORMS.values(), ids=FORMS)
def test_an_argument_names_a_pod(text: str, namespace: str | None, reference: PodReference) -> None:
    assert parse_reference(text, namespace) == reference


EXPLAINED = {
    "a pod": (("playground-0", "-n", "search"), "playground-0"),
    "a namespace and a pod": (("search/playground-0",), "playground-0"),
    "the owner of a pod": (("statefulset/playground", "-n", "search"), "playground-0"),
    "a workload above the owner": (("deploy/summarizer", "-n", "search"), "summarizer-"),
    "a Job's CronJob": (("search/cj/reindex",), "reindex-"),
    "a run of a CronJob": (("search/job/reindex-29401560",), "reindex-29401560-"),
}


@pytest.mark.parametrize(("arguments", "pod"), EXPLAINED.values(), ids=EXPLAINED)
def test_a_pod_is_explained_by_each_form(rightslice: Run, arguments: tuple[str, ...], pod: str) -> None:
    result = rightslice("explain", *arguments, "--cluster", "demo")
    assert result.out.startswith(f"Pod search/{pod}")


def test_of_several_pods_the_first_is_explained_and_the_number_is_said(rightslice: Run) -> None:
    result = rightslice("explain", "deployment/ranker", "-n", "search", "--cluster", "demo")
    assert "note: found 2 pods of deployment/ranker, using pod/ranker-" in result.err


def test_a_pod_of_the_cluster_is_placed(rightslice: Run) -> None:
    placed = rightslice("place", "batch/sweep-0", "--cluster", "demo", "-o", "json")
    assert '"object": "Pod batch/sweep-0"' in placed.out
    assert rightslice("place", "pod/sweep-0", "-n", "batch", "--cluster", "demo", "-o", "json").out == placed.out


def test_a_missing_file_is_no_pod(rightslice: Run) -> None:
    assert "nope/pod.yaml: cannot be read" in rightslice("place", "nope/pod.yaml", "--cluster", "demo").err


@pytest.mark.parametrize("pod", [("sweep-0", "-n", "batch"), ("batch/sweep-0",), ("pod/sweep-0", "-n", "batch")])
def test_a_pod_to_place_is_named_as_one_to_explain(rightslice: Run, pod: tuple[str, ...]) -> None:
    assert rightslice("place", *pod, "--cluster", "demo").out.startswith("Pod batch/sweep-0 ")


def test_a_file_that_does_not_exist_is_not_the_name_of_a_pod(rightslice: Run) -> None:
    for missing in (("-f", "sweep-0"), ("sweep-0.yaml",)):
        result = rightslice("place", *missing, "--cluster", "demo")
        assert (result.code, f"{missing[-1]}: cannot be read: No such file or directory" in result.err) == (2, True)


@pytest.mark.parametrize("name", ["h100-1", "node/h100-1"])
def test_a_node_is_named_with_or_without_its_kind(rightslice: Run, name: str) -> None:
    assert rightslice("capacity", name, "--cluster", "demo", "-o", "name").out == "node/h100-1\n"


LIVE_BY_DEFAULT = {
    "audit": ("audit",),
    "rightsize": ("rightsize",),
    "layout": ("layout",),
    "fairshare": ("fairshare",),
    "capacity": ("capacity",),
    "place": ("place", "room/pods.yaml"),
    "policy diff": ("policy", "diff", "policies", "policies"),
    "lint": ("lint",),
    "kueue config": ("kueue", "config"),
    "explain of a pod": ("explain", "search/playground-0"),
}


@pytest.mark.parametrize("command", LIVE_BY_DEFAULT.values(), ids=LIVE_BY_DEFAULT)
def test_the_cluster_is_by_default_that_of_the_context(
    rightslice: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    result = rightslice(*command)
    assert (result.code, result.out) == (2, "")
    assert "--cluster names a snapshot, or demo for an example" in result.err
    assert "error: nowhere: must be a kubeconfig file, found none" in result.err


def test_a_context_is_no_snapshot(rightslice: Run) -> None:
    result = rightslice("audit", "--cluster", "prod-eu")
    assert result.code == 2
    assert "found 'prod-eu', which is not a file. For a context of the kubeconfig write --context prod-eu" in result.err


@pytest.mark.parametrize("command", [("audit", "cluster.yaml"), ("lint", "traps.yaml"), ("check", "deploy")])
def test_files_need_no_cluster(rightslice: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    result = rightslice(*command)
    assert "kubeconfig" not in result.err
    assert result.out


MISTAKES = {
    "a pod of another namespace": (
        ("playground-0",),
        "no pod named 'playground-0' in namespace 'default' of demo. Write search/playground-0",
    ),
    "no such pod": (("search/nobody",), "no pod named 'nobody' in namespace 'search' of demo"),
    "no such workload": (("search/job/nothing",), "no pod of job/nothing in namespace 'search' of demo"),
    "two namespaces": (
        ("search/playground-0", "-n", "batch"),
        "-n: must be the namespace of search/playground-0, found batch",
    ),
    "too many parts": (("a/b/c/d",), "a/b/c/d: must be POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME"),
    "no name": (("pod/",), "pod/: must be POD"),
}


@pytest.mark.parametrize(("arguments", "error"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_say_what_to_write(rightslice: Run, arguments: tuple[str, ...], error: str) -> None:
    result = rightslice("explain", *arguments, "--cluster", "demo")
    assert (result.code, result.out) == (2, "")
    assert f"error: {error}" in result.err
