"""Queued findings become Events once, whichever replica writes them, without blocking requests."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from webhook.errors import ApiError
from webhook.model.pods import OwnerReference
from webhook.server.event_writer import EventWriter, build_owner_event
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import OwnerEvent, Telemetry

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
OWNER = OwnerReference(kind="Job", name="train", controller=True, api_version="batch/v1", uid="u-1")
NOTICE = OwnerEvent("team", OWNER, "GPU-S101", "denied a pod: [GPU-S101] must not be so.", 494460)


def test_an_event_is_about_the_owner() -> None:
    event = build_owner_event(NOTICE, "pod-1", NOW)

    assert event["involvedObject"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "namespace": "team",
        "name": "train",
        "uid": "u-1",
    }
    assert (event["reason"], event["message"]) == ("GPU-S101", NOTICE.message)


def test_the_name_is_the_same_on_every_replica_and_differs_each_hour() -> None:
    def name(notice: OwnerEvent) -> str:
        return str(build_owner_event(notice, "any", NOW)["metadata"]["name"])

    assert name(NOTICE) == str(build_owner_event(NOTICE, "pod-2", NOW)["metadata"]["name"])
    assert len({name(NOTICE), name(NOTICE._replace(hour=1)), name(NOTICE._replace(code="GPU-S102"))}) == 3


def test_long_names_and_messages_are_truncated() -> None:
    owner = OwnerReference(kind="Job", name="x" * 253, controller=True)
    event = build_owner_event(NOTICE._replace(owner=owner, message="y" * 5000), "pod-1", NOW)

    assert len(event["metadata"]["name"]) <= 253
    assert len(event["message"]) == 1024


CUT = {
    "a hyphen at the end": "x" * 235 + "-" + "y" * 17,
    "a dot at the end": "x" * 235 + "." + "y" * 17,
    "both": "x" * 234 + ".-" + "y" * 17,
}


@pytest.mark.parametrize("owner", CUT.values(), ids=CUT)
def test_a_truncated_name_is_valid(owner: str) -> None:
    notice = NOTICE._replace(owner=OwnerReference(kind="Job", name=owner, controller=True))
    parts = build_owner_event(notice, "pod-1", NOW)["metadata"]["name"].split(".")
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", part) for part in parts)


OUTCOMES: dict[str, tuple[Exception | None, Mapping[str, int]]] = {
    "written": (None, {"success": 1}),
    "already written by another replica": (ApiError("POST /", 409, "AlreadyExists", "there"), {"success": 1}),
    "not allowed": (ApiError("POST /", 403, "Forbidden", "no"), {"error": 1}),
    "an internal error": (ValueError("odd"), {}),
}


@pytest.mark.parametrize(("error", "counted"), OUTCOMES.values(), ids=OUTCOMES)
async def test_writes_are_counted(error: Exception | None, counted: Mapping[str, int]) -> None:
    class Server:
        async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
            if error is not None:
                raise error
            return dict(body)

    telemetry = Telemetry(make_logger("info", io.StringIO()))
    await EventWriter(Server(), telemetry, "pod-1", lambda: NOW).write(NOTICE)

    assert +telemetry.metrics.events == counted
