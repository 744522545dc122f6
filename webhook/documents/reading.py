"""YAML and JSON text to documents: plain data with the place of every value.

What a policy file may hold is less than what YAML can say: no aliases, tags or merge keys, each key once,
and no spelling that two YAML versions read differently. Manifests and snapshots are read as kubectl reads
them, so aliases and merge keys work there, within a bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from yaml import YAMLError
from yaml.cyaml import CParser

from webhook.documents.bounds import MANIFEST, MIB, POLICY, Bounds
from webhook.documents.building import Builder
from webhook.documents.faults import fault, template_fault
from webhook.documents.jsontexts import read_json
from webhook.documents.places import Document
from webhook.documents.texts import as_text
from webhook.errors import DocumentError

LARGE_JSON = 2 * MIB
"""JSON beyond this is read by the JSON parser, ten times faster, without places: no person wrote it."""


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
    return tuple(read_each(content, file, aliases=aliases))


def read_each(content: str | bytes, file: str, *, aliases: bool = False) -> Iterator[Document]:
    """The same, one by one: the documents before a fault come out before it is raised."""
    bounds = MANIFEST if aliases else POLICY
    text = as_text(content, file, bounds)
    if text.lstrip()[:1] in ("{", "["):
        yield from _read_json_like(text, file, bounds, aliases=aliases)
        return
    try:
        yield from _read_yaml(text, file, bounds, aliases=aliases)
    except YAMLError as error:
        raise fault(error, text, file) from None


def _read_json_like(text: str, file: str, bounds: Bounds, *, aliases: bool) -> tuple[Document, ...]:
    """A text that begins as JSON does: all of it or nothing, since it is known at its end which of the two it is."""
    if len(text) > LARGE_JSON:
        return read_json(text, file, bounds)
    try:
        return tuple(_read_yaml(text, file, bounds, aliases=aliases))
    except YAMLError as error:
        return _read_json_or(fault(error, text, file), text, bounds)


def _read_yaml(text: str, file: str, bounds: Bounds, *, aliases: bool) -> Iterator[Document]:
    builder = Builder(file, bounds, aliases=aliases)
    parser = CParser(text)
    try:
        while (event := parser.get_event()) is not None:
            builder.feed(event)
            yield from builder.finished()
    except DocumentError as error:
        raise template_fault(text, error.place) or error from None
    finally:
        parser.dispose()


def _read_json_or(problem: DocumentError, text: str, bounds: Bounds) -> tuple[Document, ...]:
    """JSON that is not YAML (surrogate escapes, values in a row); else the YAML reader's complaint."""
    try:
        return read_json(text, problem.place.file, bounds)
    except DocumentError:
        raise problem from None
