"""The pod templates inside a workload, each read as the pod that will come of it.

A policy set says where the templates of a kind stand. What stands there may be a pod template, a bare pod
spec (Notebook), or one of the forms of `template_forms`; each comes back with the way from a field of the pod
to the field of the workload that it was read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from webhook.engine.template_forms import TemplateForm, read_template_form
from webhook.errors import ReviewError
from webhook.model.paths import FieldPath
from webhook.model.pods import ObjectMeta, Pod, PodSpec, parse_pod
from webhook.model.requests import AdmissionRequest
from webhook.policy.workloads import TemplatePath

PathStep = tuple[dict[str, Any], str]
"""A map on the way to a template, and the key that was taken from it."""

_NO_POD = Pod(ObjectMeta(), PodSpec())
_NO_METADATA: dict[str, Any] = {"metadata": {}}
_MULTIPLIER_KEYS = ("replicas", "numOfHosts")
_COUNT_KEYS = (*_MULTIPLIER_KEYS, "parallelism", "completions")
"""Keys on the way to a template that say how many there are to be."""


class PodTemplate(msgspec.Struct, frozen=True):
    """One pod template of a workload.

    Attributes:
        path: Where the template stands in the workload, for example ("spec", "template").
        spec_path: Where the pod's `spec` stands: path + ("spec",), or `path` itself for a bare pod spec.
        pod: The template read as a pod; an empty one where `error` says why it cannot be read.
        data: What `pod` was read from: a `spec`, and `metadata` where there is any.
        replicas: How many pods come of it at one time, as far as the workload says; 1 where it does not.
        several: True if more than one pod comes of it.
        error: Why this is no pod template, without the path; "" if it is one.
        error_path: Where in the workload that is so.
        moves: From the beginning of a pod's path to where it stands in the workload, the longest first.
    """

    path: FieldPath
    spec_path: FieldPath
    pod: Pod
    data: Mapping[str, Any] = {}
    replicas: int = 1
    has_several_pods: bool = False
    error: str = ""
    error_path: FieldPath = ()
    moves: tuple[tuple[FieldPath, FieldPath], ...] = ()

    def field_path(self, path: FieldPath) -> FieldPath:
        """Where a field of the pod stands in the workload.

        >>> place = ("spec", "jobTemplate", "spec", "template")
        >>> Template(place, (*place, "spec"), _NO_POD).at(("spec", "containers", 0))
        ('spec', 'jobTemplate', 'spec', 'template', 'spec', 'containers', 0)
        """
        for start, target in self.moves:
            if path[: len(start)] == start:
                return target + path[len(start) :]
        return self.spec_path + path[1:] if path[:1] == ("spec",) else self.path + path


def read_templates(request: AdmissionRequest, paths: Iterable[TemplatePath]) -> Iterator[PodTemplate]:
    """Read every pod template of the request's object.

    Args:
        request: Its object is read as plain data.
        paths: Where templates of this kind stand; "*" is every member of a list or map.

    Yields:
        One template for each place that holds something, in the order of `paths`, each place once. Parts of a
        workflow that run no container are passed over. Never raises.
    """
    data = request.load_object()
    seen: set[FieldPath] = set()
    for path in paths:
        for place, steps, value in _values_at_path(data, path):
            if place not in seen and (form := read_template_form(value, place, steps)) is not None:
                seen.add(place)
                yield _build_template(request.kind, place, steps, form)


def _values_at_path(data: Any, path: TemplatePath) -> Iterator[tuple[FieldPath, tuple[PathStep, ...], Any]]:
    """What stands at a path, with the maps passed on the way; places that hold nothing are left out."""
    found: list[tuple[FieldPath, tuple[PathStep, ...], Any]] = [((), (), data)]
    for key in path:
        found = [step for place, steps, value in found for step in _child_values(place, steps, value, key)]
    yield from found


def _child_values(place: FieldPath, steps: tuple[PathStep, ...], value: Any, key: str) -> Iterator[tuple[FieldPath, tuple[PathStep, ...], Any]]:
    if key == "*" and isinstance(value, list):
        members: Iterable[tuple[str | int, Any]] = enumerate(value)
    elif isinstance(value, dict):
        members = list(value.items()) if key == "*" else [(key, value.get(key))]
    else:
        return
    for name, member in members:
        if member is not None:
            passed = (*steps, (value, str(name))) if isinstance(value, dict) else steps
            yield (*place, name), passed, member


def _build_template(kind: str, place: FieldPath, steps: tuple[PathStep, ...], form: TemplateForm) -> PodTemplate:
    if form.error:
        return PodTemplate(place, form.spec_path, _NO_POD, error=form.error, error_path=place)
    try:
        pod = _parse_template_pod(form.data)
    except ReviewError as error:
        sentence = str(error).removeprefix("object: ")
        unread = PodTemplate(place, form.spec_path, _NO_POD, error=sentence, moves=form.moves)
        return msgspec.structs.replace(unread, error_path=unread.field_path(error.path))
    replicas = form.replicas if form.replicas is not None else _count_template_pods(steps)
    several = replicas > 1 or kind == "DaemonSet"
    return PodTemplate(place, form.spec_path, pod, form.data, replicas, several, moves=form.moves)


def _parse_template_pod(data: object) -> Pod:
    if isinstance(data, dict):
        data = _NO_METADATA | data
    try:
        return msgspec.convert(data, Pod)
    except (msgspec.ValidationError, RecursionError):
        return parse_pod(data)


def _count_template_pods(steps: tuple[PathStep, ...]) -> int:
    """Replicas of replicas: a JobSet's jobs times their parallelism, a RayCluster's groups times their hosts."""
    total = 1
    for members, key in steps:
        for name in _MULTIPLIER_KEYS:
            total *= _valid_count(members.get(name), 1)
        parallel = _valid_count(members.get("parallelism"), 1)
        total *= min(parallel, _valid_count(members.get("completions"), parallel))
        if key == "workerTemplate":
            total *= max(1, _valid_count(members.get("size"), 1) - ("leaderTemplate" in members))
    return total


def invalid_counts(data: Any, place: FieldPath) -> Iterator[tuple[FieldPath, object]]:
    """What an object says of how many pods there are to be and no API server takes, on the way to a template.

    Args:
        data: The object.
        place: Where the template stands in it.
    """
    for depth, key in enumerate(place):
        if isinstance(data, dict):
            names = (*_COUNT_KEYS, "size") if key == "workerTemplate" else _COUNT_KEYS
            said = [(name, data[name]) for name in names if name != key and data.get(name) is not None]
            yield from (((*place[:depth], name), value) for name, value in said if _valid_count(value, -1) < 0)
        data = data[key]


def _valid_count(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
