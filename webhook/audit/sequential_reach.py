"""Reach of pods that are decided one after another: what one pod takes is not free for the next.

Pods that policies right-size come first, in the order of the audit. Then those that keep their GPUs although they could
use a smaller one, on what the first leave. Each takes a slice of the first node where the scheduler would give it one.

What pods hold now stays allocated, and quotas are not charged, as when each pod is evaluated alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from webhook.audit.adjusted_view import with_pod_moved, without_pod_usage
from webhook.audit.evaluate import EvaluationContext, build_admission_request
from webhook.audit.gpu_time import allocated_milli
from webhook.audit.reach import ReachDecision, reach_of_pod
from webhook.engine.decide import decide
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.model.admission import AdmissionRequest
from webhook.model.assumed_pods import AssumedPod
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import AUDIT_MODE, RIGHT_SIZED, OfferChoice
from webhook.model.node_masks import bit_positions, union_masks
from webhook.report.results import CheckResult, PodReach

MAX_KEPT_PODS = 30_000
"""Pods that keep their GPUs and are decided after the others, about 1 KiB each. Further ones are evaluated alone."""


class SequentialReach:
    """Decides the pods of an audit one after another."""

    def __init__(self, context: EvaluationContext) -> None:
        """Start with the cluster as it is."""
        self._context = context
        self._view = context.view
        self._added = 0
        self._kept: dict[int, bytes] = {}

    def add(self, result: CheckResult) -> CheckResult:
        """Add the next pod; if policies right-size it, it takes what they give it.

        Args:
            result: Its result, evaluated alone, with its object.

        Returns:
            The result; of a pod that keeps its GPUs, `decide_kept` returns it with what others leave for it.
        """
        position, self._added = self._added, self._added + 1
        reach = result.pod_details.reach if result.pod_details is not None else None
        if reach is None or not reach.eligible:
            return result
        if reach.outcome == RIGHT_SIZED and self._take_if_right_sized(result):
            return result
        if len(self._kept) >= MAX_KEPT_PODS:
            return _with_reach(result, msgspec.structs.replace(reach, alone=True))
        self._kept[position] = zlib.compress(msgspec.json.encode(result.stored), 1)
        return result

    def decide_kept(self, results: Sequence[CheckResult]) -> list[CheckResult]:
        """Return the results of all pods; those that keep their GPUs take what is left, one after another."""
        decided = list(results)
        for position, compressed in self._kept.items():
            data = msgspec.json.decode(zlib.decompress(compressed))
            request, view, found = self._decide(results[position], data)
            self._take(request, view, found.choice, runs=bool(results[position].node))
            decided[position] = _after_others(results[position], found.reach)
        return decided

    def _take_if_right_sized(self, result: CheckResult) -> bool:
        request, view, found = self._decide(result, dict(result.stored))
        if found.reach is None or found.reach.outcome != RIGHT_SIZED:
            return False
        self._take(request, view, found.choice, runs=bool(result.node))
        return True

    def _decide(self, result: CheckResult, data: dict[str, Any]) -> tuple[AdmissionRequest, ClusterView, ReachDecision]:
        """Decide a pod in the cluster with what earlier ones took; returns that cluster without the pod too."""
        request = build_admission_request(data, self._context)
        assert request.pod is not None
        view = without_pod_usage(self._view, request.namespace, request.pod, runs=bool(result.node))
        alone = msgspec.structs.replace(self._context, view=view)
        decision = decide(request, alone.policies, view, alone.usage, alone.now)
        milli = allocated_milli(result.decision.requested_units, result.node or "", view.fleet)
        return request, view, reach_of_pod(request, decision, milli, alone)

    def _take(self, request: AdmissionRequest, view: ClusterView, choice: OfferChoice | None, *, runs: bool) -> None:
        """Let a pod take a unit of its choice, on a node where it is free.

        Args:
            view: The cluster without the pod.
            runs: Whether the pod has a node now.
        """
        if choice is None or request.pod is None:
            return
        feasible = FeasibleNodes(view, request.pod, tolerate_gpu_taints=True)
        offered = choice.selected & union_masks(offer.nodes for offer in choice.offers)
        if view.is_class_offer(choice.resource):
            self._view = self._view.with_units_of(_as_assumed(choice.resource, offered, feasible))
        elif free := feasible.find_free_nodes(choice.resource, offered):
            node = next(bit_positions(free))
            taken = self._view.with_unit_taken(choice.resource, node, feasible.amounts())
            name = view.fleet.nodes[node].name
            self._view = with_pod_moved(taken, request.namespace, request.pod, name, runs=runs)


def _as_assumed(resource: str, nodes: int, feasible: FeasibleNodes) -> AssumedPod:
    """Return a pod that takes one device of a class, on any of some nodes."""
    cpu_milli, memory, others = feasible.amounts()
    return AssumedPod(
        "", resource, nodes & feasible.nodes, 1, math.inf, cpu_milli=cpu_milli, memory=memory, others=others
    )


def _after_others(result: CheckResult, reach: PodReach | None) -> CheckResult:
    """Return the result of a pod with what others leave for it."""
    before = result.pod_details.reach if result.pod_details is not None else None
    if reach is not None and before is not None and _is_sized(before) and not _is_sized(reach):
        reach = msgspec.structs.replace(reach, displaced=True)
    return _with_reach(result, reach)


def _is_sized(reach: PodReach) -> bool:
    """Return whether policies right-size a pod, or would if they were enforced."""
    return reach.eligible and reach.outcome in (RIGHT_SIZED, AUDIT_MODE)


def _with_reach(result: CheckResult, reach: PodReach | None) -> CheckResult:
    assert result.pod_details is not None
    return msgspec.structs.replace(result, pod_details=msgspec.structs.replace(result.pod_details, reach=reach))
