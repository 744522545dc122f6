"""Read YAML and JSON text into documents: plain data with the position of every value.

Policy files use a strict subset of YAML: no aliases, tags or merge keys, no repeated keys, and no spelling that two
YAML versions read differently. Manifests and snapshots are read as kubectl reads them, with bounded aliases.
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
"""Larger JSON files are machine-written: the JSON parser reads them ten times faster, without positions."""

MAX_POSITIONED_VALUES = 10_000
"""Consecutive JSON values that get full positions; each needs a parser of its own."""


def read_documents(content: str | bytes, file: str, *, aliases: bool = False) -> tuple[Document, ...]:
    """Read every document of a file, except empty ones.

    Args:
        content: The file's text, or its bytes (UTF-8).
        file: The file's name, for messages.
        aliases: False for a policy: strict, at most 1 MiB. True for a manifest or snapshot: read as kubectl does, at
            most 64 MiB.

    Raises:
        DocumentError: The content is not accepted; a `TemplateError` if it looks like an unrendered template.
    """
    return tuple(_raise_errors(iter_documents(content, file, aliases=aliases)))


def _raise_errors(results: Iterable[Document | DocumentError]) -> Iterator[Document]:
    for result in results:
        if isinstance(result, DocumentError):
            raise result
        yield result


def iter_documents(content: str | bytes, file: str, *, aliases: bool = False) -> Iterator[Document | DocumentError]:
    """Yield the documents of a file one by one; an invalid document yields its error."""
    bounds = MANIFEST_BOUNDS if aliases else POLICY_BOUNDS
    try:
        text = decode_text(content, file, bounds)
        invalid = find_invalid_character(text, file)
        if invalid is not None and _looks_like_json(text):
            raise invalid
        if invalid is not None:
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
    """Parse text that begins like JSON as YAML, or as JSON if that reads more documents."""
    as_yaml = list(read_yaml_documents(text, file, bounds, aliases=aliases))
    valid = sum(isinstance(result, Document) for result in as_yaml)
    if valid == len(as_yaml):
        return as_yaml
    as_json: list[Document | DocumentError] = []
    try:
        as_json.extend(_json_documents(text, file, bounds))
    except DocumentError as error:
        return [*as_json, error] if len(as_json) > valid else as_yaml
    return as_json


def _json_documents(text: str, file: str, bounds: SizeBounds) -> Iterator[Document]:
    """Yield JSON values with full positions; after `MAX_POSITIONED_VALUES` values, only with their start."""
    mark, start = (1, 1), 0
    for count, value in enumerate(iter_json_values(text, file, bounds)):
        mark, start = advance_mark(mark, text, start, value.start), value.start
        positions = (
            positions_in(text[value.start : value.end], file, bounds, mark) if count < MAX_POSITIONED_VALUES else mark
        )
        yield Document(value.data, file, positions)


def is_document_file(parts: Sequence[str]) -> bool:
    """Return whether a file below a folder, or a key of a mounted ConfigMap, is read as a document.

    Hidden files and folders are skipped: a mounted ConfigMap keeps its versions in hidden folders.

    Args:
        parts: Names of the folders and the file, relative to the folder that was given.

    >>> is_document_file(["team", "guard.yaml"]), is_document_file(["..2026_06_01", "guard.yaml"])
    (True, False)
    """
    return parts[-1].endswith(DOCUMENT_SUFFIXES) and not any(name.startswith(".") for name in parts)
