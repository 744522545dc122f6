"""What Events say about a pod and who made it: our own words, and warnings of others. Newest first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from webhook.model.events import Event
from webhook.report.words import count, shown

OURS = "rightslice"
MOST = 10
MOST_TEXT = 400

Known = Mapping[tuple[str, str], Set[str]]
"""Of objects by kind and name, the uids that they go by."""

NOBODY: Known = MappingProxyType({})


def event_lines(events: Iterable[Event], known: Known = NOBODY) -> Iterator[str]:
    """One line an Event; one for all that a controller said alike of several of its pods.

    Args:
        events: About the pod, and about its controller.
        known: Their uids: what was said about an earlier object of the same name is left out.

    Yields:
        Lines without their ends; none where nobody said anything.
    """
    groups: defaultdict[tuple[str, ...], list[Event]] = defaultdict(list)
    told = (each for each in events if _matters(each) and not _of_another(each, known))
    for each in sorted(told, key=lambda each: each.moment, reverse=True):
        groups[_alike(each)].append(each)
    lines = list(map(_line, groups.values()))
    for i, line in enumerate(lines[:MOST]):
        yield f"{'' if i else 'Events':<10}{line}"
    if len(lines) > MOST:
        yield f"{'':<10}and {count(len(lines) - MOST, 'older Event')}"


def _matters(event: Event) -> bool:
    return event.speaker.startswith(OURS) or event.type == "Warning"


def _of_another(event: Event, known: Known) -> bool:
    about = event.involved_object
    uids = known.get((about.kind, about.name), ())
    return bool(about.uid and uids and about.uid not in uids)


def _alike(event: Event) -> tuple[str, ...]:
    """The same for what is said about several objects that bear the name of the one which made them."""
    about = event.involved_object
    made = re.compile(rf"(?<![\w.-]){re.escape(about.name)}-[a-z0-9-]+(?![\w.-])", re.ASCII)
    message = made.sub("*", event.message) if about.kind != "Pod" else event.message
    return about.kind, about.name, event.speaker, event.reason, message


def _line(alike: list[Event]) -> str:
    """The newest of them, and how often it was said in all."""
    event, number = alike[0], sum(each.times for each in alike)
    about = f"{event.involved_object.kind}/{event.involved_object.name}"
    times = f", {number} times" if number > 1 else ""
    words = " ".join(event.message.split())[:MOST_TEXT]
    return shown(f"{event.moment or 'at some time'}  {event.reason} on {about} ({event.speaker}{times}): {words}")
