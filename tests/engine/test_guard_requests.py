"""guard: runtime classes, annotations, claims and mixed GPUs, each with a harmless counterpart."""

from __future__ import annotations

import pytest

from tests.builders import Json, make_pod
from tests.engine.guard_violations import find_violations, names

CLASSES = {
    "nvidia": True,
    "nvidia-cdi": True,
    "nvidia-legacy": True,
    "nvidia-experimental": True,
    "nvidia-of-mine": True,
    "gvisor": False,
    "kata-nvidia": False,
    "": False,
}


@pytest.mark.parametrize(("name", "bad"), CLASSES.items())
def test_a_runtime_class_without_a_gpu_request(name: str, bad: bool) -> None:
    pod = make_pod().spec(runtimeClassName=name)
    assert names(find_violations(pod.build())) == (["runtimeClass"] if bad else [])
    assert find_violations(pod.gpus(1).build()) == []


NO_GPU = {
    "zero GPUs": ("nvidia.com/gpu", "0"),
    "zero GPUs, as a number": ("nvidia.com/gpu", 0),
    "zero of a slice": ("nvidia.com/mig-1g.10gb", "0"),
    "zero of an unknown name": ("nvidia.com/anything", "0"),
    "an unknown name": ("nvidia.com/anything", "1"),
    "another resource of NVIDIA's": ("nvidia.com/hostdev", "1"),
    "an invalid profile": ("nvidia.com/mig-", "1"),
    "the accounting resource": ("rightslice.dev/gpu-milli", "1000"),
    "another vendor's": ("amd.com/gpu", "1"),
}
"""Requests by which a pod gets no GPU, so that they excuse nothing."""


@pytest.mark.parametrize(("resource", "amount"), NO_GPU.values(), ids=NO_GPU)
def test_a_request_for_zero_gpus_permits_nothing(resource: str, amount: object) -> None:
    pod = make_pod().requests(resource, amount).env("CUDA_VERSION", "12.4").spec(runtimeClassName="nvidia")
    assert names(find_violations(pod.build())) == ["visibleDevicesEnv", "runtimeClass"]


def test_a_runtime_class_that_the_policy_allows() -> None:
    pod = make_pod().spec(runtimeClassName="nvidia").build()
    assert find_violations(pod, allowed_runtime_classes=frozenset({"nvidia"})) == []
    assert names(find_violations(pod, allowed_runtime_classes=frozenset({"nvidia-cdi"}))) == ["runtimeClass"]


ANNOTATIONS = {
    "a device by CDI": ("cdi.k8s.io/gpu", True),
    "a device by NVIDIA's plugin": ("nvidia.cdi.k8s.io/container.main", True),
    "a device for the whole pod": ("nvidia.cdi.k8s.io", True),
    "a domain with the same ending": ("notcdi.k8s.io/x", False),
    "a key that contains the domain in its name": ("example.com/cdi.k8s.io", False),
}


@pytest.mark.parametrize(("key", "bad"), ANNOTATIONS.values(), ids=ANNOTATIONS)
def test_a_device_annotation(key: str, bad: bool) -> None:
    found = find_violations(make_pod().annotate(key, "nvidia.com/gpu=0").build())
    want = [("cdiAnnotations", ("metadata", "annotations", key))] if bad else []
    assert [(name, finding.path) for name, finding in found] == want


MIXTURES = {
    "whole and slice": ({"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "1"}, True),
    "whole and share": ({"nvidia.com/gpu": "1", "nvidia.com/gpu.shared": "1"}, True),
    "slice and share of a slice": ({"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-1g.10gb.shared": 1}, True),
    "an invalid amount": ({"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "x"}, True),
    "whole and zero of a slice": ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "1"}, False),
    "whole and memory": ({"nvidia.com/gpu": "1", "memory": "8Gi"}, False),
    "whole and another vendor's": ({"nvidia.com/gpu": "1", "amd.com/gpu": "1"}, False),
    "whole and another resource of NVIDIA's": ({"nvidia.com/gpu": "1", "nvidia.com/hostdev": "1"}, False),
}


@pytest.mark.parametrize(("amounts", "bad"), MIXTURES.values(), ids=MIXTURES)
@pytest.mark.parametrize("side", ["limits", "requests"])
def test_several_kinds_of_gpu_in_one_container(amounts: Json, bad: bool, side: str) -> None:
    pod = make_pod().gpus(1).container("mixed", resources={side: amounts})
    assert names(find_violations(pod.build())) == (["mixedGPURequests"] if bad else [])


def test_mixed_gpus_over_limits_and_requests() -> None:
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/mig-1g.10gb": "1"}}
    assert names(find_violations(make_pod().container("mixed", resources=resources).build())) == ["mixedGPURequests"]


def test_two_containers_with_one_kind_each_are_fine() -> None:
    pod = make_pod().gpus(1).container("b", resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}})
    assert find_violations(pod.build()) == []


def test_a_device_class_as_an_extended_resource() -> None:
    key = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    found = find_violations(make_pod().requests(key, "1").build())
    assert [(name, finding.path[-2:]) for name, finding in found] == [("resourceClaims", ("limits", key))]
