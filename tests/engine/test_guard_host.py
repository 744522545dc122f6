"""guard: host access that bypasses the device plugin, each with a harmless counterpart."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.engine.guard_violations import KINDS, find_violations, names, places
from webhook.engine.guarding.host_access import HOST_CAPABILITIES


class Place(NamedTuple):
    bypass: str
    bad: Json
    fine: Json
    path: str


IN_A_CONTAINER = {
    "privileged": Place(
        "privileged",
        {"securityContext": {"privileged": True}},
        {"securityContext": {"privileged": False}},
        "securityContext.privileged",
    ),
    "SYS_ADMIN": Place(
        "sysAdminCapability",
        {"securityContext": {"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}}},
        {"securityContext": {"capabilities": {"add": ["IPC_LOCK"], "drop": ["SYS_ADMIN"]}}},
        "securityContext.capabilities.add[1]",
    ),
    "SYS_ADMIN with its prefix, in small letters": Place(
        "sysAdminCapability",
        {"securityContext": {"capabilities": {"add": ["cap_sys_admin"]}}},
        {"securityContext": {"capabilities": {"add": ["CAP_SYS_NICE"]}}},
        "securityContext.capabilities.add[0]",
    ),
    "all capabilities": Place(
        "sysAdminCapability",
        {"securityContext": {"capabilities": {"add": ["All"]}}},
        {"securityContext": {"capabilities": {"drop": ["ALL"]}}},
        "securityContext.capabilities.add[0]",
    ),
    "direct access to device memory": Place(
        "sysAdminCapability",
        {"securityContext": {"capabilities": {"add": ["SYS_RAWIO"]}}},
        {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}},
        "securityContext.capabilities.add[0]",
    ),
    "direct access to device memory, without escalation": Place(
        "sysAdminCapability",
        {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_RAWIO"]}}},
        {"securityContext": {"allowPrivilegeEscalation": True, "capabilities": {"add": ["IPC_LOCK", "NET_ADMIN"]}}},
        "securityContext.capabilities.add[0]",
    ),
    "a list of devices by mount": Place(
        "containerDevicesMount",
        {"volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]},
        {"volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices-of-mine"}]},
        "volumeMounts[0].mountPath",
    ),
    "a list of devices by the folder itself": Place(
        "containerDevicesMount",
        {
            "volumeMounts": [
                {"name": "v", "mountPath": "/data"},
                {"name": "w", "mountPath": "/var/run/nvidia-container-devices/"},
            ]
        },
        {"volumeMounts": [{"name": "v", "mountPath": "/data/nvidia-container-devices"}]},
        "volumeMounts[1].mountPath",
    ),
    "a list of devices by an unnormalized path": Place(
        "containerDevicesMount",
        {"volumeMounts": [{"name": "v", "mountPath": "//run/x/..//nvidia-container-devices/./0"}]},
        {"volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/../data"}]},
        "volumeMounts[0].mountPath",
    ),
    "a source of variables without a prefix": Place(
        "unreadableEnv",
        {"envFrom": [{"secretRef": {"name": "s"}}]},
        {"envFrom": [{"prefix": "APP_", "secretRef": {"name": "s"}}]},
        "envFrom[0]",
    ),
    "a source whose prefix begins a guarded name": Place(
        "unreadableEnv",
        {"envFrom": [{"prefix": "NVIDIA_VISIBLE_", "configMapRef": {"name": "c"}}]},
        {"envFrom": [{"prefix": "NVIDIA_APP_", "configMapRef": {"name": "c"}}]},
        "envFrom[0]",
    ),
    "a source whose prefix starts with CUDA_MPS_": Place(
        "unreadableEnv",
        {"envFrom": [{"prefix": "CUDA_MPS_PIPE", "configMapRef": {"name": "c"}}]},
        {"envFrom": [{"prefix": "CUDA_APP_", "configMapRef": {"name": "c"}}]},
        "envFrom[0]",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", IN_A_CONTAINER.values(), ids=IN_A_CONTAINER)
def test_a_container_of_a_gpu_pod(case: Place, kind: str) -> None:
    sidecar = {"restartPolicy": "Always"} if kind == "initContainers" else {}
    bad = find_violations(make_pod().gpus(1).container("other", kind=kind, **sidecar, **case.bad).build())
    place = 1 if kind == "containers" else 0
    assert places(bad) == [(case.bypass, f"spec.{kind}[{place}].{case.path}")]
    assert find_violations(make_pod().gpus(1).container("other", kind=kind, **case.fine).build()) == []


GPU_LIMIT = {"limits": {"nvidia.com/gpu": 1}}
SETUP_CONTAINERS = {
    "that blocks addresses, as in JupyterHub": (make_pod().gpus(1), {}, []),
    "that keeps running": (make_pod().gpus(1), {"restartPolicy": "Always"}, ["privileged"]),
    "that requests the GPU": (make_pod(), {"resources": GPU_LIMIT}, ["privileged"]),
    "with a GPU variable": (
        make_pod().gpus(1),
        {"env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute"}]},
        ["privileged"],
    ),
    "without GPUs by a variable": (
        make_pod().gpus(1),
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]},
        [],
    ),
    "under a GPU runtime class": (make_pod().gpus(1).spec(runtimeClassName="nvidia"), {}, ["privileged"]),
    "beside a list of devices": (
        make_pod().gpus(1).annotate("cdi.k8s.io/x", "nvidia.com/gpu=0"),
        {},
        ["cdiAnnotations", "privileged"],
    ),
    "beside an unknown NVIDIA resource": (make_pod().requests("nvidia.com/vgpu-x", 1), {}, ["privileged"]),
}


@pytest.mark.parametrize(("pod", "fields", "expected"), SETUP_CONTAINERS.values(), ids=SETUP_CONTAINERS)
def test_a_privileged_init_container(pod: PodMaker, fields: Json, expected: list[str]) -> None:
    context = {"privileged": True, "capabilities": {"add": ["NET_ADMIN"]}}
    maker = pod.container("setup", kind="initContainers", securityContext=context, **fields)
    assert names(find_violations(maker.build())) == expected


IN_THE_SPEC = {
    "a user namespace": Place("userNamespaces", {"hostUsers": False}, {"hostUsers": True}, "hostUsers"),
    "a node by name": Place("nodeName", {"nodeName": "n1"}, {"nodeSelector": {"a": "b"}}, "nodeName"),
    "a resource claim": Place(
        "resourceClaims",
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]},
        {"resourceClaims": []},
        "resourceClaims",
    ),
}


@pytest.mark.parametrize("case", IN_THE_SPEC.values(), ids=IN_THE_SPEC)
def test_a_field_of_a_gpu_pod(case: Place) -> None:
    bad = find_violations(make_pod().gpus(1).spec(**case.bad).build())
    assert places(bad) == [(case.bypass, f"spec.{case.path}")]
    assert find_violations(make_pod().gpus(1).spec(**case.fine).build()) == []


HOST_PATHS = {
    "the whole host": ("/", True),
    "all devices": ("/dev", True),
    "all devices, with a slash": ("/dev/", True),
    "a GPU": ("/dev/nvidia0", True),
    "MIG capabilities": ("/dev/nvidia-caps/nvidia-cap1", True),
    "IMEX channels": ("/dev/nvidia-caps-imex-channels", True),
    "render nodes": ("/dev/dri/renderD128", True),
    "devices by number": ("/dev/char", True),
    "the driver's files": ("/proc/driver/nvidia/gpus", True),
    "the parent of the driver's files": ("/proc", True),
    "the driver's root": ("/run/nvidia/driver", True),
    "the MPS server": ("/var/run/nvidia/mps", True),
    "the persistence daemon": ("/run/nvidia-persistenced/socket", True),
    "device lists": ("/var/run/nvidia-container-devices", True),
    "CDI specifications": ("/var/run/cdi", True),
    "CDI specifications in /etc": ("/etc/cdi/nvidia.yaml", True),
    "the kubelet's device sockets": ("/var/lib/kubelet/device-plugins/kubelet.sock", True),
    "the kubelet's pod resources": ("/var/lib/kubelet/pod-resources", True),
    "the parent of the kubelet's sockets": ("/var/lib", True),
    "containerd's socket": ("/run/containerd/containerd.sock", True),
    "CRI-O's socket": ("/var/run/crio/crio.sock", True),
    "Docker's socket": ("/var/run/docker.sock", True),
    "the NRI socket": ("/var/run/nri/nri.sock", True),
    "containerd's socket of k0s": ("/run/k0s/containerd.sock", True),
    "the parent of that socket": ("/var/run/k0s", True),
    "containerd's socket of an old k0s": ("/var/lib/k0s/run/containerd.sock", True),
    "the device sockets of k0s": ("/var/lib/k0s/kubelet/device-plugins", True),
    "pods' volumes of k0s": ("/var/lib/k0s/kubelet/pods", False),
    "containerd's socket of K3s and RKE2": ("/run/k3s/containerd/containerd.sock", True),
    "Docker's socket of K3s": ("/run/k3s/cri-dockerd/cri-dockerd.sock", True),
    "volumes of K3s": ("/var/lib/rancher/k3s/storage", False),
    "network plugins of K3s": ("/var/lib/rancher/k3s/agent/etc/cni/net.d", False),
    "containerd's socket of MicroK8s": ("/var/snap/microk8s/common/run/containerd.sock", True),
    "the device sockets of MicroK8s": ("/var/snap/microk8s/common/var/lib/kubelet/device-plugins", True),
    "the parent of the files of MicroK8s": ("/var/snap/microk8s/common", True),
    "volumes of MicroK8s": ("/var/snap/microk8s/common/default-storage", False),
    "all memory": ("/dev/mem", True),
    "the container toolkit": ("/usr/local/nvidia/toolkit", True),
    "the parent of the container toolkit": ("/usr", False),
    "the sockets of a CSI driver": ("/var/lib/kubelet/plugins/csi.example.com", False),
    "the registration sockets of CSI drivers": ("/var/lib/kubelet/plugins_registry", False),
    "up and down again": ("/data/../dev//./nvidia0", True),
    "past the root": ("/../../dev", True),
    "two slashes first": ("//dev/nvidia0", True),
    "no slash first": ("dev/nvidia0", True),
    "an empty path": ("", True),
    "through a process's root": ("/proc/1/root/dev/nvidia0", True),
    "through two roots": ("/proc/1/root/proc/self/root/run/docker.sock", True),
    "through a process's root to a path without devices": ("/proc/1/root/data", True),
    "a process's working folder": ("/proc/1/cwd", True),
    "through a process's working folder": ("/proc/1/cwd/dev", True),
    "the working folder of the reading process": ("/proc/self/cwd", True),
    "through a thread's root": ("/proc/1/task/1/root/dev", True),
    "a process's open files": ("/proc/1/fd", True),
    "an open file": ("/proc/1/fd/3", True),
    "files that a process has mapped": ("/proc/1/map_files", True),
    "a process's namespaces": ("/proc/1/ns/mnt", True),
    "through a link and up again": ("/proc/1/cwd/../data", True),
    "a process, with all its links": ("/proc/1/", True),
    "the reading process, with all its links": ("/proc/self", True),
    "the reading thread": ("/proc/thread-self", True),
    "a name in digits of another script": ("/proc/\u0661", False),
    "kernel settings": ("/proc/sys/net", False),
    "a PCI device": ("/sys/bus/pci/devices/0000:3b:00.0", True),
    "all PCI devices": ("/sys/bus/pci", True),
    "a PCI device by its place": ("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", True),
    "a PCI device by its graphics card": ("/sys/class/drm/card0/device", True),
    "a PCI device by its driver": ("/sys/module/nvidia/drivers/pci:nvidia", True),
    "a PCI device by its group": ("/sys/kernel/iommu_groups/7/devices", True),
    "settings of PCI devices": ("/proc/bus/pci/3b", True),
    "the parent of these settings": ("/proc/bus", True),
    "a device for user space": ("/dev/vfio/7", True),
    "the whole of sysfs, as node agents mount it": ("/sys", False),
    "control groups": ("/sys/fs/cgroup", False),
    "processors and memory": ("/sys/devices/system/node", False),
    "network cards": ("/sys/class/net", False),
    "the MPS server's sockets": ("/tmp/nvidia-mps", True),
    "the parent of the MPS server's sockets": ("/tmp", False),
    "a folder of data": ("/data", False),
    "a name that starts with /dev": ("/devices", False),
    "shared memory": ("/dev/shm", False),
    "InfiniBand": ("/dev/infiniband", False),
    "up to the root and into another folder": ("/dev/../data", False),
    "logs": ("/var/log", False),
    "a time zone": ("/etc/localtime", False),
    "a disk": ("/mnt/disks/dev", False),
    "a name that starts like the runtime's": ("/run/containerd-data", False),
    "a process": ("/proc/1/status", False),
}


@pytest.mark.parametrize(("path", "bad"), HOST_PATHS.values(), ids=HOST_PATHS)
def test_a_host_path_in_a_pod_without_gpus(path: str, bad: bool) -> None:
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "host", "hostPath": {"path": path}}]
    found = find_violations(make_pod().spec(volumes=volumes).build())
    want = [("hostPathDevices", "spec.volumes[1].hostPath.path")] if bad else []
    assert places(found) == want


def test_a_shared_process_namespace_matters_on_a_shared_gpu_only() -> None:
    pod = make_pod().requests("nvidia.com/gpu.shared", "1").spec(shareProcessNamespace=True).build()
    assert names(find_violations(pod, share=True)) == ["sharedProcessNamespace"]
    assert find_violations(pod, share=False) == []


NO_ESCALATION = {"securityContext": {"allowPrivilegeEscalation": False}}
HOST_NAMESPACES: dict[str, tuple[Json, Json, list[str]]] = {
    "the host's processes": ({"hostPID": True}, NO_ESCALATION, ["hostNamespaces"]),
    "the host's shared memory": ({"hostIPC": True}, NO_ESCALATION, ["hostNamespaces"]),
    "the host's network": ({"hostNetwork": True}, {}, []),
    "no namespace of the host": ({"hostPID": False, "hostIPC": False}, {}, []),
    "with escalation": (
        {"hostPID": True},
        {"securityContext": {"allowPrivilegeEscalation": True}},
        ["hostNamespaces", "privilegeEscalation"],
    ),
    "with escalation by omission": ({"hostIPC": True}, {}, ["hostNamespaces", "privilegeEscalation"]),
    "with escalation by omission beside other fields": (
        {"hostPID": True},
        {"securityContext": {"runAsNonRoot": True}},
        ["hostNamespaces", "privilegeEscalation"],
    ),
    "in a privileged container": (
        {"hostPID": True},
        {"securityContext": {"privileged": True}},
        ["hostNamespaces", "privileged"],
    ),
    "with tracing of the host's processes": (
        {"hostPID": True},
        {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_PTRACE"]}}},
        ["hostNamespaces", "sysAdminCapability"],
    ),
    "with tracing of its own processes": (
        {"hostIPC": True},
        {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_PTRACE"]}}},
        ["hostNamespaces"],
    ),
}


@pytest.mark.parametrize(("spec", "container", "expected"), HOST_NAMESPACES.values(), ids=HOST_NAMESPACES)
def test_namespaces_of_the_host(spec: Json, container: Json, expected: list[str]) -> None:
    pod = make_pod().gpus(1).spec(**spec)
    pod.main.update(container)
    assert names(find_violations(pod.build())) == expected


@pytest.mark.parametrize("capability", HOST_CAPABILITIES)
@pytest.mark.parametrize("escalation", [True, False, None])
def test_a_capability_that_reaches_the_host(capability: str, escalation: bool | None) -> None:
    context = {"allowPrivilegeEscalation": escalation, "capabilities": {"add": [capability]}}
    found = find_violations(make_pod().gpus(1).container("x", securityContext=context).build())
    assert names(found) == ["sysAdminCapability"]


BASELINE = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)


@pytest.mark.parametrize("capability", [*BASELINE, "IPC_LOCK", "NET_ADMIN", "SYS_NICE", "SYS_RESOURCE"])
def test_a_capability_that_reaches_no_gpu(capability: str) -> None:
    context = {"allowPrivilegeEscalation": True, "capabilities": {"add": [capability]}}
    assert find_violations(make_pod().gpus(1).container("x", securityContext=context).build()) == []
