"""The written models as CustomResourceDefinitions, so that an API server knows the kinds that admins write.

The schema is pydantic's, made structural. It keeps fields that it does not know: an API server would drop them
without a word, while our own route for policies names the misspelt one. It gives no defaults: an object stays as
its author wrote it, and means what the same file means.

Source: the rules for structural schemas of apiextensions.k8s.io/v1.
"""

from __future__ import annotations

from typing import Any

from webhook.policy.written.base import SpecModel, cel_rules
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException
from webhook.well_known import GROUP

Json = dict[str, Any]

_PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
_DROPPED_KEYWORDS = frozenset({"title", "default", "additionalProperties", "propertyNames"})

_READY = {
    "name": "Ready",
    "type": "string",
    "description": "Is what is written here in use?",
    "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
}
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_MESSAGE = {
    "name": "Message",
    "type": "string",
    "priority": 1,
    "jsonPath": '.status.conditions[?(@.type=="Ready")].message',
}


def policy_crds() -> list[Json]:
    """Every CustomResourceDefinition of the kinds that admins write and a cluster keeps."""
    return [
        _policy_crd(
            GPUPolicy,
            plural="gpupolicies",
            short="gpupol",
            scope="Cluster",
            columns=[
                _printer_column("Mode", ".spec.mode"),
                _READY,
                _printer_column("Matched", ".status.matched", "integer"),
                _printer_column("Denied", ".status.denied", "integer"),
                _AGE,
                _printer_column("Description", ".spec.description", priority=1),
                _MESSAGE,
            ],
        ),
        _policy_crd(
            GPUPolicyException,
            plural="gpupolicyexceptions",
            short="gpupolex",
            scope="Namespaced",
            columns=[
                _printer_column("Policy", ".spec.policyName"),
                _printer_column("Codes", ".spec.codes"),
                _printer_column("Ends", ".spec.expirationTime"),
                _READY,
                _AGE,
                _printer_column("Reason", ".spec.reason", priority=1),
                _MESSAGE,
            ],
        ),
    ]


def _printer_column(name: str, path: str, kind: str = "string", *, priority: int = 0) -> Json:
    column: Json = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": priority} if priority else column


def _policy_crd(model: type[SpecModel], *, plural: str, short: str, scope: str, columns: list[Json]) -> Json:
    names = {
        "kind": model.__name__,
        "listKind": f"{model.__name__}List",
        "plural": plural,
        "singular": model.__name__.lower(),
        "shortNames": [short],
        "categories": ["rightslice"],
    }
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": openapi_schema(model)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": scope, "names": names, "versions": [version]},
    }


def openapi_schema(model: type[SpecModel]) -> Json:
    """The structural schema of one kind, with the status that Rightslice writes."""
    whole = model.model_json_schema(by_alias=True)
    schema = _structural_schema(whole, whole.pop("$defs"))
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "status": _STATUS,
    }
    schema["required"] = ["spec"]
    del schema[_PRESERVE_UNKNOWN]
    return schema


def _structural_schema(node: Json, models: Json) -> Json:
    """One node of pydantic's schema, with references and choices resolved as far as a structural schema can."""
    if "$ref" in node:
        return _structural_schema(models[node["$ref"].rpartition("/")[2]], models)
    if "anyOf" in node:
        return _structural_schema(next(one for one in node["anyOf"] if one != {"type": "null"}), models)
    if "oneOf" in node or not node:
        return {_PRESERVE_UNKNOWN: True}
    schema = {key: value for key, value in node.items() if key not in _DROPPED_KEYWORDS}
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "items" in node:
        schema["items"] = _structural_schema(node["items"], models)
    if "properties" in node:
        schema["properties"] = {name: _structural_schema(below, models) for name, below in node["properties"].items()}
        schema[_PRESERVE_UNKNOWN] = True
    elif "patternProperties" in node:
        [(pattern, member)] = schema.pop("patternProperties").items()
        schema["additionalProperties"] = _structural_schema(member, models)
        schema |= cel_rules((f"self.all(key, key.matches(r'{pattern}'))", "must have label keys as its keys"))
    return schema


_CONDITION: Json = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
        "message": {"type": "string", "maxLength": 32768},
    },
}
_STATUS: Json = {
    "description": "What became of it. Rightslice writes this.",
    "type": "object",
    "properties": {
        "observedGeneration": {
            "description": "The generation of the spec that this status is about.",
            "type": "integer",
            "format": "int64",
        },
        "matched": {
            "description": "How many requests it spoke about since its generation came into use.",
            "type": "integer",
            "format": "int64",
        },
        "denied": {"description": "How many of them it denied.", "type": "integer", "format": "int64"},
        "conditions": {
            "description": "Ready: is what is written here in use? Else the message says where the fault is.",
            "type": "array",
            "maxItems": 8,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _CONDITION,
        },
    },
}
