"""Writes queued findings as Events on the owners of pods, outside the admission path; failed writes are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

from webhook.errors import ApiError
from webhook.server.admission_state import Clock
from webhook.telemetry.telemetry import OwnerEvent, Telemetry
from webhook.well_known import APP_NAME, GROUP

FLUSH_SECONDS = 1.0
WRITE_INTERVAL_SECONDS = 0.1
"""At most ten writes per second."""

MAX_EVENT_MESSAGE = 1024
"""The API's limit."""

MAX_EVENT_NAME = 253
CONFLICT = 409


class EventApi(Protocol):
    """The method of `webhook.kube.api.KubeClient` that is used."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""


@dataclass(slots=True)
class EventWriter:
    """Writes the queued Events of one replica; `instance` is its name."""

    api: EventApi
    telemetry: Telemetry
    instance: str
    clock: Clock

    async def run(self) -> None:
        """Write until cancelled."""
        self.telemetry.owner_events.enabled = True
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            while self.telemetry.owner_events.pending:
                await self.write(self.telemetry.owner_events.pending.popleft())
                await asyncio.sleep(WRITE_INTERVAL_SECONDS)

    async def write(self, event: OwnerEvent) -> None:
        """Write one Event; it counts as success if another replica has written it."""
        path = f"/api/v1/namespaces/{event.namespace}/events"
        try:
            await self.api.create(path, build_owner_event(event, self.instance, self.clock()))
        except ApiError as error:
            self.telemetry.count_event("success" if error.status == CONFLICT else "error")
        except Exception as error:
            self.telemetry.record_internal_error("events", error)
        else:
            self.telemetry.count_event("success")


def build_owner_event(event: OwnerEvent, instance: str, now: datetime) -> dict[str, Any]:
    """Return the Event. Its name is the same on every replica, so that it is created once."""
    owner = event.owner
    identity = "/".join((owner.kind, owner.name, event.code, str(event.hour)))
    suffix = f".{sha256(identity.encode()).hexdigest()[:16]}"
    prefix = owner.name[: MAX_EVENT_NAME - len(suffix)].rstrip("-.")  # a label of a DNS name must not end with these
    involved = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "namespace": event.namespace,
        "name": owner.name,
        "uid": owner.uid,
    }
    reporting = {"reportingComponent": f"{GROUP}/webhook", "reportingInstance": instance}
    metadata = {"namespace": event.namespace, "name": prefix + suffix}
    return build_event(metadata, involved, event.code, event.message, now) | reporting


def build_event(
    metadata: Mapping[str, str], involved: Mapping[str, str], reason: str, message: str, now: datetime
) -> dict[str, Any]:
    """Return a Warning Event about an object."""
    timestamp = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": involved,
        "type": "Warning",
        "reason": reason,
        "message": message[:MAX_EVENT_MESSAGE],
        "source": {"component": APP_NAME},
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }
