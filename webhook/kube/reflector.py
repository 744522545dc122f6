"""List and watch: keeps a store identical to one collection of the API server, like client-go's Reflector.

The initial list arrives as one stream if the server supports WatchList, else page by page; the store buffers it and
replaces its content at once. Then every change is applied. A watch that ends or fails resumes from its last resource
version. Only if the server no longer has that version (410 Gone) everything is listed again, after a random delay, so
that replicas do not list at the same moment.

Watches request a timeout of less than a minute. So a hung connection is noticed soon, and an idle collection is
confirmed twice a minute.

Exponential backoff with jitter, so that many clients of a failing server do not retry at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from webhook.errors import ApiError
from webhook.kube.decoder import LineBuffer, ResourceDecoder, WatchEvent, resource_version_of_line

if TYPE_CHECKING:
    from webhook.kube.api import KubeClient  # the HTTP client is slow to import, and offline commands need none

PAGE_SIZE = 500
WATCH_SECONDS = 40
"""The longest timeout of a watch; the shortest is three quarters of it."""

LIST_SECONDS = 300
"""The timeout of a stream that begins with the initial list."""

READ_TIMEOUT_SECONDS = 45.0
"""A connection without data for this long counts as hung. The server sends data when a watch ends."""

PAUSE_SECONDS = 1.0
"""The longest pause between a watch that ended normally and the next."""

RELIST_SECONDS = 5.0
"""The longest delay before everything is listed again."""

ABSENT_SECONDS = 5.0
"""The interval for checking whether a missing resource type exists now."""

MAX_SILENT_WATCHES = 3
"""Successive watches without any data, not even a bookmark, before everything is listed again."""

T = TypeVar("T")
W = TypeVar("W", contravariant=True)

NO_SELECTOR: Mapping[str, str] = MappingProxyType({})
NO_WATCH_LIST = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR})
"""The response of a server without WatchList: it rejects the parameters, or sends an error event."""


class ReflectorStore(Protocol[W]):
    """The store that a reflector writes. Readers see nothing that is written between `begin` and `swap`."""

    def begin(self) -> None:
        """Begin a list, and discard an incomplete one."""

    def upsert(self, item: W) -> None:
        """Add or replace an object."""

    def remove(self, item: W) -> None:
        """Remove an object."""

    def swap(self) -> None:
        """Replace the content by the complete list."""


class WatchEventSink(Protocol):
    """Receives the problems of watches."""

    def record_watch_error(self, resource: str, error: ApiError) -> None:
        """A list or watch failed; it is retried."""

    def record_internal_error(self, component: str, error: Exception) -> None:
        """The store raised an exception for an object, which is skipped."""


class WatchedResource(NamedTuple, Generic[T]):
    """A collection to watch.

    Attributes:
        name: The plural name, in messages and metrics.
        path: The path over all namespaces.
        model: The read model of its objects, or `dict[str, Any]`.
        optional: True if the server may not have the resource type, which then counts as empty.
        may_be_forbidden: True if the server may forbid listing it, which is then shown by its status.
        older_paths: Paths of older versions of an optional resource, for a server without the version of `path`.
    """

    name: str
    path: str
    model: type[T]
    params: Mapping[str, str] = NO_SELECTOR
    optional: bool = False
    may_be_forbidden: bool = False
    older_paths: tuple[str, ...] = ()


@dataclass(slots=True)
class WatchStatus:
    """Status of one watch.

    Attributes:
        synced: True once everything was listed.
        last_contact: Last successful response, in seconds of the event loop's clock.
        absent: True if the server does not have the resource type.
        forbidden: True if the server forbids listing it, so its objects are unknown.
        events: Number of changes received.
        skipped: Number of objects that could not be decoded or stored.
        list_version: Resource version of the last complete list.
        error: Why the watch does not work at present; "" if it does.
    """

    name: str
    synced: bool = False
    last_contact: float = float("-inf")
    absent: bool = False
    forbidden: bool = False
    lists: int = 0
    events: int = 0
    errors: int = 0
    skipped: int = 0
    list_version: str = ""
    error: str = ""


class Reflector(Generic[T]):
    """Keeps one store identical to one collection."""

    def __init__(
        self,
        api: KubeClient,
        resource: WatchedResource[T],
        store: ReflectorStore[T],
        random: RandomSource,
        events: WatchEventSink,
        *,
        max_pause: float = PAUSE_SECONDS,
    ) -> None:
        """Prepare; no request is sent yet. Only the reflector may write to the store.

        Args:
            random: Spreads the requests of many replicas.
            max_pause: The longest pause in seconds between a watch that ended normally and the next.
        """
        self.status = WatchStatus(resource.name)
        self._api, self._resource, self._store, self._random, self._events = api, resource, store, random, events
        self._paths, self._tried = (resource.path, *resource.older_paths), 0
        self._decoder: ResourceDecoder[T] = ResourceDecoder(f"GET {resource.path}", resource.model)
        self._backoff = ExponentialBackoff(random)
        self._max_pause = max_pause
        self._resource_version = ""
        self._uses_watch_list = True
        self._silent_watches = 0

    @property
    def _path(self) -> str:
        return self._paths[self._tried % len(self._paths)]

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                await self._list_and_watch()
            except ApiError as error:
                delay = self._note_failure(error)
            else:
                delay = self._random.uniform(0, self._max_pause)
            await asyncio.sleep(delay)

    async def _list_and_watch(self) -> None:
        """Run one watch until it ends; list everything first if there is no resource version."""
        if self._resource_version:
            await self._consume_stream({**self._watch_params(WATCH_SECONDS), "resourceVersion": self._resource_version})
            self._silent_watches += 1
            if self._silent_watches >= MAX_SILENT_WATCHES:  # a restored etcd may not have reached our resource version
                self._silent_watches, self._resource_version = 0, ""
        elif not self._uses_watch_list:
            await self._list_pages()
        else:
            self._store.begin()
            initial_list = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            await self._consume_stream({**self._watch_params(LIST_SECONDS), **initial_list})
            self._uses_watch_list = bool(self._resource_version)  # an old server ignores the parameters

    def _watch_params(self, seconds: int) -> Mapping[str, str]:
        timeout = round(self._random.uniform(seconds * 0.75, seconds))
        return {**self._resource.params, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout)}

    async def _list_pages(self) -> None:
        self._store.begin()
        params = {**self._resource.params, "limit": str(PAGE_SIZE)}
        while True:
            page = self._decoder.decode_page(await self._api.get_bytes(self._path, params))
            self._note_contact()
            self.status.skipped += page.undecodable
            for item in page.items:
                self._store_item(item)
            if not page.continue_token:
                self._replace_store(page.version)
                return
            params["continue"] = page.continue_token

    async def _consume_stream(self, params: Mapping[str, str]) -> None:
        """Apply a watch until it ends; a stream that begins with the initial list, until that is complete.

        Such a stream may stay silent for minutes afterwards, so a new one with a short timeout follows it.
        """
        lines, initial = LineBuffer(), not self._resource_version
        async with self._api.stream(self._path, params, READ_TIMEOUT_SECONDS) as chunks:
            self._note_contact()
            async for chunk in chunks:
                self._apply_lines(lines.feed(chunk))
                self.status.skipped += lines.skipped
                lines.skipped = 0
                if initial and self._resource_version:
                    return
        if lines.has_partial_line:
            raise ApiError(f"GET {self._path}", 200, "Truncated", "the watch ended in the middle of a line")
        self._note_contact()

    def _apply_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            self._apply_event(self._decoder.decode_event(line))
        if lines:
            self._note_contact()
        if lines and self._resource_version:
            self._resource_version = resource_version_of_line(lines[-1]) or self._resource_version
            self._silent_watches = 0
            self._backoff.reset()

    def _apply_event(self, event: WatchEvent[T]) -> None:
        if event.initial_events_end and not self._resource_version:
            self._replace_store(event.version)
        if event.type == "BOOKMARK":
            return
        self.status.events += 1
        self.status.skipped += event.undecodable
        if event.item is not None:
            self._store_item(event.item, removed=event.type == "DELETED" or event.undecodable)

    def _store_item(self, item: T, *, removed: bool = False) -> None:
        try:
            if removed:
                self._store.remove(item)
            else:
                self._store.upsert(item)
        except Exception as error:
            self.status.skipped += 1
            self._events.record_internal_error(self.status.name, error)
            with suppress(Exception):  # the first error is recorded
                self._store.remove(item)

    def _replace_store(self, version: str) -> None:
        self._store.swap()
        self._resource_version = self.status.list_version = version
        self.status.synced, self.status.absent, self.status.forbidden = True, False, False
        self.status.lists += 1

    def _note_contact(self) -> None:
        self.status.last_contact = asyncio.get_running_loop().time()
        self.status.error = ""

    def _note_failure(self, error: ApiError) -> float:
        if self._resource.optional and error.status == HTTPStatus.NOT_FOUND:
            self._tried += 1
            return 0.0 if self._tried % len(self._paths) else self._note_absent_resource()
        if self._resource.may_be_forbidden and error.status == HTTPStatus.FORBIDDEN:
            return self._note_forbidden_resource(error)
        if not self._resource_version and self._uses_watch_list and error.status in NO_WATCH_LIST:
            self._uses_watch_list = False
            return 0.0
        self.status.errors += 1
        self.status.error = str(error)
        self._events.record_watch_error(self.status.name, error)
        if error.status != HTTPStatus.GONE:
            return self._backoff.next_delay(error.retry_after)
        self._resource_version = ""
        return self._backoff.next_delay(self._random.uniform(0, RELIST_SECONDS))

    def _note_absent_resource(self) -> float:
        """Treat a resource type that the server does not have as empty. A forbidden one (403) is not."""
        self._clear_store()
        self.status.absent = True
        return self._random.uniform(ABSENT_SECONDS / 2, ABSENT_SECONDS)

    def _note_forbidden_resource(self, error: ApiError) -> float:
        """Go on without the objects of a resource that the server forbids to list; the error is recorded once."""
        if not self.status.forbidden:
            self.status.errors += 1
            self._events.record_watch_error(self.status.name, error)
            self._clear_store()
        self._note_contact()
        self.status.error, self.status.forbidden = str(error), True
        return self._random.uniform(ABSENT_SECONDS / 2, ABSENT_SECONDS)

    def _clear_store(self) -> None:
        self._store.begin()
        self._store.swap()
        self._resource_version = ""
        self._note_contact()
        self.status.synced = True


INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0


class RandomSource(Protocol):
    """The method of `random.Random` that is used."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between two bounds."""


class ExponentialBackoff:
    """Doubles the delay with each successive failure; the delay is random between half of it and all of it."""

    def __init__(
        self, random: RandomSource, initial: float = INITIAL_BACKOFF_SECONDS, maximum: float = MAX_BACKOFF_SECONDS
    ) -> None:
        self._random = random
        self._initial, self._maximum = initial, maximum
        self._ceiling = initial

    def reset(self) -> None:
        """Start again with the initial delay, after a success."""
        self._ceiling = self._initial

    def next_delay(self, retry_after: float = 0.0) -> float:
        """Return the seconds to wait after a failure; `retry_after` is the minimum that the server asked for."""
        ceiling, self._ceiling = self._ceiling, min(self._maximum, self._ceiling * 2)
        return retry_after + self._random.uniform(ceiling / 2, ceiling)
