"""Pods that were not evaluated at admission, and their creation times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.audit.test_pod_audit import NODE, SIZING, labeled, run_audit
from tests.builders import Json, PodMaker, make_node, make_pod
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject
from webhook.audit.pod_audit import container_uses, created_since
from webhook.cache.informers import empty_view
from webhook.documents.document import Document
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.model.decisions import GpuNeed, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import EvidenceSource
from webhook.model.pods import parse_pod
from webhook.model.usage import ObservedUsage, UsageView
from webhook.policy.policy_set import PolicySet
from webhook.report.costs import NO_COST
from webhook.report.results import ClusterPodDetails, UnevaluatedReason
from webhook.report.workloads import workload_reports

GUARD = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: guard}
spec:
  mode: enforce
  limits: {perPod: [{resource: nvidia.com/gpu, max: 2}]}
"""
WHOLE = make_node("n", labeled("NVIDIA-L40S", 2), **{"nvidia.com/gpu": 2})
SHARES = make_node("m", labeled("NVIDIA-L40S-SHARED", 2, "time-slicing", 4), **{"nvidia.com/gpu.shared": 8})
RECORD = '{"policies": ["sizing"], "digest": "0123456789ab", "changed": ["resources"]}'


def here(pod: PodMaker) -> Json:
    """Return a pod that runs on the node."""
    return pod.spec(nodeName="n").build()


def static(pod: PodMaker) -> PodMaker:
    """Return a static pod as the kubelet reports it."""
    marks = {"config.mirror": "m", "config.source": "file", "config.hash": "h", "config.seen": "2026-01-01T00:00:00Z"}
    for mark, value in marks.items():
        pod.annotate(f"kubernetes.io/{mark}", value)
    return pod.owned_by("Node", "n")


CASES: dict[str, tuple[Json, UnevaluatedReason | None, str]] = {
    "an allowed pod": (here(make_pod().gpus(1)), None, ""),
    "a denied pod": (here(make_pod().gpus(3)), UnevaluatedReason.UNRECORDED, "denied: GPU-L103"),
    "a denied pod with our record": (
        here(make_pod().gpus(3).annotate("rightslice.dev/decision", RECORD)),
        None,
        "",
    ),
    "a static pod": (here(static(make_pod().gpus(1))), UnevaluatedReason.STATIC, "admitted unchanged"),
    "a denied static pod": (
        here(static(make_pod().gpus(3))),
        UnevaluatedReason.STATIC,
        "denied: GPU-L103",
    ),
    "a static pod without GPUs": (here(static(make_pod())), None, ""),
    "a pod in an excluded namespace": (
        here(make_pod().gpus(1).namespace("gpu-operator")),
        UnevaluatedReason.EXCLUDED,
        "admitted unchanged",
    ),
}


@pytest.mark.parametrize(("pod", "missed", "becomes"), CASES.values(), ids=CASES)
def test_missed_admission(pod: Json, missed: UnevaluatedReason | None, becomes: str) -> None:
    standing = standing_of(pod, GUARD)
    assert (standing.unevaluated_reason, standing.would_become) == (missed, becomes)


def standing_of(pod: Json, policy: str, node: Json = NODE) -> ClusterPodDetails:
    [result] = run_audit(node, pod, policy=policy)
    assert result.pod_details is not None
    return result.pod_details


def test_pod_that_would_be_resized_names_the_change() -> None:
    [result] = run_audit(WHOLE, SHARES, here(make_pod().gpus(1)), policy=SIZING)
    assert result.pod_details is not None
    assert result.pod_details.unevaluated_reason is UnevaluatedReason.UNRECORDED
    assert "resources" in result.pod_details.would_become


@pytest.mark.parametrize(("mode", "becomes"), {"enforce": "changed: resources", "audit": "admitted unchanged"}.items())
def test_static_pod_names_the_change_and_saves_nothing(mode: str, becomes: str) -> None:
    """The kubelet runs it from a file: no policy can free its GPU."""
    policy = SIZING.replace("mode: enforce", f"mode: {mode}")
    [result] = run_audit(WHOLE, SHARES, here(static(make_pod().gpus(1))), policy=policy)
    decision = result.decision
    assert (decision.gpu_milli_before, decision.gpu_milli_after, result.gpu_milli_audit_saved) == (1000, 1000, 0)
    assert (decision.outcome, decision.patch, result.findings) == (KeepRequest(KeepReason.MIRROR), (), ())
    assert result.pod_details is not None
    assert result.pod_details.unevaluated_reason is UnevaluatedReason.STATIC
    assert result.pod_details.would_become.startswith(becomes)
    assert "change them there" in UnevaluatedReason.STATIC
    [workload] = workload_reports([result])
    assert (workload.over_requested, workload.savings, workload.recommended) == (NO_COST, NO_COST, "")


