"""Access to the host that reaches GPUs past the device plugin: privileges, namespaces, paths and mounts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from webhook.engine.guarding.bypasses import DetectedBypass, describe_bypass
from webhook.errors import quote_text
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.pods import Container, PodSpec, SecurityContext

_KUBELETS = ("/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
"""Where kubelets keep their files: the usual place (also of K3s and RKE2), that of k0s and that of MicroK8s."""

DEVICE_TREES = (
    "/dev/dri",
    "/dev/char",
    "/proc/driver/nvidia",
    "/etc/cdi",
    "/etc/nri",
    "/run/cdi",
    "/run/nri",
    *(f"{kubelet}/{sockets}" for kubelet in _KUBELETS for sockets in ("device-plugins", "pod-resources")),
)
"""Device files, the driver's own files, CDI and NRI, and the kubelet's device sockets: there for devices alone."""

GUARDED_TREES = (
    *DEVICE_TREES,
    "/dev/mem",
    "/run/containerd",
    "/run/crio",
    "/run/docker",
    "/run/docker.sock",
    "/run/cri-dockerd.sock",
    "/run/k0s",
    "/run/k3s",
    "/run/podman",
    "/var/lib/k0s/run",
    "/var/snap/microk8s/common/run",
)
"""Those, memory, and the runtimes' sockets."""

GUARDED_PREFIXES = ("/dev/nvidia", "/run/nvidia", "/usr/local/nvidia", "/tmp/nvidia-mps")  # noqa: S108 -- a path to refuse, not one to write
"""Device nodes, the sockets of driver, MPS, fabric manager and persistence daemon, and the container toolkit.

What holds /usr/local/nvidia does not count: agents that watch a node mount /usr.
"""

PROCESS_NAMES = frozenset({"self", "thread-self"})
"""Names of processes under /proc, beside their numbers."""

PROCESS_LINKS = frozenset({"root", "cwd", "exe", "fd", "map_files", "ns", "task"})
"""What stands in a process's folder and leads out of it, by itself or by what it holds."""

DEVICE_LIST_NAME = "nvidia-container-devices"
DEVICE_LIST = f"/run/{DEVICE_LIST_NAME}"
"""The toolkit takes the names of mounts under this folder (as /var/run/…) for a list of GPUs."""


_PRIVILEGED_CAPABILITIES = frozenset({"SYS_ADMIN", "ALL"})
"""The toolkit takes SYS_ADMIN in the bounding set for privileged."""


def find_host_path_volumes(spec: PodSpec) -> list[DetectedBypass]:
    """hostPath volumes that reach GPU devices or what hands them out."""
    return [
        describe_bypass(
            "hostPathDevices",
            ("spec", "volumes", i, "hostPath", "path"),
            "a hostPath volume must keep away from GPU devices, the driver and the sockets that hand devices "
            f"out, found {quote_text(volume.host_path.path)}",
        )
        for i, volume in enumerate(spec.volumes)
        if volume.host_path is not None and path_reaches_gpus(volume.host_path.path)
    ]


def find_device_mounts(containers: Sequence[tuple[FieldPath, Container]]) -> list[DetectedBypass]:
    """Mounts that the container toolkit reads as a list of GPUs."""
    results: list[DetectedBypass] = []
    must = "a mount must not be at or under /var/run/nvidia-container-devices"
    for path, container in containers:
        for i, mount in enumerate(container.volume_mounts):
            if DEVICE_LIST_NAME in mount.mount_path and is_device_list_mount(mount.mount_path):
                field = (*path, "volumeMounts", i, "mountPath")
                results.append(
                    describe_bypass("containerDevicesMount", field, f"{must}, found {quote_text(mount.mount_path)}")
                )
    return results


