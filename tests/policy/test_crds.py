"""The CustomResourceDefinitions of policies and exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.house.checkout import read_checkout_file
from tests.manifests.field_descriptions import add_field_descriptions
from webhook.cache.bundled_files import bundled_folder
from webhook.documents.reader import read_documents
from webhook.policy.crds import policy_crds

CRDS = {crd["spec"]["names"]["kind"]: crd for crd in policy_crds()}


def schema(kind: str) -> dict[str, Any]:
    """Return the schema of a kind."""
    found: dict[str, Any] = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def nodes(node: dict[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every node of a schema with its path."""
    yield name, node
    for key, below in node.get("properties", {}).items():
        yield from nodes(below, f"{name}.{key}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{name}[]")


NODES = {f"{kind}{path}": node for kind in CRDS for path, node in nodes(schema(kind))}
SPEC_NODES = {path: node for path, node in NODES.items() if ".spec" in path}


def test_the_manifest_is_generated_from_the_models() -> None:
    written = [
        document.data for document in read_documents(read_checkout_file("manifests/crds/crds.yaml"), "crds.yaml")
    ]

    assert written == add_field_descriptions(policy_crds()), "run make manifests"


def test_every_node_has_a_type_or_preserves_unknown_fields() -> None:
    untyped_keys = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")

    assert [path for path, node in NODES.items() if "type" not in node and not any(map(node.get, untyped_keys))] == []


def test_lists_and_maps_are_bounded() -> None:
    lists = [path for path, node in SPEC_NODES.items() if node.get("type") == "array" and "maxItems" not in node]
    maps = [path for path, node in SPEC_NODES.items() if "additionalProperties" in node and "maxProperties" not in node]

    assert (lists, maps) == ([], [])


def test_unknown_fields_are_preserved() -> None:
    key = "x-kubernetes-preserve-unknown-fields"

    assert [path for path, node in SPEC_NODES.items() if "properties" in node and not node.get(key)] == []


def test_there_are_no_defaults() -> None:
    assert [path for path, node in NODES.items() if "default" in node] == []


@pytest.mark.parametrize("kind", CRDS)
def test_the_status_is_a_subresource(kind: str) -> None:
    version = CRDS[kind]["spec"]["versions"][0]

    assert version["subresources"] == {"status": {}}
    assert {"observedGeneration", "conditions"} <= schema(kind)["properties"]["status"]["properties"].keys()


def test_the_sections_of_shipped_policies_are_in_the_schema() -> None:
    known = schema("GPUPolicy")["properties"]["spec"]["properties"]
    files = sorted(bundled_folder("policies").glob("*.yaml"))
    used = {
        key
        for file in files
        for document in read_documents(file.read_bytes(), file.name)
        for key in document.data["spec"]
    }

    assert used
    assert used <= known.keys()
