"""A glance is no guess: whatever it lets pass, the exact way lets pass too."""

from __future__ import annotations

from random import Random

import msgspec

from tests.cluster.worlds import limit_range, placed, pod, quota, usage
from tests.make import Json
from webhook.engine.limitrange import is_surely_admitted, predict_admission
from webhook.engine.quota.admission import predict_quota_refusals
from webhook.errors import QuantityError
from webhook.model.defaulting import default_limit_range
from webhook.model.limit_ranges import NamespaceLimitRanges, parse_limit_range
from webhook.model.objects import LimitRange, ResourceQuota
from webhook.model.pod_amounts import container_amounts
from webhook.model.pods import Pod, parse_pod
from webhook.model.remaining_quota import compute_remaining_quota

WORLDS, PODS = 150, 20


def ranges_of(random: Random) -> NamespaceLimitRanges:
    """A few LimitRanges as stored; amounts that no API server takes are left out of them."""
    made = [msgspec.convert(limit_range(random, f"lr-{n}"), LimitRange) for n in range(random.choice((0, 1, 2)))]
    return NamespaceLimitRanges(parse_limit_range(default_limit_range(each)) for each in made)


def counted(random: Random, data: Json) -> ResourceQuota:
    """A quota that has been counted."""
    hard = data["spec"]["hard"]
    return msgspec.convert(data | {"status": {"hard": hard, "used": usage(random, hard)}}, ResourceQuota)


def exactly(data: Pod, ranges: NamespaceLimitRanges, quotas: list[ResourceQuota]) -> bool:
    """Does it pass, the exact way?"""
    try:
        found = predict_admission(data, ranges)
    except QuantityError:
        return False
    return found.is_accepted and not predict_quota_refusals(data, found.amounts, quotas)


def test_what_passes_at_a_glance_passes() -> None:
    random = Random("glance")
    seen = exact = 0
    for _ in range(WORLDS):
        ranges = ranges_of(random)
        quotas = [counted(random, quota(random, f"q-{n}")) for n in range(random.choice((0, 0, 1, 2)))]
        for number in range(PODS):
            data = parse_pod(placed(random, pod(random, f"p-{number}")))
            at_a_glance = is_surely_admitted(
                data, container_amounts(data.spec), ranges, [compute_remaining_quota(each) for each in quotas]
            )
            close = exactly(data, ranges, quotas)
            assert close or not at_a_glance, (data, ranges, quotas)
            seen, exact = seen + at_a_glance, exact + close

    assert seen > 0.7 * exact > 200, "a glance that sees nothing is no help"
