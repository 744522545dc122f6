"""Pods created with a node name: they are not changed, and bypass no quota."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import A100, GPU_TAINT, apply_patch, codes, review, tainted
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU

NATIVE = "mode: enforce\nlimits: {accounting: native, accountingScheduler: configured}"
SECTIONS = {
    "tolerations": "injection: {tolerations: auto}",
    "node affinity": "injection: {nodeAffinity: {required: [{key: zone, operator: In, values: [a]}]}}",
    "a runtime class": "injection: {runtimeClassName: nvidia}",
    "spread": "injection: {spread: required}",
    "labels": "injection: {labels: {example.com/a: b}}",
    "NVLink": "topology: {nvlink: preferred, multiNodeDomain: nvidia.com/gpu.clique}",
    "requests by default": "limits: {perGPU: [{resource: cpu, default: 4}]}",
}
LABELS = A100 | {"zone": "a", "nvidia.com/gpu.clique": "a.1"}
NODES = tuple(tainted(make_node(name, LABELS, **{WHOLE_GPU: 8}), GPU_TAINT) for name in ("mine", "other"))
GIVEN: Json = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "gives", "namespace": "team"},
    "spec": {"limits": [{"type": "Container", "default": {WHOLE_GPU: "2"}, "defaultRequest": {WHOLE_GPU: "2"}}]},
}


def training() -> PodMaker:
    """Return one pod of a job, for whole cards."""
    return make_pod().gpus(2).label("job-name", "train").owned_by("Job", "train")


def mirror() -> PodMaker:
    """Return the mirror pod of a static pod."""
    return training().annotate("kubernetes.io/config.mirror", "0a1b").spec(nodeName="mine")


def injected_pod() -> PodMaker:
    """Return a pod with GPUs that a LimitRange injected."""
    said = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
    return make_pod().gpus(2).annotate("kubernetes.io/limit-ranger", said)


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
@pytest.mark.parametrize("pod", [mirror(), training().spec(nodeName="mine")], ids=["mirror", "named"])
def test_a_pod_created_with_a_node_name_is_unchanged(pod: PodMaker, section: str) -> None:
    decision = review(pod, f"mode: enforce\n{section}", nodes=NODES)
    assert decision.patch == ()
    assert not any("GPU-I101" in code for code in codes(decision))


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_the_same_pod_is_changed_if_a_scheduler_places_it(section: str) -> None:
    assert review(training(), f"mode: enforce\n{section}", nodes=NODES).patch


def test_injected_gpus_are_not_counted_in_a_pod_with_a_node_name_and_stay_in_a_mirror_pod() -> None:
    remove, pod = "mode: enforce\nlimits: {limitRangeInjected: remove}", injected_pod().spec(nodeName="mine")
    assert review(pod, remove, nodes=(*NODES, GIVEN)).requested_units == {}
    assert review(pod.annotate("kubernetes.io/config.mirror", "0a1b"), remove, nodes=(*NODES, GIVEN)).patch == ()


def test_the_reason_for_no_change_is_reported() -> None:
    pod = make_pod().gpus(1).needs("8Gi").spec(nodeName="mine")
    assert review(pod, "mode: enforce\nrightSizing: {}", nodes=NODES).outcome == KeepRequest(KeepReason.BOUND)


def test_gpu_milli_is_written_to_a_pod_with_a_node_name() -> None:
    pod = training().spec(nodeName="mine")
    after = apply_patch(pod, review(pod, NATIVE, "mode: enforce\ninjection: {tolerations: auto}", nodes=NODES))
    assert after["spec"]["containers"][0]["resources"]["limits"] == {WHOLE_GPU: "2", ACCOUNTING_RESOURCE: "2000"}
    assert "tolerations" not in after["spec"]


def test_a_queued_pod_is_counted_and_can_reach_its_nodes() -> None:
    pod = (
        training().label("kueue.x-k8s.io/queue-name", "q").spec(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    )
    after = apply_patch(pod, review(pod, NATIVE, "mode: enforce\ninjection: {tolerations: auto}", nodes=NODES))
    assert after["spec"]["containers"][0]["resources"]["limits"] == {WHOLE_GPU: "2", ACCOUNTING_RESOURCE: "2000"}
    assert after["spec"]["tolerations"]


def test_a_mirror_pod_is_neither_counted_nor_rejected() -> None:
    assert review(mirror(), NATIVE, nodes=NODES).patch == ()
    stored = mirror()
    stored.data["metadata"]["uid"] = "0a1b"
    assert "enforce GPU-Q302" not in codes(review(stored, NATIVE, nodes=NODES))
    named = training().spec(nodeName="mine")
    named.data["metadata"]["uid"] = "0a1b"
    assert "enforce GPU-Q302" in codes(review(named, NATIVE, nodes=NODES))


@pytest.mark.parametrize("section", ["injection: {tolerations: auto}", "injection: {labels: {a: b}}"])
def test_an_untolerated_taint_is_reported_for_a_pod_with_a_node_name(section: str) -> None:
    pod = training().spec(nodeName="mine")
    assert "warn GPU-T205" in codes(review(pod, f"mode: enforce\n{section}", nodes=NODES))