def entry(name: str, created: Any) -> SourceObject:
    metadata = {"name": name} | ({"creationTimestamp": created} if created is not None else {})
    data = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return SourceObject(data, Document(data, "f", (1, 1)))


def test_created_since() -> None:
    found = [
        entry("before", "2026-05-31T23:59:59Z"),
        entry("then", "2026-06-01T00:00:00Z"),
        entry("elsewhere", "2026-06-01T01:59:59+02:00"),
        entry("never", None),
        entry("invalid", "yesterday"),
        entry("naive", "2026-06-02T00:00:00"),
    ]
    moment = datetime(2026, 6, 1, tzinfo=UTC)
    names = [each.data["metadata"]["name"] for each in created_since(found, moment) if isinstance(each, SourceObject)]
    assert names == ["then", "never", "invalid", "naive"]
    assert len(list(created_since(found, None))) == len(found)


NOW = datetime(2026, 6, 1, tzinfo=UTC)
OBSERVED = ObservedUsage(6000, 100, 99, sizes_mib=tuple(range(1000, 31_000, 1000)), card_mib=40_000)


def context_with_usage(use: ObservedUsage, now: datetime) -> EvaluationContext:
    """A context in which usage of the container of pod "a" was recorded."""
    return EvaluationContext(PolicySet(), empty_view(), now, UsageView({("team", "Pod/a", "main"): use}))


def fit_by(evidence: EvidenceSource) -> OfferChoice:
    return OfferChoice("nvidia.com/mig-1g.10gb", (), GpuNeed(9728, None, evidence, ""), "sizing")


RISKS = {
    "sized by usage": (fit_by(EvidenceSource.OBSERVED), OBSERVED.risk_ppm(9728)),
    "sized by its declaration": (fit_by(EvidenceSource.DECLARED), None),
    "not right-sized": (KeepRequest(KeepReason.RISK_TOO_HIGH), None),
}


@pytest.mark.parametrize(("outcome", "risk"), RISKS.values(), ids=RISKS)
def test_risk_is_that_of_the_usage_based_recommendation(outcome: OfferChoice | KeepRequest, risk: int | None) -> None:
    pod = parse_pod(make_pod("a").gpus(1).build())
    [use] = container_uses(gpu_requests_of_pod(pod), "team", pod, context_with_usage(OBSERVED, NOW), outcome)
    assert use.memory_mib == 6000
    assert use.risk_ppm == risk


IDLE: dict[str, Any] = {"idle_until": int(NOW.timestamp()), "idle_pods": ("a",)}


def test_only_recorded_pods_of_an_idle_workload_are_idle() -> None:
    for name, idle in {"a": True, "b": False}.items():
        pod = parse_pod(make_pod(name).gpus(1).owned_by("StatefulSet", "s").build())
        uses = UsageView({("team", "StatefulSet/s", "main"): msgspec.structs.replace(OBSERVED, **IDLE)})
        context = EvaluationContext(PolicySet(), empty_view(), NOW, uses)
        assert [
            use.idle
            for use in container_uses(
                gpu_requests_of_pod(pod), "team", pod, context, KeepRequest(KeepReason.RISK_TOO_HIGH)
            )
        ] == [idle]


def test_idle_is_evaluated_at_the_time_of_the_audit() -> None:
    """Recorded usage may be weeks old."""
    pod, then = parse_pod(make_pod("a").gpus(1).build()), msgspec.structs.replace(OBSERVED, **IDLE)
    moments = (NOW, NOW + timedelta(days=1), NOW + timedelta(days=28))
    found = [
        container_uses(
            gpu_requests_of_pod(pod), "team", pod, context_with_usage(then, now), KeepRequest(KeepReason.RISK_TOO_HIGH)
        )
        for now in moments
    ]
    assert [use.idle for (use,) in found] == [True, True, False]
