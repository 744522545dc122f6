"""guard: pods for each check, updates, and properties."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, make_pod
from tests.engine.guard_violations import KINDS, find_violations, names
from tests.strategies import pods
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.guard import find_bypasses
from webhook.engine.guarding.bypasses import BYPASS_CODES, GPU_POD_BYPASSES
from webhook.model.admission import AdmissionRequest
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.model.pods import parse_pod

ORDINARY_PODS = {
    "a privileged agent": make_pod().container("x", securityContext={"privileged": True}),
    "an agent of the host": make_pod().spec(hostPID=True, hostIPC=True, nodeName="n1", hostUsers=False),
    "a preloaded allocator": make_pod().env("LD_PRELOAD", "/usr/lib/libjemalloc.so"),
    "variables from a secret": make_pod().container("x", envFrom=[{"secretRef": {"name": "s"}}]),
    "no GPUs, declared twice": make_pod()
    .env("NVIDIA_VISIBLE_DEVICES", "void")
    .env("CUDA_VISIBLE_DEVICES", "-1")
    .container("x", securityContext={"privileged": True}),
    "an API key and a privileged container": make_pod()
    .env("NVIDIA_API_KEY", "x")
    .container("x", securityContext={"privileged": True}),
}


@pytest.mark.parametrize("pod", ORDINARY_PODS.values(), ids=ORDINARY_PODS)
def test_a_pod_unrelated_to_gpus(pod: Any) -> None:
    assert find_violations(pod.build()) == []


SIGNS = {
    "a GPU variable": make_pod().env("NVIDIA_VISIBLE_DEVICES", "all"),
    "a harmless variable": make_pod().env("NVIDIA_DRIVER_CAPABILITIES", "compute"),
    "a requirement": make_pod().env("NVIDIA_REQUIRE_CUDA", "cuda>=12"),
    "an MPS variable": make_pod().env("CUDA_MPS_PIPE_DIRECTORY", "/x"),
    "a GPU runtime class": make_pod().spec(runtimeClassName="nvidia"),
    "a device annotation": make_pod().annotate("cdi.k8s.io/x", "nvidia.com/gpu=0"),
    "a claim": make_pod().spec(resourceClaims=[{"name": "x"}]),
    "an NVIDIA resource that is not a known GPU": make_pod().requests("nvidia.com/vgpu-x", "1"),
    "a list of devices": make_pod().container(
        "y", volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/0"}]
    ),
}


@pytest.mark.parametrize("pod", SIGNS.values(), ids=SIGNS)
def test_a_pod_with_signs_of_gpus_and_no_request(pod: Any) -> None:
    evaluated = pod.container("x", securityContext={"privileged": True}).build()
    classes = frozenset({"nvidia"})
    assert "privileged" in names(find_violations(evaluated, allowed_runtime_classes=classes))


NODE: Json = {"user": "system:node:n1", "groups": ("system:nodes", "system:authenticated")}
REQUESTERS = {
    "a kubelet": (NODE, False),
    "a kubelet by its username alone": ({"user": "system:node:n1"}, False),
    "a user": ({"user": "alice"}, True),
    "unknown user": ({}, True),
    "a username that starts like a node's, in other groups": ({"user": "system:node:x", "groups": ("team",)}, True),
    "a service account in the nodes' group": ({"user": "system:serviceaccount:a:b", "groups": ("system:nodes",)}, True),
}


@pytest.mark.parametrize(("who", "bad"), REQUESTERS.values(), ids=REQUESTERS)
def test_the_annotation_of_a_static_pod(who: Json, bad: bool) -> None:
    pod = make_pod().annotate("kubernetes.io/config.mirror", "x").build()
    assert names(find_violations(pod, **who)) == (["mirrorPod"] if bad else [])


def test_a_static_pod_of_a_node_is_recorded_and_never_rejected() -> None:
    pod = make_pod().gpus(1).annotate("kubernetes.io/config.mirror", "x").env("LD_PRELOAD", "x").spec(nodeName="n1")
    found = find_violations(pod.build(), **NODE)
    assert names(found) == ["loaderEnv", "nodeName"]
    assert {finding.at_most for _, finding in found} == {PolicyMode.AUDIT}


class Update(NamedTuple):
    old: Json
    new: Json
    want: list[str]


RUNNING = make_pod().gpus(1).env("NVIDIA_VISIBLE_DEVICES", "all").spec(nodeName="n1", hostPID=True)
UPDATES = {
    "a label on a running pod with a bypass": Update(RUNNING.build(), RUNNING.label("a", "b").build(), []),
    "a debug container with the same bypass": Update(
        RUNNING.build(),
        RUNNING.container(
            "debug",
            kind="ephemeralContainers",
            env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
            securityContext={"allowPrivilegeEscalation": False},
        ).build(),
        ["visibleDevicesEnv"],
    ),
    "a debug container that may escalate, beside the processes of the host": Update(
        RUNNING.build(),
        RUNNING.container("debug", kind="ephemeralContainers").build(),
        ["privilegeEscalation"],
    ),
    "a privileged debug container": Update(
        make_pod().gpus(1).build(),
        make_pod().gpus(1).container("debug", kind="ephemeralContainers", securityContext={"privileged": True}).build(),
        ["privileged"],
    ),
    "a node that the scheduler chose": Update(
        make_pod().gpus(1).build(), make_pod().gpus(1).spec(nodeName="n1").build(), []
    ),
    "a device annotation, added": Update(
        make_pod().build(), make_pod().annotate("cdi.k8s.io/x", "nvidia.com/gpu=0").build(), ["cdiAnnotations"]
    ),
    "a device annotation, changed to another device": Update(
        make_pod().annotate("cdi.k8s.io/x", "nvidia.com/gpu=0").build(),
        make_pod().annotate("cdi.k8s.io/x", "nvidia.com/gpu=1").build(),
        ["cdiAnnotations"],
    ),
}


@pytest.mark.parametrize("case", UPDATES.values(), ids=UPDATES)
def test_an_update_reports_only_new_bypasses(case: Update) -> None:
    assert names(find_violations(case.new, old=case.old)) == case.want


def test_an_update_without_the_old_pod_reports_everything() -> None:
    assert "visibleDevicesEnv" in names(find_violations(RUNNING.build(), operation="UPDATE"))


def test_messages_escape_and_shorten_untrusted_text() -> None:
    value = "all\n\x1b[31m\u202e" + "x" * 1000
    ((_, finding),) = find_violations(make_pod().gpus(1).env("NVIDIA_VISIBLE_DEVICES", value).build())
    assert "\\n\\x1b[31m\\u202e" in finding.message
    assert len(finding.message) < 200


def test_every_bypass_has_its_code() -> None:
    of_size = {"GPU-S401"}
    assert set(BYPASS_CODES.values()) == {code for code in CODES if code.startswith("GPU-S")} - of_size
    assert set(BYPASS_CODES) > GPU_POD_BYPASSES


@settings(max_examples=200)
@given(pods(), st.none() | pods(), st.booleans())
def test_any_pod_is_checked_without_an_error(pod: Json, old: Json | None, share: bool) -> None:
    operation = "CREATE" if old is None else "UPDATE"
    read, before = parse_pod(pod), parse_pod(old) if old is not None else None
    request = AdmissionRequest(operation, "", "Pod", "team", "pod", read, lambda: pod, before)
    for name, finding in find_bypasses(request, read, gpu_requests_of_pod(read), shares_processes_on_shared_gpu=share):
        assert finding.code == BYPASS_CODES[name]
        assert finding.fix.endswith(".")
        assert not finding.message.endswith(".")
        assert finding.message.isprintable()


@settings(max_examples=100)
@given(pods(), st.randoms(use_true_random=False))
def test_the_order_of_containers_changes_nothing(pod: Json, random: Any) -> None:
    first = set(names(find_violations(pod)))
    for kind in KINDS:
        if kind in pod["spec"]:
            random.shuffle(pod["spec"][kind])
    assert set(names(find_violations(pod))) == first


@settings(max_examples=100)
@given(pods())
def test_an_update_that_changes_nothing_finds_nothing(pod: Json) -> None:
    assert find_violations(pod, old=pod) == []
