"""In CEL: does a pod touch GPUs? Only such pods are sent to a webhook that may hold them up.

CEL stops at a field that is not there, so every optional one stands behind `has()`. What the engine refuses in pods
that ask for no GPU is recognised here too; a test compares the two over generated pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from webhook.engine.guarding.host_paths import DEVICES, LINKS, PROCESSES, STARTS, TREES
from webhook.model.records import MIRROR
from webhook.model.resources import ACCOUNTING, DEVICE_CLASS_PREFIX, GPU_PATTERN

OURS = "rightslice.dev/"
assert ACCOUNTING.startswith(OURS)

RESOURCES = ("nvidia.com/", DEVICE_CLASS_PREFIX, OURS)
"""How the names of resources begin that stand for GPUs."""

VARIABLES = ("NVIDIA_", "CUDA_")


def _either(paths: Iterable[str]) -> str:
    """A pattern of paths; those under /run have two spellings."""
    spelled = [path.replace(".", "[.]") for path in sorted(paths)]
    return "|".join(f"(/var)?{path}" if f"{path}/".startswith("/run/") else path for path in spelled)


DEVICE_PATHS = ("^([^/]|$)", "//", "/[.][.]?(/|$)", f"^({_either(DEVICES)})(/|$)", f"^({_either(STARTS)})")
"""Host paths that are there for GPUs, or for handing out devices, and for little else; and spellings that hide a path:
one that is not absolute, or has detours. An expression cannot clean a path, and few need to write it otherwise."""

VOLUMES_MOST, PATH_MOST = 128, 256
"""As many volumes, with paths of as many characters, cost half of what one expression may."""

_HOLDERS = {folder for tree in TREES for folder in accumulate(tree.split("/")[:-1], "{}/{}".format)} - {""}

WIDE_PATHS = (
    f"^({_either(_HOLDERS)})?/?$",
    f"^/proc/([0-9]+|{'|'.join(sorted(PROCESSES))})/?$",
    f"^/proc/[^/]+/({'|'.join(sorted(LINKS))})(/|$)",
    f"^({_either(set(TREES) - set(DEVICES))})(/|$)",
)
"""Host paths that hold those among much else, lead to the container runtime, or are all memory."""


def joined(thoughts: Iterable[str], word: str = "||") -> str:
    """Thoughts on lines of their own."""
    return f"\n{word} ".join(thoughts)


def containers_of(pod: str) -> str:
    """In CEL: containers of every kind."""
    kinds = [f"(has({pod}.{kind}) ? {pod}.{kind} : [])" for kind in ("initContainers", "ephemeralContainers")]
    return f"({pod}.containers + {' + '.join(kinds)})"


def names_gpus(container: str) -> str:
    """In CEL: does a container name what may be a GPU resource, in limits or requests?"""
    return _of_amounts(container, begins("name", RESOURCES))


def asks_for_gpus(container: str) -> str:
    """In CEL: does a container ask for more than none of a GPU, by a name that the engine knows, or of a device class?

    An API server writes every amount of none as "0", however it came.
    """
    known = f"{begins('name', [DEVICE_CLASS_PREFIX])} || name.matches('{GPU_PATTERN}')"
    return _of_amounts(container, f"string(amounts[name]) != '0' && ({known})")


def _of_amounts(container: str, holds: str) -> str:
    """In CEL: does this hold for a name among a container's amounts?"""
    amounts = ", ".join(f"has({container}.resources.{side}) ? {container}.resources.{side} : {{}}" for side in SIDES)
    return f"has({container}.resources) && [{amounts}].exists(amounts, amounts.exists(name, {holds}))"


SIDES = ("limits", "requests")


def begins(text: str, starts: Iterable[str]) -> str:
    """In CEL: does a text begin with one of these?"""
    return " || ".join(f"{text}.startsWith('{start}')" for start in starts)


def mounts_host(pod: str, paths: Iterable[str]) -> str:
    """In CEL: is there a hostPath volume that one of these expressions matches?"""
    pattern = "|".join(paths)
    return f"has({pod}.volumes) && {pod}.volumes.exists(v, has(v.hostPath) && v.hostPath.path.matches('{pattern}'))"


def reaches_host(pod: str) -> str:
    """In CEL: is there a hostPath volume that holds GPUs among much else?

    An API server gives up on an expression that costs too much, and then asks nobody. So what is too long or too many
    to look at counts as such a volume.
    """
    volumes, path = f"{pod}.volumes", "v.hostPath.path"
    wide = f"size({path}) > {PATH_MOST} || {path}.matches('{'|'.join(WIDE_PATHS)}')"
    one = f"{volumes}.exists(v, has(v.hostPath) && ({wide}))"
    return f"has({volumes}) && (size({volumes}) > {VOLUMES_MOST} || {one})"


def touches_gpus(of: str) -> str:
    """In CEL: does a pod, or a pod template, touch GPUs?

    Args:
        of: What stands for it: "object", or the way to a template.
    """
    named = f"has(c.env) && c.env.exists(e, {begins('e.name', VARIABLES)})"
    asking = (names_gpus("c"), named, _SOURCES, _LISTS_DEVICES)
    claims = "has(pod.spec.resourceClaims) && size(pod.spec.resourceClaims) > 0"
    return _of_pod(of, asking, f"key.startsWith('{OURS}') || {_FORGED}", claims)


def goes_round(of: str, variables: Iterable[str]) -> str:
    """In CEL: does a pod reach for GPUs by another way than asking for them?

    Args:
        of: What stands for it.
        variables: Names of variables by which devices are had.
    """
    named = f"has(c.env) && c.env.exists(e, e.name in [{', '.join(map(repr, variables))}])"
    return _of_pod(of, (named, _LISTS_DEVICES), _FORGED)


def _of_pod(of: str, by_container: Iterable[str], by_annotation: str, *more: str) -> str:
    """The API server walks over containers once, however much there is to ask of each."""
    thoughts = (
        f"{containers_of('pod.spec')}.exists(c,\n{joined(by_container)})",
        *more,
        "has(pod.spec.runtimeClassName) && pod.spec.runtimeClassName.startsWith('nvidia')",
        mounts_host("pod.spec", DEVICE_PATHS),
        f"has(pod.metadata) && has(pod.metadata.annotations) && pod.metadata.annotations.exists(key, {by_annotation})",
    )
    return f"[{of}].exists(pod,\n{joined(thoughts)})"


_BEGUN = " || ".join(f"'{start}'.startsWith(f.prefix)" for start in VARIABLES)
_SOURCES = (
    "has(c.envFrom) && c.envFrom.exists(f, has(f.prefix) && f.prefix != ''"
    f" && ({begins('f.prefix', VARIABLES)} || {_BEGUN}))"
)
"""Sources of variables whose prefix begins the names of GPU variables."""

_LISTS_DEVICES = "has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath.contains('nvidia-container-devices'))"

_FORGED = f"key.contains('cdi.k8s.io') || (key == '{MIRROR}' && !request.userInfo.username.startsWith('system:node:'))"
"""Annotations by which devices are injected, and a static pod's that no node wrote."""

ANNOTATIONS = "(has({0}.metadata.annotations) ? {0}.metadata.annotations : {{}})"

SAYS_SOMETHING_NEW = (
    "request.operation != 'UPDATE' || object.spec != oldObject.spec"
    f" || {ANNOTATIONS.format('object')} != {ANNOTATIONS.format('oldObject')}"
)
"""In CEL: no update that only moves labels, owners or finalizers. Those go on, whatever became of us."""
