"""The pod templates of a workload, each read as a pod.

The table of kinds lists where a kind describes its pods. The value there may be a pod template, a bare pod spec, a bare
container, a map whose fields the table names, an Argo Workflows template or a KServe predictor. Each template maps the
fields of its pod back to the fields of the workload.

Sources: the API types of Argo Workflows (`Template`; `createWorkflowPod` for what all its pods
have) and KServe (`PredictorSpec`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from webhook.errors import ReviewError, quote_text
from webhook.model.admission import AdmissionRequest
from webhook.model.batch import QUEUEING_PREFIXES
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.pods import ObjectMeta, OwnerReference, Pod, PodSpec, parse_pod
from webhook.policy.workload_kinds import (
    LEAST_UNDER_LOAD,
    POD_OBJECT,
    PodSource,
    TemplatePath,
    WorkloadKinds,
    WorkloadTemplates,
)
from webhook.well_known import Json

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
    "tensorrt",
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

SourceValue = tuple[FieldPath, tuple[PathStep, ...], Any, PodSource]
"""A value that describes pods, and the row of the table that leads to it."""

QueueingMetadata = dict[int, tuple[dict[str, str], dict[str, str]]]
"""The labels and annotations of queueing systems on the maps around templates, by identity: each is read once."""

MAX_MEMBERS = 1000
"""Members of lists and maps on the way to the templates of one source; more are an error of the object."""

TOO_MANY = object()
"""Stands for more members than that."""

MAX_PODS = 2**31 - 1
"""Most pods of a template: its counts are int32 in the API, but a review may contain any."""

MAX_SCALING_GROUPS = 32
"""Groups, and members of each, that are looked at."""

_NO_POD = Pod(ObjectMeta(), PodSpec())
_REPLICAS = ("replicas",)
_ANNOTATED_COUNT = re.compile(r"[0-9]{1,9}\Z")
_PARALLEL, _COMPLETIONS = ("parallelism",), ("completions",)
"""Keys of the numbers of pods of a Job."""


class PodTemplate(msgspec.Struct, frozen=True):
    """One pod template of a workload.

    Attributes:
        path: Path of the template in the workload, for example ("spec", "template").
        spec_path: Path of the pod's `spec`; equals `path` for a bare pod spec.
        pod: The template as a pod; empty if there is an `error`.
        data: The plain data of `pod`: `spec`, and `metadata` if present.
        replicas: Number of concurrent pods; 1 if unknown.
        error: Why it is no pod template, without the path; "" if it is one.
        error_path: The field of the error.
        moves: Path prefixes in the pod and in the workload, the longest first.
        source: The row of the table that it was found by.
        owner: The object that creates the pods: the workload, or one that it contains.
        labels: Labels that controllers add; empty texts, because their values are not known yet.
        annotations: Annotations that they add.
    """

    path: FieldPath
    spec_path: FieldPath
    pod: Pod
    data: Mapping[str, Any] = {}
    replicas: int = 1
    error: str = ""
    error_path: FieldPath = ()
    moves: tuple[PathMove, ...] = ()
    source: PodSource = PodSource(())
    owner: OwnerReference = OwnerReference()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}

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


def read_templates(request: AdmissionRequest, kinds: WorkloadKinds) -> Iterator[PodTemplate]:
    """Read every pod template of the request's object.

    Args:
        request: Its object is read as plain data.
        kinds: The known kinds of workloads.

    Yields:
        One template for each value found, in the order of the kind's sources, each place once. Steps of a workflow
        without container are skipped. Never raises.
    """
    templates = kinds.get((request.group, request.kind))
    if templates is None:
        return
    owner = OwnerReference(kind=request.kind, name=request.name, controller=True)
    read: set[FieldPath] = set()
    queues: QueueingMetadata = {}
    for place, steps, value, source in _find_sources(templates, ((), (), request.load_object())):
        found = [((place, steps, value, source), templates, owner)]
        if source.embedded and value is not TOO_MANY:
            found = list(_find_embedded(place, steps, value, kinds))
        for one, of_kind, of_owner in found:
            if one[0] not in read and (form := _read_source(*one)) is not None:
                read.add(one[0])
                yield _build_template(of_kind, of_owner, queues, *one, form)


def _find_sources(templates: WorkloadTemplates, root: FoundValue) -> Iterator[SourceValue]:
    """Yield what is at the paths of a kind."""
    for source in templates.sources:
        values: list[FoundValue] = [root]
        for key in source.path:
            children = (child for place, steps, value in values for child in _child_values(place, steps, value, key))
            values = list(islice(children, MAX_MEMBERS + 1))
            if len(values) > MAX_MEMBERS:
                yield values.pop()[0][:-1], (), TOO_MANY, source
        for place, steps, value in values:
            yield place, steps, value, source


def find_values(data: Any, path: TemplatePath) -> Iterator[FieldPath]:
    """Yield the place of each value at a path."""
    for place, _, _, _ in _find_sources(WorkloadTemplates((PodSource(path),)), ((), (), data)):
        yield place


def _find_embedded(
    place: FieldPath, steps: tuple[PathStep, ...], value: Any, kinds: WorkloadKinds
) -> Iterator[tuple[SourceValue, WorkloadTemplates, OwnerReference]]:
    """Yield the values of an object inside another one; nothing if its kind is unknown, or wraps objects itself."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("kind"), str):
        return
    group, slash, _ = str(value.get("apiVersion")).rpartition("/")
    templates = kinds.get((group if slash else "", kind), POD_OBJECT if (group, kind) == ("", "Pod") else None)
    name = _as_mapping(value.get("metadata")).get("name")
    owner = OwnerReference(kind=kind, name=name if isinstance(name, str) else "", controller=True)
    for found in _find_sources(templates, (place, steps, value)) if templates is not None else ():
        if not found[3].embedded:
            yield found, templates or POD_OBJECT, owner


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


