"""Annotations of Rightslice: whatever nobody reads is reported, on any pod and on any workload, under any policy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, make_pod
from tests.engine.decisions import NODES, SIZING
from tests.engine.test_workload_review import workload
from tests.example_cluster import codes, review
from webhook.model.annotations import USER_ANNOTATIONS
from webhook.model.decisions import Decision
from webhook.model.field_paths import format_path

VALID = {
    "rightslice.dev/keep": ["true", "false"],
    "rightslice.dev/gpu-memory": ["8Gi", "1Mi", "16Ti"],
    "rightslice.dev/gpu-compute": ["20%", "12.5%"],
    "rightslice.dev/cuda": [">=12.4", "cuda>=12.4"],
    "rightslice.dev/cuda-compat": ["true", "false"],
    "rightslice.dev/topology": ["nvlink=required", "nvlink=preferred", "nvlink=ignored"],
    "rightslice.dev/gang-size": ["1", "4"],
}
INVALID = {
    "rightslice.dev/keep": ["yes", "", "True"],
    "rightslice.dev/gpu-memory": ["8 GB", "", "0", "17Ti", "much"],
    "rightslice.dev/gpu-compute": ["20", "0%", "101%", ""],
    "rightslice.dev/cuda": ["newest", ""],
    "rightslice.dev/cuda-compat": ["yes", "1", ""],
    "rightslice.dev/topology": ["nvlink=sometimes", "", "nvlink"],
    "rightslice.dev/gang-size": ["0", "all", "1000000", ""],
}
PODS = {"a pod with a GPU": lambda: make_pod().gpus(1), "a pod without GPUs": make_pod}
POLICIES: dict[str, tuple[str, ...]] = {
    "without policies": (),
    "a policy for other namespaces": ("mode: enforce\nmatch: {namespaces: [other]}\nrightSizing: {}",),
    "right-sizing": (SIZING,),
    "limits": ("mode: enforce\nlimits: {}",),
    "all that read annotations": (SIZING, "mode: enforce\ntopology: {nvlink: preferred}\ncuda: {driver: evaluate}"),
}


def reported(decision: Decision) -> list[str]:
    """Return the fields of findings about annotations that would be shown to the user."""
    found = [each for each in decision.warnings if each.code in ("GPU-R104", "GPU-C104")]
    return [str(each.path[-1]) for each in found]


def test_every_annotation_of_users_is_in_the_tables() -> None:
    assert set(VALID) == set(INVALID) == set(USER_ANNOTATIONS)


@pytest.mark.parametrize("policies", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("build", PODS.values(), ids=PODS)
@pytest.mark.parametrize("key", USER_ANNOTATIONS)
def test_an_annotation_that_cannot_be_read_is_reported_once(key: str, build: Any, policies: tuple[str, ...]) -> None:
    for value in VALID[key]:
        assert reported(review(build().annotate(key, value), *policies, nodes=NODES)) == []
    for value in INVALID[key]:
        assert reported(review(build().annotate(key, value), *policies, nodes=NODES)) == [key]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("rightslice.dev/gpu-memroy", "rightslice.dev/gpu-memory"),
        ("rightslice.dev/gpuMemory", "rightslice.dev/gpu-memory"),
        ("rightslice.dev/Keep", "rightslice.dev/keep"),
        ("rightslice.dev/gang_size", "rightslice.dev/gang-size"),
    ],
)
@pytest.mark.parametrize("build", PODS.values(), ids=PODS)
@pytest.mark.parametrize("policies", POLICIES.values(), ids=POLICIES)
def test_an_annotation_that_does_not_exist_is_reported_with_the_one_that_is_meant(
    key: str, meant: str, build: Any, policies: tuple[str, ...]
) -> None:
    decision = review(build().annotate(key, "8Gi"), *policies)

    (finding,) = [finding for finding in decision.warnings if finding.code == "GPU-R104"]
    assert finding.path == ("metadata", "annotations", key)
    assert finding.fix == f"Write {meant}."


def test_annotations_of_others_and_those_that_we_write_are_not_reported() -> None:
    pod = make_pod().gpus(1).annotate("example.com/gpu-memroy", "8Gi").annotate("rightslice.dev/cuda", ">=12.0")
    once = review(pod, "mode: enforce\ninjection: {labels: {a: b}}")
    again = review(pod.annotate("rightslice.dev/decision", "{}"), "mode: enforce\ninjection: {labels: {a: b}}")

    assert not {"warn GPU-R104", "deny GPU-R104"} & {*codes(once), *codes(again)}


def test_many_unknown_annotations_are_three_findings() -> None:
    pod = make_pod().gpus(1)
    for number in range(500):
        pod.annotate(f"rightslice.dev/{number}", "x")

    assert codes(review(pod, "mode: enforce\nrightSizing: {}")).count("warn GPU-R104") == 3


def test_a_policy_in_audit_mode_denies_and_warns_nobody_about_annotations() -> None:
    decision = review(make_pod().gpus(1).annotate("rightslice.dev/keep", "yes"), "mode: audit\nrightSizing: {}")

    assert (decision.warnings, [code for code in codes(decision) if "R104" in code]) == ((), ["audit GPU-R104"])


def annotated(data: Json, *path: str) -> Json:
    """Return the object with an annotation in the metadata of what is at a path."""
    target: Any = data
    for step in path:
        target = target[int(step)] if isinstance(target, list) else target[step]
    metadata = target.setdefault("metadata", {})
    metadata["annotations"] = {**metadata.get("annotations", {}), "rightslice.dev/gpu-memory": "8Gi"}
    return data


def job_set() -> Json:
    template = workload("Job", make_pod().gpus(1))["spec"]["template"]
    jobs = [{"name": "w", "template": {"spec": {"template": template}}}]
    metadata = {"name": "set", "namespace": "team"}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata,
            "spec": {"replicatedJobs": jobs}}  # fmt: skip


def app_wrapper() -> Json:
    components = [{"template": workload("Deployment", make_pod())}]
    metadata = {"name": "wrapper", "namespace": "team"}
    return {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": metadata,
            "spec": {"components": components}}  # fmt: skip


def owned(data: Json) -> Json:
    data["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "d", "controller": True}]
    return data


INFERENCE: Json = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "i", "namespace": "team"},
    "spec": {"predictor": {"containers": [{"name": "main", "image": "x"}]}},
}
OWN = "metadata.annotations['rightslice.dev/gpu-memory']"
MISPLACED: dict[str, tuple[Json, str, str]] = {
    "a Deployment": (annotated(workload("Deployment", make_pod())), OWN, "spec.template"),
    "a Deployment with GPUs": (annotated(workload("Deployment", make_pod().gpus(1))), OWN, "spec.template"),
    "a DaemonSet": (annotated(workload("DaemonSet", make_pod())), OWN, "spec.template"),
    "a CronJob": (annotated(workload("CronJob", make_pod(), "batch/v1")), OWN, "spec.jobTemplate.spec.template"),
    "the Jobs of a CronJob": (
        annotated(workload("CronJob", make_pod(), "batch/v1"), "spec", "jobTemplate"),
        f"spec.jobTemplate.{OWN}",
        "spec.jobTemplate.spec.template",
    ),
    "the Jobs of a JobSet": (
        annotated(job_set(), "spec", "replicatedJobs", "0", "template"),
        f"spec.replicatedJobs[0].template.{OWN}",
        "spec.replicatedJobs[0].template.spec.template",
    ),
    "a Deployment in an AppWrapper": (
        annotated(app_wrapper(), "spec", "components", "0", "template"),
        f"spec.components[0].template.{OWN}",
        "spec.components[0].template.spec.template",
    ),
}


@pytest.mark.parametrize(("data", "field", "template"), MISPLACED.values(), ids=MISPLACED)
@pytest.mark.parametrize("policies", POLICIES.values(), ids=POLICIES)
def test_an_annotation_of_a_workload_itself_is_reported_with_its_place_in_the_template(
    data: Json, field: str, template: str, policies: tuple[str, ...]
) -> None:
    decision = review(data, *policies, nodes=NODES)

    (finding,) = [each for each in decision.warnings if each.code == "GPU-R104"]
    assert format_path(finding.path) == field
    assert finding.message == "has no effect here: only annotations of a pod or of its template are read"
    assert finding.fix == f"Write it in {template}.metadata.annotations."


READ: dict[str, Json] = {
    "in the template": annotated(workload("Deployment", make_pod().gpus(1)), "spec", "template"),
    "of an object that a controller copied it to": owned(annotated(workload("ReplicaSet", make_pod()))),
    "of a kind whose controller passes its metadata on": annotated(INFERENCE),
    "of an object without pods": {**annotated({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})},
}


@pytest.mark.parametrize("data", READ.values(), ids=READ)
def test_other_annotations_of_objects_are_not_reported(data: Json) -> None:
    assert "GPU-R104" not in [finding.code for finding in review(data, SIZING, nodes=NODES).findings]
