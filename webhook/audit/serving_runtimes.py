"""InferenceServices of KServe, completed from the serving runtimes that they name.

Source: kserve `pkg/controller/v1beta1/inferenceservice/utils/utils.go`, MergeRuntimeContainers and MergePodSpec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.model.field_paths import list_at, map_at
from webhook.well_known import Json

KSERVE_GROUP = "serving.kserve.io"
_SERVING_CONTAINER = "kserve-container"


def with_serving_runtimes(
    documents: Sequence[SourceObject | SkippedDocument], namespace: str
) -> list[SourceObject | SkippedDocument]:
    """Complete the predictors of InferenceServices from the serving runtimes that they name, if these are among them.

    Args:
        namespace: The namespace of objects that name none.
    """
    objects = [each.data for each in documents if isinstance(each, SourceObject)]
    runtimes = {_runtime_key(data, namespace): map_at(data, "spec") for data in objects if _is_serving_runtime(data)}
    if not runtimes:
        return list(documents)
    return [
        _with_serving_runtime(each, runtimes, namespace) if isinstance(each, SourceObject) else each
        for each in documents
    ]


def _is_serving_runtime(data: Json) -> bool:
    return str(data["apiVersion"]).startswith(f"{KSERVE_GROUP}/") and str(data["kind"]).endswith("ServingRuntime")


def _runtime_key(data: Json, namespace: str) -> tuple[str, str]:
    metadata = map_at(data, "metadata")
    home = "" if data["kind"] == "ClusterServingRuntime" else metadata.get("namespace") or namespace
    return str(home), str(metadata.get("name"))


def _with_serving_runtime(
    source: SourceObject, runtimes: Mapping[tuple[str, str], Json], namespace: str
) -> SourceObject:
    data, predictor = source.data, map_at(source.data, "spec", "predictor")
    model = map_at(predictor, "model")
    if data["kind"] != "InferenceService" or not str(data["apiVersion"]).startswith(f"{KSERVE_GROUP}/") or not model:
        return source
    home, name = str(map_at(data, "metadata").get("namespace") or namespace), str(model.get("runtime"))
    runtime = runtimes.get((home, name)) or runtimes.get(("", name)) or {}
    merged = _merge_runtime(runtime, predictor, model)
    return msgspec.structs.replace(source, data={**data, "spec": {**data["spec"], "predictor": merged}})


def _merge_runtime(runtime: Json, predictor: Json, model: Json) -> Json:
    """Merge a predictor over its runtime, as KServe does; the predictor itself if the result is not known here."""
    containers = _maps_at(runtime, "containers")
    serving = next((each for each in containers if each.get("name") == _SERVING_CONTAINER), None)
    if (
        serving is None
        or "workerSpec" in {**runtime, **predictor}
        or ("affinity" in runtime and "affinity" in predictor)
    ):
        return predictor
    merged = {**runtime, **predictor, "model": _merge_containers(serving, model)}
    for key in ("annotations", "labels", "nodeSelector"):
        merged[key] = {**map_at(runtime, key), **map_at(predictor, key)}
    merged["containers"] = [each for each in containers if each is not serving] + list_at(predictor, "containers")
    return merged


def _merge_containers(serving: Json, model: Json) -> Json:
    """Merge the model of a predictor over the container of its runtime: arguments and variables are added."""
    written = {str(each.get("name")) for each in _maps_at(model, "env")}
    inherited = [each for each in _maps_at(serving, "env") if each.get("name") not in written]
    resources = {
        key: {**map_at(serving, "resources", key), **map_at(model, "resources", key)} for key in ("limits", "requests")
    }
    arguments = list_at(serving, "args") + list_at(model, "args")
    return {**serving, **model, "args": arguments, "env": inherited + list_at(model, "env"), "resources": resources}


def _maps_at(data: Json, key: str) -> list[Json]:
    return [each for each in list_at(data, key) if isinstance(each, dict)]
