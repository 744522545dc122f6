"""Find environment variables that give a container more than it requested, through the toolkit, the loader or CUDA.

nvidia-container-toolkit reads devices from the container's environment. The kubelet appends the pod's variables after
the device plugin's, and runtimes use the last one, so the pod's value applies even if it requests GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from webhook.engine.guarding.bypasses import DetectedBypass, describe_bypass
from webhook.errors import quote_text
from webhook.model.field_paths import FieldPath
from webhook.model.pods import Container, EnvFromSource, EnvVar

FIRST_LETTERS = "NCL"
"""The first letters of all names below, to skip nearly all variables of a pod quickly."""

MPS_START = "CUDA_MPS_"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
LIBRARY_PATH = "LD_LIBRARY_PATH"
CUDA_VERSION = "CUDA_VERSION"
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"

_NO_DEVICES = frozenset({"", "void", "none"})
_HIDES_ALL = frozenset({"", "-1", "NoDevFiles"})
_FALSE = frozenset({"", "0", "f", "F", "false", "False", "FALSE"})
_EMPTY = frozenset({""})

_SAFE_VALUES: dict[str, tuple[str, frozenset[str], str]] = {
    VISIBLE_DEVICES: ("visibleDevicesEnv", _NO_DEVICES, "void, none or absent"),
    "NVIDIA_IMEX_CHANNELS": ("imexChannelsEnv", _NO_DEVICES, "absent"),
    "NVIDIA_MIG_CONFIG_DEVICES": ("migManagementEnv", _NO_DEVICES, "absent"),
    "NVIDIA_MIG_MONITOR_DEVICES": ("migManagementEnv", _NO_DEVICES, "absent"),
    "NVIDIA_DISABLE_REQUIRE": ("disableRequireEnv", _FALSE, "false or absent"),
    "CUDA_VISIBLE_DEVICES": ("cudaVisibleDevicesEnv", _HIDES_ALL, "absent"),
    "LD_PRELOAD": ("loaderEnv", _EMPTY, "absent"),
    "LD_AUDIT": ("loaderEnv", _EMPTY, "absent"),
}
"""Bypass name, harmless values, and the requirement, by variable."""

_LEGACY_MUST = (
    f"{CUDA_VERSION} must be set together with {VISIBLE_DEVICES} (void or none) in a container without a GPU request"
)
_LEGACY_FIX = (
    f"Set {VISIBLE_DEVICES} to void in this container, or remove {CUDA_VERSION}; for a GPU, request one in limits."
)

FEATURE_VARIABLES = ("NVIDIA_NVSWITCH", "NVIDIA_MOFED")
"""Driver features whose devices belong to other tenants too."""

_GPU_MEMORY_FEATURES = ("NVIDIA_GDS", "NVIDIA_GDRCOPY")
"""Driver features whose devices act only on GPUs of the process; NVSHMEM and cuFile need them in addition to a GPU."""

DRIVER_FEATURES = (*FEATURE_VARIABLES, *_GPU_MEMORY_FEATURES)
"""If `enabled`, the toolkit adds the feature's devices to a container that sees GPUs."""

_FREE_CAPABILITIES = frozenset({"", "compute", "utility"})
_SYSTEM_FOLDERS = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/opt/")
_GPU_VARIABLES = frozenset({*_SAFE_VALUES, DRIVER_CAPABILITIES, REQUIRE_CUDA} - {"LD_PRELOAD", "LD_AUDIT"})
_GUARDED_PREFIX_TARGETS = (*_SAFE_VALUES, *DRIVER_FEATURES, DRIVER_CAPABILITIES, LIBRARY_PATH, CUDA_VERSION)
_GPU_PREFIX_TARGETS = (*_GPU_VARIABLES, *DRIVER_FEATURES, CUDA_VERSION)

_WATCHED_VARIABLES = frozenset({*_GPU_VARIABLES, *_GUARDED_PREFIX_TARGETS})

EnvVarAtPath = tuple[FieldPath, EnvVar]


def find_gpu_variables(path: FieldPath, variables: Sequence[EnvVar]) -> list[EnvVarAtPath]:
    """Return a container's variables that are guarded or imply GPU use, with their paths."""
    return [
        ((*path, "env", i), variable)
        for i, variable in enumerate(variables)
        if (name := variable.name)[:1] in FIRST_LETTERS and (name in _WATCHED_VARIABLES or name.startswith(MPS_START))
    ]


def implies_gpu_use(variable: EnvVar) -> bool:
    """Return whether a variable makes sense only in a container with a GPU."""
    if variable.name not in _GPU_VARIABLES and not variable.name.startswith(MPS_START):
        return False
    hides = variable.value in _NO_DEVICES or variable.value in _HIDES_ALL
    return variable.value_from is not None or not hides


def find_variable_bypasses(variables: Sequence[EnvVarAtPath], allowed: frozenset[str]) -> list[DetectedBypass]:
    """Return every variable that gives more than was requested; `allowed` are additional driver capabilities."""
    return [one for path, variable in variables if (one := _check_variable(path, variable, allowed)) is not None]


