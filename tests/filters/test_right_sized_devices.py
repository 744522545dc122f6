"""Pods that are created one after the other compete: right-sizing may cost one of them devices, but only to others.

The worlds are the first of those in which each pod is alone (`test_random_devices.py`).
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence

from tests.builders import Json
from tests.filters.quota_admission import QuotaAdmission, QuotaAnswer
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_worlds import SEED, claims_of, is_new_claim, random_worlds
from tests.filters.right_sizing import Binding, admitted, bindings_by_pod, is_slow, sizing_policies, view_of_objects
from tests.filters.scheduler import CONFIGURATION, WHOLE_SCHEDULER, SchedulerFilters

WORLDS = max(12, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 2000)
"""Worlds in which pods are created one after the other; 500 for a million."""

LOG = logging.getLogger(__name__)
PATIENT = {"profiles": [{"pluginConfig": [{"name": "DynamicResources", "args": {"filterTimeout": "3s"}}]}]}
"""Searches for devices may take long: what binds decides about the pods after it."""


def test_a_pod_that_right_sizing_keeps_pending_would_not_bind_as_submitted_either(
    device_scheduler: SchedulerFilters, quota_admission: QuotaAdmission
) -> None:
    """At each step, in the world that right-sizing has left: what binds as submitted binds as it is changed.

    So a pod is lost only to pods before it. Over all worlds more pods are gained than lost.
    """
    untouched, sized = ([_GrowingWorld(each) for each in random_worlds(SEED, 0, WORLDS)] for _ in range(2))
    counts = Counter[str]()
    for place in range(len(untouched[0].pods)):
        worlds = [
            *(each.with_pod(each.pods[place], each.claims) for each in (*untouched, *sized)),
            *(each.with_pod(*each.right_sized(place)) for each in sized),
        ]
        answers = list(device_scheduler.answers(worlds, (WHOLE_SCHEDULER, "DynamicResources")))
        found = bindings_by_pod(list(zip(worlds, answers, strict=True)), quota_admission)
        name = untouched[0].pods[place]["metadata"]["name"]
        for number in range(WORLDS):
            before, as_submitted, after = (each[name] for each in found[number::WORLDS])
            is_known = not any(is_slow(each, name) for each in answers[number::WORLDS])
            is_harmed = as_submitted.bound and not after.bound and is_known
            assert not is_harmed, f"world {number}: {json.dumps(worlds[2 * WORLDS + number].pods)}"
            is_lost, is_gained = before.bound and not after.bound, after.bound and not before.bound
            counts.update(untouched=bool(before.bound), sized=bool(after.bound))
            counts.update(lost=bool(is_lost), gained=bool(is_gained), over_quota=not after.pending.admits_all)
            untouched[number].create(worlds[number], before.pending, before.bound[:1])
            sized[number].create(worlds[2 * WORLDS + number], after.pending, after.bound[:1])
    LOG.info("%s", dict(counts))
    assert counts["gained"] > counts["lost"], counts
    assert counts["over_quota"] > 0, counts


class _GrowingWorld:
    """A world in which pods are created one after the other.

    Attributes:
        pods: The pods as they are submitted.
        claims: Their claims by name.
    """

    def __init__(self, world: RandomCluster) -> None:
        self.pods = world.pods
        self.claims = {each["metadata"]["name"]: each for each in world.objects if is_new_claim(each)}
        objects = [each for each in world.objects if not is_new_claim(each)]
        self._stored = [each | PATIENT if each["kind"] == CONFIGURATION else each for each in objects]
        self._waiting: list[Json] = []

    def right_sized(self, place: int) -> tuple[Json, Mapping[str, Json]]:
        """Return a pod and its claims as right-sizing leaves them."""
        pod, policies = self.pods[place], sizing_policies(with_affinity=False)
        stored = [*self._stored, *self._waiting]
        own = [name for name in claims_of(pod) if name in self.claims]
        claims = {name: admitted(self.claims[name], policies, view_of_objects(stored)) for name in own}
        return admitted(pod, policies, view_of_objects([*stored, *claims.values()])), claims

    def with_pod(self, pod: Json, claims: Mapping[str, Json]) -> RandomCluster:
        """Return the world in which the scheduler looks for a node for a pod."""
        return RandomCluster([*self._stored, *(claims[each] for each in claims_of(pod) if each in claims)], [pod])

    def create(self, world: RandomCluster, pending: QuotaAnswer, bound: Sequence[tuple[Binding, QuotaAnswer]]) -> None:
        """Store the pod and its claims, on a node with devices or waiting; nothing if quotas reject it."""
        if not pending.admits_all:
            return
        (pod,), claims = world.pods, world.of_kind("ResourceClaim")
        charged = bound[0][1].used if bound else pending.used
        new = [each for each in claims if is_new_claim(each)]
        self._waiting += [] if bound else [pod, *new]
        self._stored = [_charged(each, charged) for each in self._stored]
        for binding, _ in bound:
            self._stored += [pod | {"spec": pod["spec"] | {"nodeName": binding.node}}, *binding.allocated_claims()]


def _charged(data: Json, used: Mapping[str, Mapping[str, str]]) -> Json:
    """Return a quota with what it has counted; any other object as it is."""
    is_quota = data["kind"] == "ResourceQuota"
    return data | {"status": data["status"] | {"used": used[data["metadata"]["name"]]}} if is_quota else data
