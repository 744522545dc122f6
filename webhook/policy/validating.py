"""One document held against its model: the written object, or every fault in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from webhook.documents.places import Document
from webhook.errors import PolicyFileError
from webhook.model.paths import FieldPath
from webhook.policy.explaining import closest_word, validation_errors, value_error
from webhook.policy.written.base import API_VERSION, GROUP, SpecModel

UNREADABLE = "GPU-P101"
AnySpecModel = TypeVar("AnySpecModel", bound=SpecModel)

_SERVER_FIELDS = ("metadata", "status")
"""Where `kubectl get -o yaml` writes nulls of its own."""


def document_kind(document: Document) -> str:
    """The document's kind, "" where it has none or is of another API."""
    data = document.data
    if not isinstance(data, dict) or data.get("apiVersion") != API_VERSION:
        return ""
    kind = data.get("kind")
    return kind if isinstance(kind, str) else ""


def kind_error(document: Document, kinds: Sequence[str]) -> PolicyFileError | None:
    """What to say about a document that is none of these kinds."""
    if document_kind(document) in kinds:
        return None
    data = document.data
    if not isinstance(data, dict):
        return value_error(
            document, (), "be a map with apiVersion and kind", f"apiVersion: {API_VERSION}", code=UNREADABLE
        )
    if data.get("apiVersion") != API_VERSION:
        return _header_error(document, "apiVersion", f"be {API_VERSION}", API_VERSION)
    likely = closest_word(data.get("kind"), kinds) or kinds[0]
    return _header_error(document, "kind", f"be a kind of {GROUP}: {', '.join(kinds)}", likely)


def _header_error(document: Document, field: str, must: str, write: str) -> PolicyFileError:
    write = f"{field}: {write}"
    if field in document.data:
        return value_error(document, (field,), must, write, code=UNREADABLE)
    return PolicyFileError(document.locate(), f"{field}: must {must}, found nothing. Write {write}", UNREADABLE)


def validate_document(document: Document, model: type[AnySpecModel], errors: list[PolicyFileError]) -> AnySpecModel | None:
    """Hold a document against its model; every fault goes into `errors`."""
    body = {key: value for key, value in document.data.items() if key not in _SERVER_FIELDS}
    found = [value_error(document, path, "have a value", "a value, or remove the key") for path in _null_paths(body, ())]
    try:
        written = model.model_validate(document.data)
    except ValidationError as error:
        known = {one.location for one in found}
        found += [one for one in validation_errors(error, document, model) if one.location not in known]
        written = None
    errors += sorted(found, key=lambda one: (one.location.line, one.location.column))
    return None if found else written


def _null_paths(data: Any, path: FieldPath) -> Iterator[FieldPath]:
    """The paths of keys and entries that hold nothing: an empty section would be off without a word."""
    if data is None:
        yield path
        return
    members = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in members:
        yield from _null_paths(value, (*path, step))