def find_legacy_images(variables: Sequence[EnvVarAtPath], requesting: Collection[FieldPath]) -> list[DetectedBypass]:
    """Return CUDA_VERSION without NVIDIA_VISIBLE_DEVICES in containers without a GPU request: it selects every GPU.

    The toolkit calls an image legacy if CUDA_VERSION is set and NVIDIA_REQUIRE_CUDA is unset or empty; a legacy image
    without NVIDIA_VISIBLE_DEVICES sees all GPUs. In a container with a request the device plugin sets the variable. Of
    equal names the last applies.
    """
    last = {(path[:-2], variable.name): (path, variable) for path, variable in variables}
    return [
        describe_bypass(
            "visibleDevicesEnv", path, f"{_LEGACY_MUST}, found {_describe_value(variable)} alone", _LEGACY_FIX
        )
        for (container, name), (path, variable) in last.items()
        if name == CUDA_VERSION
        and container not in requesting
        and (variable.value or variable.value_from is not None)
        and (container, VISIBLE_DEVICES) not in last
        and not _is_surely_set(last.get((container, REQUIRE_CUDA)))
    ]


def find_driver_features(
    variables: Sequence[EnvVarAtPath], requesting: Collection[FieldPath], *, others_may_use_gpus: bool
) -> list[DetectedBypass]:
    """Return variables that add devices of driver features.

    Args:
        requesting: Containers that request GPUs; there, features that act only on own GPUs are allowed.
        others_may_use_gpus: True if other containers may have GPUs too, by claims or unknown resources.
    """
    return [
        describe_bypass(
            "extraDevicesEnv", path, f"{variable.name} must not be enabled, found {_describe_value(variable)}"
        )
        for path, variable in variables
        if variable.name in DRIVER_FEATURES
        and (variable.value_from is not None or variable.value == "enabled" or "$(" in variable.value)
        and not (variable.name in _GPU_MEMORY_FEATURES and (others_may_use_gpus or path[:-2] in requesting))
    ]


def parse_capabilities(value: str) -> set[str]:
    """Return the driver capabilities in a value of NVIDIA_DRIVER_CAPABILITIES."""
    return {capability.strip() for capability in value.split(",")}


def has_gpu_env_prefix(containers: Sequence[tuple[FieldPath, Container]]) -> bool:
    """Return whether an envFrom source has a prefix that makes sense only for GPU variables."""
    return any(
        source.prefix and _is_prefix_of_any(source.prefix, _GPU_PREFIX_TARGETS)
        for _, container in containers
        if container.env_from
        for source in container.env_from
    )


def find_unreadable_sources(path: FieldPath, sources: Sequence[EnvFromSource]) -> list[DetectedBypass]:
    """Return a container's envFrom sources that may contain a guarded variable."""
    must = "envFrom must have a prefix that no GPU variable starts with"
    return [
        describe_bypass(
            "unreadableEnv",
            (*path, "envFrom", i),
            f"{must}, found {quote_text(source.prefix) if source.prefix else 'none'}",
        )
        for i, source in enumerate(sources)
        if _is_prefix_of_any(source.prefix, _GUARDED_PREFIX_TARGETS)
    ]


def _check_variable(path: FieldPath, variable: EnvVar, allowed: frozenset[str]) -> DetectedBypass | None:
    name = variable.name
    if name in _SAFE_VALUES:
        bypass, safe, must = _SAFE_VALUES[name]
        if variable.value_from is None and variable.value in safe:
            return None
        return describe_bypass(bypass, path, f"{name} must be {must}, found {_describe_value(variable)}")
    if name == DRIVER_CAPABILITIES:
        return _check_capabilities(path, variable, allowed)
    if name == LIBRARY_PATH:
        return _check_library_path(path, variable)
    if name.startswith(MPS_START):
        return describe_bypass("mpsEnv", path, f"{quote_text(name)} must be absent, found {_describe_value(variable)}")
    return None


def _describe_value(variable: EnvVar) -> str:
    readable = variable.value_from is None
    return quote_text(variable.value) if readable else "a value that admission cannot read (valueFrom)"


def _is_surely_set(found: EnvVarAtPath | None) -> bool:
    """A source may lack the key, and $(NAME) may be empty."""
    return found is not None and found[1].value_from is None and bool(found[1].value.partition("$(")[0])


def _check_capabilities(path: FieldPath, variable: EnvVar, allowed: frozenset[str]) -> DetectedBypass | None:
    if variable.value_from is None:
        extra = parse_capabilities(variable.value) - _FREE_CAPABILITIES - allowed
        if not extra or "all" in allowed:
            return None
        listed = quote_text(", ".join(sorted(extra)))
    else:
        listed = _describe_value(variable)
    permitted = ", ".join(["compute", "utility", *sorted(allowed)])
    return describe_bypass(
        "driverCapabilitiesEnv", path, f"{DRIVER_CAPABILITIES} must contain only {permitted}, found {listed}"
    )


def _check_library_path(path: FieldPath, variable: EnvVar) -> DetectedBypass | None:
    folders = variable.value.split(":") if variable.value else []
    if variable.value_from is None and all(map(_is_system_folder, folders)):
        return None
    must = "must contain only folders under /usr, /lib, /lib64 or /opt"
    fix = f"Write whole paths under these folders (a shell's ${{…}} is not expanded here), or remove {LIBRARY_PATH}."
    return describe_bypass("loaderEnv", path, f"{LIBRARY_PATH} {must}, found {_describe_value(variable)}", fix)


def _is_system_folder(folder: str) -> bool:
    """Only files that a user can write reach a hook (CVE-2025-23266). $(NAME) may expand to ":" and such a folder."""
    return f"{folder}/".startswith(_SYSTEM_FOLDERS) and ".." not in folder.split("/") and "$" not in folder


def _is_prefix_of_any(prefix: str, names: Collection[str]) -> bool:
    return any(name.startswith(prefix) for name in names) or MPS_START.startswith(prefix[: len(MPS_START)])
