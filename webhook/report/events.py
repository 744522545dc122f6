"""What Events say about a pod and who made it: our own words, and warnings of others. Newest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from webhook.model.events import Event
from webhook.report.words import count, shown

OURS = "rightslice"
MOST = 10
MOST_TEXT = 400


def event_lines(events: Iterable[Event]) -> Iterator[str]:
    """One line an Event.

    Args:
        events: About the pod, and about its controller.

    Yields:
        Lines without their ends; none where nobody said anything.
    """
    told = sorted((each for each in events if _matters(each)), key=lambda each: each.moment, reverse=True)
    for i, each in enumerate(told[:MOST]):
        yield f"{'' if i else 'Events':<10}{_line(each)}"
    if len(told) > MOST:
        yield f"{'':<10}and {count(len(told) - MOST, 'older Event')}"


def _matters(event: Event) -> bool:
    return event.speaker.startswith(OURS) or event.type == "Warning"


def _line(event: Event) -> str:
    about = f"{event.involved_object.kind}/{event.involved_object.name}"
    times = f", {event.count} times" if event.count > 1 else ""
    words = " ".join(event.message.split())[:MOST_TEXT]
    return shown(f"{event.moment or 'at some time'}  {event.reason} on {about} ({event.speaker}{times}): {words}")
