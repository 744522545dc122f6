"""Access to the host that reaches GPUs past the device plugin: privileges, namespaces, paths and mounts."""

from __future__ import annotations

from collections.abc import Sequence

from webhook.engine.guarding.bypasses import Found, found
from webhook.engine.guarding.host_paths import DEVICE_LIST_NAME, is_device_list, reaches_gpus
from webhook.errors import quoted
from webhook.model.modes import Mode
from webhook.model.paths import Path
from webhook.model.pods import Container, PodSpec, SecurityContext

_PRIVILEGED_CAPABILITIES = frozenset({"SYS_ADMIN", "ALL"})
"""The toolkit takes SYS_ADMIN in the bounding set for privileged."""


def host_paths(spec: PodSpec) -> list[Found]:
    """hostPath volumes that reach GPU devices or what hands them out."""
    return [
        found(
            "hostPathDevices",
            ("spec", "volumes", i, "hostPath", "path"),
            "a hostPath volume must keep away from GPU devices, the driver and the sockets that hand devices "
            f"out, found {quoted(volume.host_path.path)}",
        )
        for i, volume in enumerate(spec.volumes)
        if volume.host_path is not None and reaches_gpus(volume.host_path.path)
    ]


def device_mounts(containers: Sequence[tuple[Path, Container]]) -> list[Found]:
    """Mounts that the container toolkit reads as a list of GPUs."""
    results: list[Found] = []
    must = "a mount must not be at or under /var/run/nvidia-container-devices"
    for path, container in containers:
        for i, mount in enumerate(container.volume_mounts):
            if DEVICE_LIST_NAME in mount.mount_path and is_device_list(mount.mount_path):
                field = (*path, "volumeMounts", i, "mountPath")
                results.append(found("containerDevicesMount", field, f"{must}, found {quoted(mount.mount_path)}"))
    return results


def host_access(spec: PodSpec, containers: Sequence[tuple[Path, Container]]) -> list[Found]:
    """Privileges and namespaces of the host."""
    results: list[Found] = []
    shares_host = spec.host_pid or spec.host_ipc
    if shares_host:
        results += _host_namespaces(spec)
    for path, container in containers:
        context = container.security_context
        if context is not None and _is_raised(context):
            results += _privileges((*path, "securityContext"), context, shares_host=shares_host)
    if spec.host_users is False:
        message = "hostUsers must be true beside GPUs, found false"
        results.append(found("userNamespaces", ("spec", "hostUsers"), message, at_most=Mode.WARN))
    return results


def _is_raised(context: SecurityContext) -> bool:
    return bool(context.privileged or context.allow_privilege_escalation or context.capabilities.add)


def _host_namespaces(spec: PodSpec) -> list[Found]:
    asked = (("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    return [
        found("hostNamespaces", ("spec", field), f"{field} must be false beside GPUs, found true", f"Remove {field}.")
        for field, on in asked
        if on
    ]


def _privileges(path: Path, context: SecurityContext, *, shares_host: bool) -> list[Found]:
    results: list[Found] = []
    added = context.capabilities.add
    if context.privileged:
        message = "privileged must be false in a pod that touches GPUs, found true"
        results.append(found("privileged", (*path, "privileged"), message))
    results += [
        found(
            "sysAdminCapability",
            (*path, "capabilities", "add", i),
            f"SYS_ADMIN must not be added in a pod that touches GPUs, found {quoted(capability)}",
            f"Remove {quoted(capability)} from securityContext.capabilities.add.",
        )
        for i, capability in enumerate(added)
        if capability.upper().removeprefix("CAP_") in _PRIVILEGED_CAPABILITIES
    ]
    if context.allow_privilege_escalation and (shares_host or added):
        beside = "host namespaces" if shares_host else f"the added capability {quoted(added[0])}"
        message = f"allowPrivilegeEscalation must be false beside {beside}, found true"
        results.append(found("privilegeEscalation", (*path, "allowPrivilegeEscalation"), message))
    return results


def shared_processes(spec: PodSpec) -> list[Found]:
    """One process namespace for all containers: on a shared GPU they reach each other's memory handles."""
    if not spec.share_process_namespace:
        return []
    message = "shareProcessNamespace must be false in a pod that asks for a share of a GPU, found true"
    return [found("sharedProcessNamespace", ("spec", "shareProcessNamespace"), message)]
