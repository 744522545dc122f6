"""What Events say about a pod and who made it: our own words, and warnings of others. Newest first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from webhook.model.events import CoreEvent
from webhook.report.words import pluralize, sanitize

EVENT_SOURCE = "rightslice"
MAX_EVENTS = 10
MAX_EVENT_TEXT = 400

KnownUids = Mapping[tuple[str, str], Set[str]]
"""Of objects by kind and name, the uids that they go by."""

NO_UIDS: KnownUids = MappingProxyType({})


def event_lines(events: Iterable[CoreEvent], known: KnownUids = NO_UIDS) -> Iterator[str]:
    """One line an Event; one for all that a controller said alike of several of its pods.

    Args:
        events: About the pod, and about its controller.
        known: Their uids: what was said about an earlier object of the same name is left out.

    Yields:
        Lines without their ends; none where nobody said anything.
    """
    groups: defaultdict[tuple[str, ...], list[CoreEvent]] = defaultdict(list)
    told = (each for each in events if _is_relevant_event(each) and not _is_about_another_object(each, known))
    for each in sorted(told, key=lambda each: each.last_seen, reverse=True):
        groups[_event_group_key(each)].append(each)
    lines = list(map(_event_group_line, groups.values()))
    for i, line in enumerate(lines[:MAX_EVENTS]):
        yield f"{'' if i else 'Events':<10}{line}"
    if len(lines) > MAX_EVENTS:
        yield f"{'':<10}and {pluralize(len(lines) - MAX_EVENTS, 'older Event')}"


def _is_relevant_event(event: CoreEvent) -> bool:
    return event.reporter.startswith(EVENT_SOURCE) or event.type == "Warning"


def _is_about_another_object(event: CoreEvent, known: KnownUids) -> bool:
    about = event.involved_object
    uids = known.get((about.kind, about.name), ())
    return bool(about.uid and uids and about.uid not in uids)


def _event_group_key(event: CoreEvent) -> tuple[str, ...]:
    """The same for what is said about several objects that bear the name of the one which made them."""
    about = event.involved_object
    made = re.compile(rf"(?<![\w.-]){re.escape(about.name)}-[a-z0-9-]+(?![\w.-])", re.ASCII)
    message = made.sub("*", event.message) if about.kind != "Pod" else event.message
    return about.kind, about.name, event.reporter, event.reason, message


def _event_group_line(alike: list[CoreEvent]) -> str:
    """The newest of them, and how often it was said in all."""
    event, number = alike[0], sum(each.occurrences for each in alike)
    about = f"{event.involved_object.kind}/{event.involved_object.name}"
    times = f", {number} times" if number > 1 else ""
    words = " ".join(event.message.split())[:MAX_EVENT_TEXT]
    return sanitize(f"{event.last_seen or 'at some time'}  {event.reason} on {about} ({event.reporter}{times}): {words}")
