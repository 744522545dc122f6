"""Which paths of a host reach GPU devices, the driver, or what hands devices out.

A path counts if it is one of the guarded trees, lies under one, or holds one: who mounts /run has the
container runtime's socket too. So does every path through a process's links, which lead anywhere. /tmp itself is
left: it is mounted for much else, though the sockets of MPS may stand there.
"""

from __future__ import annotations

from functools import lru_cache

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
