"""Policies and exceptions as objects of an API server: the same documents, without a file around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webhook.documents.places import UNKNOWN_MARK, Document

Json = Mapping[str, Any]


def document_from_object(data: Json) -> Document:
    """An object as a document. Its file is its kind and name; its places have no lines.

    Of the metadata only name and namespace are kept: the rest is the API server's, and grows with its versions.
    """
    metadata = _as_map(data.get("metadata"))
    name = metadata.get("name") or f"{metadata.get('generateName', '')}0"
    namespace = metadata.get("namespace")
    kept = {"name": name, "namespace": namespace} if namespace else {"name": name}
    whole = {key: value for key, value in data.items() if key != "status"} | {"metadata": kept}
    where = f"{namespace}/{name}" if namespace else name
    return Document(whole, f"{data.get('kind')} {where}", UNKNOWN_MARK)


def is_spec_unchanged(data: Json, old: Json | None) -> bool:
    """Does an update leave what the author wrote as it was?"""
    return old is not None and data.get("spec") == old.get("spec")


def is_being_deleted(data: Json) -> bool:
    """Is the object deleted already, but for its finalizers?"""
    return _as_map(data.get("metadata")).get("deletionTimestamp") is not None


def _as_map(value: object) -> Json:
    return value if isinstance(value, dict) else {}
