"""List and watch: keeps one writer as one collection of the API server is, for as long as the process lives.

The order of things is the API's: everything once, then each change from that version on. Everything comes in one
stream where the server has WatchList, page by page where it has not; the writer buffers it and swaps it in whole.
A watch that ends or breaks goes on from its last version. Only a server that no longer knows that version (410)
makes us list again, and not at once, so that not every replica does so in the same moment.

Watches are asked to end after less than a minute. So a connection that hangs is noticed soon, and an idle
collection still proves twice a minute that what we hold is what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.kube.backoff import ExponentialBackoff, RandomSource
from webhook.kube.decoder import LineBuffer, ResourceDecoder, WatchEvent, resource_version_of_line

PAGE_SIZE = 500
WATCH_SECONDS = 40
"""How long a watch is asked to last: three quarters of this, up to the whole."""

LIST_SECONDS = 300
"""The same where the stream begins with everything there is."""

READ_TIMEOUT_SECONDS = 45.0
"""Without a byte for this long a connection counts as hung. Servers say something when a watch ends."""

PAUSE_SECONDS = 1.0
"""The most to wait between a watch that ended as it should and the next."""

RELIST_SECONDS = 5.0
"""The most to wait before everything is listed again."""

ABSENT_SECONDS = 5.0
"""How often to look for a kind that the server does not have."""

MAX_SILENT_WATCHES = 3
"""Watches in a row that end without one word, not even a bookmark, before we list again."""

T = TypeVar("T")
W = TypeVar("W", contravariant=True)

NO_SELECTOR: Mapping[str, str] = MappingProxyType({})
NO_WATCH_LIST = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR})
"""How a server says that it has no WatchList: as a refusal of the parameters, or as an error event."""


class ReflectorStore(Protocol[W]):
    """What a watch writes to. Between `begin` and `swap` nothing that is written is seen by readers."""

    def begin(self) -> None:
        """A list begins; what was begun before and not swapped is void."""

    def upsert(self, item: W) -> None:
        """An object is there, new or changed."""

    def remove(self, item: W) -> None:
        """An object is gone."""

    def swap(self) -> None:
        """The list is whole: it takes the place of all that was there."""


class WatchedResource(Generic[T]):
    """A collection to watch.

    Attributes:
        name: What to call it.
        path: Its path, over all namespaces.
        model: The read model of its objects, or `dict[str, Any]`.
        params: Selectors.
        optional: True for a kind that the server may not have; it then counts as empty.
    """

    __slots__ = ("model", "name", "optional", "params", "path")

    def __init__(
        self, name: str, path: str, model: type[T], params: Mapping[str, str] = NO_SELECTOR, *, optional: bool = False
    ) -> None:
        self.name, self.path, self.model, self.params, self.optional = name, path, model, params, optional


@dataclass(slots=True)
class WatchStatus:
    """How a watch is doing. Times are seconds of the event loop's clock.

    Attributes:
        name: Of what.
        synced: Was everything there once?
        heard: When the server last said something that was no refusal.
        absent: The server has no such kind.
        lists: How often everything was listed.
        events: Changes seen.
        breaks: How often a list or watch ended otherwise than it should.
        unread: Objects that could not be read, or that the writer failed on.
        fault: Why it does not go on now; "" while it does.
    """

    name: str
    synced: bool = False
    last_contact: float = field(default=float("-inf"))
    absent: bool = False
    lists: int = 0
    events: int = 0
    breaks: int = 0
    undecodable: int = 0
    error: str = ""


OnWatchError = Callable[[WatchStatus, ApiError], None]
"""Called when a watch breaks, with how it is doing and why."""


OnStoreError = Callable[[WatchStatus, Exception], None]
"""Called when the writer fails on an object, with how the watch is doing and the fault."""


class Reflector(Generic[T]):
    """One collection and its writer.

    Attributes:
        state: How it is doing.
    """

    def __init__(
        self,
        api: KubeClient,
        resource: WatchedResource[T],
        writer: ReflectorStore[T],
        random: RandomSource,
        broke: OnWatchError,
        *,
        crashed: OnStoreError,
        rest: float = PAUSE_SECONDS,
    ) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            resource: What to watch.
            writer: What is written to.
            random: Spreads out what many replicas would do at once.
            broke: Called when the watch breaks.
            crashed: Called when the writer fails on an object, which is passed over.
            rest: The most seconds to wait between a watch that ended as it should and the next.
        """
        self.status = WatchStatus(resource.name)
        self._api, self._resource, self._writer, self._random, self._on_watch_error = (
            api,
            resource,
            writer,
            random,
            broke,
        )
        self._on_store_error = crashed
        self._decoder: ResourceDecoder[T] = ResourceDecoder(f"GET {resource.path}", resource.model)
        self._backoff = ExponentialBackoff(random)
        self._max_pause = rest
        self._resource_version = ""
        self._uses_watch_list = True
        self._silent_watches = 0

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            try:
                await self._list_and_watch()
            except ApiError as error:
                wait = self._note_failure(error)
            else:
                wait = self._random.uniform(0, self._max_pause)
            await asyncio.sleep(wait)

    async def _list_and_watch(self) -> None:
        """One watch up to its end; where nothing is known yet, with everything in front."""
        if self._resource_version:
            await self._consume_stream({**self._watch_params(WATCH_SECONDS), "resourceVersion": self._resource_version})
            self._note_silent_watch()
        elif not self._uses_watch_list:
            await self._list_pages()
        else:
            self._writer.begin()
            everything = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            await self._consume_stream({**self._watch_params(LIST_SECONDS), **everything})
            self._uses_watch_list = bool(
                self._resource_version
            )  # a server that ends without the mark does not know what was asked

    def _watch_params(self, seconds: int) -> Mapping[str, str]:
        end = round(self._random.uniform(seconds * 0.75, seconds))
        return {**self._resource.params, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(end)}

    def _note_silent_watch(self) -> None:
        """A version that the server has not reached, after a restore of its store, gets nothing but silence."""
        self._silent_watches += 1
        if self._silent_watches >= MAX_SILENT_WATCHES:
            self._silent_watches, self._resource_version = 0, ""

    async def _list_pages(self) -> None:
        """Everything, page by page."""
        self._writer.begin()
        ask = {**self._resource.params, "limit": str(PAGE_SIZE)}
        while True:
            page = self._decoder.decode_page(await self._api.get_bytes(self._resource.path, ask))
            self._note_contact()
            self.status.undecodable += page.undecodable
            for item in page.items:
                self._store_item(item)
            if not page.continue_token:
                self._replace_store(page.version)
                return
            ask["continue"] = page.continue_token

    async def _consume_stream(self, params: Mapping[str, str]) -> None:
        """Take in a watch up to its end; one that begins with everything, up to where everything was said.

        The latter may go on for minutes, in silence; what follows is asked for anew, and to end soon.
        """
        lines, beginning = LineBuffer(), not self._resource_version
        async with self._api.stream(self._resource.path, params, READ_TIMEOUT_SECONDS) as pieces:
            self._note_contact()
            async for piece in pieces:
                self._apply_lines(lines.feed(piece))
                self.status.undecodable += lines.skipped
                lines.skipped = 0
                if beginning and self._resource_version:
                    return
        if lines.has_partial_line:
            raise ApiError(f"GET {self._resource.path}", 200, "Torn", "the watch ended in the middle of a line")
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
        self.status.undecodable += event.undecodable
        if event.item is None:
            return
        self._store_item(event.item, gone=event.type == "DELETED" or event.undecodable)

    def _store_item(self, item: T, *, gone: bool = False) -> None:
        """Hand an object on; one that cannot be read or taken is left out as a list would leave it out."""
        try:
            if gone:
                self._writer.remove(item)
            else:
                self._writer.upsert(item)
        except Exception as error:
            self.status.undecodable += 1
            self._on_store_error(self.status, error)
            with suppress(Exception):  # that the writer fails on it was told
                self._writer.remove(item)

    def _replace_store(self, version: str) -> None:
        self._writer.swap()
        self._resource_version = version
        self.status.synced, self.status.absent = True, False
        self.status.lists += 1

    def _note_contact(self) -> None:
        self.status.last_contact = asyncio.get_running_loop().time()
        self.status.error = ""

    def _note_failure(self, error: ApiError) -> float:
        """Note what broke; gives the seconds to wait."""
        if self._resource.optional and error.status == HTTPStatus.NOT_FOUND:
            return self._note_absent_kind()
        if not self._resource_version and self._uses_watch_list and error.status in NO_WATCH_LIST:
            self._uses_watch_list = False
            return 0.0
        self.status.breaks += 1
        self.status.error = str(error)
        self._on_watch_error(self.status, error)
        if error.status != HTTPStatus.GONE:
            return self._backoff.next_delay(error.retry_after)
        self._resource_version = ""
        return self._backoff.next_delay(self._random.uniform(0, RELIST_SECONDS))

    def _note_absent_kind(self) -> float:
        """The server has no such kind: nothing of it is there. That we may not look (403) would say no such thing."""
        self._writer.begin()
        self._writer.swap()
        self._resource_version = ""
        self._note_contact()
        self.status.synced = self.status.absent = True
        return self._random.uniform(ABSENT_SECONDS / 2, ABSENT_SECONDS)
