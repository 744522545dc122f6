"""Judge every pod of a snapshot as if it were created again now.

Each pod is taken by itself, in the cluster as it stands: its own use is taken out of its quotas, and its GPUs
still count as in use. What all pods would come to together is less where slices are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from webhook.audit.checking import POD, World, check, group_of, request_of
from webhook.audit.manifests import Entry, Passed
from webhook.audit.views import without_use
from webhook.engine.asking import asked_by
from webhook.errors import ReviewError
from webhook.report.results import Checked, skipped

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of pods that hold nothing any more."""


def audit_all(found: Iterable[Entry | Passed], world: World) -> Iterator[Checked]:
    """Judge the pods among what was found; faults in files come out as skipped, other objects do not."""
    for each in found:
        if isinstance(each, Passed):
            if each.broken:
                yield skipped(each.place, each.reason, broken=True)
        elif is_pod(each.data) and _phase(each.data) not in ENDED:
            again = msgspec.structs.replace(each, data=as_created_again(each.data))
            yield check(again, vacated(again, world))


def is_pod(data: dict[str, Any]) -> bool:
    """Is this object a Pod?"""
    return (group_of(data["apiVersion"]), data["kind"]) == POD


def as_created_again(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod without what the cluster gave it: its node, and its status."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return pod
    again = {key: value for key, value in pod.items() if key != "status"}
    return again | {"spec": {key: value for key, value in spec.items() if key != "nodeName"}}


def vacated(entry: Entry, world: World) -> World:
    """The world without the pod's own use of quota."""
    try:
        request = request_of(entry.data, world)
    except ReviewError:
        return world
    assert request.pod is not None
    view = without_use(world.view, request.namespace, asked_by(request.pod).totals)
    return msgspec.structs.replace(world, view=view)


def _phase(pod: dict[str, Any]) -> object:
    status = pod.get("status")
    return status.get("phase") if isinstance(status, dict) else None
