"""Measure the CPU time of a review: policies that are slow are reported before every review fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import thread_time
from typing import NamedTuple

from webhook.engine.decide import decide
from webhook.engine.largest_pod import largest_pod_request
from webhook.model.bounded_cache import clear_request_caches
from webhook.model.cluster_view import ClusterView
from webhook.model.usage import UsageView
from webhook.policy.busiest_match import busiest_policies
from webhook.policy.policy_set import PolicySet
from webhook.server.admission_state import AdmissionState, Clock
from webhook.telemetry.telemetry import Telemetry
from webhook.web.limits import MAX_CPU_SECONDS, CpuLimit, CpuLimitError

SLOW_SECONDS = MAX_CPU_SECONDS / 2
"""CPU time from which the policies are reported: another pod, or a slower machine, may take twice as long."""

ROUNDS = 3
MAX_NAMED = 5
"""Policies that are named, the costliest ones."""

MAX_REPEATED = 20
"""Policies that are measured again: one measurement may have been prolonged by garbage collection."""


class ReviewCost(NamedTuple):
    """The CPU time of a review of the largest usual pod, by the policies that may match one pod.

    Attributes:
        policies: The number of these policies.
        seconds: For all of them.
        costliest: Names of the costliest, with what each takes alone, in seconds.
    """

    policies: int
    seconds: float
    costliest: Sequence[tuple[str, float]] = ()

    @property
    def is_slow(self) -> bool:
        """True if it is close to the limit, or above."""
        return self.seconds > SLOW_SECONDS


def measure_review_cost(policies: PolicySet, view: ClusterView, now: datetime) -> ReviewCost:
    """Measure a review by the policies of files; the costliest ones are known if it is slow."""
    busiest = busiest_policies(policies)
    cost = ReviewCost(len(busiest.policies), _least_seconds(busiest, view, now))
    return cost._replace(costliest=_costliest(busiest, view, now)) if cost.is_slow else cost


def _costliest(policies: PolicySet, view: ClusterView, now: datetime) -> list[tuple[str, float]]:
    """Return the names of the costliest policies, with what each takes alone, in seconds."""
    once = {one.name: _review_seconds(PolicySet([one]), view, now) for one in policies.policies}
    repeated = sorted(policies.policies, key=lambda one: -once[one.name])[:MAX_REPEATED]
    without = _least_seconds(PolicySet(), view, now)
    alone = [(one.name, _least_seconds(PolicySet([one]), view, now) - without) for one in repeated]
    return sorted(alone, key=lambda item: -item[1])[:MAX_NAMED]


def _least_seconds(policies: PolicySet, view: ClusterView, now: datetime) -> float:
    """Return the least CPU time of several first reviews."""
    return min(_review_seconds(policies, view, now) for _ in range(ROUNDS))


def _review_seconds(policies: PolicySet, view: ClusterView, now: datetime) -> float:
    """Return the CPU time of a first review, for which nothing is cached."""
    policies = PolicySet(policies.policies, policies.exemptions, policies.workload_kinds)
    request, start = largest_pod_request(), thread_time()
    decide(request, policies, view, UsageView(), now)
    return thread_time() - start


@dataclass(slots=True)
class ReviewCostCheck:
    """Measures a review each time that other policies are active, on the event loop and with the limit of reviews."""

    state: AdmissionState
    telemetry: Telemetry
    clock: Clock
    cpu_limit: CpuLimit
    _measured: PolicySet | None = field(init=False, default=None)

    async def measure_if_changed(self) -> None:
        """Measure, and report policies that are slow."""
        policies = self.state.policies
        if policies is self._measured or not self.state.ready:
            return
        self._measured = policies
        busiest = await asyncio.to_thread(busiest_policies, policies)
        start = thread_time()
        try:
            self.cpu_limit.run(lambda each: _review_seconds(each, self.state.view, self.clock()), busiest)
        except CpuLimitError:
            clear_request_caches()
        cost = ReviewCost(len(busiest.policies), thread_time() - start)
        self.telemetry.record_review_cost(cost.policies, cost.seconds, MAX_CPU_SECONDS, is_slow=cost.is_slow)
