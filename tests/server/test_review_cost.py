"""The CPU time of a review by the policies that may match one pod, in `policy lint` and in a server."""

from __future__ import annotations

import asyncio
import gc
import io
import json

import pytest

from tests.example_cluster import policies_of, policy
from tests.server.site import NOW, make_state
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.informers import empty_view
from webhook.engine.largest_pod import largest_pod_request
from webhook.engine.object_limits import count_values
from webhook.policy.busiest_match import busiest_policies
from webhook.policy.policy_set import PolicySet
from webhook.server.review_cost import MAX_NAMED, ReviewCostCheck, measure_review_cost
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.limits import CpuLimit

LIMITS = "limits: {perPod: [{resource: nvidia.com/gpu, max: 8}]}"
MATCHES: dict[str, tuple[tuple[str, ...], int]] = {
    "every namespace": (("{}", "{}", "{}"), 3),
    "a namespace each": (("{namespaces: [a]}", "{namespaces: [b]}", "{namespaces: [c]}"), 1),
    "two of one namespace, one of another": (("{namespaces: [a]}", "{namespaces: [b]}", "{namespaces: [a]}"), 2),
    "a namespace each, and all": (("{namespaces: [a]}", "{namespaces: [b]}", "{}"), 2),
    "globs with a name in common": (('{namespaces: ["team-*"]}', '{namespaces: ["*-dev"]}'), 2),
    "labels that no namespace has together": (
        ("{namespaceSelector: {matchLabels: {t: a}}}", "{namespaceSelector: {matchLabels: {t: b}}}"),
        1,
    ),
    "labels that a namespace may have together": (
        ("{namespaceSelector: {matchLabels: {t: a}}}", "{namespaceSelector: {matchLabels: {u: b}}}"),
        2,
    ),
    "labels that no pod has together": (
        ("{objectSelector: {matchLabels: {t: a}}}", "{objectSelector: {matchLabels: {t: b}}}"),
        1,
    ),
    "no policy": ((), 0),
}


@pytest.mark.parametrize(("matches", "want"), MATCHES.values(), ids=MATCHES)
def test_how_many_policies_may_match_one_pod(matches: tuple[str, ...], want: int) -> None:
    texts = [policy(f"match: {match}\n{LIMITS}", f"p{index}") for index, match in enumerate(matches)]
    assert len(busiest_policies(policies_of(*texts)).policies) == want


def many_policies(count: int) -> str:
    """Return policies that match every pod, and are slow together."""
    return "---\n".join(policy("mode: enforce\nsecurity: {deny: [privileged]}", f"p{n}") for n in range(count))


SLOW = 800
SLOW_POLICIES = policies_of(many_policies(SLOW))


def test_many_policies_for_one_pod_are_slow() -> None:
    cost = measure_review_cost(SLOW_POLICIES, empty_view(), NOW)

    assert cost.is_slow
    assert cost.policies == SLOW
    assert len(cost.costliest) == MAX_NAMED
    assert all(seconds < cost.seconds for _, seconds in cost.costliest)


def test_the_costliest_policy_is_named_first() -> None:
    loop = "object.spec.containers.all(c, c.env.all(e, e.name.matches('^[A-Z_0-9]+$') && e.name != c.name))"
    condition = f'match: {{matchConditions: [{{name: loop, expression: "{loop}"}}]}}\n{LIMITS}'
    loops = policies_of(policy(condition, "loops"))
    together = PolicySet([*SLOW_POLICIES.policies, *loops.policies], sources=(*SLOW_POLICIES.sources, *loops.sources))
    cost = measure_review_cost(together, empty_view(), NOW)

    assert cost.costliest[0][0] == "loops"


def test_the_shipped_policies_are_not_slow() -> None:
    texts = [each.read_text(encoding="utf-8") for each in bundled_folder("policies").glob("*.yaml")]
    assert not measure_review_cost(policies_of(*texts), empty_view(), NOW).is_slow


def test_the_largest_pod_has_the_values_of_real_ones() -> None:
    assert 1_800 <= count_values(json.dumps(largest_pod_request().load_object()).encode()) <= 2_200


def test_a_server_reports_slow_policies_once_for_each_load() -> None:
    log, state = io.StringIO(), make_state()
    telemetry = Telemetry(make_logger("info", log))
    check = ReviewCostCheck(state, telemetry, lambda: NOW, CpuLimit())

    async def measure() -> None:
        for policies in (PolicySet(), SLOW_POLICIES, SLOW_POLICIES, PolicySet()):
            state.activate_policies(policies)
            await check.measure_if_changed()

    gc.disable()  # the heap of thousands of tests is no server's: collecting it would be reported
    try:
        asyncio.run(measure())
    finally:
        gc.enable()
    [line] = [json.loads(each) for each in log.getvalue().splitlines()]
    assert (line["level"], line["policiesForOnePod"], line["limitMilliseconds"]) == ("warning", SLOW, 45)
    assert line["cpuMilliseconds"] > line["limitMilliseconds"] / 2
    assert 0 < telemetry.metrics.review_cpu_seconds < line["cpuMilliseconds"] / 1000
