"""YAML and JSON text to documents: plain data with the place of every value.

What a policy file may hold is less than what YAML can say: no aliases, tags or merge keys, each key once,
and no spelling that two YAML versions read differently. Manifests and snapshots are read as kubectl reads
them, so aliases and merge keys work there, within a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from webhook.documents.decode import (
    MANIFEST_BOUNDS,
    MIB,
    POLICY_BOUNDS,
    SizeBounds,
    decode_text,
    find_invalid_character,
)
from webhook.documents.document import Document
from webhook.documents.json_reader import iter_json_values, read_json_documents
from webhook.documents.yaml_reader import advance_mark, drop_invalid_documents, positions_in, read_yaml_documents
from webhook.errors import DocumentError

DOCUMENT_SUFFIXES = (".yaml", ".yml", ".json")


LARGE_JSON_BYTES = 2 * MIB
"""JSON beyond this is read by the JSON parser, ten times faster, without places: no person wrote it."""

MAX_POSITIONED_VALUES = 10_000
"""Values in a row whose every field has its place: each costs a parser."""


def read_documents(content: str | bytes, file: str, *, aliases: bool = False) -> tuple[Document, ...]:
    """Read every document of a file. Empty documents are left out.

    Args:
        content: The file's text, or its bytes (UTF-8).
        file: The file's name, for messages.
        aliases: False: a policy, strict, at most 1 MiB. True: a manifest or snapshot, as kubectl reads it,
            at most 64 MiB.

    Raises:
        DocumentError: it is not YAML or JSON that we accept; a `TemplateError` where it looks like a
            template that was not rendered.
    """
    return tuple(_raise_errors(iter_documents(content, file, aliases=aliases)))


def _raise_errors(found: Iterable[Document | DocumentError]) -> Iterator[Document]:
    for each in found:
        if isinstance(each, DocumentError):
            raise each
        yield each


def iter_documents(content: str | bytes, file: str, *, aliases: bool = False) -> Iterator[Document | DocumentError]:
    """The same, one by one: a document with a fault comes out as its error, and those around it as they are."""
    bounds = MANIFEST_BOUNDS if aliases else POLICY_BOUNDS
    try:
        text = decode_text(content, file, bounds)
        odd = find_invalid_character(text, file)
        if odd is not None and _looks_like_json(text):
            raise odd
        if odd is not None:
            text, errors = drop_invalid_documents(text, file)
            yield from errors
        yield from _parse_text(text, file, bounds, aliases=aliases)
    except DocumentError as error:
        yield error


def _parse_text(text: str, file: str, bounds: SizeBounds, *, aliases: bool) -> Iterable[Document | DocumentError]:
    if not _looks_like_json(text):
        return read_yaml_documents(text, file, bounds, aliases=aliases)
    if len(text) > LARGE_JSON_BYTES:
        return read_json_documents(text, file, bounds)
    return _parse_yaml_or_json(text, file, bounds, aliases=aliases)


def _looks_like_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _parse_yaml_or_json(text: str, file: str, bounds: SizeBounds, *, aliases: bool) -> list[Document | DocumentError]:
    """A text that begins as JSON does is YAML or, as escapes and values in a row make it, JSON alone."""
    as_yaml = list(read_yaml_documents(text, file, bounds, aliases=aliases))
    good = sum(isinstance(each, Document) for each in as_yaml)
    if good == len(as_yaml):
        return as_yaml
    as_json: list[Document | DocumentError] = []
    try:
        as_json.extend(_json_documents(text, file, bounds))
    except DocumentError as error:
        return [*as_json, error] if len(as_json) > good else as_yaml
    return as_json


def _json_documents(text: str, file: str, bounds: SizeBounds) -> Iterator[Document]:
    """Values of JSON, each with the places that YAML finds in it; beyond `MAX_POSITIONED_VALUES` of them, where
    each begins.
    """
    mark, start = (1, 1), 0
    for count, row in enumerate(iter_json_values(text, file, bounds)):
        mark, start = advance_mark(mark, text, start, row.start), row.start
        spot = positions_in(text[row.start : row.end], file, bounds, mark) if count < MAX_POSITIONED_VALUES else mark
        yield Document(row.data, file, spot)


def is_document_file(way: Sequence[str]) -> bool:
    """Is a file read? Hidden ones are not, nor those in hidden folders, where a ConfigMap keeps its versions.

    Args:
        way: The names from the folder to the file, that of the file last. A file that somebody names is read anyway.

    >>> is_document(["team", "guard.yaml"]), is_document(["README.txt"]), is_document(["..2026_06_01", "guard.yaml"])
    (True, False, False)
    """
    return way[-1].endswith(DOCUMENT_SUFFIXES) and not any(name.startswith(".") for name in way)
