"""Decodes list pages and watch lines directly into read models; unknown fields are skipped.

Every object is decoded the fast way first. One with nulls is decoded again without them. One that still does not match
its model is skipped and counted, so that a single odd object does not hide the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from webhook.errors import ApiError
from webhook.model.pods import without_nulls

T = TypeVar("T")

CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark that ends the initial list."""

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Five times the largest object in etcd: JSON is longer than the stored form."""

MAX_DEPTH = 100
"""Nesting levels that are kept. The fields we read are less than twenty levels deep; `managedFields` can be deeper."""

_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_TOO_DEEP = b'"(too deep)"'
"""Replaces a list or map: a field of those types rejects a string, so the value is not mistaken for an empty one."""


class ApiStatus(msgspec.Struct, frozen=True):
    """The `Status` object of an unsuccessful response."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


class _ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    next_page: str = msgspec.field(default="", name="continue")


class _VersionedObject(msgspec.Struct, frozen=True):
    metadata: _ObjectMeta = _ObjectMeta()


class _EventLine(msgspec.Struct, Generic[T], frozen=True):
    type: str
    object: T


class _ItemList(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ObjectMeta = _ObjectMeta()
    items: list[T] | None = None


class _ObjectName(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class _NamedObject(msgspec.Struct, frozen=True):
    metadata: _ObjectName


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list.

    Attributes:
        version: The resource version of the whole list.
        continue_token: The token for the next page; "" on the last one.
        undecodable: Number of objects that could not be decoded.
    """

    items: list[T]
    version: str
    continue_token: str
    undecodable: int = 0


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One line of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED or BOOKMARK.
        item: The object; None for a bookmark, or if not even its name could be decoded.
        version: The resource version, only of a bookmark.
        initial_events_end: True for the bookmark that ends the initial list.
        undecodable: True if the object could not be decoded; then `item` has only name and namespace.
    """

    type: str
    item: T | None = None
    version: str = ""
    initial_events_end: bool = False
    undecodable: bool = False


class LineBuffer:
    """Splits a stream into lines; lines that are too long are skipped instead of kept in memory.

    Attributes:
        skipped: Number of lines that were too long.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk, and return the non-empty lines that it completes.

        >>> lines = LineBuffer()
        >>> lines.feed(b'{"a":1}'), lines.feed(b'\\n{"b":2}\\n{')
        ([], [b'{"a":1}', b'{"b":2}'])
        """
        *ended, rest = chunk.split(b"\n")
        lines = [line for line in map(self._finish_line, ended) if line]
        self._append(rest)
        return lines

    @property
    def has_partial_line(self) -> bool:
        """True if the stream stopped in the middle of a line."""
        return self._size > 0

    def _append(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _finish_line(self, part: bytes) -> bytes:
        self._append(part)
        line = b"".join(self._parts)
        self.skipped += self._size > MAX_LINE_BYTES
        self._parts.clear()
        self._size = 0
        return line


class ResourceDecoder(Generic[T]):
    """Decodes the objects of one collection."""

    def __init__(self, call: str, model: Any) -> None:
        """Prepare for a read model, or `dict[str, Any]`; `call` is the request, for error messages."""
        self._call = call
        self._model = model
        self._items = msgspec.json.Decoder(_ItemList[model])
        self._line = msgspec.json.Decoder(_EventLine[model])

    def decode_page(self, body: bytes) -> ListPage[T]:
        """Decode a page of a list; raise `ApiError` for anything else."""
        try:
            page = decode_any_depth(self._items, body)
        except msgspec.ValidationError:
            return self._decode_page_by_items(body)
        except msgspec.DecodeError as error:
            raise self._not_json_error(body, error) from error
        return ListPage(page.items or [], page.metadata.resource_version, page.metadata.next_page)

    def _decode_page_by_items(self, body: bytes) -> ListPage[T]:
        try:
            page = decode_any_depth(_RAW_ITEMS, body)
        except msgspec.MsgspecError as error:
            raise self._not_json_error(body, error) from error
        raw_items = page.items or []
        items = [item for item in map(self._decode_without_nulls, raw_items) if item is not None]
        undecodable = len(raw_items) - len(items)
        return ListPage(items, page.metadata.resource_version, page.metadata.next_page, undecodable)

    def decode_event(self, line: bytes) -> WatchEvent[T]:
        """Decode a line of a watch; raise `ApiError` if it reports one (410 Gone among them) or is not an event."""
        try:
            event = decode_any_depth(self._line, line)
        except msgspec.ValidationError:
            return self._decode_other_event(line)
        except msgspec.DecodeError as error:
            raise self._not_json_error(line, error) from error
        return WatchEvent(event.type, event.object) if event.type in CHANGES else self._decode_other_event(line)

    def _decode_other_event(self, line: bytes) -> WatchEvent[T]:
        try:
            event = decode_any_depth(_RAW_LINE, line)
            if event.type in CHANGES:
                item = self._decode_without_nulls(event.object)
                if item is not None:
                    return WatchEvent(event.type, item)
                return WatchEvent(event.type, self._decode_name_only(event.object), undecodable=True)
            if event.type == "BOOKMARK":
                meta = _VERSIONED.decode(event.object).metadata
                initial_events_end = INITIAL_EVENTS_END in (meta.annotations or ())
                return WatchEvent(event.type, None, meta.resource_version, initial_events_end)
            status = _STATUS.decode(event.object)
        except msgspec.MsgspecError as error:
            raise self._not_json_error(line, error) from error
        raise ApiError(self._call, status.code, status.reason, status.message)

    def _decode_name_only(self, raw: msgspec.Raw) -> T | None:
        try:
            item: T = msgspec.convert(msgspec.to_builtins(_NAMED.decode(raw)), self._model)
        except msgspec.MsgspecError:
            return None
        return item

    def _decode_without_nulls(self, raw: msgspec.Raw) -> T | None:
        try:
            item: T = msgspec.convert(without_nulls(msgspec.json.decode(raw)), self._model)
        except msgspec.MsgspecError:
            return None
        return item

    def _not_json_error(self, text: bytes, error: Exception) -> ApiError:
        start = text[:120].decode(errors="replace")
        return ApiError(self._call, 200, "NotJson", f"must be a response of an API server, found {start!r} ({error})")


_RAW_ITEMS = msgspec.json.Decoder(_ItemList[msgspec.Raw])
_RAW_LINE = msgspec.json.Decoder(_EventLine[msgspec.Raw])
_VERSION_LINE = msgspec.json.Decoder(_EventLine[_VersionedObject])
_VERSIONED = msgspec.json.Decoder(_VersionedObject)
_NAMED = msgspec.json.Decoder(_NamedObject)
_STATUS = msgspec.json.Decoder(ApiStatus)


def resource_version_of_line(line: bytes) -> str:
    """Return the resource version in a watch line; "" if there is none that can be decoded."""
    try:
        return decode_any_depth(_VERSION_LINE, line).object.metadata.resource_version
    except msgspec.MsgspecError:
        return ""


def decode_any_depth(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """Decode JSON that may be nested deeper than the decoder supports."""
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(_TOO_DEEP.join(_shallow_parts(text)))


def _shallow_parts(text: bytes) -> Iterator[bytes]:
    """Yield the text between lists and maps that are below 100 levels."""
    depth = start = 0
    for token in _JSON_TOKEN.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                yield text[start : token.start()]
        elif token[0] in (b"]", b"}"):
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    yield text[start:]
