"""Lines about Events of a pod: newest first, limited."""

from __future__ import annotations

import msgspec

from webhook.model.objects import CoreEvent, EventSource, InvolvedObject
from webhook.report.explain import MAX_EVENTS, event_lines


def core_event(
    reason: str, minute: int = 0, *, by: str = "kubelet", kind: str = "Warning", message: str = "", count: int = 1
) -> CoreEvent:
    about = InvolvedObject("Pod", "p")
    moment = f"2026-06-01T00:{minute:02}:00Z"
    return CoreEvent(
        involved_object=about,
        type=kind,
        reason=reason,
        message=message,
        source=EventSource(by),
        count=count,
        last_timestamp=moment,
    )


def test_the_newest_comes_first_and_normal_events_are_omitted() -> None:
    events = [
        core_event("GPU-R101", 1, by="rightslice", kind="Normal", message="shrunk"),
        core_event("Pulled", 2, kind="Normal"),
        core_event("BackOff", 3, message="it ended\n again\x1b[31m", count=7),
    ]
    assert list(event_lines(events)) == [
        "Events    2026-06-01T00:03:00Z  BackOff on Pod/p (kubelet, 7 times): it ended again\\x1b[31m",
        "          2026-06-01T00:01:00Z  GPU-R101 on Pod/p (rightslice): shrunk",
    ]


def test_only_the_newest_of_many_are_printed() -> None:
    lines = list(event_lines(core_event(f"Failed{i}", i) for i in range(MAX_EVENTS + 2)))
    assert len(lines) == MAX_EVENTS + 1
    assert f"Failed{MAX_EVENTS + 1} " in lines[0]
    assert lines[-1].strip() == "and 2 older Events"


def test_there_are_no_lines_without_events() -> None:
    assert list(event_lines([])) == []


REJECTED = 'Error creating: admission webhook denied the request: Pod "serve-7d4-{}" requests 3 GPUs'


def rejection_event(pod: str, minute: int, *, count: int = 1) -> CoreEvent:
    """Return an Event about a pod that a controller could not create."""
    event = core_event("FailedCreate", minute, by="replicaset-controller", message=REJECTED.format(pod), count=count)
    return msgspec.structs.replace(event, involved_object=InvolvedObject("ReplicaSet", "serve-7d4", "r1"))


def test_equal_events_of_a_controller_share_a_line() -> None:
    events = [rejection_event("aaaaa", 1), rejection_event("ccccc", 3, count=4), rejection_event("bbbbb", 2)]
    other = msgspec.structs.replace(
        rejection_event("ddddd", 4), message='Error creating: pods "serve-7d4-ddddd" is forbidden'
    )
    first, second = event_lines([*events, other])
    assert 'pods "serve-7d4-ddddd" is forbidden' in first
    assert "T00:03:00Z  FailedCreate on ReplicaSet/serve-7d4 (replicaset-controller, 6 times)" in second
    assert "serve-7d4-ccccc" in second


def test_events_of_an_earlier_pod_of_the_name_are_omitted() -> None:
    known = {("Pod", "p"): {"new", "digest-of-a-file"}}
    about = {"earlier": "old", "now": "new", "static": "digest-of-a-file", "unknown": ""}
    events = [
        msgspec.structs.replace(core_event(reason), involved_object=InvolvedObject("Pod", "p", uid))
        for reason, uid in about.items()
    ]
    lines = " ".join(event_lines(events, known))
    assert [reason for reason in about if f" {reason} on Pod/p" in lines] == ["now", "static", "unknown"]


def test_a_series_has_its_count_and_last_time() -> None:
    """As written through events.k8s.io and read through core/v1."""
    series = {"count": 12, "lastObservedTime": "2026-06-01T00:09:00.000000Z"}
    written = {
        "involvedObject": {"kind": "Pod", "name": "p"},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/3 nodes are available",
        "reportingComponent": "default-scheduler",
        "eventTime": "2026-06-01T00:01:00.000000Z",
    }
    event = msgspec.convert({**written, "count": 0, "series": series}, CoreEvent)
    [line] = event_lines([event])
    assert "2026-06-01T00:09:00.000000Z  FailedScheduling on Pod/p (default-scheduler, 12 times)" in line
    [once] = event_lines([msgspec.convert(written, CoreEvent)])
    assert "2026-06-01T00:01:00.000000Z  FailedScheduling on Pod/p (default-scheduler): " in once
