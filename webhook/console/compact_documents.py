"""The documents of a snapshot while it is evaluated: pods are compressed, so that those of a large cluster fit."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator

import msgspec

from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.pod_audit import document_pod_key
from webhook.documents.document import UNKNOWN_MARK, Document
from webhook.well_known import Json

FAST = 1
"""The level of compression: higher ones take several times as long, and a pod is hardly smaller."""


def compress_object(data: Json) -> bytes:
    """Return an object in about a tenth of its JSON, which is less than half of it as plain data."""
    return zlib.compress(msgspec.json.encode(data), FAST)


def restore_object(compressed: bytes, name: str) -> SourceObject:
    """Return a compressed object, at no position of a document of this name."""
    data: Json = msgspec.json.decode(zlib.decompress(compressed))
    return SourceObject(data, Document(data, name, UNKNOWN_MARK))


class CompactDocuments(Collection[SourceObject | SkippedDocument]):
    """Documents in order, with the last copy of each pod.

    Attributes:
        observed: How many documents there were, copies included.
    """

    def __init__(self, name: str) -> None:
        """Keep the documents of a snapshot of this name."""
        self._name = name
        self._entries: dict[Hashable, bytes | SourceObject | SkippedDocument] = {}
        self.observed = 0

    def observe(self, documents: Iterable[SourceObject | SkippedDocument]) -> Iterator[SourceObject | SkippedDocument]:
        """Yield documents, and keep them."""
        for each in documents:
            self._keep(each)
            self.observed += 1
            yield each

    def _keep(self, document: SourceObject | SkippedDocument) -> None:
        key = document_pod_key(document)
        if not key or isinstance(document, SkippedDocument):
            self._entries[self.observed] = document
            return
        self._entries.pop(key, None)  # the place is that of the last copy
        self._entries[key] = compress_object(document.data)

    @property
    def objects(self) -> list[SourceObject]:
        """The objects that are not named pods."""
        return [each for each in self._entries.values() if isinstance(each, SourceObject)]

    @property
    def skipped(self) -> list[SkippedDocument]:
        """The documents that are not objects."""
        return [each for each in self._entries.values() if isinstance(each, SkippedDocument)]

    def __contains__(self, document: object) -> bool:
        return any(each == document for each in self)

    def __iter__(self) -> Iterator[SourceObject | SkippedDocument]:
        for each in self._entries.values():
            yield restore_object(each, self._name) if isinstance(each, bytes) else each

    def __len__(self) -> int:
        return len(self._entries)
