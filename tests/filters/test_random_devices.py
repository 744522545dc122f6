"""Pods get the devices from our allocator that they get from the scheduler's plugin DynamicResources."""

from __future__ import annotations

import json
import os
from collections import Counter
from random import Random

from tests.filters.device_comparison import COMPARED_PLUGINS, find_device_differences, our_allocations
from tests.filters.random_devices import random_devices
from tests.filters.scheduler import SchedulerFilters
from webhook.model.dra.allocator import AllocationOutcome

CLUSTERS = max(300, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 200)
"""5,000 for a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "devices")
BATCH_SIZE = 50
MAX_UNKNOWN = 0.02
"""Share of pods and nodes for which we may not know."""


def test_pods_get_the_devices_that_the_scheduler_gives_them(device_scheduler: SchedulerFilters) -> None:
    outcomes: Counter[str] = Counter()
    for begin in range(0, CLUSTERS, BATCH_SIZE):
        clusters = [random_devices(Random(f"{SEED} {begin + number}")) for number in range(BATCH_SIZE)]
        answers = device_scheduler.answers(clusters, COMPARED_PLUGINS)
        for cluster, answer in zip(clusters, answers, strict=True):
            ours = our_allocations(cluster)
            outcomes.update(each.outcome for nodes in ours.values() for each in nodes.values())
            differences = list(find_device_differences(ours, answer))
            assert not differences, f"{differences[0]}\n{json.dumps([*cluster.objects, *cluster.pods])}"
    assert [each for each in AllocationOutcome if outcomes[each] < CLUSTERS / 20] == []
    assert outcomes[AllocationOutcome.UNKNOWN] < MAX_UNKNOWN * outcomes.total()
