"""The forms in which workloads hold a pod: a template, a bare spec or container, and what Argo and KServe write.

Each form becomes the plain data of a pod, and the moves that lead from the pod's fields back to where they
were written. Sources: the API types of Argo Workflows (`PodTemplate`; `createWorkflowPod` for what all its pods have)
and KServe (`PredictorSpec`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from webhook.errors import quote_text
from webhook.model.paths import FieldPath

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
