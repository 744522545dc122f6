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
from webhook.manifests.backstop import OPT_OUT_LABEL, SHARE_LABEL, backstop_policies
from webhook.well_known import SYSTEM_NAMESPACE

__all__ = ["served"]

NAMESPACE = "backstop-try"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
DEVICES = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
BROKEN = make_pod().container("more", env=[DEVICES])


EXCLUDED_NAMESPACE = "nvidia-device-plugin"
"""A namespace that is excluded from evaluation."""


def rejection_message(plane: Plane, maker: PodMaker, namespace: str = NAMESPACE) -> str:
    """Return the message that rejects a pod in a dry run; "" if it is accepted."""
    try:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", maker.namespace(namespace).build(), dryRun="All")
    except RefusedError as error:
        return error.message
    return ""


@pytest.fixture(scope="module")
def guarded_plane(served: Plane) -> Iterator[Plane]:
    """Yield a plane with the admission policies of the backstop."""
    classes = ("nvidia", "gvisor-without-gpus")
    for name in classes:
        served.api.create(CLASSES, {"metadata": {"name": name}, "handler": name})
    with (
        served.namespace_called(NAMESPACE),
        served.namespace_called(SYSTEM_NAMESPACE),
        apply_admission_objects(served, backstop_policies()),
    ):
        eventually(lambda: rejection_message(served, BROKEN))
        eventually(
            lambda: (
                "RuntimeClass" not in rejection_message(served, make_pod().spec(runtimeClassName="gvisor-without-gpus"))
            )
        )
        yield served
    for name in classes:
        served.api.delete(f"{CLASSES}/{name}")


def host_path_pod(path: str) -> PodMaker:
    return make_pod().spec(volumes=[{"name": "v", "hostPath": {"path": path}}])


def mount_pod(path: str) -> PodMaker:
    volume = {"name": "v", "emptyDir": {}}
    return make_pod().spec(volumes=[volume]).container("more", volumeMounts=[{"name": "v", "mountPath": path}])


def nvidia_pod() -> PodMaker:
    return make_pod().spec(runtimeClassName="nvidia")


