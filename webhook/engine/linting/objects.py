"""Read LimitRanges and ResourceQuotas of any content: a value of the wrong type reads as absent."""

from __future__ import annotations

from json import dumps
from typing import Any, NamedTuple

from webhook.errors import shorten_text
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.model.limit_ranges import ResourceList, parse_resource_list
from webhook.model.pods import QuantityText, nulls_as_zero
from webhook.model.quantity import parse_nano_or_none
from webhook.well_known import Json


class ObjectError(NamedTuple):
    """An invalid or ineffective field of an object.

    Attributes:
        rejected: True if the API server rejects the object; False if it stores it without effect.
    """

    path: FieldPath
    message: str
    rejected: bool = True


def as_mapping(value: Any) -> Json:
    """Return a map; empty for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list; empty for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []


def parse_written_amounts(value: Any) -> ResourceList:
    """Return the readable amounts of a map."""
    return parse_resource_list(
        {name: one for name, one in nulls_as_zero(as_mapping(value)).items() if isinstance(one, QuantityText)}
    )


def counts_gpus(name: str) -> bool:
    """Return whether a resource name counts GPUs: whole ones, slices, shares, or thousandths."""
    return name == ACCOUNTING_RESOURCE or parse_gpu_resource(name) is not None


def is_positive_amount(value: Any) -> bool:
    """Return whether it is an amount above zero."""
    return isinstance(value, QuantityText) and (parse_nano_or_none(value) or 0) > 0


def lint_finding(code: str, path: FieldPath, message: str, fix: str) -> Finding:
    """Return a finding about an object that is not a pod: always a warning."""
    return Finding(code, PolicyMode.WARN, path, message, fix)


def rebuild_object(data: Json, spec: Json) -> Json:
    """Return an object with another spec, without the fields that the API server adds."""
    metadata = as_mapping(data.get("metadata"))
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
    return {"apiVersion": "v1", "kind": data["kind"], "metadata": kept, "spec": spec}


def invalid_value(path: FieldPath, value: Any, reason: str) -> ObjectError:
    """Return an error in the API server's words."""
    text = dumps(value, separators=(",", ":"), default=str)
    return ObjectError(path, f"Invalid value: {shorten_text(text, 120)}: {reason}")
