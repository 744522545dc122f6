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
from webhook.kube.api import Api
from webhook.kube.decoding import Decoder, Event, version_of
from webhook.kube.lines import Lines
from webhook.kube.pace import Backoff, Random

PAGE = 500
WATCH_SECONDS = 40
"""How long a watch is asked to last: three quarters of this, up to the whole."""

LIST_SECONDS = 300
"""The same where the stream begins with everything there is."""

QUIET_SECONDS = 45.0
"""Without a byte for this long a connection counts as hung. Servers say something when a watch ends."""

REST_SECONDS = 1.0
"""The most to wait between a watch that ended as it should and the next."""

RELIST_SECONDS = 5.0
"""The most to wait before everything is listed again."""

ABSENT_SECONDS = 5.0
"""How often to look for a kind that the server does not have."""

MUTE_MOST = 3
"""Watches in a row that end without one word, not even a bookmark, before we list again."""

T = TypeVar("T")
W = TypeVar("W", contravariant=True)

NOTHING: Mapping[str, str] = MappingProxyType({})
NO_STREAM = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR})
"""How a server says that it has no WatchList: as a refusal of the parameters, or as an error event."""


class Writer(Protocol[W]):
    """What a watch writes to. Between `begin` and `swap` nothing that is written is seen by readers."""

    def begin(self) -> None:
        """A list begins; what was begun before and not swapped is void."""

    def put(self, item: W) -> None:
        """An object is there, new or changed."""

    def remove(self, item: W) -> None:
        """An object is gone."""

    def swap(self) -> None:
        """The list is whole: it takes the place of all that was there."""


class Resource(Generic[T]):
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
        self, name: str, path: str, model: type[T], params: Mapping[str, str] = NOTHING, *, optional: bool = False
    ) -> None:
        self.name, self.path, self.model, self.params, self.optional = name, path, model, params, optional


@dataclass(slots=True)
class State:
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
    heard: float = field(default=float("-inf"))
    absent: bool = False
    lists: int = 0
    events: int = 0
    breaks: int = 0
    unread: int = 0
    fault: str = ""


Broke = Callable[[State, ApiError], None]
"""Called when a watch breaks, with how it is doing and why."""


Crashed = Callable[[State, Exception], None]
"""Called when the writer fails on an object, with how the watch is doing and the fault."""


class Watch(Generic[T]):
    """One collection and its writer.

    Attributes:
        state: How it is doing.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource[T],
        writer: Writer[T],
        random: Random,
        broke: Broke,
        *,
        crashed: Crashed,
        rest: float = REST_SECONDS,
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
        self.state = State(resource.name)
        self._api, self._resource, self._writer, self._random, self._broke = api, resource, writer, random, broke
        self._crashed = crashed
        self._decoder: Decoder[T] = Decoder(f"GET {resource.path}", resource.model)
        self._backoff = Backoff(random)
        self._rest = rest
        self._version = ""
        self._streams = True
        self._mute = 0

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            try:
                await self._turn()
            except ApiError as error:
                wait = self._failed(error)
            else:
                wait = self._random.uniform(0, self._rest)
            await asyncio.sleep(wait)

    async def _turn(self) -> None:
        """One watch up to its end; where nothing is known yet, with everything in front."""
        if self._version:
            await self._follow({**self._watch_for(WATCH_SECONDS), "resourceVersion": self._version})
            self._listen_to_silence()
        elif not self._streams:
            await self._list()
        else:
            self._writer.begin()
            everything = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            await self._follow({**self._watch_for(LIST_SECONDS), **everything})
            self._streams = bool(self._version)  # a server that ends without the mark does not know what was asked

    def _watch_for(self, seconds: int) -> Mapping[str, str]:
        end = round(self._random.uniform(seconds * 0.75, seconds))
        return {**self._resource.params, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(end)}

    def _listen_to_silence(self) -> None:
        """A version that the server has not reached, after a restore of its store, gets nothing but silence."""
        self._mute += 1
        if self._mute >= MUTE_MOST:
            self._mute, self._version = 0, ""

    async def _list(self) -> None:
        """Everything, page by page."""
        self._writer.begin()
        ask = {**self._resource.params, "limit": str(PAGE)}
        while True:
            page = self._decoder.page(await self._api.read(self._resource.path, ask))
            self._hear()
            self.state.unread += page.unread
            for item in page.items:
                self._write(item)
            if not page.more:
                self._swap(page.version)
                return
            ask["continue"] = page.more

    async def _follow(self, params: Mapping[str, str]) -> None:
        """Take in a watch up to its end; one that begins with everything, up to where everything was said.

        The latter may go on for minutes, in silence; what follows is asked for anew, and to end soon.
        """
        lines, beginning = Lines(), not self._version
        async with self._api.stream(self._resource.path, params, QUIET_SECONDS) as pieces:
            self._hear()
            async for piece in pieces:
                self._take(lines.feed(piece))
                self.state.unread += lines.skipped
                lines.skipped = 0
                if beginning and self._version:
                    return
        if lines.torn:
            raise ApiError(f"GET {self._resource.path}", 200, "Torn", "the watch ended in the middle of a line")
        self._hear()

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            self._apply(self._decoder.event(line))
        if lines:
            self._hear()
        if lines and self._version:
            self._version = version_of(lines[-1]) or self._version
            self._mute = 0
            self._backoff.succeeded()

    def _apply(self, event: Event[T]) -> None:
        if event.all_said and not self._version:
            self._swap(event.version)
        if event.type == "BOOKMARK":
            return
        self.state.events += 1
        self.state.unread += event.unread
        if event.item is None:
            return
        self._write(event.item, gone=event.type == "DELETED" or event.unread)

    def _write(self, item: T, *, gone: bool = False) -> None:
        """Hand an object on; one that cannot be read or taken is left out as a list would leave it out."""
        try:
            if gone:
                self._writer.remove(item)
            else:
                self._writer.put(item)
        except Exception as error:
            self.state.unread += 1
            self._crashed(self.state, error)
            with suppress(Exception):  # that the writer fails on it was told
                self._writer.remove(item)

    def _swap(self, version: str) -> None:
        self._writer.swap()
        self._version = version
        self.state.synced, self.state.absent = True, False
        self.state.lists += 1

    def _hear(self) -> None:
        self.state.heard = asyncio.get_running_loop().time()
        self.state.fault = ""

    def _failed(self, error: ApiError) -> float:
        """Note what broke; gives the seconds to wait."""
        if self._resource.optional and error.status == HTTPStatus.NOT_FOUND:
            return self._is_absent()
        if not self._version and self._streams and error.status in NO_STREAM:
            self._streams = False
            return 0.0
        self.state.breaks += 1
        self.state.fault = str(error)
        self._broke(self.state, error)
        if error.status != HTTPStatus.GONE:
            return self._backoff.failed(error.retry_after)
        self._version = ""
        return self._backoff.failed(self._random.uniform(0, RELIST_SECONDS))

    def _is_absent(self) -> float:
        """The server has no such kind: nothing of it is there. That we may not look (403) would say no such thing."""
        self._writer.begin()
        self._writer.swap()
        self._version = ""
        self._hear()
        self.state.synced = self.state.absent = True
        return self._random.uniform(ABSENT_SECONDS / 2, ABSENT_SECONDS)
