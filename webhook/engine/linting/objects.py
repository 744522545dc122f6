"""Reading objects that may hold anything: what is not as it should be is as if it were not there."""

from __future__ import annotations

from typing import Any

from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.paths import Path
from webhook.model.pods import Amount
from webhook.model.quantity import readable
from webhook.model.ranges import Amounts, amounts_in
from webhook.model.resources import ACCOUNTING, gpu_resource

Json = dict[str, Any]


def mapping(value: Any) -> Json:
    """A map, empty where there is none."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """What is in a list; nothing where there is none."""
    return list(value) if isinstance(value, (list, tuple)) else []


def stored(value: Any) -> Json:
    """A map of amounts as an API server reads it: where nothing is written for one, it is zero."""
    return {name: "0" if one is None else one for name, one in mapping(value).items()}


def amounts(value: Any) -> Amounts:
    """The amounts in a map, as an API server holds them."""
    return amounts_in({name: one for name, one in stored(value).items() if isinstance(one, Amount)})


def is_gpus(name: str) -> bool:
    """Does it count GPUs: whole ones, parts, or thousandths?"""
    return name == ACCOUNTING or gpu_resource(name) is not None


def more_than_none(value: Any) -> bool:
    """Is it an amount above zero?"""
    return (readable(_amount(value)) or 0) > 0


def _amount(value: Any) -> Amount | None:
    return value if isinstance(value, (str, int, float)) else None


def found(code: str, path: Path, message: str, fix: str) -> Finding:
    """A finding about an object that is not a pod: told, never a reason to refuse it."""
    return Finding(code, Mode.WARN, path, message, fix)


def applied_anew(data: Json, spec: Json) -> Json:
    """An object with another spec, without what an API server adds."""
    metadata = mapping(data.get("metadata"))
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
    return {"apiVersion": "v1", "kind": data["kind"], "metadata": kept, "spec": spec}
