"""Events: what components of a cluster said about an object, ourselves among them."""

from __future__ import annotations

from webhook.model.pods import Metadata
from webhook.model.read import Read


class EventSource(Read, frozen=True):
    """Who said it."""

    component: str = ""


class InvolvedObject(Read, frozen=True):
    """What it was said about."""

    kind: str = ""
    name: str = ""


class Event(Read, frozen=True):
    """One Event of core/v1. Of its times only some are set: old writers have the last one, new ones `event_time`."""

    metadata: Metadata = Metadata()
    involved_object: InvolvedObject = InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    reporting_component: str = ""
    count: int = 1
    last_timestamp: str = ""
    event_time: str = ""

    @property
    def moment(self) -> str:
        """When it was last said, RFC 3339; "" if unknown."""
        return self.last_timestamp or self.event_time

    @property
    def speaker(self) -> str:
        """Who said it."""
        return self.source.component or self.reporting_component
