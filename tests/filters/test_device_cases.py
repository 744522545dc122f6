"""Devices that pods get in small clusters, from us and from the scheduler's plugin DynamicResources."""

from __future__ import annotations

import pytest

from tests.filters.device_cases import CASES, NODE, DeviceCase, exactly, partitionable, pool, shareable, using
from tests.filters.device_comparison import COMPARED_PLUGINS, our_allocations
from tests.filters.device_selection import SHARED
from tests.filters.scheduler import SchedulerFilters
from webhook.model.dra.allocator import DERIVED_ATTRIBUTES, SHARED_POOL_NAME, TOO_MANY_STEPS, AllocationOutcome
from webhook.model.dra.pod_devices import CANNOT_FIT

DERIVED = {"name": "derived/numa", "expression": "device.attributes['gpu.nvidia.com'].numaNode"}
NOT_KNOWN: dict[str, DeviceCase] = {
    DERIVED_ATTRIBUTES: DeviceCase(
        [pool({"name": "gpu-0"}, {"name": "gpu-1"})],
        [exactly("any", count=2, derivedAttributes=[DERIVED])],
        "unknown",
        constraints=[{"matchAttribute": "derived/numa"}],
    ),
    SHARED_POOL_NAME: DeviceCase(
        [
            *partitionable(),
            pool(part="c", driver=SHARED, count=2, sharedCounters=partitionable()[0]["spec"]["sharedCounters"]),
            pool(shareable("s0", **using(0)), driver=SHARED, count=2),
        ],
        [exactly("shared")],
        "unknown",
    ),
    TOO_MANY_STEPS: DeviceCase(
        [pool(*[{"name": f"d{i}"} for i in range(30)])], [exactly("any", count=16), exactly("shared", "q")], "unknown"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pod_gets_these_devices(case: DeviceCase) -> None:
    ours = our_allocations(case.cluster())["pod"][NODE]
    if ours.outcome is AllocationOutcome.ALLOCATED:
        assert [[each.device.device for each in claim] for claim in ours.claims] == case.expected, ours
    else:
        assert ours.outcome.value == case.expected, ours


@pytest.mark.parametrize("reason", NOT_KNOWN)
def test_it_is_not_known_which_devices_a_pod_gets(reason: str) -> None:
    ours = our_allocations(NOT_KNOWN[reason].cluster())["pod"][NODE]
    assert (ours.outcome, ours.reason) == (AllocationOutcome.UNKNOWN, reason)


def test_the_scheduler_gives_them_to_it(device_scheduler: SchedulerFilters) -> None:
    found: dict[str, object] = {}
    answers = device_scheduler.answers([case.cluster() for case in CASES.values()], COMPARED_PLUGINS)
    for (sentence, case), answer in zip(CASES.items(), answers, strict=True):
        theirs = answer.allocations["pod"][NODE]
        if theirs.get("error") or theirs.get("rejected"):
            found[sentence] = "failed" if theirs.get("error") else "rejected"
        else:
            found[sentence] = [[each["device"] for each in claim] for claim in theirs["claims"] or []]
        if found[sentence] == case.expected:
            del found[sentence]
    assert found == {}


def test_no_node_serves_the_implicit_name_of_a_class_that_does_not_exist(device_scheduler: SchedulerFilters) -> None:
    limits = {"deviceclass.resource.kubernetes.io/missing": "1"}
    cluster = DeviceCase([pool({"name": "gpu-0"})], [], "rejected", limits=limits).cluster()
    [answer], ours = device_scheduler.answers([cluster], COMPARED_PLUGINS), our_allocations(cluster)["pod"]
    assert {node: found.reason for node, found in ours.items()} == dict.fromkeys(answer.rejections["pod"], CANNOT_FIT)
    assert all("NodeResourcesFit" in plugins for plugins in answer.rejections["pod"].values())
