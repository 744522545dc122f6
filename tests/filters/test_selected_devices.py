"""The scheduler allocates the devices that our evaluation of generated and collected selectors selects."""

from __future__ import annotations

import json
import os
from collections import Counter
from random import Random

from tests.controlplane.selector_texts import valid_selectors
from tests.controlplane.test_selectors import COLLECTED
from tests.filters.device_comparison import find_device_differences, our_allocations
from tests.filters.scheduler import SchedulerFilters
from tests.filters.selected_devices import selector_of, world_of_selectors
from webhook.model.dra.allocator import AllocationOutcome

SELECTORS = max(2000, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 20)
"""Generated selectors that compile; 50,000 for a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "allocated selectors")
BATCH_SIZE = 100


def test_the_scheduler_allocates_what_selectors_select(device_scheduler: SchedulerFilters) -> None:
    random, outcomes = Random(SEED), Counter[AllocationOutcome]()
    texts = [*COLLECTED, *valid_selectors(random, SELECTORS)]
    worlds = [world_of_selectors(random, texts[at : at + BATCH_SIZE]) for at in range(0, len(texts), BATCH_SIZE)]
    for world, answer in zip(worlds, device_scheduler.answers(worlds, ["DynamicResources"]), strict=True):
        ours = our_allocations(world)
        outcomes.update(each.outcome for nodes in ours.values() for each in nodes.values())
        differences = [(selector_of(world, each.pod), each) for each in find_device_differences(ours, answer)]
        assert not differences, f"seed {SEED}: {differences[:3]}\n{json.dumps(world.of_kind('ResourceSlice'))}"
    assert outcomes[AllocationOutcome.UNKNOWN] * 50 <= outcomes.total(), outcomes
    for outcome in (AllocationOutcome.ALLOCATED, AllocationOutcome.REJECTED, AllocationOutcome.FAILED):
        assert outcomes[outcome] * 20 >= outcomes.total(), outcomes
