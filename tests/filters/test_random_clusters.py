"""The nodes on which our filters allow a pod are those on which the scheduler's do, with the same reasons."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

from tests.filters.comparison import COMPARED_PLUGINS, describe_difference, find_differences
from tests.filters.random_clusters import random_cluster
from tests.filters.scheduler import SchedulerFilters

CLUSTERS = max(300, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 200)
"""5,000 for a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "filters")
BATCH_SIZE = 50


def test_our_filters_reject_pods_where_the_schedulers_do(scheduler_filters: SchedulerFilters) -> None:
    rejected: Counter[str] = Counter()
    for begin in range(0, CLUSTERS, BATCH_SIZE):
        clusters = [random_cluster(Random(f"{SEED} {begin + number}")) for number in range(BATCH_SIZE)]
        for cluster, rejections in zip(clusters, scheduler_filters.rejections(clusters), strict=True):
            rejected += Counter(name for nodes in rejections.values() for plugins in nodes.values() for name in plugins)
            differences = list(find_differences(cluster, rejections))
            assert not differences, describe_difference(differences[0], cluster, scheduler_filters)
    assert [name for name in COMPARED_PLUGINS if rejected[name] < CLUSTERS] == []
