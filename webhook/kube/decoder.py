"""Pages of a list and lines of a watch, straight into read models: strangers' fields are skipped, not built.

Items of a list and of a watch are read the fast way first; one that has nulls is read again without them, and one
that is still not what its kind says is left out and counted, for one odd object must not blind us to the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from webhook.errors import ApiError
from webhook.kube.api import ApiStatus
from webhook.model.pods import without_nulls

MAX_DEPTH = 100
"""Levels that stay. What we read of an object is less than twenty deep; notes of who wrote which field are not."""

_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_TOO_DEEP = b'"(too deep)"'
"""In place of a list or a map: no field of those takes a text, so whatever needs it is not read as if it were empty."""


MAX_LINE_BYTES = 8 * 1024 * 1024
"""Bytes: five times the largest object that etcd takes, for JSON is longer than what it stores."""


class LineBuffer:
    """Collects pieces until a line is whole.

    Attributes:
        skipped: Lines left out because they were too long.
    """

    def __init__(self, most: int = MAX_LINE_BYTES) -> None:
        self.skipped = 0
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece; gives the lines that it ends, without their ends, empty ones left out.

        >>> lines = Lines()
        >>> lines.feed(b'{"a":1}'), lines.feed(b'\\n{"b":2}\\n{')
        ([], [b'{"a":1}', b'{"b":2}'])
        """
        *ended, rest = piece.split(b"\n")
        found = [line for line in map(self._finish_line, ended) if line]
        self._append(rest)
        return found

    @property
    def has_partial_line(self) -> bool:
        """Has a line begun that has not ended?"""
        return self._size > 0

    def _append(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._most:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _finish_line(self, part: bytes) -> bytes:
        self._append(part)
        line = b"".join(self._parts)
        self.skipped += self._size > self._most
        self._parts.clear()
        self._size = 0
        return line


T = TypeVar("T")

CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after which every object has been said once."""


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
        items: What could be read.
        version: The resource version of the whole list.
        more: What to ask the next page with; "" on the last one.
        unread: How many items could not be read.
    """

    items: list[T]
    version: str
    continue_token: str
    undecodable: int = 0


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One line of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED or BOOKMARK.
        item: The object; None at a bookmark, and where not even a name could be read.
        version: The resource version, at a bookmark only.
        all_said: True for the bookmark that ends the initial events.
        unread: The object could not be read: the item has only its name and namespace.
    """

    type: str
    item: T | None = None
    version: str = ""
    initial_events_end: bool = False
    undecodable: bool = False


class ResourceDecoder(Generic[T]):
    """Reads one kind."""

    def __init__(self, call: str, kind: Any) -> None:
        """Prepare.

        Args:
            call: What to call the request in errors.
            kind: The read model, or `dict[str, Any]`.
        """
        self._call = call
        self._kind = kind
        self._items = msgspec.json.Decoder(_ItemList[kind])
        self._line = msgspec.json.Decoder(_EventLine[kind])

    def decode_page(self, body: bytes) -> ListPage[T]:
        """Read a page.

        Raises:
            ApiError: it is no list.
        """
        try:
            read = decode_any_depth(self._items, body)
        except msgspec.ValidationError:
            return self._decode_page_by_items(body)
        except msgspec.DecodeError as error:
            raise self._not_json_error(body, error) from error
        return ListPage(read.items or [], read.metadata.resource_version, read.metadata.next_page)

    def _decode_page_by_items(self, body: bytes) -> ListPage[T]:
        try:
            read = decode_any_depth(_RAW_ITEMS, body)
        except msgspec.MsgspecError as error:
            raise self._not_json_error(body, error) from error
        items = [item for item in map(self._decode_without_nulls, read.items or []) if item is not None]
        unread = len(read.items or []) - len(items)
        return ListPage(items, read.metadata.resource_version, read.metadata.next_page, unread)

    def decode_event(self, line: bytes) -> WatchEvent[T]:
        """Read a line of a watch.

        Raises:
            ApiError: the line says an error (410 among them), or is no event.
        """
        try:
            read = decode_any_depth(self._line, line)
        except msgspec.ValidationError:
            return self._decode_other_event(line)
        except msgspec.DecodeError as error:
            raise self._not_json_error(line, error) from error
        return WatchEvent(read.type, read.object) if read.type in CHANGES else self._decode_other_event(line)

    def _decode_other_event(self, line: bytes) -> WatchEvent[T]:
        """A bookmark, an error, or an object that is read slowly."""
        try:
            read = decode_any_depth(_RAW_LINE, line)
            if read.type in CHANGES:
                return self._decode_change(read.type, read.object)
            if read.type == "BOOKMARK":
                meta = _VERSIONED.decode(read.object).metadata
                return WatchEvent(
                    read.type, None, meta.resource_version, INITIAL_EVENTS_END in (meta.annotations or ())
                )
            status = _STATUS.decode(read.object)
        except msgspec.MsgspecError as error:
            raise self._not_json_error(line, error) from error
        raise ApiError(self._call, status.code, status.reason, status.message)

    def _decode_change(self, kind: str, raw: msgspec.Raw) -> WatchEvent[T]:
        item = self._decode_without_nulls(raw)
        return (
            WatchEvent(kind, item)
            if item is not None
            else WatchEvent(kind, self._decode_name_only(raw), undecodable=True)
        )

    def _decode_name_only(self, raw: msgspec.Raw) -> T | None:
        """An object that has a name, and nothing else that could be wrong."""
        try:
            found: T = msgspec.convert(msgspec.to_builtins(_NAMED.decode(raw)), self._kind)
        except msgspec.MsgspecError:
            return None
        return found

    def _decode_without_nulls(self, raw: msgspec.Raw) -> T | None:
        try:
            found: T = msgspec.convert(without_nulls(msgspec.json.decode(raw)), self._kind)
        except msgspec.MsgspecError:
            return None
        return found

    def _not_json_error(self, text: bytes, error: Exception) -> ApiError:
        start = text[:120].decode(errors="replace")
        return ApiError(self._call, 200, "NotJson", f"must be what an API server sends, found {start!r} ({error})")


_RAW_ITEMS = msgspec.json.Decoder(_ItemList[msgspec.Raw])
_RAW_LINE = msgspec.json.Decoder(_EventLine[msgspec.Raw])
_LAST = msgspec.json.Decoder(_EventLine[_VersionedObject])
_VERSIONED = msgspec.json.Decoder(_VersionedObject)
_NAMED = msgspec.json.Decoder(_NamedObject)
_STATUS = msgspec.json.Decoder(ApiStatus)


def resource_version_of_line(line: bytes) -> str:
    """The resource version in a line of a watch; "" if it says none that can be read."""
    try:
        return decode_any_depth(_LAST, line).object.metadata.resource_version
    except msgspec.MsgspecError:
        return ""


def decode_any_depth(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """Read JSON of any depth.

    Raises:
        msgspec.MsgspecError: as the decoder does.
    """
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(replace_deep_values(text))


def replace_deep_values(text: bytes) -> bytes:
    """The same JSON with a text in place of each list and map that stands deeper than 100 levels."""
    return _TOO_DEEP.join(_shallow_parts(text))


def _shallow_parts(text: bytes) -> Iterator[bytes]:
    """What stands between the parts that are too deep."""
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
