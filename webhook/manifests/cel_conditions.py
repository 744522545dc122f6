"""In CEL: does a pod touch GPUs? Only such pods are sent to a webhook that may hold them up.

CEL stops at a field that is not there, so every optional one stands behind `has()`. What the engine refuses in pods
that ask for no GPU is recognised here too; a test compares the two over generated pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from webhook.engine.guarding.host_access import (
    DEVICE_TREES,
    GUARDED_PREFIXES,
    GUARDED_TREES,
    PROCESS_LINKS,
    PROCESS_NAMES,
)
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, DEVICE_CLASS_PREFIX, GPU_PATTERN
from webhook.well_known import GROUP

OWN_PREFIX = f"{GROUP}/"
assert ACCOUNTING_RESOURCE.startswith(OWN_PREFIX)

GPU_RESOURCE_PREFIXES = ("nvidia.com/", DEVICE_CLASS_PREFIX, OWN_PREFIX)
"""How the names of resources begin that stand for GPUs."""

GPU_VARIABLE_PREFIXES = ("NVIDIA_", "CUDA_")


def _path_alternatives(paths: Iterable[str]) -> str:
    """A pattern of paths; those under /run have two spellings."""
    spelled = [path.replace(".", "[.]") for path in sorted(paths)]
    return "|".join(f"(/var)?{path}" if f"{path}/".startswith("/run/") else path for path in spelled)


DEVICE_PATHS = (
    "^([^/]|$)",
    "//",
    "/[.][.]?(/|$)",
    f"^({_path_alternatives(DEVICE_TREES)})(/|$)",
    f"^({_path_alternatives(GUARDED_PREFIXES)})",
)
"""Host paths that are there for GPUs, or for handing out devices, and for little else; and spellings that hide a path:
one that is not absolute, or has detours. An expression cannot clean a path, and few need to write it otherwise."""

VOLUMES_MOST, PATH_MOST = 128, 256
"""As many volumes, with paths of as many characters, cost half of what one expression may."""

_PARENT_FOLDERS = {folder for tree in GUARDED_TREES for folder in accumulate(tree.split("/")[:-1], "{}/{}".format)} - {
    ""
}

WIDE_PATHS = (
    f"^({_path_alternatives(_PARENT_FOLDERS)})?/?$",
    f"^/proc/([0-9]+|{'|'.join(sorted(PROCESS_NAMES))})/?$",
    f"^/proc/[^/]+/({'|'.join(sorted(PROCESS_LINKS))})(/|$)",
    f"^({_path_alternatives(set(GUARDED_TREES) - set(DEVICE_TREES))})(/|$)",
)
"""Host paths that hold those among much else, lead to the container runtime, or are all memory."""


def join_terms(thoughts: Iterable[str], word: str = "||") -> str:
    """Thoughts on lines of their own."""
    return f"\n{word} ".join(thoughts)


def containers_cel(pod: str) -> str:
    """In CEL: containers of every kind."""
    kinds = [f"(has({pod}.{kind}) ? {pod}.{kind} : [])" for kind in ("initContainers", "ephemeralContainers")]
    return f"({pod}.containers + {' + '.join(kinds)})"


def gpu_names_cel(container: str) -> str:
    """In CEL: does a container name what may be a GPU resource, in limits or requests?"""
    return _any_amount_cel(container, starts_with_cel("name", GPU_RESOURCE_PREFIXES))


def gpu_request_cel(container: str) -> str:
    """In CEL: does a container ask for more than none of a GPU, by a name that the engine knows, or of a device class?

    An API server writes every amount of none as "0", however it came.
    """
    known = f"{starts_with_cel('name', [DEVICE_CLASS_PREFIX])} || name.matches('{GPU_PATTERN}')"
    return _any_amount_cel(container, f"string(amounts[name]) != '0' && ({known})")


def _any_amount_cel(container: str, holds: str) -> str:
    """In CEL: does this hold for a name among a container's amounts?"""
    amounts = ", ".join(
        f"has({container}.resources.{side}) ? {container}.resources.{side} : {{}}" for side in AMOUNT_FIELDS
    )
    return f"has({container}.resources) && [{amounts}].exists(amounts, amounts.exists(name, {holds}))"


AMOUNT_FIELDS = ("limits", "requests")


def starts_with_cel(text: str, starts: Iterable[str]) -> str:
    """In CEL: does a text begin with one of these?"""
    return " || ".join(f"{text}.startsWith('{start}')" for start in starts)


