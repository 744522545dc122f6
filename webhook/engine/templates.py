"""The pod templates inside a workload, each read as the pod that will come of it.

A policy set says where the templates of a kind stand. What stands there may be a pod template, a bare pod
spec (Notebook), or one of the forms of `template_forms`; each comes back with the way from a field of the pod
to the field of the workload that it was read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from webhook.errors import ReviewError, quote_text
from webhook.model.admission import AdmissionRequest
from webhook.model.field_paths import FieldPath
from webhook.model.pods import ObjectMeta, Pod, PodSpec, parse_pod
from webhook.policy.template_paths import TemplatePath

Json = dict[str, Any]
PathMove = tuple[FieldPath, FieldPath]


class TemplateForm(msgspec.Struct, frozen=True):
    """A pod as it was found in a workload.

    Attributes:
        data: The pod as plain data.
        spec_path: Where the pod's spec stands.
        moves: Beginnings of paths that stand somewhere else, the longest first.
        replicas: How many pods, where the form itself says so; else None.
        error: Why nothing can be read, or "".
    """

    data: Json
    spec_path: FieldPath
    moves: tuple[PathMove, ...] = ()
    replicas: int | None = None
    error: str = ""


_ARGO_MAIN = ("container", "script", "containerSet")
_ARGO_WITHOUT_POD = ("steps", "dag", "suspend", "resource", "data", "http", "plugin")
_ARGO_INHERITED = ("nodeSelector", "tolerations", "affinity", "hostNetwork", "schedulerName", "serviceAccountName")
_KSERVE_MODELS = (
    "model",
    "huggingface",
    "pytorch",
    "tensorflow",
    "triton",
    "onnx",
    "sklearn",
    "xgboost",
    "lightgbm",
    "paddle",
    "pmml",
)


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


def _child_values(
    place: FieldPath, steps: tuple[PathStep, ...], value: Any, key: str
) -> Iterator[tuple[FieldPath, tuple[PathStep, ...], Any]]:
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


def read_template_form(value: object, place: FieldPath, steps: Sequence[tuple[Json, str]]) -> TemplateForm | None:
    """Tell the form of what stands at a place; None for the parts of a workflow that run no container."""
    if not isinstance(value, dict):
        return _form_error(place, f"must be a pod template, found {quote_text(repr(value))}")
    if "spec" in value:
        return _form_of_template(value, place)
    if any(isinstance(value.get(key), dict) for key in _KSERVE_MODELS):
        return _form_of_predictor(value, place)
    if "containers" in value:
        return TemplateForm({"spec": value}, place, ((("spec",), place),))
    if any(isinstance(value.get(key), dict) for key in _ARGO_MAIN):
        return _form_of_workflow_step(value, place, _enclosing_workflow(steps))
    if "image" in value:
        return TemplateForm({"spec": {"containers": [value]}}, place, ((("spec", "containers", 0), place),))
    if any(key in value for key in _ARGO_WITHOUT_POD):
        return None
    keys = ", ".join(map(str, value)) or "nothing"
    return _form_error(place, f"must be a pod template with spec.containers, found {quote_text(keys)}")


def _form_error(place: FieldPath, sentence: str) -> TemplateForm:
    return TemplateForm({}, (*place, "spec"), error=sentence)


def _form_of_template(value: Json, place: FieldPath) -> TemplateForm:
    spec = value["spec"]
    if not isinstance(spec, dict):
        return _form_error(place, f"must have a map under spec, found {quote_text(repr(spec))}")
    return TemplateForm({"metadata": value.get("metadata") or {}, "spec": spec}, (*place, "spec"))


def _form_of_predictor(value: Json, place: FieldPath) -> TemplateForm:
    """KServe: a pod spec whose first container stands under `model`, or under a framework's name."""
    key = next(key for key in _KSERVE_MODELS if isinstance(value.get(key), dict))
    beside = _as_list(value.get("containers"))
    spec = {**value, "containers": [{"name": "kserve-container", **value[key]}, *beside]}
    metadata = {name: value.get(name) or {} for name in ("annotations", "labels")}
    least = value.get("minReplicas")
    replicas = least if isinstance(least, int) and least > 1 else 1
    moves = (
        (("spec", "containers", 0), (*place, key)),
        *((("spec", "containers", i + 1), (*place, "containers", i)) for i in range(len(beside))),
        (("spec",), place),
        (("metadata",), place),
    )
    return TemplateForm({"metadata": metadata, "spec": spec}, place, moves, replicas)


def _enclosing_workflow(steps: Sequence[tuple[Json, str]]) -> tuple[Json, int]:
    """The workflow's spec that a template stands in, and how many keys lead to it."""
    for depth in range(len(steps), 0, -1):
        members, key = steps[depth - 1]
        if key == "templates":
            return members, depth - 1
    return {}, 0


def _form_of_workflow_step(value: Json, place: FieldPath, workflow: tuple[Json, int]) -> TemplateForm:
    """Argo: one container or script, or a set of them, with sidecars, and what the workflow gives to all pods."""
    main, moves = _argo_containers(value, place)
    whole, depth = workflow
    root = place[:depth]
    sidecars = _as_list(value.get("sidecars"))
    moves += [(("spec", "containers", len(main) + i), (*place, "sidecars", i)) for i in range(len(sidecars))]

    for_all = _as_list(whole.get("volumes"))
    own = _as_list(value.get("volumes"))
    moves += [(("spec", "volumes", i), (*root, "volumes", i)) for i in range(len(for_all))]
    moves += [(("spec", "volumes", len(for_all) + i), (*place, "volumes", i)) for i in range(len(own))]

    inherited = {key: whole[key] for key in _ARGO_INHERITED if key in whole and key not in value}
    moves += [(("spec", key), (*root, key)) for key in inherited]
    pods = {"restartPolicy": "Never", "containers": main + sidecars, "volumes": for_all + own}
    spec = {**value, **inherited, **pods}
    metadata, more = _argo_metadata(value, whole, root)
    moves += [*more, (("spec",), place)]
    return TemplateForm({"metadata": metadata, "spec": spec}, place, tuple(moves), replicas=1)


def _argo_containers(value: Json, place: FieldPath) -> tuple[list[Any], list[PathMove]]:
    key = next(key for key in _ARGO_MAIN if isinstance(value.get(key), dict))
    if key != "containerSet":
        return [{"name": "main", **value[key]}], [(("spec", "containers", 0), (*place, key))]
    main = _as_list(value[key].get("containers"))
    return main, [(("spec", "containers", i), (*place, key, "containers", i)) for i in range(len(main))]


def _argo_metadata(value: Json, whole: Json, root: FieldPath) -> tuple[Json, list[PathMove]]:
    own, for_all = _as_mapping(value.get("metadata")), _as_mapping(whole.get("podMetadata"))
    merged: Json = {}
    moves: list[PathMove] = []
    for part in ("annotations", "labels"):
        general, special = _as_mapping(for_all.get(part)), _as_mapping(own.get(part))
        merged[part] = general | special
        moves += [(("metadata", part, key), (*root, "podMetadata", part, key)) for key in general if key not in special]
    return merged, moves


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}
