"""Kubernetes Events of core/v1."""

from __future__ import annotations

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import ObjectMeta


class EventSource(ApiStruct, frozen=True):
    """Reporter of an event."""

    component: str = ""


class InvolvedObject(ApiStruct, frozen=True):
    """Object of an event."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class EventSeries(ApiStruct, frozen=True):
    """Occurrences, as writers of events.k8s.io count them."""

    count: int = 0
    last_observed_time: str = ""


class CoreEvent(ApiStruct, frozen=True):
    """One Event of core/v1. Old writers set `last_timestamp`, new ones `event_time`.

    New writers leave `count` at 0 and count in `series` from the second occurrence on.
    """

    metadata: ObjectMeta = ObjectMeta()
    involved_object: InvolvedObject = InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    reporting_component: str = ""
    count: int = 1
    series: EventSeries | None = None
    last_timestamp: str = ""
    event_time: str = ""

    @property
    def last_seen(self) -> str:
        """Last occurrence, RFC 3339; "" if unknown."""
        last = self.series.last_observed_time if self.series else ""
        return last or self.last_timestamp or self.event_time

    @property
    def occurrences(self) -> int:
        """Number of occurrences."""
        return max(self.count, self.series.count if self.series else 0, 1)

    @property
    def reporter(self) -> str:
        """Reporting component."""
        return self.source.component or self.reporting_component
