"""Extender states for tests, and the requests that a scheduler sends to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from tests.builders import Json, PodMaker
from webhook.cache.inventory import build_inventory
from webhook.cache.snapshot import collect_snapshot
from webhook.cache.snapshot_objects import RawObject
from webhook.errors import SourceLocation
from webhook.extender.app import Verb
from webhook.extender.state import SchedulerState
from webhook.extender.verbs import handle_filter, handle_preempt, handle_prioritize
from webhook.model.claims import ResourceClaim
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.gpu_node import GPUNode
from webhook.model.objects import Node
from webhook.model.pods import Pod
from webhook.placement.fragmentation.strategies import ScoringStrategy

KINDS: dict[str, tuple[str, Any]] = {
    "Pod": ("pods", Pod),
    "Node": ("nodes", Node),
    "GPUNode": ("gpunodes", GPUNode),
    "ResourceClaim": ("devices.claims", ResourceClaim),
    "ResourceSlice": ("devices.slices", ResourceSlice),
}


def scheduler_state(*objects: Json, strategy: ScoringStrategy = ScoringStrategy.TAB) -> SchedulerState:
    """Return the indexed state of a cluster with these objects."""
    snapshot = collect_snapshot(RawObject(item, lambda _path: SourceLocation("test.yaml", 1, 1)) for item in objects)
    state = SchedulerState(build_inventory(snapshot.objects), strategy)
    asyncio.run(state.rebuild_index())
    return state


def apply_watch_events(state: SchedulerState, *objects: Json, deleted: bool = False) -> None:
    """Add, change or delete these objects, as a watch does."""
    for item in objects:
        name, kind = KINDS[item["kind"]]
        writer = attrgetter(name)(state.inventory)
        (writer.remove if deleted else writer.upsert)(msgspec.convert(item, kind))


def extender_body(pod: PodMaker | Json, names: Iterable[str] | None) -> bytes:
    """Return the request body for a pod, with the pod's name as its uid."""
    data = pod if isinstance(pod, dict) else pod.build()
    data = {**data, "metadata": {"uid": data["metadata"]["name"], **data["metadata"], "creationTimestamp": None}}
    return msgspec.json.encode({"Pod": data, "Nodes": None, "NodeNames": None if names is None else list(names)})


def filter_nodes(state: SchedulerState, pod: PodMaker | Json, *names: str, now: float = 0.0) -> Json:
    """Return the answer of /filter."""
    answer: Json = msgspec.json.decode(handle_filter(state, extender_body(pod, names), now).body)
    return answer


def prioritize(
    state: SchedulerState, pod: PodMaker | Json, *names: str, now: float = 0.0, verb: Verb = handle_prioritize
) -> dict[str, int]:
    """Return the scores of /prioritize by node."""
    answer = msgspec.json.decode(verb(state, extender_body(pod, names), now).body)
    return {each["Host"]: each["Score"] for each in answer}


def preempt(state: SchedulerState, pod: PodMaker | Json, victims: dict[str, list[str]], now: float = 0.0) -> list[str]:
    """Return the nodes that /preempt keeps. `victims` has the uids of the pods to evict by node."""
    named = {name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in victims.items()}
    data = pod if isinstance(pod, dict) else pod.build()
    body = {"Pod": data, "NodeNameToVictims": None, "NodeNameToMetaVictims": named}
    answer = msgspec.json.decode(handle_preempt(state, msgspec.json.encode(body), now).body)
    assert all(answer["NodeNameToMetaVictims"][name] == named[name] for name in answer["NodeNameToMetaVictims"])
    return list(answer["NodeNameToMetaVictims"])
