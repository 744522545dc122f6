"""List and watch: the store equals the collection, whatever fails on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.kube.scripted import (
    END,
    Answer,
    Calm,
    Json,
    Server,
    bookmark,
    error,
    error_answer,
    event,
    json_answer,
    playing,
    stream,
    thing,
    until,
)
from webhook.cache.store import StoreReader, StoreWriter
from webhook.errors import ApiError
from webhook.kube import reflector
from webhook.kube.backoff import ExponentialBackoff
from webhook.kube.reflector import Reflector, WatchedResource, WatchStatus
from webhook.model.objects import Namespace

PATH = "/api/v1/namespaces"
ALL = {"watch": "1", "allowWatchBookmarks": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
NO_STREAM = error_answer(422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList gate is on")


def after(version: int) -> dict[str, str]:
    """The parameters of a watch that goes on."""
    return {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": str(version)}


class Site:
    """A watch at work."""

    def __init__(
        self,
        server: Server,
        watch: Reflector[Namespace],
        store: StoreReader[Namespace],
        broken: list[ApiError],
        crashed: list[Exception],
    ) -> None:
        self.server, self.watch, self.store, self.broken, self.crashed = server, watch, store, broken, crashed

    @property
    def state(self) -> WatchStatus:
        return self.watch.status

    async def has(self, *names: str) -> None:
        """Wait until these are there, and no others."""
        await until(lambda: sorted(self.store.items) == sorted(names))


class WatchErrors(NamedTuple):
    """Collects the problems of a watch."""

    failures: list[ApiError]
    exceptions: list[Exception]

    def record_watch_error(self, _resource: str, error: ApiError) -> None:
        self.failures.append(error)

    def record_internal_error(self, _component: str, error: Exception) -> None:
        self.exceptions.append(error)


def key(item: Namespace) -> str:
    """Its name; of one that is labelled odd there is none to be had."""
    if "odd" in item.metadata.labels:
        raise ValueError("odd")
    return item.metadata.name


@asynccontextmanager
async def watched(folder: Path, *answers: Answer, optional: bool = False) -> AsyncIterator[Site]:
    store: StoreReader[Namespace] = StoreReader()
    writer = StoreWriter(store, key, lambda *_: None)
    broken: list[ApiError] = []
    crashed: list[Exception] = []
    resource = WatchedResource("namespaces", PATH, Namespace, {"labelSelector": "x"}, optional=optional)
    async with playing(folder, *answers) as (server, api):
        watch = Reflector(
            api,
            resource,
            writer,
            Calm(),
            WatchErrors(broken, crashed),
        )
        task = asyncio.create_task(watch.run())
        try:
            yield Site(server, watch, store, broken, crashed)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


STARTED = stream(event("ADDED", thing("a", 3)), bookmark(5, end=True), END)
"""One object, and the end of the initial list."""


async def test_the_initial_list_is_one_stream_and_changes_follow_in_the_next(tmp_path: Path) -> None:
    everything = stream(event("ADDED", thing("a")), event("ADDED", thing("b")), bookmark(5, end=True))
    changes = stream(
        event("ADDED", thing("c", 6)),
        event("DELETED", thing("a", 7)),
        event("MODIFIED", thing("b", 8, tier="x")),
    )
    async with watched(tmp_path, everything, changes) as site:
        await site.has("b", "c")
        await until(lambda: site.store.items["b"].metadata.labels == {"tier": "x"})
        assert site.server.queries() == [ALL | {"labelSelector": "x"}, after(5) | {"labelSelector": "x"}]
        assert (site.state.synced, site.state.lists, site.broken) == (True, 1, [])


async def test_changes_that_come_with_the_mark_are_not_lost(tmp_path: Path) -> None:
    lines = [event("ADDED", thing("a")), bookmark(5, end=True), event("ADDED", thing("b", 6))]
    together = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    async with watched(tmp_path, stream(together)) as site:
        await site.has("a", "b")
        await until(lambda: len(site.server.asked) == 2)
        assert site.server.queries()[1]["resourceVersion"] == "6"


async def test_nothing_is_visible_before_the_list_is_complete(tmp_path: Path) -> None:
    script = stream(event("ADDED", thing("a")), event("ADDED", thing("b")), event("DELETED", thing("b")), bookmark(4))
    async with watched(tmp_path, script) as site:
        await until(lambda: site.state.events == 3)
        assert (dict(site.store.items), site.state.synced) == ({}, False)


async def test_a_server_without_watchlist_is_listed_page_by_page(tmp_path: Path) -> None:
    first = json_answer({"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [thing("a"), thing("b")]})
    second = json_answer({"metadata": {"resourceVersion": "9"}, "items": [thing("c")]})
    async with watched(tmp_path, NO_STREAM, first, second, stream(event("ADDED", thing("d", 10)))) as site:
        await site.has("a", "b", "c", "d")
        assert [{**each, "labelSelector": ""} for each in site.server.queries()[1:]] == [
            {"limit": "500", "labelSelector": ""},
            {"limit": "500", "labelSelector": "", "continue": "more"},
            {**after(9), "labelSelector": ""},
        ]


async def test_an_old_store_reports_missing_watch_list_in_the_stream(tmp_path: Path) -> None:
    script = stream(error(500, "InternalError"), END)
    async with watched(
        tmp_path, script, json_answer({"metadata": {"resourceVersion": "9"}, "items": [thing("a")]})
    ) as site:
        await site.has("a")


async def test_a_server_without_an_initial_events_end_is_listed(tmp_path: Path) -> None:
    script = stream(event("ADDED", thing("a")), END)
    async with watched(
        tmp_path, script, json_answer({"metadata": {"resourceVersion": "9"}, "items": [thing("a")]})
    ) as site:
        await site.has("a")
        assert site.state.lists == 1


async def test_a_watch_that_ends_resumes_from_its_last_version(tmp_path: Path) -> None:
    second = stream(bookmark(8), END)
    third = stream(event("DELETED", thing("a", 9)), END)
    async with watched(tmp_path, STARTED, second, third) as site:
        await until(lambda: len(site.server.asked) == 4)
        assert [each.get("resourceVersion") for each in site.server.queries()] == [None, "5", "8", "9"]
        await site.has()
        assert (site.state.lists, site.broken) == (1, [])


GONE = {"as an event": stream(error(410), END), "as a status": error_answer(410, "Expired")}


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
async def test_after_410_everything_is_listed_and_replaced_at_once(tmp_path: Path, gone: Answer) -> None:
    script = stream(event("ADDED", thing("b", 20)), bookmark(21, end=True))
    async with watched(tmp_path, STARTED, gone, script) as site:
        await site.has("b")
        assert (site.state.lists, [each.status for each in site.broken]) == (2, [410])


async def test_the_old_content_stays_during_a_new_list(tmp_path: Path) -> None:
    half = stream(event("ADDED", thing("b", 20)))
    async with watched(tmp_path, STARTED, GONE["as a status"], half) as site:
        await until(lambda: site.state.events == 2)
        assert list(site.store.items) == ["a"]


TORN = {
    "half a line, then the end": stream(b'{"type":"DELETED","object":{"metadata":{"na', END),
    "half a line, then a cut": stream(torn=b'{"type":"DELETED","object":{"meta', cut=True),
    "no line, then a cut": stream(cut=True),
    "a line that is not JSON": stream(b"{]\n"),
    "a page of HTML": json_answer("<html><body>gateway</body></html>"),
    "a page of HTML with an end of line": json_answer("<html>\n<body>gateway</body></html>\n"),
    "an event of no known type": stream(event("SURPRISE", thing("a"))),
    "HTML and 502": json_answer("<html>bad gateway</html>", 502),
    "500": error_answer(500, "InternalError"),
}


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
async def test_a_failed_watch_resumes_from_the_last_version(tmp_path: Path, torn: Answer) -> None:
    async with watched(tmp_path, STARTED, torn, stream(event("ADDED", thing("b", 6)))) as site:
        await site.has("a", "b")
        assert [each.get("resourceVersion") for each in site.server.queries()] == [None, "5", "5"]
        assert (site.state.lists, site.state.errors, len(site.broken)) == (1, 1, 1)
        assert site.state.error == ""


async def test_a_connection_that_hangs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "READ_TIMEOUT_SECONDS", 0.2)
    async with watched(tmp_path, STARTED, stream(), stream(event("ADDED", thing("b", 6)))) as site:
        await site.has("a", "b")
        assert "timed out" in str(site.broken[0])


async def test_a_reopened_watch_counts_as_contact_before_its_first_event(tmp_path: Path) -> None:
    async with watched(tmp_path, STARTED, error_answer(500), stream()) as site:
        await until(lambda: len(site.broken) == 1)
        await until(lambda: not site.state.error)
        assert site.state.last_contact > 0


async def test_silence_three_times_means_that_the_version_is_not_the_server_s(tmp_path: Path) -> None:
    """After a restore from a backup the server is behind our version, and silent until it has caught up."""
    script = stream(event("ADDED", thing("older", 2)), bookmark(3, end=True))
    async with watched(tmp_path, STARTED, stream(END), stream(END), stream(END), script) as site:
        await site.has("older")
        assert site.state.lists == 2


async def test_a_line_that_is_too_long_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.kube.decoder.LineBuffer.__init__.__defaults__", (1000,))
    script = stream(event("ADDED", thing("a", 6, x="y" * 5000)), event("ADDED", thing("b", 7)))
    async with watched(tmp_path, STARTED, script) as site:
        await site.has("a", "b")
        assert site.state.skipped == 1
        assert site.store.items["a"].metadata.labels == {}


async def test_nulls_are_absent_and_one_odd_object_does_not_blind_us(tmp_path: Path) -> None:
    odd = [{"metadata": {"name": 7}}, {"metadata": {"name": "nulls", "labels": None}}, thing("a")]
    page = json_answer({"metadata": {"resourceVersion": "9"}, "items": odd})
    odder: list[Json] = [{"metadata": {"name": ["b"]}}, {"metadata": None}, {"metadata": 7}]
    script = stream(*(event("ADDED", each) for each in odder), event("ADDED", thing("c", 11)), event("ADDED", odder[1]))
    async with watched(tmp_path, NO_STREAM, page, script) as site:
        await until(lambda: {"nulls", "a", "c"} <= set(site.store.items))
        assert site.state.skipped >= 3
        assert site.broken == []


UNREAD = {
    "a change": event("MODIFIED", thing("a", 6) | {"metadata": {"name": "a", "labels": 7}}),
    "an end": event("DELETED", thing("a", 6) | {"metadata": {"name": "a", "labels": 7}}),
}


@pytest.mark.parametrize("odd", UNREAD.values(), ids=UNREAD)
async def test_an_object_that_became_invalid_is_dropped(tmp_path: Path, odd: Json) -> None:
    async with watched(tmp_path, STARTED, stream(odd, event("ADDED", thing("b", 7)))) as site:
        await site.has("b")
        assert (site.state.skipped, site.broken) == (1, [])


PASSED_OVER = {
    "in a watch": stream(event("ADDED", thing("b", 6, odd="")), event("ADDED", thing("c", 7)), END),
    "where it ends": stream(event("DELETED", thing("b", 6, odd="")), event("ADDED", thing("c", 7)), END),
}


@pytest.mark.parametrize("odd", PASSED_OVER.values(), ids=PASSED_OVER)
async def test_an_object_that_the_writer_fails_on_does_not_hold_up_the_others(tmp_path: Path, odd: Answer) -> None:
    async with watched(tmp_path, STARTED, odd) as site:
        await site.has("a", "c")
        await until(lambda: len(site.server.asked) == 3)
        assert site.server.queries()[-1]["resourceVersion"] == "7"
        assert (site.state.skipped, site.broken, [str(each) for each in site.crashed]) == (1, [], ["odd"])


async def test_an_object_of_a_list_that_the_writer_fails_on_does_not_hold_up_the_others(tmp_path: Path) -> None:
    page = json_answer({"metadata": {"resourceVersion": "9"}, "items": [thing("a", odd=""), thing("b")]})
    async with watched(tmp_path, NO_STREAM, page) as site:
        await site.has("b")
        assert (site.state.skipped, site.broken, len(site.crashed)) == (1, [], 1)


def deep(name: str, version: int, levels: int = 20_000) -> bytes:
    """An object with managedFields deeper than any decoder supports, and labels after them."""
    notes = b'[{"f:a]":' * levels + b"1" + b"}]" * levels
    said = json.dumps(thing(name, version, tier="x")["metadata"])[1:-1].encode()
    return b'{"metadata":{"managedFields":%s,%s}}' % (notes, said)


async def test_an_object_of_any_depth_is_read(tmp_path: Path) -> None:
    page = stream(b'{"metadata":{"resourceVersion":"9"},"items":[%s]}' % deep("listed", 8), END)
    script = stream(b'{"type":"ADDED","object":%s}\n' % deep("watched", 11), END)
    async with watched(tmp_path, NO_STREAM, page, script) as site:
        await site.has("listed", "watched")
        assert [each.metadata.labels for each in site.store.items.values()] == [{"tier": "x"}] * 2
        await until(lambda: len(site.server.asked) == 4)
        assert site.server.queries()[-1]["resourceVersion"] == "11"
        assert (site.state.skipped, site.broken) == (0, [])


async def test_a_required_field_that_is_too_deep_is_not_read_as_empty(tmp_path: Path) -> None:
    odd = b'{"metadata":{"name":"a","labels":{"x":%s}}}' % (b"[" * 20_000 + b"]" * 20_000)
    script = stream(b'{"type":"ADDED","object":%s}\n' % odd, event("ADDED", thing("b", 7)))
    async with watched(tmp_path, STARTED, script) as site:
        await site.has("b")
        assert site.state.skipped == 1


async def test_a_list_without_items_is_empty(tmp_path: Path) -> None:
    async with watched(tmp_path, NO_STREAM, json_answer({"metadata": {"resourceVersion": "9"}, "items": None})) as site:
        await until(lambda: site.state.synced)
        assert dict(site.store.items) == {}


async def test_an_expired_page_restarts_the_list(tmp_path: Path) -> None:
    first = json_answer({"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [thing("gone meanwhile")]})
    again = json_answer({"metadata": {"resourceVersion": "12"}, "items": [thing("a")]})
    async with watched(tmp_path, NO_STREAM, first, error_answer(410, "Expired"), again) as site:
        await site.has("a")


async def test_retry_after_is_honoured(tmp_path: Path) -> None:
    async with watched(tmp_path, STARTED, error_answer(429, "TooManyRequests", Retry_After="1")) as site:
        await until(lambda: len(site.server.asked) == 2)
        start = asyncio.get_running_loop().time()
        await until(lambda: len(site.server.asked) == 3)
        assert asyncio.get_running_loop().time() - start >= 1.0


async def test_a_kind_that_the_server_does_not_have_is_empty_until_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.02)
    missing = json_answer("404 page not found\n", 404)
    async with watched(tmp_path, missing, missing, STARTED, stream(), optional=True) as site:
        await until(lambda: site.state.synced)
        assert (site.state.absent, site.state.error) == (True, "")
        await site.has("a")
        assert (site.state.absent, site.broken) == (False, [])


async def test_a_removed_resource_type_is_empty_again(tmp_path: Path) -> None:
    seen = asyncio.Event()
    async with watched(
        tmp_path, STARTED, stream(seen, END), json_answer("404 page not found\n", 404), optional=True
    ) as site:
        await site.has("a")
        seen.set()
        await site.has()
        assert site.state.absent


async def test_objects_stay_when_access_is_lost(tmp_path: Path) -> None:
    forbidden = error_answer(403, "Forbidden")
    async with watched(tmp_path, STARTED, forbidden, stream(), optional=True) as site:
        await until(lambda: site.broken)
        assert list(site.store.items) == ["a"]


@pytest.mark.parametrize("optional", [False, True])
async def test_missing_access_is_reported_and_retried(tmp_path: Path, optional: bool) -> None:
    async with watched(tmp_path, error_answer(403, "Forbidden", "may not"), STARTED, optional=optional) as site:
        await until(lambda: site.broken)
        assert not site.state.synced
        assert "403 Forbidden: may not" in str(site.broken[0])
        await site.has("a")


async def test_watching_resumes_when_the_server_is_back(tmp_path: Path) -> None:
    async with watched(tmp_path, STARTED, error_answer(503, "ServiceUnavailable"), error_answer(503)) as site:
        await until(lambda: len(site.server.asked) == 4)
        assert [each.status for each in site.broken] == [503, 503]


def test_delays_grow_and_have_jitter() -> None:
    backoff = ExponentialBackoff(Random(1), initial=1.0, maximum=8.0)
    waits = [backoff.next_delay() for _ in range(6)]
    ceilings = [1, 2, 4, 8, 8, 8]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, ceilings, strict=True))
    assert len(set(waits)) == 6
    backoff.reset()
    assert backoff.next_delay(retry_after=30.0) <= 31.0
    assert backoff.next_delay(retry_after=30.0) > 30.0
