"""The CustomResourceDefinition of GPUNode, made from its read model.

Agents of this version and readers of another meet in a cluster, so the schema keeps fields that it does not know.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from webhook.model.gpu_node import BOUNDS, GPUNodeStatus

Json = dict[str, Any]

GROUP = "rightslice.dev"
_ATTRIBUTE_LINE = re.compile(r"^ +(\w+(?:, \w+)*): (.*(?:\n {9,}.*)*)", re.MULTILINE)


def gpunode_crd() -> Json:
    """The definition, as an object."""
    columns = [
        _gpunode_column("Product", ".status.product"),
        _gpunode_column("Driver", ".status.driverVersion"),
        _gpunode_column("CUDA", ".status.cudaVersion"),
        _gpunode_column("Clique", ".status.clique", priority=1),
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        _gpunode_column("Message", ".status.message"),
    ]
    names = {
        "kind": "GPUNode",
        "listKind": "GPUNodeList",
        "plural": "gpunodes",
        "singular": "gpunode",
        "shortNames": ["gpun"],
        "categories": ["rightslice"],
    }
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": gpunode_schema()},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gpunodes.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def gpunode_schema() -> Json:
    """The structural schema of the whole object."""
    (status,), parts = msgspec.json.schema_components([GPUNodeStatus])
    return {
        "type": "object",
        "description": "A node's GPUs, as its agent sees them.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "status": _structural_field(status, parts),
        },
    }


def _gpunode_column(name: str, path: str, *, priority: int = 0) -> Json:
    column: Json = {"name": name, "type": "string", "jsonPath": path}
    return column | {"priority": priority} if priority else column


def _structural_field(node: Json, parts: Json) -> Json:
    """One node of msgspec's schema, with references resolved and without what a structural schema may not have."""
    if "$ref" in node:
        return _structural_field(parts[node["$ref"].rpartition("/")[2]], parts)
    if node["type"] == "array":
        return {"type": "array", "items": _structural_field(node["items"], parts)}
    if node["type"] != "object":
        return {"type": node["type"]}
    described = _attribute_descriptions(node["description"])
    fields = {name: _structural_field(field, parts) for name, field in node["properties"].items()}
    named = {
        name: field | _numeric_bounds(name) | ({"description": described[name]} if name in described else {})
        for name, field in fields.items()
    }
    kept = {"x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "description": node["description"].partition("\n")[0], "properties": named} | kept


def _numeric_bounds(name: str) -> Json:
    return dict(zip(("minimum", "maximum"), BOUNDS[name], strict=True)) if name in BOUNDS else {}


def _attribute_descriptions(text: str) -> dict[str, str]:
    """What a docstring says of each attribute, by its name in JSON."""
    found = {}
    for names, words in _ATTRIBUTE_LINE.findall(text):
        for name in names.split(", "):
            found[_camel_case(name)] = " ".join(words.split())
    return found


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
