"""The bypasses of GPU accounting by their names in policies, and the finding code of each."""

from __future__ import annotations

from webhook.engine.policy_findings import PolicyFinding
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath

DetectedBypass = tuple[str, PolicyFinding]
"""The name of a bypass, and its finding."""

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
    "extraDevicesEnv": "GPU-S110",
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
    "deviceAnnotations": "GPU-S310",
    "fractionAnnotations": "GPU-S311",
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
"""Bypasses that are ordinary in other pods: reported only for pods that use GPUs."""


def describe_bypass(
    name: str, path: FieldPath, message: str, fix: str = "", at_most: PolicyMode = PolicyMode.ENFORCE
) -> DetectedBypass:
    """Build a bypass, by default with the fix of its code."""
    code = BYPASS_CODES[name]
    return name, PolicyFinding(code, path, message, fix or CODES[code].fix, at_most)
