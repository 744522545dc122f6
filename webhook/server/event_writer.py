"""Notices to the owners of pods, written as Events. Never on the way of a review: what cannot be written is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

from webhook.errors import ApiError
from webhook.server.admission_state import Clock
from webhook.telemetry.owner_events import OwnerEvent
from webhook.telemetry.telemetry import Telemetry
from webhook.well_known import APP_NAME, GROUP

FLUSH_SECONDS = 1.0
WRITE_INTERVAL_SECONDS = 0.1
"""Between two writes: ten a second at most."""

MAX_EVENT_MESSAGE = 1024
"""The API takes no longer one."""

MAX_EVENT_NAME = 253
CONFLICT = 409


class EventApi(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""


@dataclass(slots=True)
class EventWriter:
    """Writes what waits. `instance` is this replica's name."""

    api: EventApi
    telemetry: Telemetry
    instance: str
    clock: Clock

    async def run(self) -> None:
        """Go on until cancelled."""
        self.telemetry.owner_events.enabled = True
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            while self.telemetry.owner_events.pending:
                await self.write(self.telemetry.owner_events.pending.popleft())
                await asyncio.sleep(WRITE_INTERVAL_SECONDS)

    async def write(self, notice: OwnerEvent) -> None:
        """Write one. That another replica has written the same is as good."""
        path = f"/api/v1/namespaces/{notice.namespace}/events"
        try:
            await self.api.create(path, build_owner_event(notice, self.instance, self.clock()))
        except ApiError as error:
            self.telemetry.count_event("written" if error.status == CONFLICT else "failed")
        except Exception as error:
            self.telemetry.record_crash("events", "", error)
        else:
            self.telemetry.count_event("written")


def build_owner_event(notice: OwnerEvent, instance: str, now: datetime) -> dict[str, Any]:
    """The Event. Its name is the same on every replica, so that an owner hears it once."""
    owner, moment = notice.owner, f"{now:%Y-%m-%dT%H:%M:%SZ}"
    told = "/".join((owner.kind, owner.name, notice.code, str(notice.hour)))
    suffix = f".{sha256(told.encode()).hexdigest()[:16]}"
    start = owner.name[: MAX_EVENT_NAME - len(suffix)].rstrip("-.")  # a part of a DNS name ends in no other
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": notice.namespace, "name": start + suffix},
        "involvedObject": {
            "apiVersion": owner.api_version,
            "kind": owner.kind,
            "namespace": notice.namespace,
            "name": owner.name,
            "uid": owner.uid,
        },
        "type": "Warning",
        "reason": notice.code,
        "message": notice.message[:MAX_EVENT_MESSAGE],
        "source": {"component": APP_NAME},
        "reportingComponent": f"{GROUP}/webhook",
        "reportingInstance": instance,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
