"""The pod templates of a workload, each read as a pod.

A policy set lists the paths of a kind's templates. The value there may be a pod template, a bare pod spec (Notebook), a
bare container, an Argo Workflows template or a KServe predictor. Each template maps the fields of its pod back to the
fields of the workload. Sources: the API types of Argo Workflows (`Template`; `createWorkflowPod` for what all its pods
have) and KServe (`PredictorSpec`).
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
    """The plain data of a pod in a workload.

    Attributes:
        spec_path: Path of the pod's spec.
        moves: Path prefixes in the pod and in the workload, the longest first.
        replicas: Number of pods, if the form itself has one.
        error: Why it cannot be read, or "".
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


PathStep = tuple[Json, str]
"""A map on the path to a template, and the key followed in it."""

FoundValue = tuple[FieldPath, tuple[PathStep, ...], Any]
"""A value at a path, with the maps on the way."""

_NO_POD = Pod(ObjectMeta(), PodSpec())
_MULTIPLIER_KEYS = ("replicas", "numOfHosts")
_COUNT_KEYS = (*_MULTIPLIER_KEYS, "parallelism", "completions")
"""Keys of pod counts on the path to a template."""


class PodTemplate(msgspec.Struct, frozen=True):
    """One pod template of a workload.

    Attributes:
        path: Path of the template in the workload, for example ("spec", "template").
        spec_path: Path of the pod's `spec`; equals `path` for a bare pod spec.
        pod: The template as a pod; empty if there is an `error`.
        data: The plain data of `pod`: `spec`, and `metadata` if present.
        replicas: Number of concurrent pods; 1 if unknown.
        has_several_pods: True if it has more than one pod.
        error: Why it is no pod template, without the path; "" if it is one.
        error_path: The field of the error.
        moves: Path prefixes in the pod and in the workload, the longest first.
    """

    path: FieldPath
    spec_path: FieldPath
    pod: Pod
    data: Mapping[str, Any] = {}
    replicas: int = 1
    has_several_pods: bool = False
    error: str = ""
    error_path: FieldPath = ()
    moves: tuple[PathMove, ...] = ()

    def field_path(self, path: FieldPath) -> FieldPath:
        """Return the path in the workload of a field of the pod.

        >>> place = ("spec", "jobTemplate", "spec", "template")
        >>> PodTemplate(place, (*place, "spec"), _NO_POD).field_path(("spec", "containers", 0))
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
        paths: Paths of templates of this kind; "*" is every member of a list or map.

    Yields:
        One template for each value found, in the order of `paths`, each place once. Steps of a workflow without
        container are skipped. Never raises.
    """
    data = request.load_object()
    read: set[FieldPath] = set()
    for path in paths:
        values: list[FoundValue] = [((), (), data)]
        for key in path:
            values = [child for place, steps, value in values for child in _child_values(place, steps, value, key)]
        for place, steps, value in values:
            if place not in read and (form := read_template_form(value, place, steps)) is not None:
                read.add(place)
                yield _build_template(request.kind, place, steps, form)


def _child_values(place: FieldPath, steps: tuple[PathStep, ...], value: Any, key: str) -> Iterator[FoundValue]:
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
        data = {"metadata": {}} | data
    try:
        return msgspec.convert(data, Pod)
    except (msgspec.ValidationError, RecursionError):
        return parse_pod(data)


def _count_template_pods(steps: tuple[PathStep, ...]) -> int:
    """Multiply nested counts: a JobSet's jobs by their parallelism, a RayCluster's groups by their hosts."""
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
    """Yield pod counts of an object, on the path to a template at `place`, that the API server rejects."""
    for depth, key in enumerate(place):
        if isinstance(data, dict):
            names = (*_COUNT_KEYS, "size") if key == "workerTemplate" else _COUNT_KEYS
            counts = [(name, data[name]) for name in names if name != key and data.get(name) is not None]
            yield from (((*place[:depth], name), value) for name, value in counts if _valid_count(value, -1) < 0)
        data = data[key]


def _valid_count(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def read_template_form(value: object, place: FieldPath, steps: Sequence[PathStep]) -> TemplateForm | None:
    """Read a value in the form it has; None for steps of a workflow without container."""
    if not isinstance(value, dict):
        return _form_error(place, f"must be a pod template, found {quote_text(repr(value))}")
    if "spec" in value:
        spec = value["spec"]
        if not isinstance(spec, dict):
            return _form_error(place, f"must have a map under spec, found {quote_text(repr(spec))}")
        return TemplateForm({"metadata": value.get("metadata") or {}, "spec": spec}, (*place, "spec"))
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


def _form_of_predictor(value: Json, place: FieldPath) -> TemplateForm:
    """Read a KServe predictor: a pod spec with the first container under `model` or a framework's name."""
    key = next(key for key in _KSERVE_MODELS if isinstance(value.get(key), dict))
    others = _as_list(value.get("containers"))
    spec = {**value, "containers": [{"name": "kserve-container", **value[key]}, *others]}
    metadata = {name: value.get(name) or {} for name in ("annotations", "labels")}
    least = value.get("minReplicas")
    replicas = least if isinstance(least, int) and least > 1 else 1
    moves = (
        (("spec", "containers", 0), (*place, key)),
        *((("spec", "containers", i + 1), (*place, "containers", i)) for i in range(len(others))),
        (("spec",), place),
        (("metadata",), place),
    )
    return TemplateForm({"metadata": metadata, "spec": spec}, place, moves, replicas)


def _enclosing_workflow(steps: Sequence[PathStep]) -> tuple[Json, int]:
    """Return the spec of the workflow around a template, and the number of keys that lead to it."""
    for depth in range(len(steps), 0, -1):
        members, key = steps[depth - 1]
        if key == "templates":
            return members, depth - 1
    return {}, 0


def _form_of_workflow_step(value: Json, place: FieldPath, workflow: tuple[Json, int]) -> TemplateForm:
    """Read an Argo step: a container, script or container set, with sidecars and the workflow's fields for all pods."""
    main, moves = _argo_containers(value, place)
    whole, depth = workflow
    root = place[:depth]
    sidecars = _as_list(value.get("sidecars"))
    moves += [(("spec", "containers", len(main) + i), (*place, "sidecars", i)) for i in range(len(sidecars))]

    shared = _as_list(whole.get("volumes"))
    own = _as_list(value.get("volumes"))
    moves += [(("spec", "volumes", i), (*root, "volumes", i)) for i in range(len(shared))]
    moves += [(("spec", "volumes", len(shared) + i), (*place, "volumes", i)) for i in range(len(own))]

    inherited = {key: whole[key] for key in _ARGO_INHERITED if key in whole and key not in value}
    moves += [(("spec", key), (*root, key)) for key in inherited]
    pods = {"restartPolicy": "Never", "containers": main + sidecars, "volumes": shared + own}
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
    own, shared = _as_mapping(value.get("metadata")), _as_mapping(whole.get("podMetadata"))
    merged: Json = {}
    moves: list[PathMove] = []
    for part in ("annotations", "labels"):
        general, special = _as_mapping(shared.get(part)), _as_mapping(own.get(part))
        merged[part] = general | special
        moves += [(("metadata", part, key), (*root, "podMetadata", part, key)) for key in general if key not in special]
    return merged, moves


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}
