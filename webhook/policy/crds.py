"""Generate the CustomResourceDefinitions of GPUPolicy and GPUPolicyException from their pydantic models.

The schema preserves unknown fields: an API server would drop them silently, while the webhook for policies reports
them. It sets no defaults, so that an object stays as written and means the same as in a file.

Source: the rules for structural schemas of apiextensions.k8s.io/v1.

Generate the CustomResourceDefinition of GPUNode from its msgspec model.

The schema preserves unknown fields, because agents and readers of different versions can run in one cluster.
"""

from __future__ import annotations

import re

import msgspec
from pydantic.alias_generators import to_camel

from webhook.model.gpu_node import BOUNDS, GPUNodeStatus
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException
from webhook.policy.written.values import SpecModel, cel_rules
from webhook.well_known import GROUP, Json

_PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
_DROPPED_KEYWORDS = frozenset({"title", "default", "additionalProperties", "propertyNames"})


def printer_column(name: str, path: str, kind: str = "string", *, priority: int = 0) -> Json:
    """Return a column of `kubectl get`; those with a priority are printed with `-o wide`."""
    column: Json = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": priority} if priority else column


_READY = printer_column("Ready", '.status.conditions[?(@.type=="Ready")].status')
_READY["description"] = "Whether this version is in use."
_MESSAGE = printer_column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1)
AGE_COLUMN = printer_column("Age", ".metadata.creationTimestamp", "date")


def policy_crds() -> list[Json]:
    """Return the CustomResourceDefinitions."""
    return [
        custom_resource_definition(
            "GPUPolicy",
            plural="gpupolicies",
            short="gpupol",
            schema=openapi_schema(GPUPolicy),
            columns=[
                printer_column("Mode", ".spec.mode"),
                _READY,
                printer_column("Matched", ".status.matched", "integer"),
                printer_column("Denied", ".status.denied", "integer"),
                AGE_COLUMN,
                printer_column("Description", ".spec.description", priority=1),
                _MESSAGE,
            ],
        ),
        custom_resource_definition(
            "GPUPolicyException",
            plural="gpupolicyexceptions",
            short="gpupolex",
            scope="Namespaced",
            schema=openapi_schema(GPUPolicyException),
            columns=[
                printer_column("Policy", ".spec.policyName"),
                printer_column("Codes", ".spec.codes"),
                printer_column("Expires", ".spec.expirationTime"),
                _READY,
                AGE_COLUMN,
                printer_column("Reason", ".spec.reason", priority=1),
                _MESSAGE,
            ],
        ),
    ]


def custom_resource_definition(
    kind: str, *, plural: str, short: str, schema: Json, columns: list[Json], scope: str = "Cluster"
) -> Json:
    """Return the CustomResourceDefinition of a kind with a status subresource."""
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": [short],
        "categories": ["rightslice"],
    }
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
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
    """Return the structural schema of a kind, with the status that Rightslice writes."""
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
    """Convert a node of pydantic's schema: resolve references, and unions as far as possible."""
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
        schema |= cel_rules((f"self.all(key, key.matches(r'{pattern}'))", "keys must match their pattern"))
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
    "description": "Written by Rightslice.",
    "type": "object",
    "properties": {
        "observedGeneration": {
            "description": "The generation of the spec that this status describes.",
            "type": "integer",
            "format": "int64",
        },
        "matched": {
            "description": "Number of requests that it matched since this generation came into use.",
            "type": "integer",
            "format": "int64",
        },
        "denied": {"description": "Number of these requests that it denied.", "type": "integer", "format": "int64"},
        "conditions": {
            "description": "Ready: whether this generation is in use; if not, the message has the error.",
            "type": "array",
            "maxItems": 8,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _CONDITION,
        },
    },
}


_ATTRIBUTE_LINE = re.compile(r"^ +(\w+(?:, \w+)*): (.*(?:\n {9,}.*)*)", re.MULTILINE)
"""Names and description of attributes in a docstring."""


def gpunode_crd() -> Json:
    """Return the CustomResourceDefinition."""
    columns = [
        printer_column("Product", ".status.product"),
        printer_column("Driver", ".status.driverVersion"),
        printer_column("CUDA", ".status.cudaVersion"),
        printer_column("Clique", ".status.clique", priority=1),
        AGE_COLUMN,
        printer_column("Message", ".status.message"),
    ]
    return custom_resource_definition(
        "GPUNode", plural="gpunodes", short="gpun", schema=gpunode_schema(), columns=columns
    )


def gpunode_schema() -> Json:
    """Return the structural schema of a GPUNode."""
    (status,), parts = msgspec.json.schema_components([GPUNodeStatus])
    return {
        "type": "object",
        "description": "The GPUs of a node, as reported by its agent.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "status": _structural_field(status, parts),
        },
    }


def _structural_field(node: Json, parts: Json) -> Json:
    """Convert a node of msgspec's schema to a structural schema."""
    if "$ref" in node:
        return _structural_field(parts[node["$ref"].rpartition("/")[2]], parts)
    if node["type"] == "array":
        return {"type": "array", "items": _structural_field(node["items"], parts)}
    if node["type"] != "object":
        return {"type": node["type"]}
    descriptions = {
        to_camel(name): " ".join(words.split())
        for names, words in _ATTRIBUTE_LINE.findall(node["description"])
        for name in names.split(", ")
    }
    properties = {}
    for name, field in node["properties"].items():
        properties[name] = _structural_field(field, parts)
        if name in BOUNDS:
            properties[name] |= dict(zip(("minimum", "maximum"), BOUNDS[name], strict=True))
        if name in descriptions:
            properties[name]["description"] = descriptions[name]
    return {
        "type": "object",
        "description": node["description"].partition("\n")[0],
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": True,
    }
