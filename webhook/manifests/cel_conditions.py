"""CEL expressions for the webhook configurations and admission policies, mainly whether a pod touches GPUs.

CEL fails on a missing field, so every optional field is guarded by `has()`. A test on generated pods checks that the
expressions match every pod that the engine rejects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate

from webhook.engine.guarding.host_access import (
    DEVICE_TREES,
    GUARDED_PREFIXES,
    GUARDED_TREES,
    PROCESS_LINKS,
    PROCESS_NAMES,
)
from webhook.model.annotations import MIRROR_ANNOTATION, OWN_PREFIX
from webhook.model.gpu_fractions import CONTAINER_PREFIX, FRACTION_ANNOTATIONS
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, DEVICE_CLASS_PREFIX, GPU_PATTERN

assert ACCOUNTING_RESOURCE.startswith(OWN_PREFIX)

GPU_RESOURCE_PREFIXES = ("nvidia.com/", DEVICE_CLASS_PREFIX, OWN_PREFIX)
"""Prefixes of the names of resources that may be GPUs."""

GPU_VARIABLE_PREFIXES = ("NVIDIA_", "CUDA_")


def _path_alternatives(paths: Iterable[str]) -> str:
    """Return a pattern for paths; /run is also spelled /var/run.

    Paths of one folder share its text: the API server charges for the length of a pattern.
    """
    folders: dict[str, list[str]] = {}
    for path in sorted(paths):
        folder, _, name = path.replace(".", "[.]").rpartition("/")
        folders.setdefault(f"(/var)?{folder}" if f"{path}/".startswith("/run/") else folder, []).append(name)
    return "|".join(f"{folder}/{_any_name(names)}" for folder, names in folders.items())


def _any_name(names: list[str]) -> str:
    return f"({'|'.join(names)})" if len(names) > 1 else names[0]


DEVICE_PATHS = (
    "^([^/]|$)",
    "//",
    "/[.][.]?(/|$)",
    f"^({_path_alternatives(DEVICE_TREES)})(/|$)",
    f"^({_path_alternatives(GUARDED_PREFIXES)})",
)
"""Host paths of GPUs and of device allocation, and spellings that could hide one: relative paths, `//`, `.` and `..`,
because CEL cannot normalize a path."""

MAX_VOLUMES, MAX_PATH_LENGTH = 128, 256
"""So many volumes with paths of this length take half of the cost budget of an expression."""

MAX_ENTRIES = 1000
"""Entries of a list or map that an expression iterates over. The time of the API server grows with the square of the
length; up to this one it is less than the rest of its work on the same entries. Lists of real pods have at most a
tenth."""

_PARENT_FOLDERS = {folder for tree in GUARDED_TREES for folder in accumulate(tree.split("/")[:-1], "{}/{}".format)} - {
    ""
}

WIDE_PATHS = (
    f"^({_path_alternatives(_PARENT_FOLDERS)})?/?$",
    f"^/proc/([0-9]+|{'|'.join(sorted(PROCESS_NAMES))})/?$",
    f"^/proc/[^/]+/({'|'.join(sorted(PROCESS_LINKS))})(/|$)",
    f"^({_path_alternatives(set(GUARDED_TREES) - set(DEVICE_TREES))})(/|$)",
)
"""Host paths that contain guarded paths among others, the container runtime, or all memory."""


def join_terms(terms: Iterable[str]) -> str:
    """Return a disjunction with one term per line."""
    return "\n|| ".join(terms)


def any_entry_cel(entries: str, variable: str, condition: str) -> str:
    """CEL: whether a condition holds for any entry of a list or map, or the list is too long to tell."""
    return f"(size({entries}) > {MAX_ENTRIES} || {entries}.exists({variable}, {condition}))"


def any_entry_of_field_cel(field: str, variable: str, condition: str) -> str:
    """CEL: the same for an optional field."""
    return f"has({field}) && {any_entry_cel(field, variable, condition)}"


def containers_cel(pod: str) -> str:
    """CEL: all containers, init containers and ephemeral containers; most pods have the first only."""
    more = [f"{pod}.{kind}" for kind in ("initContainers", "ephemeralContainers")]
    joined = " + ".join([f"{pod}.containers", *(f"(has({field}) ? {field} : [])" for field in more)])
    return f"({' || '.join(f'has({field})' for field in more)} ? {joined} : {pod}.containers)"


def gpu_request_cel(container: str) -> str:
    """CEL: whether a container requests a non-zero amount of a known GPU resource or of a device class.

    An API server writes every zero as "0".
    """
    known = f"{starts_with_cel('name', [DEVICE_CLASS_PREFIX])} || name.matches('{GPU_PATTERN}')"
    return _any_amount_cel(container, f"string({{amounts}}[name]) != '0' && ({known})")


def _any_amount_cel(container: str, holds: str) -> str:
    """CEL: whether a condition on `name` and `{amounts}` holds for any limit or request of a container."""
    fields = [f"{container}.resources.{side}" for side in AMOUNT_FIELDS]
    sides = " || ".join(any_entry_of_field_cel(field, "name", holds.replace("{amounts}", field)) for field in fields)
    return f"has({container}.resources) && ({sides})"


AMOUNT_FIELDS = ("limits", "requests")


def starts_with_cel(text: str, starts: Iterable[str]) -> str:
    """CEL: whether a text has one of these prefixes."""
    return " || ".join(f"{text}.startsWith('{start}')" for start in starts)


def host_mount_cel(pod: str, paths: Iterable[str]) -> str:
    """CEL: whether a hostPath volume matches one of these patterns."""
    pattern = "|".join(paths)
    return any_entry_of_field_cel(f"{pod}.volumes", "v", f"has(v.hostPath) && v.hostPath.path.matches('{pattern}')")


def wide_host_mount_cel(pod: str) -> str:
    """CEL: whether a hostPath volume contains GPU paths among others.

    An API server aborts an expression that costs too much and then skips the webhook, so too long paths and too many
    volumes match.
    """
    volumes, path = f"{pod}.volumes", "v.hostPath.path"
    wide = f"size({path}) > {MAX_PATH_LENGTH} || {path}.matches('{'|'.join(WIDE_PATHS)}')"
    one = f"{volumes}.exists(v, has(v.hostPath) && ({wide}))"
    return f"has({volumes}) && (size({volumes}) > {MAX_VOLUMES} || {one})"


def touches_gpus_cel(of: str) -> str:
    """CEL: whether a pod or pod template touches GPUs.

    Args:
        of: CEL expression for it, such as "object".
    """
    named = any_entry_of_field_cel("c.env", "e", starts_with_cel("e.name", GPU_VARIABLE_PREFIXES))
    by_container = (_NAMES_GPU, named, _ENV_SOURCES, _MOUNTS_DEVICE_LIST)
    fractions = f"key in [{', '.join(map(repr, FRACTION_ANNOTATIONS))}] || {starts_with_cel('key', [CONTAINER_PREFIX])}"
    annotations = f"key.startsWith('{OWN_PREFIX}') || {fractions} || {_FORGED_ANNOTATIONS}"
    return _pod_cel(of, by_container, annotations, _HAS_CLAIMS)


def may_be_changed_cel(of: str) -> str:
    """CEL: whether a pod may be changed: it names GPU resources, or has a claim or an annotation of ours.

    Fewer loops than `touches_gpus_cel`: variables, mounts and volumes change nothing about a pod without GPUs.

    Args:
        of: CEL expression for it, such as "object".
    """
    annotation = any_entry_of_field_cel("pod.metadata.annotations", "key", f"key.startsWith('{OWN_PREFIX}')")
    containers = any_entry_cel(containers_cel("pod.spec"), "c", _NAMES_GPU)
    terms = (containers, _HAS_CLAIMS, f"has(pod.metadata) && {annotation}")
    return _any_term_cel(of, terms)


def bypasses_request_cel(of: str, variables: Iterable[str]) -> str:
    """CEL: whether a pod reaches GPUs without requesting them.

    Args:
        of: CEL expression for the pod.
        variables: Environment variables that expose devices.
    """
    named = any_entry_of_field_cel("c.env", "e", f"e.name in [{', '.join(map(repr, variables))}]")
    return _pod_cel(of, (named, _MOUNTS_DEVICE_LIST), _FORGED_ANNOTATIONS)


def _pod_cel(of: str, by_container: Iterable[str], by_annotation: str, *more: str) -> str:
    """CEL: whether any term holds; one loop over containers checks all terms about them."""
    terms = (
        any_entry_cel(containers_cel("pod.spec"), "c", f"\n{join_terms(by_container)}"),
        *more,
        "has(pod.spec.runtimeClassName) && pod.spec.runtimeClassName.startsWith('nvidia')",
        host_mount_cel("pod.spec", DEVICE_PATHS),
        f"has(pod.metadata) && {any_entry_of_field_cel('pod.metadata.annotations', 'key', by_annotation)}",
    )
    return _any_term_cel(of, terms)


def _any_term_cel(of: str, terms: Iterable[str]) -> str:
    """CEL: whether any term about `pod` holds for an expression. A name replaces `pod`: that costs less than a loop."""
    if of.isidentifier():
        return re.sub(r"\bpod\b(?=[.])", of, join_terms(terms))
    return f"[{of}].exists(pod,\n{join_terms(terms)})"


_NAMES_GPU = _any_amount_cel("c", starts_with_cel("name", GPU_RESOURCE_PREFIXES))
_HAS_CLAIMS = "has(pod.spec.resourceClaims) && size(pod.spec.resourceClaims) > 0"
_PREFIX_OF_GPU_VARIABLE = " || ".join(f"'{start}'.startsWith(f.prefix)" for start in GPU_VARIABLE_PREFIXES)
_ENV_SOURCES = any_entry_of_field_cel(
    "c.envFrom",
    "f",
    "has(f.prefix) && f.prefix != ''"
    f" && ({starts_with_cel('f.prefix', GPU_VARIABLE_PREFIXES)} || {_PREFIX_OF_GPU_VARIABLE})",
)
"""CEL: envFrom sources whose prefix begins, or is begun by, a prefix of GPU variables."""

_MOUNTS_DEVICE_LIST = any_entry_of_field_cel("c.volumeMounts", "m", "m.mountPath.contains('nvidia-container-devices')")

INJECTOR_STARTS = ("devices.", "mounts.", "cdi-devices.")
"""Prefixes of all annotations that `INJECTOR_PATTERN` matches."""

_FORGED_ANNOTATIONS = (
    f"key.contains('cdi.k8s.io') || {starts_with_cel('key', INJECTOR_STARTS)} || (key == '{MIRROR_ANNOTATION}' && "
    f"!request.userInfo.username.startsWith('system:node:'))"
)
"""CEL: annotations that inject devices, and a mirror pod annotation that no node wrote."""

ANNOTATIONS_CEL = "(has({0}.metadata.annotations) ? {0}.metadata.annotations : {{}})"

SPEC_OR_ANNOTATIONS_CHANGED = (
    "request.operation != 'UPDATE' || object.spec != oldObject.spec"
    f" || {ANNOTATIONS_CEL.format('object')} != {ANNOTATIONS_CEL.format('oldObject')}"
)
"""CEL: not an update that changes only labels, owners or finalizers, which must not depend on the webhook."""
