"""Generate the CustomResourceDefinition of GPUNode from its msgspec model.

The schema preserves unknown fields, because agents and readers of different versions can run in one cluster.
"""

from __future__ import annotations

import re

import msgspec
from pydantic.alias_generators import to_camel

from webhook.model.gpu_node import BOUNDS, GPUNodeStatus
from webhook.policy.crds import AGE_COLUMN, custom_resource_definition, printer_column
from webhook.well_known import Json

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