def _build_template(
    templates: WorkloadTemplates,
    owner: OwnerReference,
    queues: QueueingMetadata,
    place: FieldPath,
    steps: tuple[PathStep, ...],
    value: Any,
    source: PodSource,
    form: TemplateForm,
) -> PodTemplate:
    if form.error:
        return PodTemplate(place, form.spec_path, _NO_POD, error=form.error, error_path=place)
    try:
        pod = _parse_template_pod(form.data)
    except ReviewError as error:
        sentence = str(error).removeprefix("object: ")
        unread = PodTemplate(place, form.spec_path, _NO_POD, error=sentence, moves=form.moves)
        return msgspec.structs.replace(unread, error_path=unread.field_path(error.path))
    maps = [members for members, _ in steps] + ([value] if isinstance(value, dict) else [])
    replicas = form.replicas if form.replicas is not None else min(MAX_PODS, _count_template_pods(source, maps))
    labels = {templates.label: ""} if templates.label else {}
    annotations = {templates.annotation: ""} if templates.annotation else {}
    for members in maps[_count_outer_maps(steps) :]:
        if id(members) not in queues:
            queues[id(members)] = _queueing_metadata(members)
        of_labels, of_annotations = queues[id(members)]
        labels |= of_labels
        annotations |= of_annotations
    if templates.group_label and any(_count_at(members, source.group_size) > 1 for members in maps):
        labels[templates.group_label] = ""
    return PodTemplate(
        place,
        form.spec_path,
        pod,
        form.data,
        replicas,
        moves=form.moves,
        source=source,
        owner=owner,
        labels=labels,
        annotations=annotations,
    )


def _count_outer_maps(steps: Sequence[PathStep]) -> int:
    """Return how many maps around a template belong to a CronJob, whose Jobs get labels of its `jobTemplate` only."""
    return next((index for index, (_, key) in enumerate(steps, 1) if key == "jobTemplate"), 0)


def _queueing_metadata(members: Json) -> tuple[dict[str, str], dict[str, str]]:
    """Return the first label and annotation of an object by which a queueing system manages it."""
    metadata = _as_mapping(members.get("metadata"))
    found: list[dict[str, str]] = []
    for part in ("labels", "annotations"):
        texts = _as_mapping(metadata.get(part))
        key = next((key for key in texts if key.startswith(QUEUEING_PREFIXES)), None)
        found.append({} if key is None else {key: str(texts[key])})
    return found[0], found[1]


def _parse_template_pod(data: object) -> Pod:
    if isinstance(data, dict):
        data = {"metadata": {}} | data
    try:
        return msgspec.convert(data, Pod)
    except (msgspec.ValidationError, RecursionError):
        return parse_pod(data)


def _count_template_pods(source: PodSource, maps: Sequence[Json]) -> int:
    """Multiply nested counts: a JobSet's jobs by their parallelism, a RayCluster's groups by their hosts."""
    total = 1
    for members in maps:
        for keys in source.counts:
            count = _count_workers(source, members) if keys == source.group_size else _count_at(members, keys)
            total *= max(count, _least_count(source, members)) if keys == _REPLICAS else count
        parallel = _count_at(members, _PARALLEL)
        total *= min(parallel, _valid_count(members.get("completions"), parallel))
        for group in _as_list(members.get(source.scaling_groups))[:MAX_SCALING_GROUPS]:
            names = _as_list(_as_mapping(group).get("cliqueNames"))[:MAX_SCALING_GROUPS]
            if any(isinstance(one.get("name"), str) and one["name"] in names for one in maps):
                total *= _count_at(group, ("replicas",))
    return total


def _count_workers(source: PodSource, members: Json) -> int:
    """Return the size of a gang, without its leader if that has its own template.

    A size that is not written is 1, or unknown for a kind whose controller sets it; then there is at least one worker.
    """
    size = _read_gang_size(source, members)
    led = bool(source.leader) and source.leader in members and (size is not None or not source.unknown_parts)
    return max(0, (1 if size is None else size) - led)


