"""Objects whose pods are not known here: they name GPUs where the table of kinds has no pods.

Their pods are still checked at admission, but nothing can be said about them before. The only objects said to run no
pods are those of API groups that are known to have no workloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.templates import PodTemplate, find_values
from webhook.model.admission import AdmissionRequest
from webhook.model.field_paths import FieldPath, format_path
from webhook.policy.workload_kinds import PODLESS_GROUPS, WorkloadKinds

NOT_A_WORKLOAD = "not a workload: it runs no pods"
NAMES_NO_GPUS = "not a known workload, and it names no GPUs"
STILL_CHECKED = "its pods are still checked at admission"

GPU_PREFIX = "nvidia.com/"
_IGNORED = (("apiVersion",), ("kind",), ("status",), ("metadata", "managedFields"))


class UnknownPods(NamedTuple):
    """The reason why the pods of an object are not evaluated.

    Attributes:
        path: The field from which they would be.
        reason: For people.
        quiet: The reason is not worth a line.
    """

    path: FieldPath
    reason: str
    quiet: bool = False


def describe_unknown_kind(data: Any, group: str) -> UnknownPods:
    """Return what is known about an object of a kind that is not in the table."""
    if group in PODLESS_GROUPS:
        return UnknownPods((), NOT_A_WORKLOAD, quiet=True)
    if (path := next(_gpu_mentions(data), None)) is not None:
        found = f"it names GPUs at {format_path(path)}"
    elif (path := next(_container_lists(data), None)) is not None:
        found = f"it has containers at {format_path(path)}"
    else:
        return UnknownPods((), NAMES_NO_GPUS, quiet=True)
    fix = "Add it to spec.match.templates of a policy"
    return UnknownPods(path, f"{data['kind']} is an unknown kind: {found}; {STILL_CHECKED}. {fix}")


def find_unread_pods(
    request: AdmissionRequest, templates: Sequence[PodTemplate], kinds: WorkloadKinds
) -> UnknownPods | None:
    """Return where a workload of a known kind gets GPUs in a way that is not read; None if its templates name GPUs."""
    if request.pod is not None or any(_requests_gpus(each) for each in templates):
        return None
    data, known = request.load_object(), kinds[request.group, request.kind]
    incomplete = [each for each in templates if not all(one.resources.limits for one in each.pod.spec.containers)]
    for keys in known.unread if incomplete or not templates else ():
        for path in find_values(data, keys):
            return UnknownPods(
                path,
                f"{format_path(path)} may give its pods GPUs; Rightslice does not read this field; {STILL_CHECKED}",
            )
    places = [each.path for each in templates]
    for path in _gpu_mentions({"spec": data.get("spec")}):
        if not any(path[: len(place)] == place for place in places):
            where = f"{format_path(path)} names GPUs, but Rightslice knows no pod template there"
            return UnknownPods(path, f"{where}; {STILL_CHECKED}")
    return None


def _requests_gpus(template: PodTemplate) -> bool:
    found = gpu_requests_of_pod(template.pod)
    return bool(found.requests or found.unknown_resources)


def _gpu_mentions(data: Any) -> Iterator[FieldPath]:
    """Yield the fields whose name or text contains nvidia.com/."""
    for path, key, value in _walk(data):
        if GPU_PREFIX in key or (isinstance(value, str) and GPU_PREFIX in value):
            yield path


def _container_lists(data: Any) -> Iterator[FieldPath]:
    for path, key, value in _walk(data):
        if key == "containers" and isinstance(value, list):
            yield path


def _walk(data: Any) -> Iterator[tuple[FieldPath, str, Any]]:
    """Yield every field of an object with its path and name, without those that the API server maintains."""
    stack: list[tuple[FieldPath, str, Any]] = [((), "", data)]
    while stack:
        path, key, value = stack.pop()
        if path in _IGNORED:
            continue
        yield path, key, value
        if isinstance(value, dict):
            stack += [((*path, name), str(name), member) for name, member in reversed(value.items())]
        elif isinstance(value, list):
            stack += [((*path, i), "", member) for i, member in reversed(list(enumerate(value)))]
