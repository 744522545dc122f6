"""fast_path: whatever it accepts, the exact checks of LimitRanges and quotas accept too, for every generated pod."""

from __future__ import annotations

from random import Random

import msgspec

from tests.builders import Json
from tests.cluster.random_objects import limit_range, pod, quota, usage, with_quota_scope_fields
from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.validation import predict_admission
from webhook.engine.pod_context import PodMutation
from webhook.engine.quota.admission import predict_quota_refusals
from webhook.engine.quota.replicas import ReplicaCharge, charge_replicas
from webhook.errors import QuantityError
from webhook.model.cluster_view import ClusterView
from webhook.model.defaulting import default_limit_range
from webhook.model.fleet import Fleet
from webhook.model.limit_ranges import NamespaceLimitRanges, parse_limit_range
from webhook.model.objects import LimitRange, ResourceQuota
from webhook.model.pod_amounts import container_amounts
from webhook.model.pods import Pod, parse_pod
from webhook.model.remaining_quota import compute_remaining_quota

WORLDS, PODS = 150, 20


def random_ranges(random: Random) -> NamespaceLimitRanges:
    """Return a few LimitRanges as stored, without amounts that the API server rejects."""
    made = [msgspec.convert(limit_range(random, f"lr-{n}"), LimitRange) for n in range(random.choice((0, 1, 2)))]
    return NamespaceLimitRanges(parse_limit_range(default_limit_range(each)) for each in made)


def with_usage(random: Random, data: Json) -> ResourceQuota:
    """Return a quota with random usage."""
    hard = data["spec"]["hard"]
    return msgspec.convert(data | {"status": {"hard": hard, "used": usage(random, hard)}}, ResourceQuota)


def exactly_admitted(pod: Pod, ranges: NamespaceLimitRanges, quotas: list[ResourceQuota]) -> bool:
    """Return the result of the exact checks."""
    try:
        predicted = predict_admission(pod, ranges)
    except QuantityError:
        return False
    return predicted.is_accepted and not predict_quota_refusals(pod, predicted.amounts, quotas)


def test_the_exact_checks_accept_every_pod_that_the_fast_path_accepts() -> None:
    random = Random("fast path")
    fast = exact = 0
    for _ in range(WORLDS):
        ranges = random_ranges(random)
        quotas = [with_usage(random, quota(random, f"q-{n}")) for n in range(random.choice((0, 0, 1, 2)))]
        remaining = [compute_remaining_quota(each) for each in quotas]
        for number in range(PODS):
            data = parse_pod(with_quota_scope_fields(random, pod(random, f"p-{number}")))
            quickly = is_surely_admitted(data, container_amounts(data.spec), ranges, remaining)
            exactly = exactly_admitted(data, ranges, quotas)
            assert exactly or not quickly, (data, ranges, quotas)
            fast, exact = fast + quickly, exact + exactly

    assert fast > 0.7 * exact > 200, "a fast path that recognizes few pods is useless"


def test_the_exact_checks_accept_the_last_of_the_replicas_that_the_fast_path_accepts() -> None:
    random, fast = Random("replicas"), 0
    for _ in range(WORLDS):
        ranges = random_ranges(random)
        quotas = tuple(with_usage(random, quota(random, f"q-{n}")) for n in range(random.choice((1, 2))))
        view = ClusterView(Fleet(()), quotas={"team": quotas})
        for number in range(PODS):
            data = parse_pod(with_quota_scope_fields(random, pod(random, f"p-{number}")))
            charge, replicas = ReplicaCharge("team", PodMutation(data), ranges, ()), random.randint(2, 9)
            if charge.surely_fits(view.remaining_quotas("team"), replicas):
                before_last = charge_replicas(view, charge, replicas - 1)
                assert exactly_admitted(data, ranges, list(before_last.quotas("team"))), (data, ranges, quotas)
                fast += 1

    assert fast > 100, "a fast path that recognizes few replicas is useless"
