"""Pages of a list and lines of a watch, straight into read models: strangers' fields are skipped, not built.

Items of a list and of a watch are read the fast way first; one that has nulls is read again without them, and one
that is still not what its kind says is left out and counted, for one odd object must not blind us to the others.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from webhook.errors import ApiError
from webhook.kube.api import Status
from webhook.kube.depth import decode
from webhook.model.pods import without_nulls

T = TypeVar("T")

CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
INITIAL_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after which every object has been said once."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    next_page: str = msgspec.field(default="", name="continue")


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Line(msgspec.Struct, Generic[T], frozen=True):
    type: str
    object: T


class _Items(msgspec.Struct, Generic[T], frozen=True):
    metadata: _Meta = _Meta()
    items: list[T] | None = None


class _Name(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Name


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list.

    Attributes:
        items: What could be read.
        version: The resource version of the whole list.
        more: What to ask the next page with; "" on the last one.
        unread: How many items could not be read.
    """

    items: list[T]
    version: str
    more: str
    unread: int = 0


class Event(msgspec.Struct, Generic[T], frozen=True):
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
    all_said: bool = False
    unread: bool = False


class Decoder(Generic[T]):
    """Reads one kind."""

    def __init__(self, call: str, kind: Any) -> None:
        """Prepare.

        Args:
            call: What to call the request in errors.
            kind: The read model, or `dict[str, Any]`.
        """
        self._call = call
        self._kind = kind
        self._items = msgspec.json.Decoder(_Items[kind])
        self._line = msgspec.json.Decoder(_Line[kind])

    def page(self, body: bytes) -> Page[T]:
        """Read a page.

        Raises:
            ApiError: it is no list.
        """
        try:
            read = decode(self._items, body)
        except msgspec.ValidationError:
            return self._page_by_items(body)
        except msgspec.DecodeError as error:
            raise self._not_json(body, error) from error
        return Page(read.items or [], read.metadata.resource_version, read.metadata.next_page)

    def _page_by_items(self, body: bytes) -> Page[T]:
        try:
            read = decode(_RAW_ITEMS, body)
        except msgspec.MsgspecError as error:
            raise self._not_json(body, error) from error
        items = [item for item in map(self._slowly, read.items or []) if item is not None]
        unread = len(read.items or []) - len(items)
        return Page(items, read.metadata.resource_version, read.metadata.next_page, unread)

    def event(self, line: bytes) -> Event[T]:
        """Read a line of a watch.

        Raises:
            ApiError: the line says an error (410 among them), or is no event.
        """
        try:
            read = decode(self._line, line)
        except msgspec.ValidationError:
            return self._other(line)
        except msgspec.DecodeError as error:
            raise self._not_json(line, error) from error
        return Event(read.type, read.object) if read.type in CHANGES else self._other(line)

    def _other(self, line: bytes) -> Event[T]:
        """A bookmark, an error, or an object that is read slowly."""
        try:
            read = decode(_RAW_LINE, line)
            if read.type in CHANGES:
                return self._change(read.type, read.object)
            if read.type == "BOOKMARK":
                meta = _VERSIONED.decode(read.object).metadata
                return Event(read.type, None, meta.resource_version, INITIAL_END in (meta.annotations or ()))
            status = _STATUS.decode(read.object)
        except msgspec.MsgspecError as error:
            raise self._not_json(line, error) from error
        raise ApiError(self._call, status.code, status.reason, status.message)

    def _change(self, kind: str, raw: msgspec.Raw) -> Event[T]:
        item = self._slowly(raw)
        return Event(kind, item) if item is not None else Event(kind, self._named(raw), unread=True)

    def _named(self, raw: msgspec.Raw) -> T | None:
        """An object that has a name, and nothing else that could be wrong."""
        try:
            found: T = msgspec.convert(msgspec.to_builtins(_NAMED.decode(raw)), self._kind)
        except msgspec.MsgspecError:
            return None
        return found

    def _slowly(self, raw: msgspec.Raw) -> T | None:
        try:
            found: T = msgspec.convert(without_nulls(msgspec.json.decode(raw)), self._kind)
        except msgspec.MsgspecError:
            return None
        return found

    def _not_json(self, text: bytes, error: Exception) -> ApiError:
        start = text[:120].decode(errors="replace")
        return ApiError(self._call, 200, "NotJson", f"must be what an API server sends, found {start!r} ({error})")


_RAW_ITEMS = msgspec.json.Decoder(_Items[msgspec.Raw])
_RAW_LINE = msgspec.json.Decoder(_Line[msgspec.Raw])
_LAST = msgspec.json.Decoder(_Line[_Versioned])
_VERSIONED = msgspec.json.Decoder(_Versioned)
_NAMED = msgspec.json.Decoder(_Named)
_STATUS = msgspec.json.Decoder(Status)


def version_of(line: bytes) -> str:
    """The resource version in a line of a watch; "" if it says none that can be read."""
    try:
        return decode(_LAST, line).object.metadata.resource_version
    except msgspec.MsgspecError:
        return ""
