"""events: what was said about a pod, by whom, newest first, and never too much of it."""

from __future__ import annotations

from webhook.model.events import Event, EventSource, InvolvedObject
from webhook.report.events import MOST, event_lines


def said(
    reason: str, minute: int = 0, *, by: str = "kubelet", kind: str = "Warning", message: str = "", count: int = 1
) -> Event:
    about = InvolvedObject("Pod", "p")
    moment = f"2026-06-01T00:{minute:02}:00Z"
    return Event(
        involved_object=about,
        type=kind,
        reason=reason,
        message=message,
        source=EventSource(by),
        count=count,
        last_timestamp=moment,
    )


def test_the_newest_comes_first_and_what_is_all_right_is_left_out() -> None:
    events = [
        said("GPU-R101", 1, by="rightslice", kind="Normal", message="shrunk"),
        said("Pulled", 2, kind="Normal"),
        said("BackOff", 3, message="it ended\n again\x1b[31m", count=7),
    ]
    assert list(event_lines(events)) == [
        "Events    2026-06-01T00:03:00Z  BackOff on Pod/p (kubelet, 7 times): it ended again\\x1b[31m",
        "          2026-06-01T00:01:00Z  GPU-R101 on Pod/p (rightslice): shrunk",
    ]


def test_of_many_the_newest_are_told() -> None:
    lines = list(event_lines(said(f"Failed{i}", i) for i in range(MOST + 2)))
    assert len(lines) == MOST + 1
    assert f"Failed{MOST + 1} " in lines[0]
    assert lines[-1].strip() == "and 2 older Events"


def test_where_nothing_was_said_there_is_nothing_to_tell() -> None:
    assert list(event_lines([])) == []
