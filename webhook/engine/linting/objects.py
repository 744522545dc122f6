"""Reading objects that may hold anything: what is not as it should be is as if it were not there."""

from __future__ import annotations

from json import dumps
from typing import Any, NamedTuple

from webhook.errors import shorten_text
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.model.limit_ranges import ResourceList, parse_resource_list
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_nano_or_none


class ObjectError(NamedTuple):
    """Where an object is not as it should be.

    Attributes:
        path: Of the field.
        sentence: What must hold, and what was found.
        refused: True where the API server refuses it, False where it is stored and holds nobody.
    """

    path: FieldPath
    message: str
    rejected: bool = True


Json = dict[str, Any]


def as_mapping(value: Any) -> Json:
    """A map, empty where there is none."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """What is in a list; nothing where there is none."""
    return list(value) if isinstance(value, (list, tuple)) else []


def nulls_as_zero(value: Any) -> Json:
    """A map of amounts as an API server reads it: where nothing is written for one, it is zero."""
    return {name: "0" if one is None else one for name, one in as_mapping(value).items()}


def parse_written_amounts(value: Any) -> ResourceList:
    """The amounts in a map, as an API server holds them."""
    return parse_resource_list(
        {name: one for name, one in nulls_as_zero(value).items() if isinstance(one, QuantityText)}
    )


def counts_gpus(name: str) -> bool:
    """Does it count GPUs: whole ones, parts, or thousandths?"""
    return name == ACCOUNTING_RESOURCE or parse_gpu_resource(name) is not None


def is_positive_amount(value: Any) -> bool:
    """Is it an amount above zero?"""
    return (parse_nano_or_none(_as_amount(value)) or 0) > 0


def _as_amount(value: Any) -> QuantityText | None:
    return value if isinstance(value, (str, int, float)) else None


def lint_finding(code: str, path: FieldPath, message: str, fix: str) -> Finding:
    """A finding about an object that is not a pod: told, never a reason to refuse it."""
    return Finding(code, PolicyMode.WARN, path, message, fix)


def rebuild_object(data: Json, spec: Json) -> Json:
    """An object with another spec, without what an API server adds."""
    metadata = as_mapping(data.get("metadata"))
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
    return {"apiVersion": "v1", "kind": data["kind"], "metadata": kept, "spec": spec}


def invalid_value(path: FieldPath, value: Any, words: str) -> ObjectError:
    """What the API server says of a value that breaks one of its rules."""
    said = dumps(value, separators=(",", ":"), default=str)
    return ObjectError(path, f"Invalid value: {shorten_text(said, 120)}: {words}")