def _read_gang_size(source: PodSource, members: Json) -> int | None:
    """Return the number of pods of a gang, None if it is not written; a number of ranks is read before a size."""
    ranks = [_valid_count(_value_at(members, keys), 0) for keys in source.ranks]
    if any(ranks):
        total, per_pod = ranks
        return max(1, total // max(1, per_pod))
    size = _value_at(members, source.group_size)
    return None if size is None else _valid_count(size, 1)


def _count_at(members: Json, keys: TemplatePath) -> int:
    """Return the number of pods at a path; 1 if there is none, 0 for what is switched off."""
    value = _value_at(members, keys) if keys else None
    if isinstance(value, str) and keys in LEAST_UNDER_LOAD:
        value = int(value) if _ANNOTATED_COUNT.match(value) else None
    count = 0 if value is False else _valid_count(value, 1)
    return max(1, count) if keys in LEAST_UNDER_LOAD else count


def _least_count(source: PodSource, members: Json) -> int:
    return _valid_count(_value_at(members, source.least), 0) if source.least else 0


def _value_at(value: Any, keys: TemplatePath) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def invalid_counts(data: Any, template: PodTemplate) -> Iterator[tuple[FieldPath, object]]:
    """Yield pod counts of an object, on the path to a template, that the API server rejects."""
    place = template.path
    for depth in range(len(place) + 1):
        if isinstance(data, dict):
            for keys in (*template.source.counts, *template.source.ranks, _PARALLEL, _COMPLETIONS):
                value = _value_at(data, keys)
                leads_on = place[depth : depth + 1] == keys[:1] or isinstance(value, dict)
                is_count = value is None or leads_on or keys == ("enabled",) or keys[0] == "metadata"
                if not is_count and not 0 <= _valid_count(value, -1) <= MAX_PODS:
                    yield (*place[:depth], *keys), value
        data = data[place[depth]] if depth < len(place) else None


def _valid_count(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _read_source(
    place: FieldPath, steps: tuple[PathStep, ...], value: object, source: PodSource
) -> TemplateForm | None:
    if value is TOO_MANY:
        return _form_error(place, f"must have at most {MAX_MEMBERS} members, found more")
    if not source.fields or not isinstance(value, dict):
        return read_template_form(value, place, steps)
    data: Any = {"metadata": {}, "spec": {"containers": [{"name": "main"}]}}
    moves: list[PathMove] = []
    for target, field in source.fields:
        if (found := _value_at(value, field)) is not None:
            target = tuple(_resolve_step(step, value) for step in target)
            data = _with_value(data, target, found)
            moves.append((target, (*place, *field)))
    moves.sort(key=lambda move: -len(move[0]))
    moves += [(("spec", "containers", 0), place), (("spec",), place), (("metadata",), place)]
    return TemplateForm(data, place, tuple(moves))


def _resolve_step(step: str | int, value: Json) -> str | int:
    """Return the step, or the resource name that it refers to."""
    if isinstance(step, int) or not step.startswith("="):
        return step
    name = _value_at(value, tuple(step[1:].split(".")))
    return name if isinstance(name, str) and name else WHOLE_GPU


def _with_value(data: Any, path: FieldPath, value: Any) -> Any:
    """Return the data with a value at a path; maps and lists on the way are copied."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        members = _as_mapping(data)
        return {**members, step: _with_value(members.get(step), rest, value)}
    items = [*_as_list(data), *([{}] * (step + 1 - len(_as_list(data))))]
    items[step] = _with_value(items[step], rest, value)
    return items


def read_template_form(value: object, place: FieldPath, steps: Sequence[PathStep]) -> TemplateForm | None:
    """Read a value in the form it has; None for steps of a workflow without container."""
    if not isinstance(value, dict):
        return _form_error(place, f"must be a pod template, found {quote_text(repr(value))}")
    if "spec" in value:
        spec = value["spec"]
        if not isinstance(spec, dict):
            return _form_error(place, f"must have a map under spec, found {quote_text(repr(spec))}")
        return TemplateForm({"metadata": value.get("metadata") or {}, "spec": spec}, (*place, "spec"))
    if isinstance(_value_at(value, ("custom", "container")), dict) or any(
        isinstance(value.get(key), dict) for key in _KSERVE_MODELS
    ):
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
    """Read a KServe predictor: a pod spec whose first container is under `model`, a framework's name or `custom`."""
    key = next((key for key in _KSERVE_MODELS if isinstance(value.get(key), dict)), "")
    main = (key,) if key else ("custom", "container")
    others = _as_list(value.get("containers"))
    spec = {**value, "containers": [{"name": "kserve-container", **_value_at(value, main)}, *others]}
    metadata = {name: value.get(name) or {} for name in ("annotations", "labels")}
    moves = (
        (("spec", "containers", 0), (*place, *main)),
        *((("spec", "containers", i + 1), (*place, "containers", i)) for i in range(len(others))),
        (("spec",), place),
        (("metadata",), place),
    )
    return TemplateForm({"metadata": metadata, "spec": spec}, place, moves)


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
