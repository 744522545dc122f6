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
    Json,
    MinimumRandom,
    ScriptedServer,
    bookmark,
    error,
    error_answer,
    event,
    json_answer,
    namespace_data,
    scripted_api,
    stream,
    until,
)
from webhook.cache.store import ObjectStore
from webhook.errors import ApiError
from webhook.kube import reflector
from webhook.kube.reflector import ExponentialBackoff, Reflector, WatchedResource, WatchStatus
from webhook.model.objects import Namespace

PATH = "/api/v1/namespaces"
ALL = {"watch": "1", "allowWatchBookmarks": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
NO_STREAM = error_answer(422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList gate is on")


def after(version: int) -> dict[str, str]:
    """Return the parameters of a watch that resumes from a version."""
    return {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": str(version)}


class WatchHarness:
    """A running watch with its server and store."""

    def __init__(
        self,
        server: ScriptedServer,
        watch: Reflector[Namespace],
        store: ObjectStore[Namespace],
        errors: list[ApiError],
        exceptions: list[Exception],
    ) -> None:
        self.server, self.watch, self.store, self.errors, self.exceptions = server, watch, store, errors, exceptions

    @property
    def state(self) -> WatchStatus:
        return self.watch.status

    async def has(self, *names: str) -> None:
        """Wait until the store has exactly these objects."""
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
    """Return the name; fail for an object that is labeled odd."""
    if "odd" in item.metadata.labels:
        raise ValueError("odd")
    return item.metadata.name


@asynccontextmanager
async def running_watch(
    folder: Path,
    *answers: Answer,
    optional: bool = False,
    may_be_forbidden: bool = False,
    older_paths: tuple[str, ...] = (),
) -> AsyncIterator[WatchHarness]:
    store: ObjectStore[Namespace] = ObjectStore(key, lambda *_: None)
    errors: list[ApiError] = []
    exceptions: list[Exception] = []
    resource = WatchedResource(
        "namespaces", PATH, Namespace, {"labelSelector": "x"}, optional, may_be_forbidden, older_paths
    )
    async with scripted_api(folder, *answers) as (server, api):
        watch = Reflector(
            api,
            resource,
            store,
            MinimumRandom(),
            WatchErrors(errors, exceptions),
        )
        task = asyncio.create_task(watch.run())
        try:
            yield WatchHarness(server, watch, store, errors, exceptions)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


STARTED = stream(event("ADDED", namespace_data("a", 3)), bookmark(5, end=True), END)
"""One object, and the end of the initial list."""


async def test_the_initial_list_is_one_stream_and_changes_follow_in_the_next(tmp_path: Path) -> None:
    everything = stream(event("ADDED", namespace_data("a")), event("ADDED", namespace_data("b")), bookmark(5, end=True))
    changes = stream(
        event("ADDED", namespace_data("c", 6)),
        event("DELETED", namespace_data("a", 7)),
        event("MODIFIED", namespace_data("b", 8, tier="x")),
    )
    async with running_watch(tmp_path, everything, changes) as harness:
        await harness.has("b", "c")
        await until(lambda: harness.store.items["b"].metadata.labels == {"tier": "x"})
        assert harness.server.queries() == [ALL | {"labelSelector": "x"}, after(5) | {"labelSelector": "x"}]
        assert (harness.state.synced, harness.state.lists, harness.errors) == (True, 1, [])


async def test_changes_in_the_same_chunk_as_the_bookmark_are_not_lost(tmp_path: Path) -> None:
    lines = [event("ADDED", namespace_data("a")), bookmark(5, end=True), event("ADDED", namespace_data("b", 6))]
    together = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    async with running_watch(tmp_path, stream(together)) as harness:
        await harness.has("a", "b")
        await until(lambda: len(harness.server.requests) == 2)
        assert harness.server.queries()[1]["resourceVersion"] == "6"


async def test_nothing_is_visible_before_the_list_is_complete(tmp_path: Path) -> None:
    script = stream(
        event("ADDED", namespace_data("a")),
        event("ADDED", namespace_data("b")),
        event("DELETED", namespace_data("b")),
        bookmark(4),
    )
    async with running_watch(tmp_path, script) as harness:
        await until(lambda: harness.state.events == 3)
        assert (dict(harness.store.items), harness.state.synced) == ({}, False)


async def test_a_server_without_watchlist_is_listed_page_by_page(tmp_path: Path) -> None:
    first = json_answer(
        {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [namespace_data("a"), namespace_data("b")]}
    )
    second = json_answer({"metadata": {"resourceVersion": "9"}, "items": [namespace_data("c")]})
    async with running_watch(
        tmp_path, NO_STREAM, first, second, stream(event("ADDED", namespace_data("d", 10)))
    ) as harness:
        await harness.has("a", "b", "c", "d")
        assert [{**each, "labelSelector": ""} for each in harness.server.queries()[1:]] == [
            {"limit": "500", "labelSelector": ""},
            {"limit": "500", "labelSelector": "", "continue": "more"},
            {**after(9), "labelSelector": ""},
        ]


async def test_an_old_store_reports_missing_watch_list_in_the_stream(tmp_path: Path) -> None:
    script = stream(error(500, "InternalError"), END)
    async with running_watch(
        tmp_path, script, json_answer({"metadata": {"resourceVersion": "9"}, "items": [namespace_data("a")]})
    ) as harness:
        await harness.has("a")


async def test_a_server_without_an_initial_events_end_is_listed(tmp_path: Path) -> None:
    script = stream(event("ADDED", namespace_data("a")), END)
    async with running_watch(
        tmp_path, script, json_answer({"metadata": {"resourceVersion": "9"}, "items": [namespace_data("a")]})
    ) as harness:
        await harness.has("a")
        assert harness.state.lists == 1


async def test_a_watch_that_ends_resumes_from_its_last_version(tmp_path: Path) -> None:
    second = stream(bookmark(8), END)
    third = stream(event("DELETED", namespace_data("a", 9)), END)
    async with running_watch(tmp_path, STARTED, second, third) as harness:
        await until(lambda: len(harness.server.requests) == 4)
        assert [each.get("resourceVersion") for each in harness.server.queries()] == [None, "5", "8", "9"]
        await harness.has()
        assert (harness.state.lists, harness.errors) == (1, [])


GONE = {"an error event": stream(error(410), END), "an error status": error_answer(410, "Expired")}


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
async def test_after_410_everything_is_listed_and_replaced_at_once(tmp_path: Path, gone: Answer) -> None:
    script = stream(event("ADDED", namespace_data("b", 20)), bookmark(21, end=True))
    async with running_watch(tmp_path, STARTED, gone, script) as harness:
        await harness.has("b")
        assert (harness.state.lists, [each.status for each in harness.errors]) == (2, [410])


async def test_the_old_content_stays_during_a_new_list(tmp_path: Path) -> None:
    half = stream(event("ADDED", namespace_data("b", 20)))
    async with running_watch(tmp_path, STARTED, GONE["an error status"], half) as harness:
        await until(lambda: harness.state.events == 2)
        assert list(harness.store.items) == ["a"]


BROKEN_RESPONSES = {
    "half a line, then a normal end": stream(b'{"type":"DELETED","object":{"metadata":{"na', END),
    "half a line, then a broken connection": stream(partial_line=b'{"type":"DELETED","object":{"meta', cut=True),
    "no line, then a broken connection": stream(cut=True),
    "a line that is not JSON": stream(b"{]\n"),
    "a page of HTML": json_answer("<html><body>gateway</body></html>"),
    "a page of HTML with an end of line": json_answer("<html>\n<body>gateway</body></html>\n"),
    "an event of an unknown type": stream(event("SURPRISE", namespace_data("a"))),
    "HTML and 502": json_answer("<html>bad gateway</html>", 502),
    "500": error_answer(500, "InternalError"),
}


@pytest.mark.parametrize("broken", BROKEN_RESPONSES.values(), ids=BROKEN_RESPONSES)
async def test_a_failed_watch_resumes_from_the_last_version(tmp_path: Path, broken: Answer) -> None:
    async with running_watch(tmp_path, STARTED, broken, stream(event("ADDED", namespace_data("b", 6)))) as harness:
        await harness.has("a", "b")
        assert [each.get("resourceVersion") for each in harness.server.queries()] == [None, "5", "5"]
        assert (harness.state.lists, harness.state.errors, len(harness.errors)) == (1, 1, 1)
        assert harness.state.error == ""


async def test_a_connection_that_hangs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "READ_TIMEOUT_SECONDS", 1.0)
    async with running_watch(tmp_path, STARTED, stream(), stream(event("ADDED", namespace_data("b", 6)))) as harness:
        await harness.has("a", "b")
        assert "timed out" in str(harness.errors[0])


async def test_a_reopened_watch_counts_as_contact_before_its_first_event(tmp_path: Path) -> None:
    async with running_watch(tmp_path, STARTED, error_answer(500), stream()) as harness:
        await until(lambda: len(harness.errors) == 1)
        await until(lambda: not harness.state.error)
        assert harness.state.last_contact > 0


async def test_three_silent_watches_lead_to_a_new_list(tmp_path: Path) -> None:
    """A server that was restored from a backup is behind our version, and silent until it has caught up."""
    script = stream(event("ADDED", namespace_data("older", 2)), bookmark(3, end=True))
    async with running_watch(tmp_path, STARTED, stream(END), stream(END), stream(END), script) as harness:
        await harness.has("older")
        assert harness.state.lists == 2


async def test_a_line_that_is_too_long_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.kube.decoder.MAX_LINE_BYTES", 1000)
    script = stream(event("ADDED", namespace_data("a", 6, x="y" * 5000)), event("ADDED", namespace_data("b", 7)))
    async with running_watch(tmp_path, STARTED, script) as harness:
        await harness.has("a", "b")
        assert harness.state.skipped == 1
        assert harness.store.items["a"].metadata.labels == {}


async def test_nulls_count_as_absent_and_an_invalid_object_does_not_hide_the_others(tmp_path: Path) -> None:
    odd = [{"metadata": {"name": 7}}, {"metadata": {"name": "nulls", "labels": None}}, namespace_data("a")]
    page = json_answer({"metadata": {"resourceVersion": "9"}, "items": odd})
    odder: list[Json] = [{"metadata": {"name": ["b"]}}, {"metadata": None}, {"metadata": 7}]
    script = stream(
        *(event("ADDED", each) for each in odder), event("ADDED", namespace_data("c", 11)), event("ADDED", odder[1])
    )
    async with running_watch(tmp_path, NO_STREAM, page, script) as harness:
        await until(lambda: {"nulls", "a", "c"} <= set(harness.store.items))
        assert harness.state.skipped >= 3
        assert harness.errors == []


INVALID_CHANGES = {
    "a modification": event("MODIFIED", namespace_data("a", 6) | {"metadata": {"name": "a", "labels": 7}}),
    "a deletion": event("DELETED", namespace_data("a", 6) | {"metadata": {"name": "a", "labels": 7}}),
}


@pytest.mark.parametrize("odd", INVALID_CHANGES.values(), ids=INVALID_CHANGES)
async def test_an_object_that_became_invalid_is_dropped(tmp_path: Path, odd: Json) -> None:
    async with running_watch(tmp_path, STARTED, stream(odd, event("ADDED", namespace_data("b", 7)))) as harness:
        await harness.has("b")
        assert (harness.state.skipped, harness.errors) == (1, [])


STORE_ERRORS = {
    "an addition": stream(event("ADDED", namespace_data("b", 6, odd="")), event("ADDED", namespace_data("c", 7)), END),
    "a deletion": stream(event("DELETED", namespace_data("b", 6, odd="")), event("ADDED", namespace_data("c", 7)), END),
}


@pytest.mark.parametrize("odd", STORE_ERRORS.values(), ids=STORE_ERRORS)
async def test_an_object_that_the_store_rejects_does_not_block_the_others(tmp_path: Path, odd: Answer) -> None:
    async with running_watch(tmp_path, STARTED, odd) as harness:
        await harness.has("a", "c")
        await until(lambda: len(harness.server.requests) == 3)
        assert harness.server.queries()[-1]["resourceVersion"] == "7"
        assert (harness.state.skipped, harness.errors, [str(each) for each in harness.exceptions]) == (1, [], ["odd"])


async def test_a_listed_object_that_the_store_rejects_does_not_block_the_others(tmp_path: Path) -> None:
    page = json_answer(
        {"metadata": {"resourceVersion": "9"}, "items": [namespace_data("a", odd=""), namespace_data("b")]}
    )
    async with running_watch(tmp_path, NO_STREAM, page) as harness:
        await harness.has("b")
        assert (harness.state.skipped, harness.errors, len(harness.exceptions)) == (1, [], 1)


def deep(name: str, version: int, levels: int = 20_000) -> bytes:
    """An object with managedFields deeper than any decoder supports, and labels after them."""
    notes = b'[{"f:a]":' * levels + b"1" + b"}]" * levels
    message = json.dumps(namespace_data(name, version, tier="x")["metadata"])[1:-1].encode()
    return b'{"metadata":{"managedFields":%s,%s}}' % (notes, message)


async def test_an_object_of_any_depth_is_read(tmp_path: Path) -> None:
    page = stream(b'{"metadata":{"resourceVersion":"9"},"items":[%s]}' % deep("listed", 8), END)
    script = stream(b'{"type":"ADDED","object":%s}\n' % deep("watched", 11), END)
    async with running_watch(tmp_path, NO_STREAM, page, script) as harness:
        await harness.has("listed", "watched")
        assert [each.metadata.labels for each in harness.store.items.values()] == [{"tier": "x"}] * 2
        await until(lambda: len(harness.server.requests) == 4)
        assert harness.server.queries()[-1]["resourceVersion"] == "11"
        assert (harness.state.skipped, harness.errors) == (0, [])


async def test_a_required_field_that_is_too_deep_is_not_read_as_empty(tmp_path: Path) -> None:
    odd = b'{"metadata":{"name":"a","labels":{"x":%s}}}' % (b"[" * 20_000 + b"]" * 20_000)
    script = stream(b'{"type":"ADDED","object":%s}\n' % odd, event("ADDED", namespace_data("b", 7)))
    async with running_watch(tmp_path, STARTED, script) as harness:
        await harness.has("b")
        assert harness.state.skipped == 1


async def test_a_list_without_items_is_empty(tmp_path: Path) -> None:
    async with running_watch(
        tmp_path, NO_STREAM, json_answer({"metadata": {"resourceVersion": "9"}, "items": None})
    ) as harness:
        await until(lambda: harness.state.synced)
        assert dict(harness.store.items) == {}


async def test_an_expired_page_restarts_the_list(tmp_path: Path) -> None:
    first = json_answer(
        {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [namespace_data("gone meanwhile")]}
    )
    again = json_answer({"metadata": {"resourceVersion": "12"}, "items": [namespace_data("a")]})
    async with running_watch(tmp_path, NO_STREAM, first, error_answer(410, "Expired"), again) as harness:
        await harness.has("a")


async def test_retry_after_is_honored(tmp_path: Path) -> None:
    async with running_watch(tmp_path, STARTED, error_answer(429, "TooManyRequests", Retry_After="1")) as harness:
        await until(lambda: len(harness.server.requests) == 2)
        start = asyncio.get_running_loop().time()
        await until(lambda: len(harness.server.requests) == 3)
        assert asyncio.get_running_loop().time() - start >= 1.0


async def test_a_missing_resource_type_is_empty_until_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.2)
    missing = json_answer("404 page not found\n", 404)
    async with running_watch(tmp_path, missing, missing, STARTED, stream(), optional=True) as harness:
        await until(lambda: harness.state.synced)
        assert (harness.state.absent, harness.state.error) == (True, "")
        await harness.has("a")
        assert (harness.state.absent, harness.errors) == (False, [])


async def test_an_older_version_is_watched_where_the_server_has_no_newer_one(tmp_path: Path) -> None:
    missing = json_answer("404 page not found\n", 404)
    async with running_watch(tmp_path, missing, STARTED, stream(), optional=True, older_paths=("/older",)) as harness:
        await until(lambda: harness.state.synced)
        assert (sorted(harness.store.items), harness.state.absent, harness.errors) == (["a"], False, [])
        await until(lambda: len(harness.server.requests) > 2)
        assert [each.path.partition("?")[0] for each in harness.server.requests[:3]] == [PATH, "/older", "/older"]


async def test_a_removed_resource_type_is_empty_again(tmp_path: Path) -> None:
    listed = asyncio.Event()
    async with running_watch(
        tmp_path, STARTED, stream(listed, END), json_answer("404 page not found\n", 404), optional=True
    ) as harness:
        await harness.has("a")
        listed.set()
        await harness.has()
        assert harness.state.absent


async def test_objects_stay_when_access_is_lost(tmp_path: Path) -> None:
    forbidden = error_answer(403, "Forbidden")
    async with running_watch(tmp_path, STARTED, forbidden, stream(), optional=True) as harness:
        await until(lambda: harness.errors)
        assert list(harness.store.items) == ["a"]


@pytest.mark.parametrize("optional", [False, True])
async def test_missing_access_is_reported_and_retried(tmp_path: Path, optional: bool) -> None:
    async with running_watch(
        tmp_path, error_answer(403, "Forbidden", "may not"), STARTED, optional=optional
    ) as harness:
        await until(lambda: harness.errors)
        assert not harness.state.synced
        assert "403 Forbidden: may not" in str(harness.errors[0])
        await harness.has("a")


async def test_a_resource_that_may_be_forbidden_counts_as_listed_until_it_is_allowed(tmp_path: Path) -> None:
    forbidden = error_answer(403, "Forbidden", "may not")
    async with running_watch(tmp_path, forbidden, forbidden, STARTED, may_be_forbidden=True) as harness:
        await until(lambda: harness.state.forbidden)
        assert harness.state.synced
        assert "403 Forbidden: may not" in harness.state.error
        await harness.has("a")
        assert (harness.state.forbidden, harness.state.error, len(harness.errors)) == (False, "", 1)


async def test_watching_resumes_when_the_server_is_back(tmp_path: Path) -> None:
    async with running_watch(tmp_path, STARTED, error_answer(503, "ServiceUnavailable"), error_answer(503)) as harness:
        await until(lambda: len(harness.server.requests) == 4)
        assert [each.status for each in harness.errors] == [503, 503]


def test_delays_grow_and_have_jitter() -> None:
    backoff = ExponentialBackoff(Random(1), initial=1.0, maximum=8.0)
    waits = [backoff.next_delay() for _ in range(6)]
    ceilings = [1, 2, 4, 8, 8, 8]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, ceilings, strict=True))
    assert len(set(waits)) == 6
    backoff.reset()
    assert backoff.next_delay(retry_after=30.0) <= 31.0
    assert backoff.next_delay(retry_after=30.0) > 30.0