def env_source_pod(source: Json) -> PodMaker:
    return make_pod().container("more", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": source}])


REJECTED = {
    "a list that is too long to check": (
        make_pod().container("m", image="i", env=[{"name": f"V{index}"} for index in range(1001)]),
        "must have at most 1000 entries in each list",
    ),
    "a variable that requests all GPUs": (BROKEN, "must not set NVIDIA_VISIBLE_DEVICES, NVIDIA_IMEX_CHANNELS"),
    "the variable and a GPU request": (make_pod().gpus(1).container("m", env=[DEVICES]), "must not set NVIDIA_VISIBLE"),
    "the variable in an init container": (
        make_pod().container("m", kind="initContainers", env=[DEVICES]),
        "must not set NVIDIA_VISIBLE",
    ),
    "a variable whose value is unknown": (
        env_source_pod({"fieldRef": {"fieldPath": "metadata.name"}}),
        "must not set NVIDIA_VISIBLE",
    ),
    "a memory channel between nodes": (
        make_pod().env("NVIDIA_IMEX_CHANNELS", "0"),
        "must not set NVIDIA_VISIBLE_DEVICES, NVIDIA_IMEX_CHANNELS",
    ),
    "a list of GPUs as mounts": (mount_pod("/var/run/nvidia-container-devices/all"), "is read as a list of GPUs"),
    "an annotation of CDI": (
        make_pod().annotate("cdi.k8s.io/x", "nvidia.com/gpu=all"),
        "cdi.k8s.io annotations, which inject devices",
    ),
    "an annotation of NVIDIA's plug-in": (
        make_pod().annotate("nvidia.cdi.k8s.io/container.main", "nvidia.com/gpu=0"),
        "cdi.k8s.io annotations, which inject devices",
    ),
    "a device annotation of GKE": (
        make_pod().annotate("devices.gke.io/container.main", "- path: /dev/nvidia0"),
        "annotations of NRI plug-ins",
    ),
    "a mount annotation of NRI": (make_pod().annotate("mounts.nri.io/pod", "x"), "annotations of NRI plug-ins"),
    "NVSwitch devices": (make_pod().gpus(1).env("NVIDIA_NVSWITCH", "enabled"), "must not enable NVIDIA_NVSWITCH"),
    "RDMA devices by an expansion": (make_pod().env("NVIDIA_MOFED", "$(ON)"), "must not enable NVIDIA_NVSWITCH"),
    "a GPU runtime class without a GPU": (nvidia_pod(), "must request a GPU"),
    "a GPU runtime class with zero GPUs": (nvidia_pod().gpus("0"), "must request a GPU"),
    "a GPU runtime class with zero slices": (
        nvidia_pod().requests("nvidia.com/mig-1g.10gb", "0"),
        "must request a GPU",
    ),
    "a GPU runtime class with an unknown resource": (
        nvidia_pod().requests("nvidia.com/anything", "1"),
        "must request a GPU",
    ),
    "a GPU runtime class with another NVIDIA device": (
        nvidia_pod().requests("nvidia.com/hostdev", "1"),
        "must request a GPU",
    ),
    "a GPU runtime class with the accounting resource": (
        nvidia_pod().requests("rightslice.dev/gpu-milli", "1"),
        "must request a GPU",
    ),
    "a device path of the host": (host_path_pod("/dev/nvidia0"), "must not mount host paths"),
    "a device path with a double slash": (host_path_pod("/dev//nvidia0"), "must not mount host paths"),
    "a device path with a dot segment": (host_path_pod("/dev/./nvidia0"), "must not mount host paths"),
    "a relative device path": (host_path_pod("dev/nvidia0"), "must not mount host paths"),
    "the device plugin's sockets": (host_path_pod("/var/lib/kubelet/device-plugins"), "must not mount host paths"),
    "the device plugin's sockets of k0s": (
        host_path_pod("/var/lib/k0s/kubelet/device-plugins/kubelet.sock"),
        "must not mount host paths",
    ),
    "the container toolkit": (host_path_pod("/usr/local/nvidia/toolkit"), "must not mount host paths"),
    "the annotation of a mirror pod": (
        make_pod().annotate("kubernetes.io/config.mirror", "x").spec(nodeName="n1"),
        "which only nodes may write",
    ),
}
ACCEPTED = {
    "nothing": make_pod(),
    "a GPU": make_pod().gpus(1),
    "a GPU with its class": nvidia_pod().gpus(1),
    "a slice with its class": nvidia_pod().requests("nvidia.com/mig-1g.10gb.me", "1"),
    "a share with its class": nvidia_pod().requests("nvidia.com/gpu.shared", "1"),
    "an extended resource of a claim with its class": nvidia_pod().requests(
        "deviceclass.resource.kubernetes.io/gpu", "1"
    ),
    "a GPU in another container with its class": nvidia_pod().container(
        "more", resources={"limits": {"nvidia.com/gpu": "1"}}
    ),
    "another class": make_pod().spec(runtimeClassName="gvisor-without-gpus"),
    "variables that request no devices": make_pod()
    .env("NVIDIA_VISIBLE_DEVICES", "void")
    .env("NVIDIA_IMEX_CHANNELS", ""),
    "driver features that act on the own GPU": make_pod()
    .gpus(1)
    .env("NVIDIA_GDRCOPY", "enabled")
    .env("NVIDIA_NVSWITCH", "disabled"),
    "GKE's networks": make_pod().annotate("networking.gke.io/interfaces", "[]"),
    "a variable without a value": make_pod().container("more", env=[{"name": "NVIDIA_VISIBLE_DEVICES"}]),
    "capabilities of the driver": make_pod().gpus(1).env("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
    "similar annotations": make_pod().annotate("cdi.k8s.io.example.com/x", "y"),
    "the root of the host, as for node exporters": host_path_pod("/"),
    "logs": host_path_pod("/var/log"),
}


@pytest.mark.parametrize(("maker", "message"), REJECTED.values(), ids=REJECTED)
def test_bypasses_are_rejected_without_the_webhook(guarded_plane: Plane, maker: PodMaker, message: str) -> None:
    assert message in rejection_message(guarded_plane, maker)


@pytest.mark.parametrize("amount", ["0e3", "0Gi", "0.0", "-0", 0])
def test_no_spelling_of_zero_counts_as_a_request(guarded_plane: Plane, amount: object) -> None:
    assert "must request a GPU" in rejection_message(guarded_plane, nvidia_pod().gpus(amount))


@pytest.mark.parametrize("maker", ACCEPTED.values(), ids=ACCEPTED)
def test_everything_else_is_left_to_the_webhook(guarded_plane: Plane, maker: PodMaker) -> None:
    assert rejection_message(guarded_plane, maker) == ""


def test_gpu_operator_namespaces_are_excluded(guarded_plane: Plane) -> None:
    assert rejection_message(guarded_plane, BROKEN, SYSTEM_NAMESPACE) == ""


def test_debug_containers_are_checked_and_existing_containers_are_not(guarded_plane: Plane) -> None:
    binding = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/rightslice-pods"
    guarded_plane.api.patch(binding, {"spec": {"validationActions": ["Audit"]}})
    eventually(lambda: rejection_message(guarded_plane, BROKEN) == "")
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    guarded_plane.api.create(pods, make_pod("old").namespace(NAMESPACE).container("more", env=[DEVICES]).build())
    guarded_plane.api.patch(binding, {"spec": {"validationActions": ["Deny"]}})
    eventually(lambda: rejection_message(guarded_plane, BROKEN))

    def debug(name: str, **fields: object) -> None:
        containers = [{"name": name, "image": "i", **fields}]
        guarded_plane.api.patch(
            f"{pods}/old/ephemeralcontainers", {"spec": {"ephemeralContainers": containers}}, "strategic"
        )

    debug("plain")
    with pytest.raises(RefusedError, match="must not set NVIDIA_VISIBLE_DEVICES, NVIDIA_IMEX_CHANNELS"):
        debug("greedy", env=[DEVICES])


def test_only_policy_admins_may_exclude_a_namespace_or_change_its_shared_quota(guarded_plane: Plane) -> None:
    someone = ("--as=someone", "--as-group=system:authenticated")
    guarded_plane.kubectl("create", "clusterrole", "spaces", "--verb=get,create,patch,update", "--resource=namespaces")
    guarded_plane.kubectl("create", "clusterrolebinding", "spaces", "--clusterrole=spaces", "--user=someone")
    try:
        eventually(
            lambda: (
                guarded_plane.kubectl("auth", "can-i", "update", "namespaces", *someone, check=False).stdout == "yes\n"
            )
        )
        other = guarded_plane.kubectl("label", "namespace", NAMESPACE, "team=vision", *someone, check=False)
        other_namespace = guarded_plane.kubectl(
            "create", "namespace", "vision", "--dry-run=server", *someone, check=False
        )
        excluded = guarded_plane.kubectl(
            "create", "namespace", EXCLUDED_NAMESPACE, "--dry-run=server", *someone, check=False
        )
        labeled = guarded_plane.kubectl("label", "namespace", NAMESPACE, f"{OPT_OUT_LABEL}=off", *someone, check=False)
        guarded_plane.kubectl("label", "namespace", NAMESPACE, f"{SHARE_LABEL}=research")
        left = guarded_plane.kubectl("label", "namespace", NAMESPACE, f"{SHARE_LABEL}-", *someone, check=False)
        guarded_plane.kubectl("label", "namespace", NAMESPACE, f"{SHARE_LABEL}-")
    finally:
        guarded_plane.kubectl("delete", "clusterrolebinding/spaces", "clusterrole/spaces")

    assert other.returncode == 0, other.stderr
    assert other_namespace.returncode == 0, other_namespace.stderr
    assert "must not have this name" in excluded.stderr
    assert f"must not change the label {OPT_OUT_LABEL}" in labeled.stderr
    assert f"must not change the label {SHARE_LABEL}" in left.stderr

    guarded_plane.kubectl("create", "namespace", EXCLUDED_NAMESPACE, "--dry-run=server")
    guarded_plane.kubectl("label", "namespace", NAMESPACE, f"{OPT_OUT_LABEL}=off")
    eventually(lambda: rejection_message(guarded_plane, BROKEN) == "")
    guarded_plane.kubectl("label", "namespace", NAMESPACE, f"{OPT_OUT_LABEL}-")
    eventually(lambda: rejection_message(guarded_plane, BROKEN))


def test_exceptions_are_accepted_in_the_admin_namespace_only(guarded_plane: Plane) -> None:
    (document,) = read_documents(exception_text(), "e.yaml")

    def exception_rejection(namespace: str) -> str:
        data = {**document.data, "metadata": {"name": "e", "namespace": namespace}}
        path = EXCEPTIONS.replace("gpupolicyexceptions", f"namespaces/{namespace}/gpupolicyexceptions")
        try:
            guarded_plane.api.create(path, data, dryRun="All")
        except RefusedError as error:
            return error.message
        return ""

    assert exception_rejection(SYSTEM_NAMESPACE) == ""
    assert f"must be in namespace {SYSTEM_NAMESPACE}" in exception_rejection(NAMESPACE)
