"""Find host access that reaches GPUs without the device plugin: privileges, namespaces, paths and mounts.

A host path counts if it is one of the guarded trees, is under one, or contains one: a mount of /run includes the
container runtime's socket. So does every path through a process's links, which lead anywhere. /tmp itself is allowed:
it is mounted for many reasons, though MPS sockets may be there.
"""

from __future__ import annotations

from collections.abc import Sequence

from webhook.engine.guarding.bypasses import DetectedBypass, describe_bypass
from webhook.errors import quote_text
from webhook.model.bounded_cache import request_cache
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.pods import Container, PodSpec, SecurityContext, Volume

_KUBELETS = ("/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
"""Kubelet directories: the default (also of K3s and RKE2), k0s and MicroK8s."""

DEVICE_TREES = (
    "/dev/dri",
    "/dev/char",
    "/dev/vfio",
    "/proc/bus/pci",
    "/proc/driver/nvidia",
    "/etc/cdi",
    "/etc/nri",
    "/run/cdi",
    "/run/nri",
    *(f"{kubelet}/{sockets}" for kubelet in _KUBELETS for sockets in ("device-plugins", "pod-resources")),
)
"""Paths that exist for devices only: device files, PCI, the driver's files, CDI, NRI, and the kubelet's sockets."""

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
"""Device trees, memory, and the container runtimes' sockets."""

GUARDED_PREFIXES = (
    *("/dev/nvidia", "/run/nvidia", "/usr/local/nvidia", "/tmp/nvidia-mps"),  # noqa: S108 -- a path to refuse, not one to write
    *("/sys/bus/pci", "/sys/devices/pci", "/sys/class/drm", "/sys/kernel/iommu_groups", "/sys/module/nvidia"),
)
"""Device nodes, the sockets of driver, MPS, fabric manager and persistence daemon, the container toolkit, and PCI
devices in sysfs, whose files `resource0` and so on are the memory of a GPU for root, without a device node.

Parents of /usr/local/nvidia and of the paths in /sys do not count: node agents mount /usr and /sys.
"""

PROCESS_NAMES = frozenset({"self", "thread-self"})
"""Names of processes under /proc besides their numbers."""

PROCESS_LINKS = frozenset({"root", "cwd", "exe", "fd", "map_files", "ns", "task"})
"""Entries of a process's folder that lead out of it, directly or through their content."""

DEVICE_LIST_NAME = "nvidia-container-devices"
"""The toolkit reads the names of mounts under this folder of /run (as /var/run/…) as a list of GPUs."""


HOST_CAPABILITIES = ("SYS_ADMIN", "SYS_RAWIO", "SYS_MODULE", "DAC_READ_SEARCH", "BPF", "PERFMON")
"""Capabilities that reach beyond the container; Pod Security `baseline` allows none of them.

The toolkit treats SYS_ADMIN in the bounding set as privileged. SYS_RAWIO maps device memory, SYS_MODULE loads code into
the kernel, DAC_READ_SEARCH opens files of the host by handle, BPF and PERFMON read the kernel's memory.
"""

_DENIED_CAPABILITIES = frozenset({"ALL", *HOST_CAPABILITIES})


def find_host_paths(
    volumes: Sequence[Volume], containers: Sequence[tuple[FieldPath, Container]]
) -> list[DetectedBypass]:
    """Return mounts that the container toolkit reads as GPUs, and hostPath volumes that reach devices or managers."""
    must = "a mount must not be at or under /var/run/nvidia-container-devices"
    mounts = [
        describe_bypass(
            "containerDevicesMount",
            (*path, "volumeMounts", i, "mountPath"),
            f"{must}, found {quote_text(mount.mount_path)}",
        )
        for path, container in containers
        for i, mount in enumerate(container.volume_mounts)
        if DEVICE_LIST_NAME in mount.mount_path
        and f"{normalize_host_path(mount.mount_path)}/".startswith(f"/run/{DEVICE_LIST_NAME}/")
    ]
    return mounts + [
        describe_bypass(
            "hostPathDevices",
            ("spec", "volumes", i, "hostPath", "path"),
            "a hostPath volume must not reach GPU devices, the driver or the sockets that allocate devices, "
            f"found {quote_text(volume.host_path.path)}",
        )
        for i, volume in enumerate(volumes)
        if volume.host_path is not None and path_reaches_gpus(volume.host_path.path)
    ]


def find_host_access(spec: PodSpec, containers: Sequence[tuple[FieldPath, Container]]) -> list[DetectedBypass]:
    """Return privileges and host namespaces."""
    results: list[DetectedBypass] = []
    shares_host = spec.host_pid or spec.host_ipc
    if shares_host:
        results += _find_host_namespaces(spec)
    for path, container in containers:
        context = container.security_context
        if context is not None:
            results += _find_privileges((*path, "securityContext"), context, host_pid=spec.host_pid)
        if shares_host:
            results += _find_escalation((*path, "securityContext"), context)
    if spec.host_users is False:
        message = "hostUsers must be true in a pod with GPUs, found false"
        results.append(describe_bypass("userNamespaces", ("spec", "hostUsers"), message, at_most=PolicyMode.WARN))
    return results


def find_shared_processes(spec: PodSpec) -> list[DetectedBypass]:
    """Return a shared process namespace: on a shared GPU, containers reach each other's memory handles."""
    if not spec.share_process_namespace:
        return []
    message = "shareProcessNamespace must be false in a pod that requests a share of a GPU, found true"
    return [describe_bypass("sharedProcessNamespace", ("spec", "shareProcessNamespace"), message)]


def normalize_host_path(path: str) -> str:
    """Resolve what can be resolved without a file system: "//", ".", ".." and /var/run.

    A path through a process's links counts as the whole host.

    >>> normalize_host_path("//var/./run/../run/nvidia/")
    '/run/nvidia'
    >>> normalize_host_path("/proc/1/cwd/data")
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


@request_cache(1024)
def path_reaches_gpus(host_path: str) -> bool:
    """Return whether a host path reaches GPU devices or their managers."""
    path = normalize_host_path(host_path)
    parent, _, name = path.rpartition("/")
    is_process = parent == "/proc" and ((name.isascii() and name.isdecimal()) or name in PROCESS_NAMES)
    if path == "/" or path.startswith(GUARDED_PREFIXES) or is_process:
        return True
    inside = path + "/"
    return any(inside.startswith(tree + "/") or tree.startswith(inside) for tree in GUARDED_TREES)


def _find_host_namespaces(spec: PodSpec) -> list[DetectedBypass]:
    fields = (("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    return [
        describe_bypass(
            "hostNamespaces",
            ("spec", field),
            f"{field} must be false in a pod with GPUs, found true",
            f"Remove {field}.",
        )
        for field, on in fields
        if on
    ]


def _find_privileges(path: FieldPath, context: SecurityContext, *, host_pid: bool) -> list[DetectedBypass]:
    results: list[DetectedBypass] = []
    if context.privileged:
        message = "privileged must be false in a pod that uses GPUs, found true"
        results.append(describe_bypass("privileged", (*path, "privileged"), message))
    denied = _DENIED_CAPABILITIES | {"SYS_PTRACE"} if host_pid else _DENIED_CAPABILITIES
    results += [
        describe_bypass(
            "sysAdminCapability",
            (*path, "capabilities", "add", i),
            f"a pod that uses GPUs must not add a capability that reaches its host, found {quote_text(capability)}",
            f"Remove {quote_text(capability)} from securityContext.capabilities.add.",
        )
        for i, capability in enumerate(context.capabilities.add)
        if capability.upper().removeprefix("CAP_") in denied
    ]
    return results


def _find_escalation(path: FieldPath, context: SecurityContext | None) -> list[DetectedBypass]:
    """Return an escalation together with host namespaces: it is allowed unless the field says false."""
    allowed = context.allow_privilege_escalation if context is not None else None
    if allowed is False or (context is not None and context.privileged):
        return []
    found = "true" if allowed else "no such field, which means true"
    message = f"allowPrivilegeEscalation must be false together with host namespaces, found {found}"
    return [describe_bypass("privilegeEscalation", (*path, "allowPrivilegeEscalation"), message)]
