"""One document held against its model: the written object, or every fault in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from webhook.documents.places import Document
from webhook.errors import PolicyFileError
from webhook.model.paths import Path
from webhook.policy.explaining import closest, faults, value_fault
from webhook.policy.written.base import API_VERSION, GROUP, Written

UNREADABLE = "GPU-P101"
AnyWritten = TypeVar("AnyWritten", bound=Written)

_SERVER_FIELDS = ("metadata", "status")
"""Where `kubectl get -o yaml` writes nulls of its own."""


def kind_of(document: Document) -> str:
    """The document's kind, "" where it has none or is of another API."""
    data = document.data
    if not isinstance(data, dict) or data.get("apiVersion") != API_VERSION:
        return ""
    kind = data.get("kind")
    return kind if isinstance(kind, str) else ""


def wrong_kind(document: Document, kinds: Sequence[str]) -> PolicyFileError | None:
    """What to say about a document that is none of these kinds."""
    if kind_of(document) in kinds:
        return None
    data = document.data
    if not isinstance(data, dict):
        return value_fault(
            document, (), "be a map with apiVersion and kind", f"apiVersion: {API_VERSION}", code=UNREADABLE
        )
    if data.get("apiVersion") != API_VERSION:
        return _wrong(document, "apiVersion", f"be {API_VERSION}", API_VERSION)
    likely = closest(data.get("kind"), kinds) or kinds[0]
    return _wrong(document, "kind", f"be a kind of {GROUP}: {', '.join(kinds)}", likely)


def _wrong(document: Document, field: str, must: str, write: str) -> PolicyFileError:
    write = f"{field}: {write}"
    if field in document.data:
        return value_fault(document, (field,), must, write, code=UNREADABLE)
    return PolicyFileError(document.place(), f"{field}: must {must}, found nothing. Write {write}", UNREADABLE)


def validated(document: Document, model: type[AnyWritten], errors: list[PolicyFileError]) -> AnyWritten | None:
    """Hold a document against its model; every fault goes into `errors`."""
    body = {key: value for key, value in document.data.items() if key not in _SERVER_FIELDS}
    found = [value_fault(document, path, "have a value", "a value, or remove the key") for path in _nothings(body, ())]
    try:
        written = model.model_validate(document.data)
    except ValidationError as error:
        known = {one.place for one in found}
        found += [one for one in faults(error, document, model) if one.place not in known]
        written = None
    errors += sorted(found, key=lambda one: (one.place.line, one.place.column))
    return None if found else written


def _nothings(data: Any, path: Path) -> Iterator[Path]:
    """The paths of keys and entries that hold nothing: an empty section would be off without a word."""
    if data is None:
        yield path
        return
    members = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in members:
        yield from _nothings(value, (*path, step))