def find_host_access(spec: PodSpec, containers: Sequence[tuple[FieldPath, Container]]) -> list[DetectedBypass]:
    """Privileges and namespaces of the host."""
    results: list[DetectedBypass] = []
    shares_host = spec.host_pid or spec.host_ipc
    if shares_host:
        results += _find_host_namespaces(spec)
    for path, container in containers:
        context = container.security_context
        if context is not None and _raises_privileges(context):
            results += _find_privileges((*path, "securityContext"), context, shares_host=shares_host)
    if spec.host_users is False:
        message = "hostUsers must be true beside GPUs, found false"
        results.append(describe_bypass("userNamespaces", ("spec", "hostUsers"), message, at_most=PolicyMode.WARN))
    return results


def _raises_privileges(context: SecurityContext) -> bool:
    return bool(context.privileged or context.allow_privilege_escalation or context.capabilities.add)


def _find_host_namespaces(spec: PodSpec) -> list[DetectedBypass]:
    asked = (("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    return [
        describe_bypass(
            "hostNamespaces", ("spec", field), f"{field} must be false beside GPUs, found true", f"Remove {field}."
        )
        for field, on in asked
        if on
    ]


def _find_privileges(path: FieldPath, context: SecurityContext, *, shares_host: bool) -> list[DetectedBypass]:
    results: list[DetectedBypass] = []
    added = context.capabilities.add
    if context.privileged:
        message = "privileged must be false in a pod that touches GPUs, found true"
        results.append(describe_bypass("privileged", (*path, "privileged"), message))
    results += [
        describe_bypass(
            "sysAdminCapability",
            (*path, "capabilities", "add", i),
            f"SYS_ADMIN must not be added in a pod that touches GPUs, found {quote_text(capability)}",
            f"Remove {quote_text(capability)} from securityContext.capabilities.add.",
        )
        for i, capability in enumerate(added)
        if capability.upper().removeprefix("CAP_") in _PRIVILEGED_CAPABILITIES
    ]
    if context.allow_privilege_escalation and (shares_host or added):
        beside = "host namespaces" if shares_host else f"the added capability {quote_text(added[0])}"
        message = f"allowPrivilegeEscalation must be false beside {beside}, found true"
        results.append(describe_bypass("privilegeEscalation", (*path, "allowPrivilegeEscalation"), message))
    return results


def find_shared_processes(spec: PodSpec) -> list[DetectedBypass]:
    """One process namespace for all containers: on a shared GPU they reach each other's memory handles."""
    if not spec.share_process_namespace:
        return []
    message = "shareProcessNamespace must be false in a pod that asks for a share of a GPU, found true"
    return [describe_bypass("sharedProcessNamespace", ("spec", "shareProcessNamespace"), message)]


def normalize_host_path(path: str) -> str:
    """Resolve what can be resolved without a file system: "//", ".", ".." and /var/run.

    A path through a process's links is taken as all of the host.

    >>> plain("//var/./run/../run/nvidia/")
    '/run/nvidia'
    >>> plain("/proc/1/cwd/data")
    '/'
    """
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
            if len(steps) == 3 and steps[0] == "proc" and step in PROCESS_LINKS:
                return "/"
            if steps == ["var", "run"]:
                steps[:] = ["run"]
    return "/" + "/".join(steps)


def _is_process_folder(path: str) -> bool:
    """Is this the folder of a process, which holds its links?"""
    proc, _, name = path.rpartition("/")
    return proc == "/proc" and ((name.isascii() and name.isdecimal()) or name in PROCESS_NAMES)


@lru_cache(maxsize=1024)
def path_reaches_gpus(host_path: str) -> bool:
    """Does a host path reach GPU devices or their managers?"""
    path = normalize_host_path(host_path)
    if path == "/" or path.startswith(GUARDED_PREFIXES) or _is_process_folder(path):
        return True
    inside = path + "/"
    return any(inside.startswith(tree + "/") or tree.startswith(inside) for tree in GUARDED_TREES)


def is_device_list_mount(mount_path: str) -> bool:
    """Does the container toolkit read this mount as a list of GPUs?"""
    return (normalize_host_path(mount_path) + "/").startswith(DEVICE_LIST + "/")
