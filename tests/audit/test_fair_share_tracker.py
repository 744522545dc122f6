"""The fair share tracker, and an extender over HTTPS that uses it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.extender.harness import extender_body, scheduler_state
from tests.extender.test_serving import serve_extender
from tests.kube.scripted import Answer, MinimumRandom, error_answer, json_answer, scripted_api
from tests.placement.clusters import gpu_node, running_gpu_pod
from webhook.audit.fair_share_tracker import STALE_SECONDS, FairShareTracker
from webhook.extender.state import SchedulerState
from webhook.kube.api import KubeClient
from webhook.model.pods import Pod, parse_pod
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.policy.fair_share import FairShare

H100 = "NVIDIA-H100-80GB-HBM3"
START = "2026-06-01T00:00:00Z"
NOW = datetime(2026, 6, 2, tzinfo=UTC).timestamp()
EQUAL = FairShare("teams", half_life_hours=24)


class Clock:
    """A clock that moves only when it is set."""

    now = NOW

    def __call__(self) -> float:
        return self.now


def running_pod(namespace: str, count: int, node: str = "used", **labels: str) -> Json:
    """Return a pod that has had GPUs for a day."""
    pod = running_gpu_pod(f"{namespace}-{count}", node, count=count, cpu="56")
    pod["metadata"] |= {"namespace": namespace, "labels": labels}
    return pod | {"status": {"phase": "Running", "startTime": START}}


def page(*pods: Json, more: str = "") -> Answer:
    return json_answer({"metadata": {"resourceVersion": "1", "continue": more}, "items": list(pods)})


def of(namespace: str, **labels: str) -> Pod:
    pod = make_pod().namespace(namespace)
    for key, value in labels.items():
        pod.label(key, value)
    return parse_pod(pod.build())


def cluster() -> SchedulerState:
    """An extender that scores as the stock scheduler, which prefers empty nodes."""
    return scheduler_state(
        gpu_node("empty", 8, H100),
        gpu_node("used", 8, H100),
        running_pod("greedy", 4),
        strategy=ScoringStrategy.DEFAULT,
    )


def sharing(
    api: KubeClient, rule: FairShare = EQUAL, now: Clock | None = None, clock: Clock | None = None
) -> FairShareTracker:
    fleet = cluster().fleet
    return FairShareTracker(api, rule, lambda: fleet, MinimumRandom(), now or Clock(), clock or Clock())


async def test_group_with_more_than_its_share_is_over_it(tmp_path: Path) -> None:
    pages = page(running_pod("greedy", 4), more="next"), page(running_pod("modest", 1), make_pod("plain").build())
    async with scripted_api(tmp_path, *pages) as (server, api):
        shares = await asyncio.to_thread(sharing, api)
        assert not shares.is_over_share(of("greedy"))
        await shares.refresh()

    assert [shares.is_over_share(of(name)) for name in ("greedy", "modest", "unknown")] == [True, False, False]
    assert server.queries() == [{"limit": "500"}, {"limit": "500", "continue": "next"}]
    assert tuple(shares.readiness_check()) == ("fair share", True, "1 of 2 over their share 0 min ago", False)


async def test_shares_by_weight_and_label(tmp_path: Path) -> None:
    rule = FairShare("teams", "queue", 24, (("large", 9), ("small", 1)))
    async with scripted_api(tmp_path, page(running_pod("a", 4, queue="large"), running_pod("b", 1, queue="small"))) as (
        _,
        api,
    ):
        shares = await asyncio.to_thread(sharing, api, rule)
        await shares.refresh()

    assert [shares.is_over_share(of("a", queue=name)) for name in ("large", "small")] == [False, True]


async def test_after_a_failed_refresh_the_result_is_used_until_it_is_stale(tmp_path: Path) -> None:
    clock = Clock()
    async with scripted_api(tmp_path, page(running_pod("greedy", 4), running_pod("modest", 1)), error_answer(403)) as (
        _,
        api,
    ):
        shares = await asyncio.to_thread(sharing, api, EQUAL, Clock(), clock)
        await shares.refresh()
        clock.now = NOW + STALE_SECONDS
        await shares.refresh()

    assert shares.is_over_share(of("greedy"))
    assert not shares.readiness_check().ok
    assert "1 of 2 over their share 60 min ago; " in shares.readiness_check().message
    clock.now += 1
    assert not shares.is_over_share(of("greedy"))


@pytest.mark.parametrize("step", [3601.0, 86400.0, -86400.0], ids=["an hour forward", "a day forward", "a day back"])
async def test_a_result_stays_in_use_for_an_hour_across_a_step_of_the_clock(tmp_path: Path, step: float) -> None:
    now, clock = Clock(), Clock()
    async with scripted_api(tmp_path, page(running_pod("greedy", 4), running_pod("modest", 1))) as (_, api):
        shares = await asyncio.to_thread(sharing, api, EQUAL, now, clock)
        await shares.refresh()
    now.now += step
    assert shares.is_over_share(of("greedy"))
    assert "0 min ago" in shares.readiness_check().message
    clock.now += STALE_SECONDS + 1
    assert not shares.is_over_share(of("greedy"))


async def test_before_the_first_refresh_no_group_is_over_and_errors_are_reported(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, error_answer(403, "Forbidden", "pods is forbidden")) as (_, api):
        shares = await asyncio.to_thread(sharing, api)
        assert tuple(shares.readiness_check()) == ("fair share", True, "not computed yet", False)
        await shares.refresh()

    assert not shares.is_over_share(of("greedy"))
    assert "pods is forbidden" in shares.readiness_check().message


@pytest.mark.parametrize(("namespace", "want"), [("greedy", "used"), ("modest", "empty")], ids=["over", "under"])
async def test_over_https_only_groups_over_their_share_avoid_the_empty_node(
    tmp_path: Path, namespace: str, want: str
) -> None:
    standing = await asyncio.to_thread(cluster)
    pod: PodMaker = make_pod("new").namespace(namespace).gpus(1).requests("cpu", "4")
    async with scripted_api(tmp_path, page(running_pod("greedy", 4), running_pod("modest", 1))) as (_, api):
        shares = FairShareTracker(api, EQUAL, lambda: standing.fleet, MinimumRandom(), Clock())
        standing.is_over_share = shares.is_over_share
        async with serve_extender(standing) as site:
            before = await ranked(site, pod)
            task = asyncio.create_task(shares.run())
            async with asyncio.timeout(30):
                while shares.latest is None:
                    await asyncio.sleep(0.01)
            task.cancel()
            after = await ranked(site, pod)
            _, passed = await site.post("/filter", extender_body(pod, ["empty", "used"]))

    assert (before, after) == ("empty", want)
    assert passed["NodeNames"] == ["empty", "used"]


async def ranked(site: Any, pod: PodMaker) -> str:
    """The node with the highest score."""
    status, answer = await site.post("/prioritize", extender_body(pod, ["empty", "used"]))
    assert status == 200
    return str(max(answer, key=lambda each: each["Score"])["Host"])
