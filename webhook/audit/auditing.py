"""Judge every pod of a snapshot as if it were created again now.

Each pod is taken by itself, in the cluster as it stands, the pod's own units counted as in use: what all of
them would come to together is more than this says wherever slices are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from webhook.audit.checking import POD, World, check, group_of
from webhook.audit.manifests import Entry, Passed
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
            yield check(msgspec.structs.replace(each, data=as_created_again(each.data)), world)


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


def _phase(pod: dict[str, Any]) -> object:
    status = pod.get("status")
    return status.get("phase") if isinstance(status, dict) else None
