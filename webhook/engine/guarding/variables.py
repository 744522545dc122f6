"""Environment variables that ask the container toolkit, the loader or CUDA for more than was requested.

Sources: nvidia-container-toolkit reads devices from the container's environment; the kubelet appends the
pod's variables after the device plugin's, and runtimes let the later one win. So what the pod says counts,
also beside a request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from webhook.engine.guarding.bypasses import Found, found
from webhook.errors import quoted
from webhook.model.paths import Path
from webhook.model.pods import Container, EnvVar

FIRST_LETTERS = "NCL"
"""What every name below begins with: one look passes over nearly all variables of a pod."""

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

_SAFE: dict[str, tuple[str, frozenset[str], str]] = {
    VISIBLE_DEVICES: ("visibleDevicesEnv", _NO_DEVICES, "void, none or absent"),
    "NVIDIA_IMEX_CHANNELS": ("imexChannelsEnv", _NO_DEVICES, "absent"),
    "NVIDIA_MIG_CONFIG_DEVICES": ("migManagementEnv", _NO_DEVICES, "absent"),
    "NVIDIA_MIG_MONITOR_DEVICES": ("migManagementEnv", _NO_DEVICES, "absent"),
    "NVIDIA_DISABLE_REQUIRE": ("disableRequireEnv", _FALSE, "false or absent"),
    "CUDA_VISIBLE_DEVICES": ("cudaVisibleDevicesEnv", _HIDES_ALL, "absent"),
    "LD_PRELOAD": ("loaderEnv", _EMPTY, "absent"),
    "LD_AUDIT": ("loaderEnv", _EMPTY, "absent"),
}
"""Bypass name, values that give nothing away, and what must hold, by variable."""

_LEGACY_MUST = f"{CUDA_VERSION} must stand beside {VISIBLE_DEVICES} (void or none) in a container without a GPU request"
_LEGACY_FIX = f"Set {VISIBLE_DEVICES} to void in this container, or remove {CUDA_VERSION}; for a GPU, ask in limits."

_FREE_CAPABILITIES = frozenset({"", "compute", "utility"})
_SYSTEM_FOLDERS = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/opt/")
_SIGNS = frozenset({*_SAFE, DRIVER_CAPABILITIES, REQUIRE_CUDA} - {"LD_PRELOAD", "LD_AUDIT"})
_PREFIXED = (*_SAFE, DRIVER_CAPABILITIES, LIBRARY_PATH, CUDA_VERSION)
_AIMED = (*_SIGNS, CUDA_VERSION)

_WATCHED = frozenset({*_SIGNS, *_PREFIXED})

Suspect = tuple[Path, EnvVar]


def suspects(containers: Sequence[tuple[Path, Container]]) -> list[Suspect]:
    """The variables that are guarded, or are a sign of GPUs, with their paths."""
    results: list[Suspect] = []
    for path, container in containers:
        for i, variable in enumerate(container.env):
            if (name := variable.name)[:1] in FIRST_LETTERS and (name in _WATCHED or name.startswith(MPS_START)):
                results.append(((*path, "env", i), variable))
    return results


def names_a_gpu(variable: EnvVar) -> bool:
    """Does this variable make sense only in a container that is to see a GPU?"""
    if variable.name not in _SIGNS and not variable.name.startswith(MPS_START):
        return False
    hides = variable.value in _NO_DEVICES or variable.value in _HIDES_ALL
    return variable.value_from is not None or not hides


def guarded_variables(variables: Sequence[Suspect], allowed: frozenset[str]) -> list[Found]:
    """Every variable that takes more than was asked for; `allowed` are further driver capabilities."""
    return [one for path, variable in variables if (one := _judge(path, variable, allowed)) is not None]


def _judge(path: Path, variable: EnvVar, allowed: frozenset[str]) -> Found | None:
    name = variable.name
    if name in _SAFE:
        bypass, safe, must = _SAFE[name]
        if variable.value_from is None and variable.value in safe:
            return None
        return found(bypass, path, f"{name} must be {must}, found {_value(variable)}")
    if name == DRIVER_CAPABILITIES:
        return _capabilities(path, variable, allowed)
    if name == LIBRARY_PATH:
        return _library_path(path, variable)
    if name.startswith(MPS_START):
        return found("mpsEnv", path, f"{quoted(name)} must be absent, found {_value(variable)}")
    return None


def _value(variable: EnvVar) -> str:
    return quoted(variable.value) if variable.value_from is None else "a value that admission cannot read (valueFrom)"


def legacy_images(variables: Sequence[Suspect], asking: Collection[Path]) -> list[Found]:
    """CUDA_VERSION alone, which the container toolkit takes for every GPU, in containers that do not ask for one.

    A container that asks has its devices named by the device plugin, and one beside it has not.

    The toolkit calls an image legacy if CUDA_VERSION is set and NVIDIA_REQUIRE_CUDA is not, an empty value being
    as good as none; a legacy image whose NVIDIA_VISIBLE_DEVICES is absent sees all. Of equal names the last holds.
    """
    last = {(path[:-2], variable.name): (path, variable) for path, variable in variables}
    return [
        found("visibleDevicesEnv", path, f"{_LEGACY_MUST}, found {_value(variable)} without it", _LEGACY_FIX)
        for (container, name), (path, variable) in last.items()
        if name == CUDA_VERSION
        and container not in asking
        and (variable.value or variable.value_from is not None)
        and (container, VISIBLE_DEVICES) not in last
        and not _is_surely_set(last.get((container, REQUIRE_CUDA)))
    ]


def _is_surely_set(suspect: Suspect | None) -> bool:
    """Not by a source, which may lack the key, nor by $(NAME), which may be empty."""
    return suspect is not None and suspect[1].value_from is None and bool(suspect[1].value.partition("$(")[0])


def capabilities_in(value: str) -> set[str]:
    """The driver capabilities that a value of NVIDIA_DRIVER_CAPABILITIES names."""
    return {capability.strip() for capability in value.split(",")}


def _capabilities(path: Path, variable: EnvVar, allowed: frozenset[str]) -> Found | None:
    if variable.value_from is None:
        extra = capabilities_in(variable.value) - _FREE_CAPABILITIES - allowed
        if not extra or "all" in allowed:
            return None
        listed = f"{quoted(', '.join(sorted(extra)))} beside them"
    else:
        listed = _value(variable)
    fine = ", ".join(["compute", "utility", *sorted(allowed)])
    return found("driverCapabilitiesEnv", path, f"{DRIVER_CAPABILITIES} must name only {fine}, found {listed}")


def _library_path(path: Path, variable: EnvVar) -> Found | None:
    """Folders of the system are fine: only what a user can write to reaches a hook (CVE-2025-23266)."""
    folders = variable.value.split(":") if variable.value else []
    if variable.value_from is None and all(map(_of_the_system, folders)):
        return None
    must = "must name only folders under /usr, /lib, /lib64 or /opt"
    fix = f"Write whole paths under these folders (a shell's ${{…}} is not expanded here), or remove {LIBRARY_PATH}."
    return found("loaderEnv", path, f"{LIBRARY_PATH} {must}, found {_value(variable)}", fix)


def _of_the_system(folder: str) -> bool:
    """Not with a "$" in it either: what $(NAME) stands for may hold a ":" and a folder of the user's."""
    return f"{folder}/".startswith(_SYSTEM_FOLDERS) and ".." not in folder.split("/") and "$" not in folder


def aims_at_gpus(containers: Sequence[tuple[Path, Container]]) -> bool:
    """Does a source of variables have a prefix that makes sense only for those of GPUs?"""
    return any(
        source.prefix and _may_begin(source.prefix, _AIMED)
        for _, container in containers
        if container.env_from
        for source in container.env_from
    )


def unreadable_sources(containers: Sequence[tuple[Path, Container]]) -> list[Found]:
    """Sources of whole sets of variables that may hold a guarded one."""
    results: list[Found] = []
    for path, container in containers:
        for i, source in enumerate(container.env_from):
            if _may_begin(source.prefix, _PREFIXED):
                results.append(found("unreadableEnv", (*path, "envFrom", i), _unreadable(source.prefix)))
    return results


def _may_begin(prefix: str, names: Collection[str]) -> bool:
    """Is a prefix the beginning of one of these names, or of one of MPS?"""
    return any(name.startswith(prefix) for name in names) or MPS_START.startswith(prefix[: len(MPS_START)])


def _unreadable(prefix: str) -> str:
    must = "envFrom must have a prefix that no GPU variable begins with"
    return f"{must}, found {quoted(prefix)}" if prefix else f"{must}, found none"
