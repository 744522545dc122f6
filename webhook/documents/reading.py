"""YAML and JSON text to documents: plain data with the place of every value.

What a policy file may hold is less than what YAML can say: no aliases, tags or merge keys, each key once,
and no spelling that two YAML versions read differently. Manifests and snapshots are read as kubectl reads
them, so aliases and merge keys work there, within a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from webhook.documents.bounds import MANIFEST, MIB, POLICY, Bounds
from webhook.documents.jsontexts import read_json, rows
from webhook.documents.places import Document
from webhook.documents.texts import as_text, odd_in
from webhook.documents.yamltexts import moved, read_yaml, set_aside, spot_of
from webhook.errors import DocumentError

LARGE_JSON = 2 * MIB
"""JSON beyond this is read by the JSON parser, ten times faster, without places: no person wrote it."""

PLACED = 10_000
"""Values in a row whose every field has its place: each costs a parser."""


def read(content: str | bytes, file: str, *, aliases: bool = False) -> tuple[Document, ...]:
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
    return tuple(_good(read_each(content, file, aliases=aliases)))


def _good(found: Iterable[Document | DocumentError]) -> Iterator[Document]:
    for each in found:
        if isinstance(each, DocumentError):
            raise each
        yield each


def read_each(content: str | bytes, file: str, *, aliases: bool = False) -> Iterator[Document | DocumentError]:
    """The same, one by one: a document with a fault comes out as its error, and those around it as they are."""
    bounds = MANIFEST if aliases else POLICY
    try:
        text = as_text(content, file, bounds)
        odd = odd_in(text, file)
        if odd is not None and _is_json_like(text):
            raise odd
        if odd is not None:
            text, errors = set_aside(text, file)
            yield from errors
        yield from _read(text, file, bounds, aliases=aliases)
    except DocumentError as error:
        yield error


def _read(text: str, file: str, bounds: Bounds, *, aliases: bool) -> Iterable[Document | DocumentError]:
    if not _is_json_like(text):
        return read_yaml(text, file, bounds, aliases=aliases)
    if len(text) > LARGE_JSON:
        return read_json(text, file, bounds)
    return _read_json_like(text, file, bounds, aliases=aliases)


def _is_json_like(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _read_json_like(text: str, file: str, bounds: Bounds, *, aliases: bool) -> list[Document | DocumentError]:
    """A text that begins as JSON does is YAML or, as escapes and values in a row make it, JSON alone."""
    as_yaml = list(read_yaml(text, file, bounds, aliases=aliases))
    good = sum(isinstance(each, Document) for each in as_yaml)
    if good == len(as_yaml):
        return as_yaml
    as_json: list[Document | DocumentError] = []
    try:
        as_json.extend(_in_a_row(text, file, bounds))
    except DocumentError as error:
        return [*as_json, error] if len(as_json) > good else as_yaml
    return as_json


def _in_a_row(text: str, file: str, bounds: Bounds) -> Iterator[Document]:
    """Values of JSON, each with the places that YAML finds in it; beyond `PLACED` of them, where each begins."""
    mark, start = (1, 1), 0
    for count, row in enumerate(rows(text, file, bounds)):
        mark, start = moved(mark, text, start, row.start), row.start
        spot = spot_of(text[row.start : row.end], file, bounds, mark) if count < PLACED else mark
        yield Document(row.data, file, spot)
