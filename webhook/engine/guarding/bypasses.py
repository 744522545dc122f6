"""The names of the ways round GPU accounting, as policies write them, and the finding code of each."""

from __future__ import annotations

from webhook.engine.violations import Violation
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath

DetectedBypass = tuple[str, Violation]
"""A bypass by its name, and what was found."""

BYPASS_CODES: dict[str, str] = {
    "visibleDevicesEnv": "GPU-S101",
    "imexChannelsEnv": "GPU-S102",
    "migManagementEnv": "GPU-S103",
    "disableRequireEnv": "GPU-S104",
    "driverCapabilitiesEnv": "GPU-S105",
    "loaderEnv": "GPU-S106",
    "mpsEnv": "GPU-S107",
    "cudaVisibleDevicesEnv": "GPU-S108",
    "unreadableEnv": "GPU-S109",
    "privileged": "GPU-S201",
    "sysAdminCapability": "GPU-S202",
    "hostNamespaces": "GPU-S203",
    "privilegeEscalation": "GPU-S204",
    "sharedProcessNamespace": "GPU-S205",
    "userNamespaces": "GPU-S206",
    "runtimeClass": "GPU-S301",
    "cdiAnnotations": "GPU-S302",
    "hostPathDevices": "GPU-S303",
    "containerDevicesMount": "GPU-S304",
    "nodeName": "GPU-S305",
    "resourceClaims": "GPU-S306",
    "mixedGPURequests": "GPU-S307",
    "forgedAnnotations": "GPU-S308",
    "mirrorPod": "GPU-S309",
}

GPU_POD_BYPASSES = frozenset(
    {
        "driverCapabilitiesEnv",
        "loaderEnv",
        "mpsEnv",
        "cudaVisibleDevicesEnv",
        "unreadableEnv",
        "privileged",
        "sysAdminCapability",
        "hostNamespaces",
        "privilegeEscalation",
        "sharedProcessNamespace",
        "userNamespaces",
        "nodeName",
    }
)
"""Ordinary in pods that have nothing to do with GPUs: looked for only where a pod touches them."""


def describe_bypass(
    name: str, path: FieldPath, message: str, fix: str = "", at_most: PolicyMode = PolicyMode.ENFORCE
) -> DetectedBypass:
    """Name one bypass. Without a fix of its own, the one of its code is given."""
    code = BYPASS_CODES[name]
    return name, Violation(code, path, message, fix or CODES[code].fix, at_most)
