"""Pods that the ValidatingAdmissionPolicies reject while our server is down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.recording_webhook import apply_admission_objects
from tests.cluster.test_crds import EXCEPTIONS, served
from tests.policy.policy_texts import exception_text
from webhook.documents.reader import read_documents
from webhook.manifests.backstop import OPT_OUT_LABEL, backstop_policies
from webhook.well_known import SYSTEM_NAMESPACE

__all__ = ["served"]

SPACE = "backstop-try"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
DEVICES = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
BROKEN = make_pod().container("more", env=[DEVICES])


FREE = "nvidia-device-plugin"
"""A namespace whose pods nobody judges."""


def rejection_message(plane: Plane, maker: PodMaker, namespace: str = SPACE) -> str:
    """Return the message that rejects a pod in a dry run; "" if it is accepted."""
    try:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", maker.namespace(namespace).build(), dryRun="All")
    except RefusedError as error:
        return error.message
    return ""


@pytest.fixture(scope="module")
def held(served: Plane) -> Iterator[Plane]:
    """A plane with the policies."""
    classes = ("nvidia", "kata")
    for name in classes:
        served.api.create(CLASSES, {"metadata": {"name": name}, "handler": name})
    with (
        served.namespace_called(SPACE),
        served.namespace_called(SYSTEM_NAMESPACE),
        apply_admission_objects(served, backstop_policies()),
    ):
        eventually(lambda: rejection_message(served, BROKEN))
        eventually(lambda: "RuntimeClass" not in rejection_message(served, make_pod().spec(runtimeClassName="kata")))
        yield served
    for name in classes:
        served.api.delete(f"{CLASSES}/{name}")


def host_path_pod(path: str) -> PodMaker:
    return make_pod().spec(volumes=[{"name": "v", "hostPath": {"path": path}}])


def mounted_at(path: str) -> PodMaker:
    volume = {"name": "v", "emptyDir": {}}
    return make_pod().spec(volumes=[volume]).container("more", volumeMounts=[{"name": "v", "mountPath": path}])


def with_class() -> PodMaker:
    return make_pod().spec(runtimeClassName="nvidia")


def env_source_pod(source: Json) -> PodMaker:
    return make_pod().container("more", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": source}])


REFUSED = {
    "all GPUs by a variable": (BROKEN, "must not set NVIDIA_VISIBLE_DEVICES, NVIDIA_IMEX_CHANNELS"),
    "the same beside a request": (make_pod().gpus(1).container("m", env=[DEVICES]), "must not set NVIDIA_VISIBLE"),
    "the same in an init container": (
        make_pod().container("m", kind="initContainers", env=[DEVICES]),
        "must not set NVIDIA_VISIBLE",
    ),
    "a value that cannot be read": (
        env_source_pod({"fieldRef": {"fieldPath": "metadata.name"}}),
        "must not set NVIDIA_VISIBLE",
    ),
    "a memory channel between nodes": (
        make_pod().env("NVIDIA_IMEX_CHANNELS", "0"),
        "must not set NVIDIA_VISIBLE_DEVICES, NVIDIA_IMEX_CHANNELS",
    ),
    "a list of GPUs as mounts": (mounted_at("/var/run/nvidia-container-devices/all"), "is read as a list of GPUs"),
    "an annotation of CDI": (
        make_pod().annotate("cdi.k8s.io/x", "nvidia.com/gpu=all"),
        "cdi.k8s.io annotations, which inject devices",
    ),
    "an annotation of NVIDIA's plug-in": (
        make_pod().annotate("nvidia.cdi.k8s.io/container.main", "nvidia.com/gpu=0"),
        "cdi.k8s.io annotations, which inject devices",
    ),
    "a GPU runtime class without a GPU": (with_class(), "must request a GPU"),
    "the same beside none of a GPU": (with_class().gpus("0"), "must request a GPU"),
    "the same beside none of a slice": (with_class().asks("nvidia.com/mig-1g.10gb", "0"), "must request a GPU"),
    "the same beside a name that nobody knows": (with_class().asks("nvidia.com/anything", "1"), "must request a GPU"),
    "the same beside another device of NVIDIA's": (with_class().asks("nvidia.com/hostdev", "1"), "must request a GPU"),
    "the same beside what only counts": (with_class().asks("rightslice.dev/gpu-milli", "1"), "must request a GPU"),
    "a device of the host": (host_path_pod("/dev/nvidia0"), "must not mount host paths"),
    "the same with a detour": (host_path_pod("/dev//nvidia0"), "must not mount host paths"),
    "the same with a step that goes nowhere": (host_path_pod("/dev/./nvidia0"), "must not mount host paths"),
    "the same from nowhere": (host_path_pod("dev/nvidia0"), "must not mount host paths"),
    "the device plugin's sockets": (host_path_pod("/var/lib/kubelet/device-plugins"), "must not mount host paths"),
    "those of k0s": (host_path_pod("/var/lib/k0s/kubelet/device-plugins/kubelet.sock"), "must not mount host paths"),
    "the container toolkit": (host_path_pod("/usr/local/nvidia/toolkit"), "must not mount host paths"),
    "the mark of a static pod": (
        make_pod().annotate("kubernetes.io/config.mirror", "x").spec(nodeName="n1"),
        "which only nodes may write",
    ),
}
ACCEPTED = {
    "nothing": make_pod(),
    "a GPU": make_pod().gpus(1),
    "a GPU with its class": with_class().gpus(1),
    "a slice with it": with_class().asks("nvidia.com/mig-1g.10gb.me", "1"),
    "a share with it": with_class().asks("nvidia.com/gpu.shared", "1"),
    "a claim by an extended resource with it": with_class().asks("deviceclass.resource.kubernetes.io/gpu", "1"),
    "a GPU in another container with it": with_class().container("more", resources={"limits": {"nvidia.com/gpu": "1"}}),
    "another class": make_pod().spec(runtimeClassName="kata"),
    "no devices, by a variable": make_pod().env("NVIDIA_VISIBLE_DEVICES", "void").env("NVIDIA_IMEX_CHANNELS", ""),
    "a variable without a value": make_pod().container("more", env=[{"name": "NVIDIA_VISIBLE_DEVICES"}]),
    "capabilities of the driver": make_pod().gpus(1).env("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
    "annotations that only look alike": make_pod().annotate("cdi.k8s.io.example.com/x", "y"),
    "all of the host, as node exporters have it": host_path_pod("/"),
    "logs": host_path_pod("/var/log"),
}


@pytest.mark.parametrize(("maker", "why"), REFUSED.values(), ids=REFUSED)
def test_bypasses_are_rejected_without_the_webhook(held: Plane, maker: PodMaker, why: str) -> None:
    assert why in rejection_message(held, maker)


@pytest.mark.parametrize("amount", ["0e3", "0Gi", "0.0", "-0", 0])
def test_no_spelling_of_zero_counts_as_a_request(held: Plane, amount: object) -> None:
    assert "must request a GPU" in rejection_message(held, with_class().gpus(amount))


@pytest.mark.parametrize("maker", ACCEPTED.values(), ids=ACCEPTED)
def test_everything_else_is_left_to_the_webhook(held: Plane, maker: PodMaker) -> None:
    assert rejection_message(held, maker) == ""


def test_gpu_operator_namespaces_are_excluded(held: Plane) -> None:
    assert rejection_message(held, BROKEN, SYSTEM_NAMESPACE) == ""


def test_debug_containers_are_checked_and_existing_containers_are_not(held: Plane) -> None:
    binding = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/rightslice-pods"
    held.api.patch(binding, {"spec": {"validationActions": ["Audit"]}})
    eventually(lambda: rejection_message(held, BROKEN) == "")
    pods = f"/api/v1/namespaces/{SPACE}/pods"
    held.api.create(pods, make_pod("old").namespace(SPACE).container("more", env=[DEVICES]).build())
    held.api.patch(binding, {"spec": {"validationActions": ["Deny"]}})
    eventually(lambda: rejection_message(held, BROKEN))

    def debug(name: str, **fields: object) -> None:
        containers = [{"name": name, "image": "i", **fields}]
        held.api.patch(f"{pods}/old/ephemeralcontainers", {"spec": {"ephemeralContainers": containers}}, "strategic")

    debug("plain")
    with pytest.raises(RefusedError, match="must not set NVIDIA_VISIBLE_DEVICES, NVIDIA_IMEX_CHANNELS"):
        debug("greedy", env=[DEVICES])


def test_only_policy_admins_may_exclude_a_namespace(held: Plane) -> None:
    someone = ("--as=someone", "--as-group=system:authenticated")
    held.kubectl("create", "clusterrole", "spaces", "--verb=get,create,patch,update", "--resource=namespaces")
    held.kubectl("create", "clusterrolebinding", "spaces", "--clusterrole=spaces", "--user=someone")
    try:
        eventually(
            lambda: held.kubectl("auth", "can-i", "update", "namespaces", *someone, check=False).stdout == "yes\n"
        )
        other = held.kubectl("label", "namespace", SPACE, "team=vision", *someone, check=False)
        other_space = held.kubectl("create", "namespace", "vision", "--dry-run=server", *someone, check=False)
        left_out = held.kubectl("create", "namespace", FREE, "--dry-run=server", *someone, check=False)
        turned = held.kubectl("label", "namespace", SPACE, f"{OPT_OUT_LABEL}=off", *someone, check=False)
    finally:
        held.kubectl("delete", "clusterrolebinding/spaces", "clusterrole/spaces")

    assert other.returncode == 0, other.stderr
    assert other_space.returncode == 0, other_space.stderr
    assert "must not have this name" in left_out.stderr
    assert f"must not change the label {OPT_OUT_LABEL}" in turned.stderr

    held.kubectl("create", "namespace", FREE, "--dry-run=server")
    held.kubectl("label", "namespace", SPACE, f"{OPT_OUT_LABEL}=off")
    eventually(lambda: rejection_message(held, BROKEN) == "")
    held.kubectl("label", "namespace", SPACE, f"{OPT_OUT_LABEL}-")
    eventually(lambda: rejection_message(held, BROKEN))


def test_exceptions_are_accepted_in_the_admin_namespace_only(held: Plane) -> None:
    (document,) = read_documents(exception_text(), "e.yaml")

    def tried(namespace: str) -> str:
        data = {**document.data, "metadata": {"name": "e", "namespace": namespace}}
        path = EXCEPTIONS.replace("gpupolicyexceptions", f"namespaces/{namespace}/gpupolicyexceptions")
        try:
            held.api.create(path, data, dryRun="All")
        except RefusedError as error:
            return error.message
        return ""

    assert tried(SYSTEM_NAMESPACE) == ""
    assert f"must be in namespace {SYSTEM_NAMESPACE}" in tried(SPACE)
