"""In random worlds, pods get the devices that the scheduler gives them, quotas reject what we predict, and
right-sizing keeps no pod from binding.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

import pytest

from tests.builders import Json
from tests.filters.device_comparison import COMPARED_PLUGINS, find_device_differences, our_allocations
from tests.filters.quota_admission import QuotaAdmission
from tests.filters.quota_comparison import created_alone, find_quota_differences
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_worlds import SEED, WORLDS, claims_of, random_worlds
from tests.filters.right_sizing import PodBindings, bindings_by_pod, changed_claims, is_slow, right_sized
from tests.filters.scheduler import WHOLE_SCHEDULER, SchedulerAnswer, SchedulerFilters
from webhook.model.dra.allocator import AllocationOutcome

BATCH_SIZE = 50
BATCHES = range(0, WORLDS, BATCH_SIZE)
BATCHES_IN_MEMORY = 6
MAX_UNKNOWN = 0.02
"""Share of pods and nodes for which we may not know."""

PLUGINS = (WHOLE_SCHEDULER, *COMPARED_PLUGINS)
LOG = logging.getLogger(__name__)

AnsweredWorlds = list[tuple[RandomCluster, SchedulerAnswer]]


@pytest.fixture(scope="module")
def answered_worlds(device_scheduler: SchedulerFilters) -> Callable[[int], AnsweredWorlds]:
    """The worlds of a batch with the scheduler's answers; all tests have the same ones."""

    @lru_cache(maxsize=BATCHES_IN_MEMORY)
    def answered(begin: int) -> AnsweredWorlds:
        worlds = random_worlds(SEED, begin, BATCH_SIZE)
        return list(zip(worlds, device_scheduler.answers(worlds, PLUGINS), strict=True))

    return answered


def test_pods_get_the_devices_that_the_scheduler_gives_them(answered_worlds: Callable[[int], AnsweredWorlds]) -> None:
    outcomes: Counter[str] = Counter()
    for cluster, answer in (each for begin in BATCHES for each in answered_worlds(begin)):
        ours = our_allocations(cluster)
        outcomes.update(each.outcome for nodes in ours.values() for each in nodes.values())
        differences = list(find_device_differences(ours, answer))
        assert not differences, f"{differences[0]}\n{_dump(cluster)}"
    assert [each for each in AllocationOutcome if outcomes[each] < WORLDS / 20] == []
    assert outcomes[AllocationOutcome.UNKNOWN] < MAX_UNKNOWN * outcomes.total()


def test_quotas_reject_the_claims_and_pods_that_they_are_predicted_to_reject(quota_admission: QuotaAdmission) -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    for begin in BATCHES:
        created = [created_alone(each) for each in random_worlds(SEED, begin, BATCH_SIZE)]
        for one, answers in zip(created, quota_admission.answers(created), strict=True):
            counts.update((name.split()[0], answer.admits_all) for name, answer in answers.items())
            differences = list(find_quota_differences(one, answers))
            assert not differences, f"{differences[0]}\n{_dump(one.cluster)}"
    kinds = [(kind, admitted) for kind in ("ResourceClaim", "Pod") for admitted in (True, False)]
    assert min(counts[each] for each in kinds) > WORLDS / 4, counts


def test_every_pod_that_binds_without_right_sizing_binds_with_it(
    answered_worlds: Callable[[int], AnsweredWorlds],
    device_scheduler: SchedulerFilters,
    quota_admission: QuotaAdmission,
) -> None:
    """Each pod is alone in its world, with its claims: it binds if quotas admit it and a node passes all filters."""
    bound = Counter[str]()
    for begin in BATCHES:
        submitted = answered_worlds(begin)
        changed = [right_sized(world) for world, _ in submitted]
        answers = device_scheduler.answers(changed, (WHOLE_SCHEDULER, "DynamicResources"))
        sized = list(zip(changed, answers, strict=True))
        bindings, bindings_now = (bindings_by_pod(each, quota_admission) for each in (submitted, sized))
        for (before, _), (after, answer), binds, binds_now in zip(
            submitted, sized, bindings, bindings_now, strict=True
        ):
            bound += _count_effects(before, after, binds, binds_now)
            for pod in after.pods:
                name = pod["metadata"]["name"]
                is_harmed = binds[name].bound and not binds_now[name].bound and not is_slow(answer, name)
                assert not is_harmed, f"{name}\n{_dump(before)}\n{json.dumps(pod)}"
    LOG.info("%s", dict(bound))
    assert min(bound[each] for each in ("pods", "claims", "affinities", "tolerations")) > WORLDS / 20, bound


def _count_effects(
    before: RandomCluster,
    after: RandomCluster,
    binds: Mapping[str, PodBindings],
    binds_now: Mapping[str, PodBindings],
) -> Counter[str]:
    """Count pods that bind as submitted and were changed, and those that only injected tolerations let bind."""
    counts = Counter(bound=sum(bool(each.bound) for each in binds.values()))
    claims = changed_claims(before.objects, after.objects)
    submitted = {pod["metadata"]["name"]: pod for pod in before.pods}
    for pod in after.pods:
        name, spec = pod["metadata"]["name"], pod["spec"]
        if binds[name].bound:
            counts["pods"] += spec["containers"] != submitted[name]["spec"]["containers"]
            counts["claims"] += not claims.isdisjoint(claims_of(pod))
            counts["affinities"] += "affinity" in spec
        elif binds_now[name].bound:
            counts["tolerations"] += "tolerations" in spec
    return counts


def _dump(cluster: RandomCluster) -> str:
    objects: list[Json] = [*cluster.objects, *cluster.pods]
    return json.dumps(objects)
