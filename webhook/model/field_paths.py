"""Paths to fields of an object, for findings and patches, and maps in untrusted data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from webhook.model.bounded_cache import request_cache

FieldPath = tuple[str | int, ...]
"""Keys and indices from the root of an object, for example ("spec", "containers", 0, "image")."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@request_cache(1024)
def format_path(path: FieldPath) -> str:
    """Format a path for people.

    >>> format_path(("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"))
    "spec.containers[0].resources.limits['nvidia.com/gpu']"
    """
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.match(step):
            text += f".{step}" if text else step
        else:
            text += f"['{step if step.isprintable() else step.encode('unicode_escape').decode()}']"
    return text


@request_cache(1024)
def json_pointer(path: FieldPath) -> str:
    """Format a path as a JSON pointer (RFC 6901).

    >>> json_pointer(("metadata", "annotations", "a/b~c"))
    '/metadata/annotations/a~1b~0c'
    """
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def list_at(data: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list of a key of untrusted data; [] if there is none."""
    value = data.get(key)
    return value if isinstance(value, list) else []


def map_at(data: Any, *path: str) -> dict[str, Any]:
    """Return the map at a path of untrusted data; {} if there is none.

    >>> map_at({"metadata": {"labels": {"a": "b"}}}, "metadata", "labels"), map_at({"metadata": []}, "metadata")
    ({'a': 'b'}, {})
    """
    for step in path:
        data = data.get(step) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}