def host_mount_cel(pod: str, paths: Iterable[str]) -> str:
    """In CEL: is there a hostPath volume that one of these expressions matches?"""
    pattern = "|".join(paths)
    return f"has({pod}.volumes) && {pod}.volumes.exists(v, has(v.hostPath) && v.hostPath.path.matches('{pattern}'))"


def wide_host_mount_cel(pod: str) -> str:
    """In CEL: is there a hostPath volume that holds GPUs among much else?

    An API server gives up on an expression that costs too much, and then asks nobody. So what is too long or too many
    to look at counts as such a volume.
    """
    volumes, path = f"{pod}.volumes", "v.hostPath.path"
    wide = f"size({path}) > {PATH_MOST} || {path}.matches('{'|'.join(WIDE_PATHS)}')"
    one = f"{volumes}.exists(v, has(v.hostPath) && ({wide}))"
    return f"has({volumes}) && (size({volumes}) > {VOLUMES_MOST} || {one})"


def touches_gpus_cel(of: str) -> str:
    """In CEL: does a pod, or a pod template, touch GPUs?

    Args:
        of: What stands for it: "object", or the way to a template.
    """
    named = f"has(c.env) && c.env.exists(e, {starts_with_cel('e.name', GPU_VARIABLE_PREFIXES)})"
    asking = (gpu_names_cel("c"), named, _ENV_SOURCES, _MOUNTS_DEVICE_LIST)
    claims = "has(pod.spec.resourceClaims) && size(pod.spec.resourceClaims) > 0"
    return _pod_cel(of, asking, f"key.startsWith('{OWN_PREFIX}') || {_FORGED_ANNOTATIONS}", claims)


def bypasses_request_cel(of: str, variables: Iterable[str]) -> str:
    """In CEL: does a pod reach for GPUs by another way than asking for them?

    Args:
        of: What stands for it.
        variables: Names of variables by which devices are had.
    """
    named = f"has(c.env) && c.env.exists(e, e.name in [{', '.join(map(repr, variables))}])"
    return _pod_cel(of, (named, _MOUNTS_DEVICE_LIST), _FORGED_ANNOTATIONS)


def _pod_cel(of: str, by_container: Iterable[str], by_annotation: str, *more: str) -> str:
    """The API server walks over containers once, however much there is to ask of each."""
    thoughts = (
        f"{containers_cel('pod.spec')}.exists(c,\n{join_terms(by_container)})",
        *more,
        "has(pod.spec.runtimeClassName) && pod.spec.runtimeClassName.startsWith('nvidia')",
        host_mount_cel("pod.spec", DEVICE_PATHS),
        f"has(pod.metadata) && has(pod.metadata.annotations) && pod.metadata.annotations.exists(key, {by_annotation})",
    )
    return f"[{of}].exists(pod,\n{join_terms(thoughts)})"


_PREFIX_OF_GPU_VARIABLE = " || ".join(f"'{start}'.startsWith(f.prefix)" for start in GPU_VARIABLE_PREFIXES)
_ENV_SOURCES = (
    "has(c.envFrom) && c.envFrom.exists(f, has(f.prefix) && f.prefix != ''"
    f" && ({starts_with_cel('f.prefix', GPU_VARIABLE_PREFIXES)} || {_PREFIX_OF_GPU_VARIABLE}))"
)
"""Sources of variables whose prefix begins the names of GPU variables."""

_MOUNTS_DEVICE_LIST = (
    "has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath.contains('nvidia-container-devices'))"
)

_FORGED_ANNOTATIONS = (
    f"key.contains('cdi.k8s.io') || (key == '{MIRROR_ANNOTATION}' && "
    f"!request.userInfo.username.startsWith('system:node:'))"
)
"""Annotations by which devices are injected, and a static pod's that no node wrote."""

ANNOTATIONS_CEL = "(has({0}.metadata.annotations) ? {0}.metadata.annotations : {{}})"

SPEC_OR_ANNOTATIONS_CHANGED = (
    "request.operation != 'UPDATE' || object.spec != oldObject.spec"
    f" || {ANNOTATIONS_CEL.format('object')} != {ANNOTATIONS_CEL.format('oldObject')}"
)
"""In CEL: no update that only moves labels, owners or finalizers. Those go on, whatever became of us."""
